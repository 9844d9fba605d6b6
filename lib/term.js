// One unbroken leadership of this instance, as the application sees it.

/** @typedef {import("./errors.js").LeadershipLostError} LeadershipLostError */

/**
 * What a term asks of its election.
 *
 * @typedef {object} TermSource
 * @property {string} election
 * @property {() => string} instanceId
 * @property {(token: number) => number} remaining
 */

/** @typedef {import("../index.js").Term} PublicTerm */

/** @implements {PublicTerm} */
class Term {
  #source;
  #controller = new AbortController();

  /**
   * @param {TermSource} source
   * @param {number} token
   * @param {string} traceId
   */
  constructor(source, token, traceId) {
    this.#source = source;
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
   * Not a method: only the library ends a term.
   *
   * @param {Term} term
   * @param {LeadershipLostError} lost
   */
  static end(term, lost) {
    term.#controller.abort(lost); // A second abort changes nothing, and the first reason stays.
  }
}

module.exports = { Term };
