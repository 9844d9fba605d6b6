// runWhenLeader(): one piece of work, in an election of its own.
//
// It is a registration whose fn is the work, so terms never overlap here, and a lease is kept until the work has
// ended. Work that ends while its term lasts hands the term back; the campaign resumes after a pause.

const { EventEmitter } = require("node:events");
const { inspect } = require("node:util");
const { insideCallback } = require("./callbacks.js");
const { isEndOf } = require("./ending.js");
const { LeadershipLostError } = require("./errors.js");
const { hold } = require("./hold.js");
const { Registration } = require("./registration.js");
const { onAbort } = require("./signal.js");
const { Term } = require("./term.js");

/** @typedef {import("./election.js").Election} Election */
/** @typedef {import("./errors.js").ElectionError} ElectionError */

/**
 * What a run asks of its environment.
 *
 * @typedef {object} RunWorld
 * @property {() => import("./logger.js").Log} log
 * @property {(term: Term, call: () => unknown) => unknown} call  runs the work
 * @property {(error: unknown) => void} failed  the work threw an error of its own
 * @property {(run: Run) => void} onStop  the application wants no more of it
 * @property {(run: Run) => void} onEnd  its name is free again
 */

const nothing = () => {};

/** @extends {EventEmitter<import("../index.js").RunEvents>} */
class Run extends EventEmitter {
  #world;
  #work;
  #workName;
  #signal;
  #overruns = 0;
  #life;

  /**
   * @param {string} election
   * @param {(term: Term) => unknown} work
   * @param {string} workName
   * @param {AbortSignal | undefined} signal
   * @param {RunWorld} world
   */
  constructor(election, work, workName, signal, world) {
    super({ captureRejections: true });
    /** @readonly */
    this.election = election;
    this.#work = work;
    this.#workName = workName;
    this.#signal = signal;
    this.#world = world;
    this.#life = this.#begin();
  }

  /** Whoever waits for it keeps the process alive. */
  get done() {
    return this.#life.held();
  }

  get overruns() {
    return this.#overruns;
  }

  isLeader() {
    return this.#life.election?.standing.leads ?? false;
  }

  async stop() {
    const life = this.#life;
    this.#world.onStop(this);
    life.stop();
    // The work that waits for its own end would wait for ever. A refusal is for those who ask for `done`.
    if (!insideCallback(life.registration)) await life.done.catch(() => {});
  }

  [inspect.custom](
    /** @type {number} */ _depth,
    /** @type {import("node:util").InspectOptions} */ options,
  ) {
    const { election, overruns } = this;
    const life = this.#life;
    const term = life.election?.term;
    const state = life.isEnding ? "stopped" : term?.isCurrent() ? "leader" : "follower";
    return `Run ${inspect({ election, state, token: term?.token, overruns }, options)}`;
  }

  // ---- for the environment alone; static, so that users do not meet them ----

  /** @param {Run} run */
  static electionOf(run) {
    return run.#life.election;
  }

  /** @param {Run} run */
  static isEnding(run) {
    return run.#life.isEnding;
  }

  /** @param {Run} run */
  static registrationOf(run) {
    return run.#life.registration;
  }

  /** A stop that belonged to a test ended the life before. @param {Run} run */
  static beginAgain(run) {
    run.#life = run.#begin();
    return run.#life.registration;
  }

  /**
   * @param {Run} run
   * @param {Election} election
   * @param {() => Promise<void>} stop  leaves it
   */
  static bind(run, election, stop) {
    run.#life.bind(election, stop);
  }

  /**
   * Stops it. Resolves when its lease is released, or left to its expiry: its work may go on.
   *
   * @param {Run} run
   */
  static leave(run) {
    return run.#life.stop();
  }

  /**
   * It cannot take part.
   *
   * @param {Run} run
   * @param {unknown} error
   */
  static refuse(run, error) {
    run.#life.refuse(error);
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
    const life = new Life(
      new Registration({
        fn: (term) => this.#world.call(term, () => this.#lead(term)),
        deregisteredFn: null,
        onError: (err, _, term) => this.#report(err, term),
        onEnd: () => life.end(),
      }),
      this.#signal,
      () => this.#world.onStop(this),
      () => this.#world.onEnd(this),
    );
    return life;
  }

  /** @param {Term} term */
  async #lead(term) {
    try {
      await this.#work(term);
    } catch (error) {
      if (!isEndOf(term, error)) this.#report(error, term);
    } finally {
      this.#handBack(term);
    }
  }

  /** A term that is over is not the work's to hand back. @param {Term} term */
  #handBack({ token, election: name, traceId: trace }) {
    const { election, isEnding } = this.#life;
    if (isEnding || election?.term?.token !== token) return;
    this.#world.log().info("the work has ended, and its term is handed back", {
      election: name,
      token,
      trace,
    });
    // For as long as the campaign interval says.
    election.stepDown(null);
  }

  /**
   * @param {unknown} err
   * @param {Term} term
   */
  #report(err, term) {
    Term.failed(term, err);
    this.#world.failed(err);
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

/** From its begin to its end: of most runs there is one; tests end one and begin another. */
class Life {
  /** @type {Election | null} */
  election = null;
  /** Somebody stopped it, or it was refused. */
  isEnding = false;
  /** @type {(error?: unknown) => void} */
  #settle = nothing;
  #leave = async () => {};
  #unlisten = nothing;
  #letGo = nothing;
  #isOver = false;
  #onEnd;

  /**
   * @param {Registration} registration
   * @param {AbortSignal | undefined} signal
   * @param {() => void} onAborted
   * @param {() => void} onEnd
   */
  constructor(registration, signal, onAborted, onEnd) {
    this.registration = registration;
    this.#onEnd = onEnd;
    /** @type {Promise<void>} */
    this.done = new Promise((resolve, reject) => {
      this.#settle = (error) => (error === undefined ? resolve(undefined) : reject(error));
    });
    // Whoever does not ask is told by the log.
    this.done.catch(nothing);
    if (signal !== undefined) {
      this.#unlisten = onAbort(signal, () => {
        onAborted();
        this.stop();
      });
    }
  }

  held() {
    if (this.#letGo === nothing && !this.#isOver) this.#letGo = hold();
    return this.done;
  }

  /**
   * @param {Election} election
   * @param {() => Promise<void>} leave
   */
  bind(election, leave) {
    this.election = election;
    this.#leave = leave;
    if (this.isEnding) leave();
  }

  async stop() {
    this.isEnding = true;
    if (this.election === null) this.registration.remove(stopped);
    else await this.#leave();
  }

  /** @param {unknown} error */
  refuse(error) {
    this.#settle(error);
    this.stop();
  }

  /** The work has ended, and does not begin again. */
  end() {
    this.isEnding = true;
    this.#unlisten();
    // One that has no election yet must not get one in between.
    if (this.election === null) this.#finish();
    else this.#leave().then(() => this.#finish());
  }

  #finish() {
    this.#isOver = true;
    this.#letGo();
    this.#onEnd();
    this.#settle();
  }
}

/** @param {Term} term */
function stopped(term) {
  return new LeadershipLostError(term.election, term.token, "stopped");
}

module.exports = { Run };
