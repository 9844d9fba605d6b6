// One unbroken leadership of this instance, as the application sees it.

/** @typedef {import("./errors.js").LeadershipLostError} LeadershipLostError */

/**
 * What a term asks of its election.
 *
 * @typedef {object} TermSource
 * @property {string} election
 * @property {() => string} instanceId
 * @property {(token: number) => number} remaining
 * @property {import("./native-types").ElectionSource["guard"]} guard
 */

/** @typedef {import("../index.js").Term} PublicTerm */
/** @typedef {NonNullable<ReturnType<import("./tracing.js").openSpan>>} Span */

/** @implements {PublicTerm} */
class Term {
  #source;
  #span;
  #controller = new AbortController();

  /**
   * @param {TermSource} source
   * @param {number} token
   * @param {string} traceId
   * @param {Span | null} span  that of the term, whose end is for others to tell
   */
  constructor(source, token, traceId, span) {
    this.#source = source;
    this.#span = span;
    /** @readonly */
    this.election = source.election;
    /** @readonly */
    this.token = token;
    /** @readonly */
    this.traceId = traceId;
  }

  get instanceId() {
    return this.#source.instanceId();
  }

  get signal() {
    return this.#controller.signal;
  }

  isCurrent() {
    return this.remaining() > 0;
  }

  remaining() {
    return this.#source.remaining(this.token);
  }

  /**
   * @param {Parameters<PublicTerm["verify"]>[0]} client
   * @param {Parameters<PublicTerm["verify"]>[1]} [options]
   */
  async verify(client, options) {
    return fence().verify(this, this.#guard, client, options);
  }

  /** @type {PublicTerm["transaction"]} */
  async transaction(pool, fn, options) {
    return fence().transaction(this, this.#guard, pool, fn, options);
  }

  #guard = () => this.#source.guard(this.token);

  // Not methods: they are the library's.

  /**
   * A callback runs in the context of the term's span.
   *
   * @template T
   * @param {Term} term
   * @param {() => T} call
   * @returns {T}
   */
  static run(term, call) {
    return term.#span === null ? call() : term.#span.run(call);
  }

  /**
   * @param {Term} term
   * @param {unknown} error
   */
  static failed(term, error) {
    term.#span?.failed(error);
  }

  /**
   * @param {Term} term
   * @param {LeadershipLostError} lost
   */
  static end(term, lost) {
    term.#controller.abort(lost); // A second abort changes nothing, and the first reason stays.
  }
}

/** Most applications never need it. */
const fence = () => require("./fence/index.js");

module.exports = { Term };
