// What the application's function gets as its transaction. It is the client's own, but for a gate: once the
// transaction is over, a function that goes on finds it closed, and never a connection that somebody else has by
// then.

const { after } = require("../timer.js");

const NOT_YOURS =
  "the transaction is ended by the library: return from the function to commit it, or throw an error to roll it back";

/** @typedef {(...values: any[]) => any} Method */

class Gate {
  /** @type {unknown} */
  #reason;
  #closed = false;
  #lost;

  /** @param {() => unknown} lost  why the term is over, if it is: asked before the news of it comes */
  constructor(lost) {
    this.#lost = lost;
  }

  /** What asks from now on fails with this. @param {unknown} reason */
  close(reason) {
    if (this.#closed) return;
    this.#closed = true;
    this.#reason = reason;
  }

  get closed() {
    if (!this.#closed) {
      const lost = this.#lost();
      if (lost !== undefined) this.close(lost);
    }
    return this.#closed;
  }

  get reason() {
    return this.#reason;
  }

  /**
   * @template {object} T
   * @param {T} target
   * @param {{ asks: string[], refused: string[], refuse?: Method }} methods  asks: those that send something;
   *   refused: those that would end the transaction; refuse: how one fails when it is too late
   * @returns {T}
   */
  guard(target, { asks, refused, refuse = rejected }) {
    /** @type {T} */
    const guarded = new Proxy(target, {
      get: (_, name) => {
        const value = Reflect.get(target, name, target);
        if (typeof value !== "function" || name === "constructor") return value;
        if (refused.includes(String(name))) return refuses;
        const isAsking = asks.includes(String(name));
        return (/** @type {any[]} */ ...values) => {
          if (isAsking && this.closed) return this.#fail(values, refuse);
          const result = value.apply(target, values);
          return result === target ? guarded : result;
        };
      },
      set: (_, name, value) => Reflect.set(target, name, value, target),
    });
    return guarded;
  }

  /**
   * @param {unknown[]} values
   * @param {Method} refuse
   */
  #fail(values, refuse) {
    const callback = values.at(-1);
    if (typeof callback !== "function") return refuse(this.#reason);
    process.nextTick(callback, this.#reason);
  }
}

/** @type {Method} */
function rejected(reason) {
  return Promise.reject(reason);
}

function refuses() {
  throw new TypeError(NOT_YOURS);
}

/** A client refuses by itself to commit: what was thrown instead of an answer. */
class Uncommitted {
  /** @param {unknown} reason */
  constructor(reason) {
    this.reason = reason;
  }
}

/**
 * Keeps no process alive.
 *
 * @param {number} ms
 * @returns {Promise<void>}
 */
function pause(ms) {
  return new Promise((done) => {
    after(ms, done, { holds: false });
  });
}

module.exports = { Gate, Uncommitted, pause, refuses };
