// The cluster of a process that is alone: it always leads. It has the shape of the native one, so that
// nothing else needs to know the difference, but no thread, no file and no store.

const { randomBytes } = require("node:crypto");
const { after } = require("./timer.js");

/** @typedef {import("./native-types").Dispatch} Dispatch */
/** @typedef {import("./native-types").ElectionSource} ElectionSource */
/** @typedef {import("./native-types").Provider} Provider */

// The native side's defaults, for the case in which nobody asks it.
const DEFAULT_ELECTION = "leader";
const DEFAULT_STOP_TIMEOUT = 15_000;
/** Of runWhenLeader(), where its options do not say. */
const DEFAULT_LEASE = 15_000;
const LONGEST_PAUSE = 5_000;
/** As in the W3C's trace context. */
const TRACE_ID_BYTES = 16;

/** @implements {Provider} */
class LocalCluster {
  /** @type {Set<LocalElection>} */
  #elections = new Set();
  #dispatch;

  /**
   * @param {Dispatch} dispatch
   * @param {() => string} instanceId
   * @param {{ leaseName?: string, stopTimeout?: number }} [config]
   */
  constructor(dispatch, instanceId, config = {}) {
    this.#dispatch = dispatch;
    this.info = {
      leaseName: config.leaseName ?? DEFAULT_ELECTION,
      stopTimeout: config.stopTimeout ?? DEFAULT_STOP_TIMEOUT,
      store: "none: this process is alone and always leads",
      // Only when it is asked for: making it may load the native part.
      get instanceId() {
        return instanceId();
      },
    };
  }

  /**
   * @param {string} name
   * @param {string} [run]  the options of runWhenLeader(), in JSON
   */
  join(name, run) {
    const pause = run === undefined ? 0 : pauseOf(JSON.parse(run));
    /** @type {LocalElection} */
    const election = new LocalElection(name, pause, this.#dispatch, this.info, () =>
      this.#elections.delete(election),
    );
    this.#elections.add(election);
    return election;
  }

  /** Ends it without telling anybody. */
  abandon() {
    for (const election of this.#elections) election.abandon();
  }

  async stop() {
    await Promise.all([...this.#elections].map((election) => election.stop()));
  }
}

/**
 * After work that ended by itself: the same as on a store.
 *
 * @param {{ leaseDuration?: number, campaignInterval?: number }} run
 */
function pauseOf({ leaseDuration = DEFAULT_LEASE, campaignInterval }) {
  return campaignInterval ?? Math.min(LONGEST_PAUSE, leaseDuration / 3);
}

let lastToken = 0;

/**
 * In microseconds, as on every store: whoever writes tokens down sees them grow also over a restart, and when a store
 * is chosen later. Within the process they grow whatever the clock does.
 */
function nextToken() {
  lastToken = Math.max(lastToken + 1, Date.now() * 1_000);
  return lastToken;
}

/** @implements {ElectionSource} */
class LocalElection {
  #name;
  #pause;
  #dispatch;
  #info;
  #onStopped;
  /** Of the present term, or of the last one. */
  #token = nextToken();
  #leads = true;
  /** What waits for the end of the last term's callbacks. @type {(() => void) | null} */
  #onSettled = null;
  /** Keeps a pause from ending. */
  #cancelPause = () => {};
  /** @type {Promise<void> | null} */
  #stopped = null;

  /**
   * @param {string} name
   * @param {number} pause  unless another one is asked for: there is nobody to make way for
   * @param {Dispatch} dispatch
   * @param {{ readonly instanceId: string, stopTimeout: number }} info
   * @param {() => void} onStopped
   */
  constructor(name, pause, dispatch, info, onStopped) {
    this.#name = name;
    this.#onStopped = onStopped;
    this.#pause = pause;
    this.#dispatch = dispatch;
    this.#info = info;
    // As events of the native side: never while the caller is still at work.
    queueMicrotask(() => this.#announce());
  }

  isLeader = () => this.#leads;

  /** @param {number} token */
  remaining(token) {
    return this.#leads && token === this.#token ? Number.POSITIVE_INFINITY : 0;
  }

  guard() {
    return /** @type {const} */ ("alone");
  }

  leader() {
    return { instanceId: this.#info.instanceId, token: this.#token };
  }

  settled() {
    const next = this.#onSettled;
    this.#onSettled = null;
    next?.();
  }

  /** @param {number | null} pause */
  stepDown(pause) {
    if (!this.#leads) return;
    this.#onSettled = () => {
      this.#cancelPause = after(pause ?? this.#pause, () => this.#lead(), { holds: false });
    };
    this.#end("steppedDown");
  }

  stop() {
    if (this.#stopped === null) {
      this.#cancelPause();
      /** @type {Promise<void>} */
      this.#stopped = new Promise((resolve) => {
        if (!this.#leads && this.#onSettled === null) {
          resolve();
          return;
        }
        const noLimit = after(this.#info.stopTimeout, resolve);
        this.#onSettled = () => {
          noLimit();
          resolve();
        };
      });
      this.#end("stopped");
      this.#stopped.then(this.#onStopped);
    }
    return this.#stopped;
  }

  abandon() {
    this.#cancelPause();
    this.#leads = false;
    this.#stopped = Promise.resolve();
  }

  #lead() {
    this.#token = nextToken();
    this.#leads = true;
    this.#announce();
  }

  #announce() {
    if (!this.#leads) return; // It stepped down or stopped in the very turn in which it began.
    const about = { election: this.#name, token: this.#token };
    const info = this.#info;
    const traceId = randomBytes(TRACE_ID_BYTES).toString("hex");
    this.#dispatch({ type: "promoted", ...about, traceId });
    this.#dispatch({
      type: "leaderChanged",
      ...about,
      get instanceId() {
        return info.instanceId;
      },
    });
  }

  /** @param {import("../index.js").LossReason} reason */
  #end(reason) {
    if (!this.#leads) return;
    this.#leads = false;
    this.#dispatch({ type: "demoted", election: this.#name, token: this.#token, reason });
  }
}

module.exports = { LocalCluster };
