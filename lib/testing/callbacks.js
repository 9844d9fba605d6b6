// The callbacks of the application that run in a test: which are pending, and what they threw.

const { MessageChannel } = require("node:worker_threads");

/** Long before a test runner loses its patience; the application's own work may take as long. */
const PATIENCE = 1_000;

// Before anybody fakes them.
const { setTimeout, clearTimeout } = globalThis;

/**
 * @typedef {object} Pending
 * @property {string} election
 * @property {string} functionName
 * @property {Promise<unknown>} end  never rejects
 */

class CallbackTracker {
  /** @type {Set<Pending>} */
  #pending = new Set();
  /** What callbacks threw or rejected with, in their order. @type {unknown[]} */
  errors = [];

  /**
   * @template T
   * @param {string} election
   * @param {string} functionName
   * @param {() => T} call
   * @returns {T}
   */
  run(election, functionName, call) {
    /** @type {unknown} */
    let result;
    try {
      result = call();
    } catch (error) {
      this.errors.push(error);
      throw error;
    }
    if ((typeof result !== "object" && typeof result !== "function") || result === null) {
      return /** @type {T} */ (result);
    }
    // A thenable is asked once only: by this promise, which whoever called gets in its place.
    const promise = result instanceof Promise ? result : new Promise((then) => then(result));
    /** @type {Pending} */
    const pending = {
      election,
      functionName,
      end: promise.then(
        () => this.#pending.delete(pending),
        (error) => {
          this.#pending.delete(pending);
          this.errors.push(error);
        },
      ),
    };
    this.#pending.add(pending);
    return /** @type {T} */ (promise);
  }

  /**
   * Resolves when none runs, of that election or of any.
   *
   * @param {string} call  who waits
   * @param {string} cure  what to do if it takes for ever
   * @param {string} [election]
   */
  async settled(call, cure, election) {
    await turn();
    for (;;) {
      const running = this.#running(election);
      if (running.length === 0) return;
      await this.watched(call, cure, Promise.all(running.map(({ end }) => end)), election);
      // What waited for them begins now.
      await turn();
    }
  }

  /**
   * Waits, and says for whom if that takes long.
   *
   * @template T
   * @param {string} call
   * @param {string} cure
   * @param {Promise<T>} promise
   * @param {string} [election]
   * @param {string} [otherwise]  what is waited for if no callback is running
   * @returns {Promise<T>}
   */
  async watched(call, cure, promise, election, otherwise = "callbacks") {
    const timer = setTimeout(() => {
      const names = this.#running(election).map(({ functionName }) => functionName);
      const whom = names.length === 0 ? otherwise : names.join(", ");
      process.emitWarning(`${call} still waits for ${whom} to end${cure}`, {
        type: "WhenLeaderTestWarning",
      });
    }, PATIENCE);
    try {
      return await promise;
    } finally {
      clearTimeout(timer);
    }
  }

  /** @param {string | undefined} election */
  #running(election) {
    return [...this.#pending].filter(
      (pending) => election === undefined || pending.election === election,
    );
  }
}

/**
 * Lets everything run that needs no timer. A message, since test runners fake everything else that has
 * a turn of the event loop.
 *
 * @returns {Promise<void>}
 */
function turn() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.once("message", () => {
      port1.close();
      resolve();
    });
    port2.postMessage(null);
  });
}

module.exports = { CallbackTracker, turn };
