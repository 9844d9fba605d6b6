// What the application's function gets as its transaction. It is the client's own, but for a gate: once the
// transaction is over, a function that goes on finds it closed, and never a connection that somebody else has by
// then.

const { endsTransaction } = require("./sql.js");

const NOT_YOURS =
  "the transaction is ended by the library: return from the function to commit it, or throw an error to roll it back";
/** `using` and `await using` would give a connection back. Not every Node.js knows them. */
const DISPOSALS = [Symbol.dispose, Symbol.asyncDispose].filter((symbol) => symbol !== undefined);

/** @typedef {(...values: any[]) => any} Method */

/**
 * @typedef {object} Methods
 * @property {string[]} asks  those that send something
 * @property {string[]} [refused]  those that would end the transaction
 * @property {Record<string, unknown>} [own]  what stands for a property of the client; undefined: nothing does
 * @property {Method} [refuse]  how one of those that ask fails when it may not
 */

class Gate {
  /** @type {unknown} */
  #reason;
  #closed = false;
  #lost;
  #verdict;
  /** The error of a statement which may have ended the transaction, whether the function minds or not. @type {{ error: unknown } | null} */
  failed = null;
  /** Those that have not ended. */
  parts = 0;

  /**
   * @param {() => unknown} lost  why the term is over, if it is: asked before the news of it comes
   * @param {(error: any) => import("./sql.js").Verdict} [verdict]  what an error does to a transaction
   */
  constructor(lost, verdict = () => undefined) {
    this.#lost = lost;
    this.#verdict = verdict;
  }

  /** What asks from now on fails with this. @param {unknown} reason */
  close(reason) {
    if (this.#closed) return;
    this.#closed = true;
    this.#reason = reason ?? new Error("the transaction is over");
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
   * @param {unknown} text  of a statement, where it is known
   * @returns {unknown}  why it may not be sent; undefined: it may
   */
  objection(text) {
    if (this.closed) return this.#reason;
    return typeof text === "string" ? objectionTo(text) : undefined;
  }

  /** @param {unknown} error  of a statement of the function's */
  note(error) {
    const verdict = this.#verdict(Object(error));
    if (verdict === undefined) return;
    this.failed = { error };
    // What came after it would not be in the transaction.
    if (verdict === "over") this.close(error);
  }

  /**
   * @template T
   * @param {Promise<T>} answered  of a statement of the function's
   * @returns {Promise<T>}
   */
  noted(answered) {
    return answered.catch((error) => {
      this.note(error);
      throw error;
    });
  }

  /**
   * A savepoint or a transaction within the one that it is for.
   *
   * @template {PromiseLike<unknown>} T
   * @param {T} part
   * @returns {T}
   */
  part(part) {
    this.parts += 1;
    const over = () => {
      this.parts -= 1;
    };
    part.then(over, over);
    return part;
  }

  /**
   * @template {object} T
   * @param {T} target
   * @param {Methods} methods
   * @returns {T}
   */
  guard(target, { asks, refused = [], own = {}, refuse = rejected }) {
    /** @type {T} */
    const guarded = new Proxy(target, {
      get: (_, name) => {
        const isOwn = typeof name === "string" && Object.hasOwn(own, name);
        const value = isOwn ? own[name] : Reflect.get(target, name, target);
        if (typeof value !== "function" || name === "constructor") return value;
        if (refused.includes(String(name)) || DISPOSALS.includes(/** @type {any} */ (name)))
          return refuses;
        if (asks.includes(String(name)))
          return this.#asking(/** @type {Method} */ (value), target, refuse);
        return (/** @type {any[]} */ ...values) => {
          const result = value.apply(target, values);
          return result === target ? guarded : result;
        };
      },
      set: (_, name, value) => Reflect.set(target, name, value, target),
    });
    return guarded;
  }

  /**
   * @param {Method} method
   * @param {object} target
   * @param {Method} refuse
   * @returns {Method}
   */
  #asking(method, target, refuse) {
    return (...values) => {
      const objection = this.objection(textOf(values[0]));
      const callback = values.at(-1);
      if (objection === undefined) {
        if (typeof callback === "function") values[values.length - 1] = this.#noting(callback);
        const result = method.apply(target, values);
        return result instanceof Promise ? this.noted(result) : result;
      }
      if (typeof callback === "function") process.nextTick(callback, objection);
      // Nobody waits for an object that is to be submitted: whoever made it reads it.
      else if (typeof values[0]?.submit === "function") throw objection;
      else return refuse(objection);
    };
  }

  /** @param {Method} callback @returns {Method} */
  #noting(callback) {
    return (error, ...values) => {
      if (error) this.note(error);
      callback(error, ...values);
    };
  }
}

/** Of what clients take as a statement. @param {any} statement */
function textOf(statement) {
  return typeof statement === "string" ? statement : (statement?.text ?? statement?.sql);
}

/** @param {string} text @returns {Error | undefined} */
function objectionTo(text) {
  const end = endsTransaction(text);
  return end === undefined ? undefined : new TypeError(`${end} is refused: ${NOT_YOURS}`);
}

/** @type {Method} */
function rejected(reason) {
  return Promise.reject(reason);
}

function refuses() {
  throw new TypeError(NOT_YOURS);
}

module.exports = { Gate, refuses };
