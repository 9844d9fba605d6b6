// One election, as this environment (the main thread or a worker) takes part in it: who leads, the
// present term, and the registrations that hang on it.
//
// The order when a term begins: isLeader() is true, `promoted` is emitted, then every fn runs, in the
// order of registration. When it ends: isLeader() is false, every signal is aborted, `demoted` is
// emitted, then every deregisteredFn runs, and when the last of them has ended the source is told
// (`settled`), which keeps the lease until then.
//
// Events can be late: a process may be frozen between the grant and the news of it. Whether a term still
// lasts is therefore asked of the source, and a term that is over when the news comes never begins here.

const { insideCallback } = require("./callbacks.js");
const { ElectionError, LeadershipLostError } = require("./errors.js");
const { Term } = require("./term.js");
const { openSpan } = require("./tracing.js");

/** @typedef {import("../index.js").LossReason} LossReason */
/** @typedef {import("./native-types").ElectionSource} ElectionSource */
/** @typedef {import("./registration.js").Registration} Registration */
/** @typedef {(event: string, ...values: unknown[]) => void} Emit */

/**
 * All that isLeader() looks at, so that the most frequent question takes the shortest way: a follower is
 * answered by the flag, which events set; a leader asks the source as well, since events can be late.
 */
class Standing {
  /**
   * @param {boolean} leading
   * @param {() => boolean} ask
   */
  constructor(leading, ask) {
    this.leading = leading;
    this.ask = ask;
  }

  get leads() {
    return this.leading && this.ask();
  }

  /** The question is as short as before once it was answered so. @param {() => void} then */
  onFirstTrue(then) {
    const { ask } = this;
    this.ask = () => {
      const leads = ask();
      if (leads) {
        this.ask = ask;
        then();
      }
      return leads;
    };
  }
}

class Election {
  /** @readonly */
  standing = new Standing(false, () => false);

  /** @type {ElectionSource | null} */
  #source = null;
  /** @type {Term | null} */
  #term = null;
  /** Of the term. @type {import("./term.js").Span | null} */
  #span = null;
  /** @type {Set<Registration>} */
  #registrations = new Set();
  /** @type {Promise<void> | null} */
  #stopped = null;
  #emit;
  #instanceId;

  /**
   * @param {string} name
   * @param {() => string} instanceId
   * @param {Emit} emit  to the cluster objects of this election; must not throw
   */
  constructor(name, instanceId, emit) {
    /** @readonly */
    this.name = name;
    this.#instanceId = instanceId;
    this.#emit = emit;
  }

  /** The source may tell of a promotion only after this. @param {ElectionSource} source */
  attach(source) {
    this.#source = source;
    this.standing.ask = source.isLeader;
    // A local cluster leads from the start; the event follows.
    this.standing.leading = source.isLeader();
  }

  get source() {
    if (this.#source === null) throw new Error("the election has no source yet");
    return this.#source;
  }

  get term() {
    return this.#term;
  }

  get instanceId() {
    return this.#instanceId();
  }

  get leader() {
    const term = this.#term;
    // Itself, as soon as that is known here.
    if (term?.isCurrent()) return { instanceId: term.instanceId, token: term.token };
    return this.source.leader();
  }

  get stopping() {
    return this.#stopped !== null;
  }

  // ---- what the source tells ----

  /**
   * @param {number} token
   * @param {string} traceId
   */
  promoted(token, traceId) {
    if (this.stopping || this.#term?.token === token) return;
    if (this.#term !== null) this.#end("expired");
    if (this.source.remaining(token) <= 0) return; // `demoted` is under way.
    this.#span = openSpan(() => {
      const { name: election, instanceId } = this;
      return { election, instanceId, token, traceId };
    });
    const term = this.#newTerm(token, traceId);
    this.#term = term;
    this.standing.leading = true;
    this.#emit("promoted", term);
    // A listener may have ended the term again, by stop() or stepDown().
    for (const registration of [...this.#registrations]) {
      if (this.#term === term) registration.promoted(this.#newTerm(token, traceId));
    }
  }

  /**
   * @param {number} token
   * @param {LossReason} reason
   */
  demoted(token, reason) {
    if (this.#term === null) this.standing.leading = false;
    if (this.#term !== null && this.#term.token <= token) this.#end(reason);
    this.whenCallbacksEnded(token)
      .then(() => this.source.settled(token))
      .catch((error) => this.#warn(`the lease cannot be handed over early: ${error}`, error));
  }

  // ---- what the application asks ----

  /** @param {Registration} registration */
  add(registration) {
    this.#registrations.add(registration);
    // Not before the caller has got what removes it.
    queueMicrotask(() => {
      if (this.#term?.isCurrent()) {
        registration.promoted(this.#newTerm(this.#term.token, this.#term.traceId));
      }
    });
  }

  /** @param {Registration} registration */
  delete(registration) {
    this.#registrations.delete(registration);
  }

  /** @param {number | null} pause  in milliseconds; null: as long as the source finds right */
  stepDown(pause) {
    const token = this.#term?.token;
    this.source.stepDown(pause);
    if (token === undefined) return Promise.resolve();
    this.#end("steppedDown");
    return insideCallback() ? Promise.resolve() : this.whenCallbacksEnded(token);
  }

  /**
   * Ends the part that this environment takes in the election, and its registrations with it.
   *
   * @returns {Promise<void>}
   */
  stop() {
    if (this.#stopped === null) {
      const { promise, resolve } = withResolvers();
      this.#stopped = promise;
      if (this.#term !== null) this.#end("stopped");
      for (const registration of [...this.#registrations]) {
        registration.remove((term) => new LeadershipLostError(this.name, term.token, "stopped"));
      }
      const { source } = this;
      (async () => source.stop())().then(resolve, (error) => {
        // The lease runs out by itself: whoever stops need not care, but should know.
        this.#warn(`the election was not left cleanly: ${error}`, error);
        resolve();
      });
    }
    return this.#stopped;
  }

  /**
   * @param {number} token
   * @returns {Promise<unknown>}
   */
  whenCallbacksEnded(token) {
    const pending = [...this.#registrations].filter((one) => !one.hasEnded(token));
    return Promise.all(pending.map((one) => one.whenEnded(token)));
  }

  // ---- inside ----

  /** @param {LossReason} reason */
  #end(reason) {
    const term = this.#term;
    if (term === null) return;
    this.standing.leading = false;
    this.#term = null;
    const lost = new LeadershipLostError(this.name, term.token, reason);
    const registrations = [...this.#registrations];
    Term.end(term, lost);
    for (const registration of registrations) registration.lost(lost);
    this.#emit("demoted", lost, term);
    for (const registration of registrations) registration.advance();
    const span = this.#span;
    this.#span = null;
    if (span !== null) {
      span.demoted(reason);
      this.whenCallbacksEnded(term.token).then(() => span.end());
    }
  }

  /**
   * @param {string} message
   * @param {unknown} cause
   */
  #warn(message, cause) {
    this.#emit(
      "error",
      new ElectionError("WHENLEADER_STORE", message, { election: this.name, cause }),
    );
  }

  /**
   * @param {number} token
   * @param {string} traceId
   */
  #newTerm(token, traceId) {
    return new Term(
      {
        election: this.name,
        instanceId: this.#instanceId,
        remaining: (asked) => (this.standing.leading ? this.source.remaining(asked) : 0),
        guard: (asked) => this.source.guard(asked),
      },
      token,
      traceId,
      this.#span,
    );
  }
}

/** @returns {{ promise: Promise<void>, resolve: () => void }} */
function withResolvers() {
  /** @type {() => void} */
  let resolve = () => {};
  /** @type {Promise<void>} */
  const promise = new Promise((done) => {
    resolve = done;
  });
  return { promise, resolve };
}

module.exports = { Election, Standing };
