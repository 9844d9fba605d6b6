// The addon as the rest of lib sees it. The addon returns no promises (one that an ending environment
// never settles would be a crash or a hang): an operation that takes time is given a number, and ends with
// the event `done` of that number. Here that becomes a promise again, and the process is held meanwhile.

const { hold } = require("./hold.js");

/** @typedef {import("./native-types").RawNative} RawNative */
/** @typedef {import("./native-types").Native} Native */
/** @typedef {import("./native-types").ClusterInfo} ClusterInfo */
/** @typedef {import("./native-types").ElectionSource} ElectionSource */
/** @typedef {{ resolve: (info: ClusterInfo | undefined) => void, reject: (error: Error) => void }} Operation */

/** @implements {Native} */
class Bridge {
  #raw;
  #lastOperation = 0;
  /** @type {Map<number, Operation>} */
  #operations = new Map();

  /** By the name of an election. @type {Map<string, () => void>} */
  #onLeft = new Map();

  /** @param {RawNative} raw */
  constructor(raw) {
    this.#raw = raw;
  }

  /**
   * @param {import("./native-types").Dispatch} dispatch  must not throw
   * @param {string} logLevel
   */
  attach(dispatch, logLevel) {
    this.#raw.attach((event) => {
      if (event.type === "done") this.#done(event);
      else if (event.type === "left") this.#left(event.election);
      else if (event.type !== "turn") dispatch(event);
    }, logLevel);
  }

  /** @param {string} level */
  setLogLevel(level) {
    this.#raw.setLogLevel(level);
  }

  /**
   * @param {string} json
   * @param {string} source
   * @param {string} baseDir
   */
  checkConfig(json, source, baseDir) {
    return this.#raw.checkConfig(json, source, baseDir);
  }

  /**
   * @param {string} json
   * @param {string} source
   * @param {string} baseDir
   */
  async startCluster(json, source, baseDir) {
    const info = await this.#run((operation) =>
      this.#raw.startCluster(json, source, baseDir, operation),
    );
    if (info === undefined)
      throw new Error("the native side started a cluster, but told nothing of it");
    return info;
  }

  runningCluster() {
    return this.#raw.runningCluster();
  }

  /**
   * @param {string} name
   * @returns {ElectionSource}
   */
  joinElection(name) {
    const raw = this.#raw;
    raw.joinElection(name);
    // An election that was left knows nothing any more; whoever still asks gets the last answer.
    let left = false;
    /** @type {ReturnType<ElectionSource["leader"]>} */
    let lastLeader = null;
    const leader = () => {
      if (!left) lastLeader = raw.leader(name);
      return lastLeader;
    };
    return {
      isLeader: raw.isLeaderFunction(name),
      remaining: (token) => (left ? 0 : raw.remaining(name, token)),
      leader,
      // Also after it was left: callbacks that outlive a stop are waited for, and told of.
      settled: (token) => raw.settled(name, token),
      stepDown: (pause) => {
        if (!left) raw.stepDown(name, pause ?? undefined);
      },
      stop: async () => {
        leader();
        this.#onLeft.set(name, () => {
          left = true;
        });
        await this.#run((operation) => raw.stopElection(name, operation));
      },
    };
  }

  /** @param {number} timeout */
  releaseAllNow(timeout) {
    return this.#raw.releaseAllNow(timeout);
  }

  async stopCluster() {
    await this.#run((operation) => this.#raw.stopCluster(operation));
  }

  defaultInstanceId() {
    return this.#raw.defaultInstanceId();
  }

  /** @param {string} name */
  #left(name) {
    this.#onLeft.get(name)?.();
    this.#onLeft.delete(name);
  }

  /**
   * @param {(operation: number) => void} start
   * @returns {Promise<ClusterInfo | undefined>}
   */
  async #run(start) {
    this.#lastOperation += 1;
    const operation = this.#lastOperation;
    const letGo = hold();
    try {
      return await new Promise((resolve, reject) => {
        this.#operations.set(operation, { resolve, reject });
        start(operation);
      });
    } finally {
      this.#operations.delete(operation);
      letGo();
    }
  }

  /** @param {Extract<import("./native-types").BridgeEvent, { type: "done" }>} event */
  #done({ operation, code, message, info }) {
    const waiting = this.#operations.get(operation);
    if (code === undefined || code === null) waiting?.resolve(info);
    else waiting?.reject(Object.assign(new Error(message), { code }));
  }
}

module.exports = { Bridge };
