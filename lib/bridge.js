// The addon as the rest of lib sees it. The addon returns no promises (one that an ending environment
// never settles would be a crash or a hang): an operation that takes time is given a number, and ends with
// the event `done` of that number. Here that becomes a promise again, and the process is held meanwhile.

const { Client } = require("./client.js");
const { hold } = require("./hold.js");
const { OwnStores, checkStore } = require("./store.js");

/** @typedef {import("./native-types").RawNative} RawNative */
/** @typedef {import("./native-types").Native} Native */
/** @typedef {import("./native-types").ClusterInfo} ClusterInfo */
/** @typedef {import("./native-types").ElectionSource} ElectionSource */
/** @typedef {import("./native-types").ClientAnswer} ClientAnswer */
/** @typedef {{ info?: ClusterInfo, answer?: ClientAnswer, address?: string }} Result */
/** @typedef {{ resolve: (result: Result) => void, reject: (error: Error) => void }} Operation */

/**
 * @typedef {object} Seat
 * @property {boolean} stopping  it was this environment that asked
 * @property {boolean} left      the native side knows nothing of it any more
 * @property {ReturnType<ElectionSource["leader"]>} lastLeader
 */

/**
 * Where JavaScript that is loaded anew finds the bridge of what was loaded before from the same folder: the
 * addon is the same, and hears and tells the newest only.
 */
const ATTACHED = Symbol.for("whenleader.attached");

/** @implements {Native} */
class Bridge {
  #raw;
  #lastOperation = 0;
  /** @type {Map<number, Operation>} */
  #operations = new Map();

  /** What clients' watches hear. @type {Map<number, (hint: ClientAnswer) => void>} */
  #hearing = new Map();
  #stores;

  /** What this environment takes part in, by the name of the election. @type {Map<string, Seat>} */
  #seats = new Map();

  /** A newer bridge has taken its place. */
  #replaced = false;

  /** @param {RawNative} raw */
  constructor(raw) {
    this.#raw = raw;
    this.#stores = new OwnStores(raw);
  }

  /**
   * @param {import("./native-types").Dispatch} dispatch  must not throw
   * @param {string} logLevel
   */
  attach(dispatch, logLevel) {
    /** @type {Map<string, () => void>} */
    const attached = Reflect.get(process, ATTACHED) ?? new Map();
    Object.defineProperty(process, ATTACHED, { value: attached, configurable: true });
    attached.get(__dirname)?.();
    attached.set(__dirname, () => this.#giveWay(dispatch));
    this.#raw.attach((event) => {
      if (event.type === "done") this.#done(event);
      else if (event.type === "left") this.#left(event, dispatch);
      else if (event.type === "store") this.#stores.call(event.call);
      else if (event.type === "hint") this.#hearing.get(event.operation)?.(event.answer);
      else if (event.type !== "turn") {
        if (event.type === "promoted" || event.type === "leaderChanged") this.#saw(event.election);
        dispatch(event);
      }
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
   * @param {{ name: string, options: string }} [run]
   */
  checkElection(json, source, baseDir, run) {
    return this.#raw.checkElection(json, source, baseDir, run);
  }

  /**
   * @param {import("../index.js").LeaseStore} store
   * @param {string} name  for people
   */
  registerStore(store, name) {
    return this.#stores.register(store, name);
  }

  /**
   * @param {string} json
   * @param {string} source
   * @param {string} baseDir
   * @param {object | null} store
   */
  async startCluster(json, source, baseDir, store) {
    const endClaim = store === null ? () => {} : this.#stores.use(store);
    let isKept = false;
    /** @type {ClusterInfo | undefined} */
    let info;
    try {
      ({ info } = await this.#run((operation) =>
        this.#raw.startCluster(json, source, baseDir, operation),
      ));
      isKept = true;
    } finally {
      endClaim(isKept);
    }
    this.#refuseIfReplaced();
    if (info === undefined)
      throw new Error("the native side started a cluster, but told nothing of it");
    return info;
  }

  runningCluster() {
    return this.#raw.runningCluster();
  }

  /** @param {string} options */
  checkRun(options) {
    this.#raw.checkRun(options);
  }

  /**
   * @param {string} name
   * @param {string} [run]  the options of runWhenLeader()
   * @returns {ElectionSource}
   */
  joinElection(name, run) {
    this.#refuseIfReplaced();
    this.#raw.joinElection(name, run);
    return this.#take(name);
  }

  /**
   * @param {import("./native-types").CheckedElection} checked
   * @param {object | null} store  the application's own
   */
  startElection({ election }, store) {
    this.#refuseIfReplaced();
    const endClaim = store === null ? () => {} : this.#stores.use(store);
    let isKept = false;
    try {
      const name = this.#raw.startElection(election);
      isKept = true;
      return { name, source: this.#take(name) };
    } finally {
      endClaim(isKept);
    }
  }

  /**
   * @param {string} name  of the seat
   * @returns {ElectionSource}
   */
  #take(name) {
    const raw = this.#raw;
    /** @type {Seat} */
    const seat = { stopping: false, left: false, lastLeader: null };
    this.#seats.set(name, seat);
    this.#saw(name);
    // An election that was left knows nothing any more; whoever still asks gets the last answer.
    const leader = () => {
      if (!seat.left) seat.lastLeader = raw.leader(name);
      return seat.lastLeader;
    };
    return {
      isLeader: raw.isLeaderFunction(name),
      remaining: (token) => (seat.left ? 0 : raw.remaining(name, token)),
      guard: (token) => (seat.left ? null : raw.guard(name, token)),
      leader,
      // Also after it was left: callbacks that outlive a stop are waited for, and told of.
      settled: (token) => raw.settled(name, token),
      stepDown: (pause) => {
        if (!seat.left) raw.stepDown(name, pause ?? undefined);
      },
      stop: async () => {
        if (seat.left) return;
        leader();
        seat.stopping = true;
        await this.#run((operation) => raw.stopElection(name, operation));
      },
    };
  }

  /** @param {import("./native-types").ServeOptions} options */
  async serve(options) {
    const { address } = await this.#run((operation) => this.#raw.serve(options, operation));
    return address;
  }

  async stopServing() {
    await this.#run((operation) => this.#raw.stopServing(operation));
  }

  releaseAllNow() {
    return this.#raw.releaseAllNow();
  }

  async stopCluster() {
    await this.#run((operation) => this.#raw.stopCluster(operation));
  }

  defaultInstanceId() {
    return this.#raw.defaultInstanceId();
  }

  /**
   * One more process, as it were, that makes raw attempts on a store.
   *
   * @param {import("../index.js").LeaseStore} store
   * @param {{ instanceId: string, limit: number }} how  limit: milliseconds until an operation is given up
   */
  openClient(store, { instanceId, limit }) {
    const number = this.#stores.register(store, checkStore(store));
    const endClaim = this.#stores.use(store);
    const client = this.#raw.openClient(number, instanceId, limit);
    /** @type {import("./client.js").Operations} */
    const operations = {
      run: async (start) => (await this.#run(start)).answer,
      listen: (hear, start) => {
        let operation = 0;
        const ended = this.#run((number) => {
          operation = number;
          this.#hearing.set(number, hear);
          start(number);
        }).finally(() => this.#hearing.delete(operation));
        return { operation, ended };
      },
    };
    return new Client(this.#raw, operations, client, () => endClaim(false));
  }

  #refuseIfReplaced() {
    if (this.#replaced) {
      throw new Error("whenleader was loaded anew in this thread: the older one starts nothing");
    }
  }

  /** The last leader seen is still told when the election is over; nothing can be asked then. */
  #saw(/** @type {string} */ election) {
    const seat = this.#seats.get(election);
    if (seat !== undefined && this.#hasSeat(election)) seat.lastLeader = this.#raw.leader(election);
  }

  /**
   * @param {Extract<import("./native-types").NativeEvent, { type: "left" }>} event
   * @param {import("./native-types").Dispatch} dispatch
   */
  #left(event, dispatch) {
    const name = event.election;
    const seat = this.#seats.get(name);
    if (seat === undefined || this.#hasSeat(name)) return; // An earlier seat was meant.
    seat.left = true;
    this.#seats.delete(name);
    // Nobody here asked for it: another thread of the process stopped the cluster.
    if (!seat.stopping) dispatch(event);
  }

  /** Nothing will be told here any more: what was begun is over. @param {import("./native-types").Dispatch} dispatch */
  #giveWay(dispatch) {
    this.#replaced = true;
    const seats = [...this.#seats];
    this.#seats.clear();
    for (const [, seat] of seats) seat.left = true;
    for (const { resolve } of [...this.#operations.values()]) resolve({});
    for (const [election] of seats) dispatch({ type: "left", election });
  }

  /** @param {string} name */
  #hasSeat(name) {
    try {
      this.#raw.leader(name);
      return true;
    } catch {
      return false;
    }
  }

  /**
   * @param {(operation: number) => void} start
   * @returns {Promise<Result>}
   */
  async #run(start) {
    if (this.#replaced) return {}; // The newer one decides what is stopped.
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
  #done({ operation, code, message, reason, info, answer, address }) {
    const waiting = this.#operations.get(operation);
    if (code === undefined || code === null) waiting?.resolve({ info, answer, address });
    else waiting?.reject(Object.assign(new Error(message), { code, reason }));
  }
}

module.exports = { Bridge };
