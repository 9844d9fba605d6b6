// Ways out of the process, for the main thread of one that leads or may lead. A lease that is not released
// keeps everybody waiting until it expires.
//
// A process may hold several copies of this package (of several versions, or in several realms). They share
// one listener for signals: each with its own would take the others' for the application's.

const { constants } = require("node:os");
const { after } = require("./timer.js");

/** @type {readonly NodeJS.Signals[]} */
const SIGNALS = ["SIGTERM", "SIGINT"];

/** Where the copies find the listener of the first one: a contract between versions, as `Shared` is. */
const SHARED = Symbol.for("whenleader.signals");

/**
 * What one copy asks of the shared listener.
 *
 * @typedef {object} Watch
 * @property {() => void} releaseNow      blocks for a bounded time
 * @property {() => Promise<void>} stop   runs the callbacks, then releases
 * @property {number} stopTimeout         in milliseconds
 * @property {import("./logger.js").Log} log
 */

/** @typedef {{ add: (watch: Watch) => () => void }} Shared */
/** @typedef {Watch & { signals: boolean }} Ways  signals: whether to handle SIGTERM and SIGINT */

/** @implements {Shared} */
class SignalListener {
  /** @type {Set<Watch>} */
  #watches = new Set();
  /** Those that are being stopped because of a signal. @type {Watch[] | null} */
  #stopping = null;

  /**
   * @param {Watch} watch
   * @returns {() => void}  takes it back
   */
  add(watch) {
    if (this.#watches.size === 0) {
      for (const signal of SIGNALS) process.prependListener(signal, this.#onSignal);
    }
    this.#watches.add(watch);
    return () => {
      this.#watches.delete(watch);
      // A second signal must still be heard while others stop.
      if (this.#watches.size === 0) this.#unlisten();
    };
  }

  #unlisten() {
    for (const signal of SIGNALS) process.off(signal, this.#onSignal);
  }

  /** @param {NodeJS.Signals} signal */
  #onSignal = (signal) => {
    if (this.#stopping !== null) {
      this.#finish(signal);
      return;
    }
    if (process.listenerCount(signal) > 1) {
      // The application has its own answer, and calls stopCluster() or exits, which releases. We step
      // aside while it runs: some listeners end the process only if they are the last one.
      process.off(signal, this.#onSignal);
      setImmediate(() => {
        if (this.#watches.size === 0) return;
        process.off(signal, this.#onSignal); // Somebody may have begun to watch meanwhile.
        process.prependListener(signal, this.#onSignal);
      }).unref();
      return;
    }
    this.#stopping = [...this.#watches];
    Promise.all(this.#stopping.map((watch) => stopWithin(watch, signal))).then(() =>
      this.#finish(signal),
    );
  };

  /** Lets the signal do what it would have done without us. @param {NodeJS.Signals} signal */
  #finish(signal) {
    this.#unlisten();
    releaseAll([...(this.#stopping ?? []), ...this.#watches]);
    process.kill(process.pid, signal);
    // Still here: a process with the number 1 (a container's first) gets no signals by default.
    process.exit(128 + constants.signals[signal]);
  }
}

/**
 * So much before the end of `stopTimeout`, in milliseconds: then the native side leaves a lease to its expiry whose
 * callbacks have not ended, and here it is released, since they end with the process.
 */
const LAST_WORD = 100;

/**
 * Resolves when it has stopped, or its time is over. Never rejects.
 *
 * @param {Watch} watch
 * @param {NodeJS.Signals} signal
 * @returns {Promise<void>}
 */
function stopWithin({ stop, stopTimeout, log }, signal) {
  log.info(`${signal}: stopping, then ending`);
  return new Promise((resolve) => {
    const noLimit = after(stopTimeout - Math.min(stopTimeout / 4, LAST_WORD), () => {
      log.warn(
        `${signal}: the stop has not ended within stopTimeout, ${stopTimeout} ms; the process ends, and what still ` +
          "runs ends with it",
      );
      resolve();
    });
    stop()
      .catch((err) => log.warn("the stop failed, and the lease runs out by itself", { err }))
      .then(() => {
        noLimit();
        resolve();
      });
  });
}

/** @returns {Shared} */
function sharedListener() {
  /** @type {Shared | undefined} */
  const existing = Reflect.get(process, SHARED);
  if (existing !== undefined) return existing;
  const listener = new SignalListener();
  Object.defineProperty(process, SHARED, { value: listener, configurable: true });
  return listener;
}

/**
 * @param {Ways} ways
 * @returns {() => void}  takes everything back
 */
function watchExit({ signals, ...watch }) {
  // Before the application's listeners, which may end the process themselves.
  if (exiting.size === 0) process.prependListener("exit", onExit);
  exiting.add(watch);
  const unlisten = signals ? sharedListener().add(watch) : () => {};
  return () => {
    exiting.delete(watch);
    if (exiting.size === 0) process.off("exit", onExit);
    unlisten();
  };
}

/** Those of this copy. @type {Set<Watch>} */
const exiting = new Set();
const onExit = () => releaseAll([...exiting]);

/** One release may be that of many. @param {Watch[]} watches */
function releaseAll(watches) {
  for (const releaseNow of new Set(watches.map((watch) => watch.releaseNow))) releaseNow();
}

module.exports = { watchExit };
