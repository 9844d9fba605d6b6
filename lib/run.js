// runWhenLeader(): one piece of work, in an election of its own.
//
// It is a registration whose fn is the work, so terms never overlap here, and a lease is kept until the work has
// ended. Work that ends while its term lasts hands the term back; the campaign resumes after a pause.

const { EventEmitter } = require("node:events");
const { inspect } = require("node:util");
const { insideCallback } = require("./callbacks.js");
const { LeadershipLostError } = require("./errors.js");
const { hold } = require("./hold.js");
const { Registration } = require("./registration.js");
const { Term } = require("./term.js");

/** @typedef {import("./election.js").Election} Election */
/** @typedef {import("./errors.js").ElectionError} ElectionError */

/**
 * What a run asks of its environment.
 *
 * @typedef {object} RunWorld
 * @property {() => import("./logger.js").Log} log
 * @property {(term: Term, call: () => unknown) => unknown} call  runs the work
 * @property {(run: Run) => void} onEnd  its name is free again
 */

/** To the pause after a term that was handed back, up to this part is added. */
const PAUSE_JITTER = 1 / 5;
/** How deep an error's causes are looked into. */
const CAUSES = 8;

const nothing = () => {};

/** @extends {EventEmitter<import("../index.js").RunEvents>} */
class Run extends EventEmitter {
  #world;
  #work;
  #workName;
  #pause;
  /** @type {Election | null} */
  #election = null;
  #registration = this.#begin();
  /** Somebody stopped it, or it was refused. */
  #ending = false;
  #done;
  /** @type {(error?: unknown) => void} */
  #settle = () => {};
  #overruns = 0;
  #unlisten = nothing;
  #letGo = nothing;
  #isDone = false;

  /**
   * @param {string} election
   * @param {(term: Term) => unknown} work
   * @param {string} workName
   * @param {{ pause: number, signal: AbortSignal | undefined }} options  pause: milliseconds
   * @param {RunWorld} world
   */
  constructor(election, work, workName, { pause, signal }, world) {
    super({ captureRejections: true });
    /** @readonly */
    this.election = election;
    this.#work = work;
    this.#workName = workName;
    this.#pause = pause;
    this.#world = world;
    /** @type {Promise<void>} */
    this.#done = new Promise((resolve, reject) => {
      this.#settle = (error) => (error === undefined ? resolve(undefined) : reject(error));
    });
    // Whoever does not ask is told by the log.
    this.#done
      .catch(() => {})
      .finally(() => {
        this.#isDone = true;
        this.#letGo();
      });
    if (signal !== undefined) {
      const onAbort = () => this.stop();
      signal.addEventListener("abort", onAbort, { once: true });
      this.#unlisten = () => signal.removeEventListener("abort", onAbort);
    }
  }

  /** Whoever waits for it keeps the process alive. */
  get done() {
    if (this.#letGo === nothing && !this.#isDone) this.#letGo = hold();
    return this.#done;
  }

  get overruns() {
    return this.#overruns;
  }

  isLeader() {
    return this.#election?.standing.leads ?? false;
  }

  async stop() {
    if (this.#election === null) this.#registration.remove(stopped);
    else this.#stopElection(this.#election);
    // The work that waits for its own end would wait for ever. A refusal is for those who ask for `done`.
    if (!insideCallback(this.#registration)) await this.#done.catch(() => {});
  }

  [inspect.custom](
    /** @type {number} */ _depth,
    /** @type {import("node:util").InspectOptions} */ options,
  ) {
    const { election, overruns } = this;
    const term = this.#election?.term;
    const state = this.#ending ? "stopped" : term?.isCurrent() ? "leader" : "follower";
    return `Run ${inspect({ election, state, token: term?.token, overruns }, options)}`;
  }

  // ---- for the environment alone; static, so that users do not meet them ----

  /** @param {Run} run */
  static registrationOf(run) {
    return run.#registration;
  }

  /** A stop that belonged to a test ended the one before. @param {Run} run */
  static beginAgain(run) {
    run.#election = null;
    run.#ending = false;
    run.#registration = run.#begin();
    return run.#registration;
  }

  /**
   * @param {Run} run
   * @param {Election} election
   */
  static bind(run, election) {
    run.#election = election;
  }

  /**
   * It cannot take part.
   *
   * @param {Run} run
   * @param {unknown} error
   */
  static refuse(run, error) {
    run.#settle(error);
    run.#registration.remove(stopped);
  }

  /**
   * @param {Run} run
   * @param {string} event
   * @param {unknown[]} values
   */
  static tell(run, event, values) {
    if (event === "error" && /** @type {ElectionError} */ (values[0]).reason === "overrun") {
      run.#overruns += 1;
      run.#emit("overrun", values);
      return;
    }
    run.#emit(event, values);
  }

  #begin() {
    return new Registration({
      fn: (term) => this.#world.call(term, () => this.#lead(term)),
      deregisteredFn: null,
      onError: (err, _, term) => this.#report(err, term),
      onEnd: () => this.#end(),
    });
  }

  /** @param {Term} term */
  async #lead(term) {
    try {
      await this.#work(term);
    } catch (error) {
      if (!isEndOf(term, error)) this.#report(error, term);
    }
    // A term that is over was not the work's to hand back.
    const election = this.#election;
    if (this.#ending || election?.term?.token !== term.token) return;
    this.#world.log().info("the work has ended, and its term is handed back", {
      election: term.election,
      token: term.token,
      trace: term.traceId,
    });
    election.stepDown(this.#pause * (1 + PAUSE_JITTER * Math.random()));
  }

  /**
   * @param {unknown} err
   * @param {Term} term
   */
  #report(err, term) {
    Term.failed(term, err);
    const how = term.signal.aborted
      ? "the work failed while its term ended"
      : "the work failed, and its term is handed back; it begins again, here or elsewhere";
    this.#world.log().error(how, {
      election: term.election,
      token: term.token,
      trace: term.traceId,
      function: this.#workName,
      err,
    });
  }

  /** @param {Election} election */
  #stopElection(election) {
    this.#ending = true;
    return election.stop();
  }

  /** The work has ended, and does not begin again. */
  #end() {
    this.#ending = true;
    this.#unlisten();
    const left = this.#election?.stop() ?? Promise.resolve();
    left.then(() => {
      this.#world.onEnd(this);
      this.#settle();
    });
  }

  /**
   * @param {string} event
   * @param {unknown[]} values
   */
  #emit(event, values) {
    // An "error" that nobody listens to would be thrown. It is in the log already.
    if (this.listenerCount(/** @type {any} */ (event)) === 0) return;
    try {
      EventEmitter.prototype.emit.call(this, event, ...values);
    } catch (err) {
      this.#listenerFailed(event, err);
    }
  }

  /** An asynchronous listener failed. @param {unknown} error  @param {string | symbol} event */
  [Symbol.for("nodejs.rejection")](error, event) {
    this.#listenerFailed(String(event), error);
  }

  /** @param {string} event  @param {unknown} err */
  #listenerFailed(event, err) {
    this.#world.log().error(`a listener of "${event}" failed; the election goes on`, {
      election: this.election,
      err,
    });
  }
}

/** @param {Term} term */
function stopped(term) {
  return new LeadershipLostError(term.election, term.token, "stopped");
}

/**
 * Whether the work threw only because its term ended: the signal's reason, what came of it, or the database's
 * word that the term is over.
 *
 * @param {Term} term
 * @param {unknown} thrown
 */
function isEndOf(term, thrown) {
  let error = thrown;
  for (let depth = 0; depth < CAUSES && typeof error === "object" && error !== null; depth += 1) {
    /** @type {{ name?: unknown, code?: unknown, election?: unknown, token?: unknown, cause?: unknown }} */
    const { name, code, election, token, cause } = error;
    if (code === "WHENLEADER_LOST" && election === term.election && token === term.token) {
      return true;
    }
    if (term.signal.aborted && name === "AbortError") return true;
    error = cause;
  }
  return false;
}

module.exports = { Run };
