// LeaderElection: one election with a Leader Election API, apart from the cluster of the process. Whoever imports
// the package loads this file, and everything else when the first one is made.
//
// It is a registration whose callbacks are the two hooks, in an election of its own: so hooks never overlap,
// and a lease is kept until onDemoted has ended.

const { EventEmitter } = require("node:events");
const { inspect } = require("node:util");

/** @typedef {import("./election.js").Election} Election */
/** @typedef {import("./registration.js").Registration} Registration */
/** @typedef {() => unknown} Hook */
/** @typedef {{ (hook: Hook): Hook, hook: Hook | null }} Slot */
/** @typedef {{ election: Election, stop: () => Promise<void> }} Running */

const parts = () => ({
  ...require("./callbacks.js"),
  ...require("./errors.js"),
  ...require("./hold.js"),
  ...require("./json.js"),
  ...require("./logger.js"),
  ...require("./registration.js"),
  ...require("./timer.js"),
  environment: require("./main.js").environment,
});

/** In errors, where the options are spoken of. */
const SOURCE = "new LeaderElection()";

class LeaderElection extends EventEmitter {
  #parts = parts();
  #log;
  /** null: the environment does not say with whom to elect. */
  #checked;
  /** @type {Running | null} */
  #running = null;
  /** The end of all before. @type {Promise<void>} */
  #ending = Promise.resolve();
  /** @type {Promise<void> | null} */
  #starting = null;
  /** @type {string | null} */
  #lastLeader = null;
  /** @type {Set<(leads: boolean) => void>} */
  #waiters = new Set();
  /** Those whose hooks have not ended: they may outlive a stop, and hooks never overlap. @type {Set<Registration>} */
  #registrations = new Set();
  #promoted = slot("onPromoted");
  #demoted = slot("onDemoted");

  /** @param {import("../index.js").LeaderElectionOptions} [options] */
  constructor(options = {}) {
    super({ captureRejections: true });
    if (typeof options !== "object" || options === null || Array.isArray(options)) {
      throw new TypeError(`${SOURCE} takes an object of options, not ${inspect(options)}`);
    }
    const { Log, checkLogger, environment, toJson } = this.#parts;
    const logger = checkLogger(options.logger);
    this.#log =
      logger === undefined ? environment.log : new Log(logger, process.env.WHENLEADER_LOG);
    const given = Object.entries(options).filter(([, value]) => value !== undefined);
    const config = { ...Object.fromEntries(given), type: "LeaderApiCluster" };
    this.#checked = this.#check(toJson(config, (_, key) => (key === "logger" ? null : undefined)));
  }

  /** @param {string} json */
  #check(json) {
    const { environment, saysUnset } = this.#parts;
    try {
      return environment.checkApart(json, SOURCE);
    } catch (error) {
      if (!saysUnset(error)) throw error;
      const { message } = /** @type {Error} */ (error);
      this.#log.warn(`leader election is disabled, and isLeader stays false: ${message}`);
      return null;
    }
  }

  get isLeader() {
    return this.#running?.election.standing.leads ?? false;
  }

  get currentLeader() {
    return this.#running?.election.leader?.instanceId ?? this.#lastLeader;
  }

  get resource() {
    return this.#checked?.info.leaseName ?? null;
  }

  get identity() {
    return this.#checked?.info.instanceId ?? null;
  }

  get onPromoted() {
    return this.#promoted;
  }

  set onPromoted(hook) {
    set(this.#promoted, "onPromoted", hook);
  }

  get onDemoted() {
    return this.#demoted;
  }

  set onDemoted(hook) {
    set(this.#demoted, "onDemoted", hook);
  }

  async start() {
    const checked = this.#checked;
    if (checked === null || this.#running !== null) return;
    if (this.#starting === null) {
      // The identity's one session ends before the next begins, unless it waits for this very call.
      const before = this.#parts.insideCallback() ? Promise.resolve() : this.#ending;
      const starting = before.then(() => {
        if (this.#starting === starting) this.#begin(checked);
      });
      this.#starting = starting;
      starting
        .catch(() => {})
        .finally(() => {
          if (this.#starting === starting) this.#starting = null;
        });
    }
    await this.#starting;
  }

  async stop() {
    this.#starting = null;
    for (const end of [...this.#waiters]) end(false);
    const running = this.#running;
    if (running !== null) {
      this.#lastLeader = this.currentLeader;
      this.#running = null;
      this.#ending = Promise.all([this.#ending, running.stop()]).then(() => {});
    }
    if (!this.#parts.insideCallback()) await this.#ending;
  }

  /**
   * @param {number} [timeout]
   * @returns {Promise<boolean>}
   */
  async waitUntilLeader(timeout) {
    if (timeout !== undefined && (typeof timeout !== "number" || !(timeout >= 0))) {
      throw new TypeError(
        `waitUntilLeader(timeout) must be a number of milliseconds, not ${inspect(timeout)}`,
      );
    }
    if (this.#checked === null) return false;
    if (this.isLeader) return true;
    const { after, hold } = this.#parts;
    const letGo = hold();
    let cancel = () => {};
    /** @type {(leads: boolean) => void} */
    let end = () => {};
    try {
      return await new Promise((resolve) => {
        end = resolve;
        this.#waiters.add(end);
        if (timeout !== undefined && timeout !== Number.POSITIVE_INFINITY) {
          cancel = after(timeout, () => resolve(false));
        }
      });
    } finally {
      this.#waiters.delete(end);
      cancel();
      letGo();
    }
  }

  /** @param {import("./native-types").CheckedElection} checked */
  #begin(checked) {
    const { resource } = this;
    const { Registration, environment } = this.#parts;
    const running = environment.startApart(checked, {
      log: this.#log,
      tell: (event, ...values) => {
        if (this.#running === running || event === "demoted") this.#tell(event, values);
      },
      // Nobody here asked for it: this module was loaded anew.
      onLeft: () => {
        if (this.#running === running) this.stop();
      },
    });
    this.#running = running;
    const { election } = running;
    let wasPromoted = false;
    const promote = (/** @type {import("../index.js").Term} */ term) => {
      wasPromoted = term.isCurrent();
      return wasPromoted ? this.#promoted.hook?.() : undefined;
    };
    /** @type {Registration} */
    const registration = new Registration({
      fn: (term) => {
        wasPromoted = false;
        const others = [...this.#registrations].filter((other) => other !== registration);
        if (others.length === 0) return promote(term);
        return Promise.all(others.map((other) => other.whenEnded())).then(() => promote(term));
      },
      deregisteredFn: () => (wasPromoted ? this.#demoted.hook?.() : undefined),
      onError: (err, which, term) =>
        this.#log.error(
          `${which === "fn" ? "onPromoted" : "onDemoted"} failed; the election goes on`,
          { election: resource, token: term.token, err },
        ),
      onEnd: () => this.#registrations.delete(registration),
    });
    this.#registrations.add(registration);
    election.add(registration);
  }

  /**
   * @param {string} event
   * @param {unknown[]} values
   */
  #tell(event, values) {
    if (event === "promoted" && this.isLeader) {
      for (const end of [...this.#waiters]) end(true);
    }
    // An "error" that nobody listens to would be thrown. It is in the log already.
    if (this.listenerCount(event) === 0) return;
    try {
      this.emit(event, ...values);
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
    this.#log.error(`a listener of "${event}" failed; the election goes on`, {
      election: this.resource,
      err,
    });
  }

  [inspect.custom](
    /** @type {number} */ _depth,
    /** @type {import("node:util").InspectOptions} */ options,
  ) {
    const { resource, identity, currentLeader } = this;
    const leads = this.#running?.election.term?.isCurrent() ?? false;
    const running = this.#running === null ? "stopped" : leads ? "leader" : "follower";
    const state = this.#checked === null ? "disabled" : running;
    return `LeaderElection ${inspect({ resource, identity, state, currentLeader }, options)}`;
  }
}

/** What `slot` made. @type {WeakSet<Function>} */
const slots = new WeakSet();

/**
 * A hook is given by a call, or by an assignment.
 *
 * @param {string} name
 * @returns {Slot}
 */
function slot(name) {
  /** @type {Slot} */
  const given = Object.assign(
    (/** @type {Hook} */ hook) => {
      set(given, name, hook);
      return hook;
    },
    { hook: null },
  );
  slots.add(given);
  return given;
}

/**
 * @param {Slot} slot
 * @param {string} name
 * @param {unknown} hook
 */
function set(slot, name, hook) {
  if (typeof hook !== "function" && hook !== null && hook !== undefined) {
    throw new TypeError(`${name} must be a function, or null for none, not ${inspect(hook)}`);
  }
  // What a read returned: its hook is meant.
  const isSlot = typeof hook === "function" && slots.has(hook);
  slot.hook = isSlot ? /** @type {Slot} */ (hook).hook : /** @type {Hook | null} */ (hook ?? null);
}

module.exports = { LeaderElection };
