// One call of whenLeader(): its two callbacks, and when to run them.
//
// A registration is told of terms at once (`promoted`, `lost`), and runs its callbacks one after the
// other (`advance`): deregisteredFn waits for a pending fn, and the next fn for a pending deregisteredFn.
// For each fn that ran, deregisteredFn runs exactly once. If several terms pass while a callback is
// pending, only the newest is of interest. A term that is over by the time its fn is due is passed over:
// the news of its end is late. It knows no clock, no election and no log.

const { runCallback } = require("./callbacks.js");
const { Term } = require("./term.js");

/** @typedef {import("./errors.js").LeadershipLostError} LeadershipLostError */

/**
 * @typedef {object} Callbacks
 * @property {(term: Term) => unknown} fn
 * @property {((lost: LeadershipLostError, term: Term) => unknown) | null} deregisteredFn
 * @property {(error: unknown, which: string, term: Term) => void} onError  must not throw
 * @property {() => void} onEnd  the registration was removed, and its callbacks have ended
 */

class Registration {
  #callbacks;
  /** The term that fn has yet to be run for. @type {Term | null} */
  #next = null;
  /** The term that fn was run for, until its deregisteredFn has ended. @type {Term | null} */
  #current = null;
  /** A callback is running. */
  #busy = false;
  #removed = false;
  #ended = false;
  /** @type {{ token: number, resolve: () => void }[]} */
  #waiting = [];

  /** @param {Callbacks} callbacks */
  constructor(callbacks) {
    this.#callbacks = callbacks;
  }

  get removed() {
    return this.#removed;
  }

  /** It was removed, and its callbacks have ended. */
  get ended() {
    return this.#ended;
  }

  /**
   * This instance leads.
   *
   * @param {Term} term  of this registration alone
   */
  promoted(term) {
    if (this.#removed) return;
    this.#next = term;
    this.#advance();
  }

  /**
   * It no longer does. Only aborts the signal, so that every registration learns of it before the first
   * callback runs; `advance` follows.
   *
   * @param {LeadershipLostError} lost
   */
  lost(lost) {
    if (this.#next !== null) Term.end(this.#next, lost);
    this.#next = null;
    if (this.#current !== null) Term.end(this.#current, lost);
  }

  /** Runs what is due. */
  advance() {
    this.#advance();
  }

  /**
   * No fn runs from now on.
   *
   * @param {(term: Term) => LeadershipLostError} reason
   */
  remove(reason) {
    if (this.#removed) return;
    this.#removed = true;
    this.#next = null;
    if (this.#current !== null) Term.end(this.#current, reason(this.#current));
    this.#advance();
  }

  /**
   * Resolves when all callbacks of the terms up to this one have ended.
   *
   * @returns {Promise<void>}
   */
  whenEnded(token = Number.POSITIVE_INFINITY) {
    if (this.hasEnded(token)) return Promise.resolve();
    return new Promise((resolve) => this.#waiting.push({ token, resolve }));
  }

  hasEnded(token = Number.POSITIVE_INFINITY) {
    return this.#current === null || this.#current.token > token;
  }

  #advance() {
    while (!this.#busy) {
      const { fn, deregisteredFn } = this.#callbacks;
      const term = this.#current;
      if (term === null) {
        if (this.#next === null) break;
        const next = this.#next;
        this.#next = null;
        if (!next.isCurrent()) break;
        this.#current = next;
        this.#run("fn", next, () => fn(next));
      } else {
        if (!term.signal.aborted) break;
        const lost = term.signal.reason;
        this.#run(
          "deregisteredFn",
          term,
          () => deregisteredFn?.(lost, term),
          () => {
            this.#current = null;
          },
        );
      }
    }
    this.#tellWaiting();
  }

  /**
   * @param {string} which
   * @param {Term} term
   * @param {() => unknown} call
   * @param {() => void} [after]
   */
  #run(which, term, call, after) {
    this.#busy = true;
    const end = () => {
      this.#busy = false;
      after?.();
    };
    const pending = runCallback(this, term, call, (error) =>
      this.#callbacks.onError(error, which, term),
    );
    if (pending === undefined) {
      end();
    } else {
      pending.then(() => {
        end();
        this.#advance();
      });
    }
  }

  #tellWaiting() {
    if (this.#waiting.length > 0) {
      const ended = this.#waiting.filter(({ token }) => this.hasEnded(token));
      this.#waiting = this.#waiting.filter(({ token }) => !this.hasEnded(token));
      for (const { resolve } of ended) resolve();
    }
    if (this.#removed && !this.#ended && this.#current === null) {
      this.#ended = true;
      this.#callbacks.onEnd();
    }
  }
}

module.exports = { Registration };
