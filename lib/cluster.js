// What useCluster() gives: one election, for an application that asks questions or listens.
//
// A cluster object may be had before the cluster starts, and lives on when it is stopped and started
// again; the Election behind it comes and goes.

const { EventEmitter } = require("node:events");
const { inspect } = require("node:util");
const { Standing } = require("./election.js");
const { ElectionError } = require("./errors.js");

/** @typedef {import("./election.js").Election} Election */
/** @typedef {import("./environment.js").Environment} Environment */
/** @typedef {import("../index.js").Term} Term */
/** @typedef {{ resolve: (term: Term) => void, reject: (error: unknown) => void }} Waiter */

/** A year, which is for ever; far more would overflow the clock of the native side. */
const LONGEST_PAUSE = 365 * 24 * 60 * 60 * 1000;

class Cluster extends EventEmitter {
  #environment;
  #name;
  /** @type {Election | null} */
  #election = null;
  /** Before the cluster was stopped and started again; it still knows its last leader. @type {Election | null} */
  #previous = null;
  /** As long as it has no election. */
  #standingBefore;
  #standing;
  /** @type {Set<Waiter>} */
  #waiters = new Set();

  /**
   * @param {Environment} environment
   * @param {string | undefined} name  undefined: the default election, whatever its name
   */
  constructor(environment, name) {
    super({ captureRejections: true });
    this.#environment = environment;
    this.#name = name;
    this.#standingBefore = new Standing(true, () => environment.leadsAlone());
    this.#standing = this.#standingBefore;
  }

  get election() {
    return this.#name ?? this.#election?.name ?? this.#environment.defaultElection;
  }

  isLeader() {
    return this.#standing.leads;
  }

  getInstanceId() {
    return this.#environment.instanceId;
  }

  getLeader() {
    return this.#election?.leader ?? this.#previous?.leader ?? null;
  }

  /**
   * @param {{ timeout?: number, signal?: AbortSignal }} [options]
   * @returns {Promise<Term>}
   */
  async waitUntilLeader(options = {}) {
    const { timeout, signal } = checkWaitOptions(options);
    if (signal?.aborted) throw signal.reason;
    const term = this.#election?.term;
    if (term?.isCurrent()) {
      this.#environment.ledFor("waitUntilLeader()");
      return term;
    }
    if (this.#environment.isLeft(this)) throw this.#stoppedError();
    const { after, hold } = this.#environment.waiting;
    /** @type {(() => void)[]} */
    const cleanups = [hold()];
    try {
      return await new Promise((resolve, reject) => {
        const waiter = { resolve, reject };
        this.#waiters.add(waiter);
        cleanups.push(() => this.#waiters.delete(waiter));
        if (timeout !== undefined) {
          cleanups.push(after(timeout, () => reject(this.#timeoutError(timeout))));
        }
        if (signal !== undefined) {
          const onAbort = () => reject(signal.reason);
          signal.addEventListener("abort", onAbort, { once: true });
          cleanups.push(() => signal.removeEventListener("abort", onAbort));
        }
      });
    } finally {
      for (const cleanup of cleanups) cleanup();
    }
  }

  /** @param {{ pause?: number }} [options] */
  async stepDown(options = {}) {
    const pause = checkPause(options);
    const election = this.#election ?? (await this.#environment.whenBound(this));
    if (election.stopping) return;
    await election.stepDown(pause);
  }

  async stop() {
    if (this.#election !== null) await this.#environment.stopElection(this.#election);
    else await this.#environment.stopBeforeStart(this);
  }

  /** An asynchronous listener failed. @param {unknown} error  @param {string | symbol} event */
  [Symbol.for("nodejs.rejection")](error, event) {
    this.#environment.listenerFailed(this.election, String(event), error);
  }

  [inspect.custom](
    /** @type {number} */ _depth,
    /** @type {import("node:util").InspectOptions} */ options,
  ) {
    const election = this.#election;
    const shown = {
      election: this.election,
      state: election === null ? this.#environment.state : stateOf(election),
      token: election?.term?.token,
      leader: this.getLeader(),
      store: this.#environment.store,
    };
    return `Cluster ${inspect(shown, options)}`;
  }

  // ---- for the environment alone; static, so that users do not meet them ----

  /** @param {Cluster} cluster */
  static electionOf(cluster) {
    return cluster.#election;
  }

  /** @param {Cluster} cluster */
  static nameOf(cluster) {
    return cluster.#name;
  }

  /**
   * @param {Cluster} cluster
   * @param {Election | null} election
   */
  static bind(cluster, election) {
    cluster.#election = election;
    cluster.#standing = election?.standing ?? cluster.#standingBefore;
  }

  /** The cluster is started again. @param {Cluster} cluster */
  static unbind(cluster) {
    cluster.#previous = cluster.#election ?? cluster.#previous;
    Cluster.bind(cluster, null);
  }

  /** As if it had never had an election. @param {Cluster} cluster */
  static forget(cluster) {
    cluster.#previous = null;
    Cluster.bind(cluster, null);
  }

  /**
   * @param {Cluster} cluster
   * @param {Term} term
   */
  static endWait(cluster, term) {
    if (!term.isCurrent()) return false; // A listener of another cluster object took too long.
    const waiters = [...cluster.#waiters];
    for (const { resolve } of waiters) resolve(term);
    return waiters.length > 0;
  }

  /** @param {Cluster} cluster */
  static giveUpWait(cluster) {
    if (cluster.#waiters.size === 0) return;
    const error = cluster.#stoppedError();
    for (const { reject } of [...cluster.#waiters]) reject(error);
  }

  #stoppedError() {
    const { election } = this;
    return new ElectionError(
      "WHENLEADER_STOPPED",
      `the election "${election}" was stopped in this process before it led`,
      { election },
    );
  }

  /** @param {number} timeout */
  #timeoutError(timeout) {
    const { election } = this;
    const leader = this.getLeader();
    return new ElectionError(
      "WHENLEADER_TIMEOUT",
      `this instance did not become the leader of "${election}" within ${timeout} ms; ` +
        (leader === null
          ? "no leader has been seen"
          : `the last leader seen is ${leader.instanceId} (term ${leader.token})`),
      { election },
    );
  }
}

/** @param {Election} election */
function stateOf(election) {
  if (election.stopping) return "stopped";
  // Not as isLeader() asks: who only shows it does not act on it.
  return election.term?.isCurrent() ? "leader" : "follower";
}

/**
 * @param {unknown} options
 * @returns {{ timeout?: number, signal?: AbortSignal }}
 */
function checkWaitOptions(options) {
  const { timeout, signal } = checkOptions("waitUntilLeader", options);
  if (timeout !== undefined && (typeof timeout !== "number" || !(timeout >= 0))) {
    throw new TypeError(
      `waitUntilLeader({ timeout }) must be a number of milliseconds, not ${inspect(timeout)}`,
    );
  }
  if (signal !== undefined && !isAbortSignal(signal)) {
    throw new TypeError(
      `waitUntilLeader({ signal }) must be an AbortSignal, not ${inspect(signal)}`,
    );
  }
  return { timeout: timeout === Number.POSITIVE_INFINITY ? undefined : timeout, signal };
}

/**
 * Also one of another realm, or of a polyfill.
 *
 * @param {unknown} value
 * @returns {value is AbortSignal}
 */
function isAbortSignal(value) {
  const { aborted, addEventListener, removeEventListener } = Object(value);
  return (
    typeof aborted === "boolean" &&
    typeof addEventListener === "function" &&
    typeof removeEventListener === "function"
  );
}

/**
 * @param {unknown} options
 * @returns {number | null}
 */
function checkPause(options) {
  const { pause } = checkOptions("stepDown", options);
  if (pause === undefined) return null;
  if (typeof pause !== "number" || !Number.isFinite(pause) || pause < 0) {
    throw new TypeError(
      `stepDown({ pause }) must be a number of milliseconds, 0 or more, not ${inspect(pause)}`,
    );
  }
  return Math.min(pause, LONGEST_PAUSE);
}

/**
 * @param {string} name
 * @param {unknown} options
 * @returns {Record<string, unknown>}
 */
function checkOptions(name, options) {
  if (typeof options !== "object" || options === null) {
    throw new TypeError(`${name}() takes an object of options, not ${inspect(options)}`);
  }
  return /** @type {Record<string, unknown>} */ (options);
}

module.exports = { Cluster, isAbortSignal };
