// Everything that one JavaScript environment (the main thread or a worker) knows of the election: which
// cluster it takes part in, what waits for that, and who is told what.
//
// It begins idle. The first use looks for a configuration (`chosen`); one microtask later that cluster
// starts, unless startCluster() came first. expectCluster() makes everything wait for startCluster()
// (`expecting`), and so does stopCluster(): who stopped does not lead again by accident. A worker whose
// cluster another thread stopped joins the next one that its process runs.

const { inspect } = require("node:util");
const { insideCallback, nameOf } = require("./callbacks.js");
const { Cluster } = require("./cluster.js");
const { announce, announceAttempt } = require("./diagnostics.js");
const { isEndOf } = require("./ending.js");
const { discover, isCluster, isOurs, signOfSeveralInstances } = require("./discovery.js");
const { Election } = require("./election.js");
const {
  ConfigError,
  ElectionError,
  LeadershipLostError,
  fromNative,
  saysNoCluster,
  saysStopping,
} = require("./errors.js");
const { hold } = require("./hold.js");
const { toJson } = require("./json.js");
const { LocalCluster } = require("./local.js");
const { Log, checkLogger, mostVerbose } = require("./logger.js");
const { Registration } = require("./registration.js");
const { Run } = require("./run.js");
const { Term } = require("./term.js");
const { checkStore, isOwnStore } = require("./store.js");
const { after } = require("./timer.js");
const { Works, takenName } = require("./works.js");

/** @typedef {import("../index.js").ClusterEvents} ClusterEvents */
/** @typedef {import("./native-types").Native} Native */
/** @typedef {import("./native-types").NativeEvent} NativeEvent */
/** @typedef {import("./native-types").ClusterInfo} ClusterInfo */
/** @typedef {import("./native-types").Provider} Provider */

/**
 * How the cluster is to be started.
 *
 * @typedef {object} Plan
 * @property {"local" | "native" | "join" | "stand-in"} mode  join: another thread of this process runs it
 * @property {boolean} implicit  nobody called startCluster()
 * @property {string} json
 * @property {string} source
 * @property {string} baseDir
 * @property {ClusterInfo | null} info  null: no configuration
 * @property {object | null} store  the application's own
 */

/**
 * @typedef {{ kind: "idle" }
 *   | { kind: "expecting", stopped: "here" | "elsewhere" | null }
 *   | { kind: "chosen", plan: Plan }
 *   | { kind: "starting", plan: Plan, done: Promise<void> }
 *   | { kind: "running", plan: Plan, provider: Provider }
 *   | { kind: "stopping", done: Promise<void> }} State
 */

/**
 * What an environment needs of the world; tests bring their own.
 *
 * @typedef {object} World
 * @property {() => Native} loadNative
 * @property {Record<string, string | undefined>} env
 * @property {() => string} cwd
 * @property {boolean} isMainThread
 * @property {() => boolean} isClusterWorker
 * @property {number} remindAfter  milliseconds until a startCluster() that was promised is missed
 * @property {(ways: import("./exit.js").Ways) => () => void} watchExit
 */

/**
 * What takes the place of every cluster, for tests (lib/testing).
 *
 * @typedef {object} StandIn
 * @property {(dispatch: (event: NativeEvent) => void) => Provider} open
 * @property {typeof after} after  by its own clock
 * @property {<T>(election: string, functionName: string, call: () => T) => T} run  calls a callback
 * @property {(error: unknown) => void} failed  work threw an error of its own
 */

/**
 * A call of whenLeader(). It outlives its registration where a stop that ends it belongs to a test.
 *
 * @typedef {object} Call
 * @property {string | undefined} name
 * @property {string} functionName
 * @property {Registration} registration
 * @property {() => Registration} begin
 * @property {boolean} removed
 * @property {Run} [run]  it is one of runWhenLeader()
 */

/**
 * An election beside the cluster.
 *
 * @typedef {object} Apart
 * @property {Election} election
 * @property {ClusterInfo} info
 * @property {Log} log
 * @property {() => Promise<void>} stop
 * @property {import("./election.js").Emit} tell  the application; must not throw
 * @property {() => void} onLeft  it is over, although nobody here stopped it
 */

/** @typedef {Pick<Apart, "election" | "tell"> & Partial<Apart>} Left */

/** What an implicit local cluster led for, if it only answered. */
const ASKED = "isLeader(), which answered true";

/** What a store is called in a configuration. */
const STORE_KEYS = new Set(["store", "registry"]);

/** Of a name that work may not have. */
const IS_DEFAULT =
  "it is the default election of the cluster (its leaseName); give the work another one";

/** Of runWhenLeader(), in JSON. */
const NO_OPTIONS = "{}";

/** In errors. */
const RUN = "runWhenLeader(): options.cluster";

/** @type {Plan} */
const STAND_IN = {
  mode: "stand-in",
  implicit: false,
  json: "",
  source: "",
  baseDir: "",
  info: null,
  store: null,
};

/** Holds nothing. */
const letGo = () => () => {};

class Environment {
  #world;
  /** @type {State} */
  #state = { kind: "idle" };
  /** @type {Log | null} */
  #log = null;
  /** @type {Map<string | undefined, Cluster>} */
  #clusters = new Map();
  /** @type {Map<string, Election>} */
  #elections = new Map();
  /** Elections beside the cluster, by what the native side calls them. @type {Map<string, Apart>} */
  #apart = new Map();
  /**
   * Those that were left, by the same names, until the last callback has ended: the native side tells of one that
   * outlives its lease.
   *
   * @type {Map<string, Left>}
   */
  #left = new Map();
  #works = new Works();
  /** Registrations that no election has yet. @type {Map<Registration, Call>} */
  #waiting = new Map();
  /** Cluster objects that were stopped before the cluster started. @type {Set<Cluster>} */
  #leftEarly = new Set();
  /** Calls of startCluster() that wait for the end of a stop. */
  #startsToCome = 0;
  /** @type {Set<() => void>} Who waits for a cluster object to get its election. */
  #boundListeners = new Set();
  #attached = false;
  /** What the implicit local cluster has already led for. @type {string | null} */
  #ledFor = null;
  /** @type {(() => void) | null} */
  #onStop = null;
  /** @type {string | null} */
  #ownInstanceId = null;
  /** A test will bring a cluster, or has. */
  #isOfTests = false;
  /** @type {StandIn | null} */
  #standIn = null;
  /** Calls that a stand-in found, and those that were made since. @type {Set<Call>} */
  #calls = new Set();

  /** @param {World} world */
  constructor(world) {
    this.#world = world;
  }

  // ---- what the application calls ----

  /**
   * @param {(term: Term) => unknown} fn
   * @param {((lost: LeadershipLostError, term: Term) => unknown) | null} [deregisteredFn]
   * @param {{ election?: string }} [options]
   * @returns {() => Promise<void>}
   */
  whenLeader(fn, deregisteredFn = null, { election: name } = {}) {
    this.#decide();
    if (this.#works.ofElection(name) !== undefined) {
      throw new ConfigError(
        `whenLeader(): the election ${inspect(name)} belongs to work of runWhenLeader(); give it another name, or do ` +
          "it in that work",
      );
    }
    const existing = this.#state.kind === "running" ? this.#electionFor(name) : null;
    const functionName = nameOf(fn) ?? "anonymous function";
    const deregisteredName = deregisteredFn === null ? null : nameOf(deregisteredFn);
    const begin = () => {
      const registration = new Registration({
        fn: (term) => {
          this.ledFor(`the fn ${functionName} given to whenLeader()`);
          return this.#runCallback(term, functionName, () => fn(term));
        },
        deregisteredFn:
          deregisteredFn === null
            ? null
            : (lost, term) =>
                this.#runCallback(term, deregisteredName ?? functionName, () =>
                  deregisteredFn(lost, term),
                ),
        onError: (err, which, term) => {
          // Such as what a fetch() throws that was given the signal.
          if (which === "fn" && isEndOf(term, err)) return;
          Term.failed(term, err);
          this.log.error(`${which} of a registration failed; the election goes on`, {
            election: term.election,
            token: term.token,
            trace: term.traceId,
            function: which === "fn" ? functionName : (deregisteredName ?? functionName),
            err,
          });
        },
        onEnd: () => {
          this.#waiting.delete(registration);
          for (const election of this.#elections.values()) election.delete(registration);
        },
      });
      return registration;
    };
    /** @type {Call} */
    const call = { name, functionName, registration: begin(), begin, removed: false };
    this.#place(call, existing);
    return () => {
      call.removed = true;
      this.#calls.delete(call);
      const { registration } = call;
      registration.remove(removal);
      // Its end would wait for the callback that waits for it.
      return insideCallback(registration) ? Promise.resolve() : registration.whenEnded();
    };
  }

  /**
   * @param {string} name
   * @param {(term: Term) => unknown} work
   * @param {{ options: string, cluster: unknown, signal: AbortSignal | undefined }} how
   *   options: those of its election, in JSON
   */
  runWhenLeader(name, work, { options, cluster, signal }) {
    // What takes the place of every cluster takes that of its own, too.
    const isApart = cluster !== undefined && !this.#isOfTests;
    if (!isApart) this.#decide();
    this.#refuseTaken(name, isApart);
    if (options !== NO_OPTIONS) this.#orFromNative(() => this.#native.checkRun(options));
    const workName = nameOf(work) ?? "anonymous function";
    /** Of a cluster of its own. @type {Log | null} */
    let log = null;
    const run = new Run(name, work, workName, signal, {
      log: () => log ?? this.log,
      call: (term, work) => {
        this.ledFor(`the work ${workName} given to runWhenLeader()`);
        return this.#runCallback(term, workName, work);
      },
      failed: (error) => this.#standIn?.failed(error),
      onStop: () => {
        for (const call of [...this.#calls]) if (call.run === run) this.#calls.delete(call);
      },
      onEnd: () => this.#endRun(run),
    });
    this.#works.add({ run, options, isApart });
    try {
      if (signal?.aborted) run.stop();
      else if (isApart) log = this.#startRunApart(run, name, options, cluster);
      else this.#startRun(run, name, options, workName);
    } catch (error) {
      Run.refuse(run, error);
      this.#works.delete(run);
      throw error;
    }
    return run;
  }

  /**
   * @param {Run} run
   * @param {string} name
   * @param {string} options
   * @param {string} functionName
   */
  #startRun(run, name, options, functionName) {
    const existing = this.#state.kind === "running" ? this.#electionFor(name) : null;
    const begin = () => {
      this.#works.add({ run, options, isApart: false });
      return Run.beginAgain(run);
    };
    const registration = Run.registrationOf(run);
    this.#place({ name, functionName, registration, begin, removed: false, run }, existing);
  }

  /**
   * On a store of its own, beside the cluster.
   *
   * @param {Run} run
   * @param {string} name
   * @param {string} options
   * @param {unknown} cluster
   */
  #startRunApart(run, name, options, cluster) {
    const given = readConfig(cluster, (own) => this.#registerStore(own), RUN);
    const { json, store } = given;
    const checked = this.checkApart(json, RUN, { name, options });
    if (checked.info.type === "LocalCluster") {
      throw new ConfigError(
        `${RUN} cannot be a LocalCluster, on which nobody is elected: leave it out, or name a store`,
      );
    }
    const logger = checkLogger(given.logger);
    const log = logger === undefined ? this.log : new Log(logger, this.#world.env.WHENLEADER_LOG);
    for (const warning of checked.info.warnings) log.warn(warning);
    const how = {
      log,
      tell: (/** @type {string} */ event, /** @type {unknown[]} */ ...values) =>
        Run.tell(run, event, values),
      onLeft: () => run.stop(),
    };
    const apart = this.startApart(checked, how, store);
    Run.bind(run, apart.election, apart.stop);
    apart.election.add(Run.registrationOf(run));
    return log;
  }

  /**
   * @param {string} name
   * @param {boolean} isApart  then nothing on the cluster is in its way
   */
  #refuseTaken(name, isApart) {
    this.#works.refuseTaken(name);
    if (isApart) return;
    if (name === this.defaultElection) throw takenName(name, IS_DEFAULT);
    const election = this.#elections.get(name);
    const waits = [...this.#waiting.values()].some((call) => call.name === name);
    if (waits || election?.stopping === false) {
      throw takenName(
        name,
        "whenLeader() or useCluster() takes part in the election of that name; give the work another one",
      );
    }
  }

  /** @param {Run} run */
  #endRun(run) {
    const name = run.election;
    if (this.#works.delete(run)?.isApart) return;
    const registration = Run.registrationOf(run);
    this.#waiting.delete(registration);
    const election = this.#elections.get(name);
    election?.delete(registration);
    if (!election?.stopping || this.#state.kind !== "running") return;
    this.#elections.delete(name);
    for (const cluster of this.#clusters.values()) {
      if (Cluster.electionOf(cluster) === election) Cluster.unbind(cluster);
    }
  }

  /**
   * @param {Call} call
   * @param {Election | null} election  null: no cluster runs yet
   */
  #place(call, election) {
    const { registration, functionName } = call;
    if (this.#standIn !== null) this.#calls.add(call);
    if (election === null) {
      this.#waiting.set(registration, call);
      this.#warnIfStopped(functionName);
    } else {
      this.#hang(call, election);
    }
  }

  /** @param {string | undefined} name */
  useCluster(name) {
    this.#decide();
    const known =
      this.#clusters.get(name) ??
      (name !== undefined && name === this.defaultElection
        ? this.#clusters.get(undefined)
        : undefined);
    if (known !== undefined) return known;
    const cluster = new Cluster(this, name);
    if (this.#state.kind === "running") Cluster.bind(cluster, this.#electionFor(name));
    this.#clusters.set(name, cluster);
    return cluster;
  }

  expectCluster() {
    const state = this.#state;
    if (state.kind === "idle" || (state.kind === "chosen" && state.plan.mode === "local")) {
      this.#refuseIfLed("expectCluster()");
      this.#state = { kind: "expecting", stopped: null };
      this.#remind();
    } else if (state.kind === "running" && state.plan.mode === "local" && state.plan.implicit) {
      this.#leaveImplicitCluster("expectCluster()");
    }
  }

  /**
   * @param {unknown} config
   * @param {unknown} logger
   * @returns {Promise<Cluster>}
   */
  async startCluster(config, logger) {
    this.#startsToCome += 1;
    try {
      if (this.#state.kind === "stopping" && insideCallback()) {
        throw new ConfigError(
          "startCluster() was called by a callback for whose end the stop of the cluster waits: call it after that",
        );
      }
      while (this.#state.kind === "stopping") await this.#state.done;
    } finally {
      this.#startsToCome -= 1;
    }
    try {
      const registerStore = (/** @type {object} */ store) => this.#registerStore(store);
      const given = config === undefined ? null : readConfig(config, registerStore);
      const ownLogger = checkLogger(logger ?? given?.logger);
      if (ownLogger !== undefined) this.useLogger(ownLogger);
      return this.#start(given);
    } catch (error) {
      this.#waitForAnotherStart();
      throw error;
    }
  }

  /**
   * Throws at once if there is something to be refused: nobody may lead before that is known.
   *
   * @param {ReturnType<typeof readConfig> | null} given
   * @returns {Promise<Cluster>}
   */
  #start(given) {
    const state = this.#state;
    if (state.kind === "starting" || state.kind === "running") return this.#joinStart(state, given);
    const plan =
      this.#standIn !== null
        ? STAND_IN
        : given === null
          ? this.#choose(false)
          : this.#planFor(given);
    if (state.kind === "chosen" && (given !== null || plan.mode !== "local")) {
      this.#refuseIfLed("startCluster()");
    }
    this.#clusters.set(undefined, this.#clusters.get(undefined) ?? new Cluster(this, undefined));
    return this.#begin(plan).then(() => this.useCluster(undefined));
  }

  /**
   * @param {Extract<State, { kind: "starting" | "running" }>} state
   * @param {ReturnType<typeof readConfig> | null} given
   * @returns {Promise<Cluster>}
   */
  async #joinStart(state, given) {
    const { plan } = state;
    if (given !== null && given.json !== plan.json && plan.mode !== "stand-in") {
      if (plan.mode !== "local") {
        // Perhaps the same in other words; if it is not, the native side says so.
        await this.#native
          .startCluster(given.json, "startCluster()", this.#world.cwd(), given.store)
          .catch((error) => {
            throw fromNative(error);
          });
      } else if (plan.implicit) {
        this.#leaveImplicitCluster("startCluster()");
        return this.#start(given);
      } else {
        throw new ConfigError(
          "startCluster() was called with another configuration, but a cluster already runs in " +
            "this process: call stopCluster() first",
        );
      }
    }
    if (state.kind === "starting") await state.done;
    return this.useCluster(undefined);
  }

  /** Who wanted a cluster, and was refused, does not lead alone instead. */
  #waitForAnotherStart() {
    const { kind } = this.#state;
    if ((kind === "idle" || kind === "chosen") && this.#ledFor === null) {
      this.#state = { kind: "expecting", stopped: null };
    }
  }

  /** @returns {Promise<void>} */
  async stopCluster() {
    const state = this.#state;
    if (state.kind !== "stopping") {
      const runs = this.#works.runs.map((run) => Run.leave(run));
      for (const registration of [...this.#waiting.keys()]) registration.remove(removal);
      for (const cluster of this.#clusters.values()) Cluster.giveUpWait(cluster);
      this.#leftEarly.clear();
      const isThere = state.kind === "starting" || state.kind === "running" || runs.length > 0;
      if (isThere || this.#othersRunOne()) {
        const ended = Promise.allSettled(runs);
        const done = Promise.all([this.#stop(state), ended]).then(() => {});
        const stopped = done.finally(() => {
          this.#state = { kind: "expecting", stopped: "here" };
        });
        this.#state = { kind: "stopping", done: stopped };
        stopped.catch(() => {}); // Whoever waits below is told.
      } else {
        this.#state = { kind: "expecting", stopped: "here" };
      }
    }
    // The stop waits for the callback that waits for it.
    if (this.#state.kind === "stopping" && !insideCallback()) await this.#state.done;
  }

  /**
   * For a kit that tests stores: one more process, as it were, outside of any election.
   *
   * @param {import("../index.js").LeaseStore} store
   * @param {{ instanceId: string, limit: number }} how
   */
  openClient(store, how) {
    this.#attach();
    return this.#native.openClient(store, how);
  }

  /**
   * @param {string} json
   * @param {string} source
   * @param {{ name: string, options: string }} [run]  of runWhenLeader()
   */
  checkApart(json, source, run) {
    return this.#orFromNative(() =>
      this.#native.checkElection(json, source, this.#world.cwd(), run),
    );
  }

  /**
   * An election beside the cluster, on a backend of its own.
   *
   * @param {import("./native-types").CheckedElection} checked
   * @param {Pick<Apart, "log" | "tell" | "onLeft">} how  tell: must not throw
   * @param {object | null} [store]  the application's own
   * @returns {Apart}
   */
  startApart(checked, { log, tell, onLeft }, store = null) {
    /** @type {import("./election.js").Emit} */
    const emit = (event, ...values) => {
      announce(election, event, values);
      tell(event, ...values);
    };
    this.#attach();
    const { info } = checked;
    const { isMainThread, watchExit } = this.#world;
    const started = this.#orFromNative(() => this.#native.startElection(checked, store));
    const election = new Election(
      info.leaseName,
      () => info.instanceId,
      (event, ...values) => {
        if (event === "error") {
          log.warn(/** @type {Error} */ (values[0]).message, { election: info.leaseName });
        }
        emit(event, ...values);
      },
    );
    election.attach(started.source);
    const letGo = info.keepAlive ? hold() : () => {};
    const stop = () =>
      election.stop().finally(() => {
        this.#apart.delete(started.name);
        this.#followLeft(started.name, apart);
        unwatch();
        letGo();
      });
    const ways = { ...this.#waysOut(info), stop, log };
    const unwatch = isMainThread ? watchExit(ways) : () => {};
    const apart = { election, info, log, stop, tell: emit, onLeft };
    this.#apart.set(started.name, apart);
    this.#setNativeLevel();
    return apart;
  }

  /** @param {import("./native-types").ServeOptions} options */
  serve(options) {
    this.#attach();
    return this.#native.serve(options);
  }

  stopServing() {
    return this.#native.stopServing();
  }

  // ---- what cluster objects ask ----

  /** Whether a cluster object that has no election yet leads: only if the process is alone. */
  leadsAlone() {
    this.#decide();
    const plan = this.#state.kind === "chosen" ? this.#state.plan : null;
    const alone = plan?.mode === "local";
    if (alone) this.ledFor(ASKED);
    return alone;
  }

  get instanceId() {
    this.#decide();
    return this.#info?.instanceId ?? this.#defaultInstanceId();
  }

  get defaultElection() {
    return this.#info?.leaseName;
  }

  get store() {
    return this.#info?.store;
  }

  get state() {
    return this.#state.kind === "expecting" ? "waiting for startCluster()" : "starting";
  }

  /**
   * @param {Cluster} cluster
   * @returns {Promise<Election>}
   */
  async whenBound(cluster) {
    this.#decide();
    for (;;) {
      const election = Cluster.electionOf(cluster);
      if (election !== null) return election;
      await new Promise((/** @type {(value: void) => void} */ resolve) =>
        this.#boundListeners.add(resolve),
      );
    }
  }

  /** @param {Election} election */
  async stopElection(election) {
    this.#giveUpWaits(election);
    const stopped = election.stop();
    if (this.#allLeft) return this.stopCluster();
    if (!insideCallback()) await stopped;
  }

  /**
   * An election that nobody takes part in yet.
   *
   * @param {Cluster} cluster
   */
  async stopBeforeStart(cluster) {
    const named = (/** @type {string | undefined} */ name) => name ?? this.defaultElection;
    const election = named(Cluster.nameOf(cluster));
    for (const [registration, { name }] of [...this.#waiting]) {
      if (named(name) === election) registration.remove(removal);
    }
    Cluster.giveUpWait(cluster);
    this.#leftEarly.add(cluster);
    const others = [...this.#clusters.values()].filter((one) => !this.#leftEarly.has(one));
    if (others.length === 0 && this.#waiting.size === 0) await this.stopCluster();
  }

  /** Whether it is in vain to wait for this cluster object to lead. @param {Cluster} cluster */
  isLeft(cluster) {
    if (this.#leftEarly.has(cluster)) return true;
    return this.#startsToCome === 0 && Cluster.electionOf(cluster)?.stopping === true;
  }

  /** The clock by which the application waits, and what keeps the process alive meanwhile. */
  get waiting() {
    return this.#standIn === null ? { after, hold } : { after: this.#standIn.after, hold: letGo };
  }

  /** The application acts on its leadership from now on. @param {string} what */
  ledFor(what) {
    this.#ledFor ??= what;
  }

  /**
   * @param {string | undefined} election
   * @param {string} event
   * @param {unknown} err
   */
  listenerFailed(election, event, err) {
    this.log.error(`a listener of "${event}" failed; the election goes on`, { election, err });
  }

  get log() {
    this.#log ??= new Log(undefined, this.#world.env.WHENLEADER_LOG);
    return this.#log;
  }

  // ---- what tests ask (lib/testing) ----

  /** Nothing starts by itself any more: a test will bring a cluster of its own. */
  awaitStandIn() {
    this.#isOfTests = true;
    const { kind } = this.#state;
    if (kind === "idle" || kind === "chosen") this.#state = { kind: "expecting", stopped: null };
  }

  /**
   * @param {StandIn} standIn
   * @param {string} call  what the application called, for the error
   */
  useStandIn(standIn, call) {
    if (this.#standIn !== null) {
      throw new ConfigError(
        `${call}: another test cluster runs already; await its restore() first, for example in afterEach()`,
      );
    }
    this.awaitStandIn();
    const state = this.#state;
    if (state.kind !== "expecting" || this.#startsToCome > 0) {
      if (state.kind !== "running" || state.plan.mode !== "local" || !state.plan.implicit) {
        throw new ConfigError(
          `${call}: a real cluster runs in this process; await stopCluster() first`,
        );
      }
    }
    if (this.#ledFor !== null) {
      throw new ConfigError(
        `${call} came too late: without a configuration this process already led as its only ` +
          `instance, for ${this.#ledFor}. Import "whenleader/testing" before the application, for ` +
          "example in a set-up file of the test runner: from then on nobody leads by accident",
      );
    }
    if (state.kind === "running") this.#leaveImplicitCluster(call);
    this.#standIn = standIn;
    this.#calls = new Set(this.#waiting.values());
    this.#begin(STAND_IN);
  }

  /**
   * As if nothing had been there: the calls that are kept wait for the next cluster.
   *
   * @param {(call: Call) => boolean} isKept
   */
  async leaveStandIn(isKept) {
    await this.stopCluster();
    const calls = [...this.#calls].filter(isKept);
    this.#calls.clear();
    this.#standIn = null;
    this.#ledFor = null;
    this.#log = null;
    this.#state = { kind: "expecting", stopped: null };
    for (const cluster of this.#clusters.values()) Cluster.forget(cluster);
    for (const call of calls) {
      call.registration = call.begin();
      this.#waiting.set(call.registration, call);
    }
  }

  get calls() {
    return [...this.#calls];
  }

  get clusters() {
    return [...this.#clusters.values()];
  }

  /**
   * @template T
   * @param {import("./term.js").Term} term
   * @param {string} functionName
   * @param {() => T} call
   */
  #runCallback(term, functionName, call) {
    const traced = () => Term.run(term, call);
    if (this.#standIn === null) return traced();
    return this.#standIn.run(term.election, functionName, traced);
  }

  // ---- choosing a cluster ----

  /** Looks for a configuration at the first use. Throws if there is a bad one. */
  #decide() {
    const state = this.#state;
    const again = state.kind === "expecting" && state.stopped === "elsewhere";
    if (again ? this.#clusterOfProcess() === null : state.kind !== "idle") return;
    /** @type {State} */
    const chosen = { kind: "chosen", plan: this.#choose(true) };
    this.#state = chosen;
    // An application that calls startCluster() in this very moment means that one.
    queueMicrotask(() => {
      if (this.#state !== chosen) return;
      this.#begin(chosen.plan).catch((error) => {
        if (this.#state.kind === "stopping") return;
        this.log.error(
          "the cluster did not start, and nobody leads here; startCluster() tries again",
          { err: error },
        );
        const told =
          error instanceof ElectionError
            ? error
            : new ElectionError("WHENLEADER_STORE", error.message, {
                election: chosen.plan.info?.leaseName,
                reason: "config",
                fatal: true,
                cause: error,
              });
        announce({ name: told.election }, "error", [told]);
        for (const cluster of this.#clusters.values()) this.#tell(cluster, "error", [told]);
        this.#refuseWork(told);
      });
    });
  }

  /** Work that waits for a cluster which cannot be started. @param {ElectionError} told */
  #refuseWork(told) {
    for (const run of this.#works.runsOnCluster) {
      this.#waiting.delete(Run.registrationOf(run));
      this.#works.delete(run);
      Run.tell(run, "error", [told]);
      Run.refuse(run, told);
    }
  }

  /** @returns {Plan} */
  #choose(/** @type {boolean} */ implicit) {
    const base = { implicit, json: "", source: "", baseDir: this.#world.cwd(), store: null };
    const joined = this.#world.isMainThread ? null : this.#clusterOfProcess();
    if (joined !== null) return { ...base, mode: "join", info: joined };
    for (const found of discover({ env: this.#world.env, cwd: this.#world.cwd() })) {
      try {
        return this.#check({ ...base, ...found });
      } catch (error) {
        if (!found.shared || !saysNoCluster(error)) throw error;
      }
    }
    return { ...base, mode: "local", info: null };
  }

  /** @param {ReturnType<typeof readConfig>} given */
  #planFor({ json, store }) {
    return this.#check({
      implicit: false,
      json,
      source: "startCluster()",
      baseDir: this.#world.cwd(),
      store,
    });
  }

  /**
   * Its functions are called through the native side, which tells stores apart by their numbers.
   *
   * @param {object} store
   * @returns {number}
   */
  #registerStore(store) {
    const name = checkStore(store);
    if (this.#standIn !== null) return 0; // Nobody asks it.
    this.#attach();
    return this.#native.registerStore(/** @type {import("./store.js").LeaseStore} */ (store), name);
  }

  /**
   * @param {Pick<Plan, "implicit" | "json" | "source" | "baseDir" | "store">} found
   * @returns {Plan}
   */
  #check(found) {
    const info = this.#orFromNative(() =>
      this.#native.checkConfig(found.json, found.source, found.baseDir),
    );
    return { ...found, info, mode: info.type === "LocalCluster" ? "local" : "native" };
  }

  /**
   * @template T
   * @param {() => T} call
   */
  #orFromNative(call) {
    try {
      return call();
    } catch (error) {
      throw fromNative(error);
    }
  }

  /** What another thread of this process runs. @returns {ClusterInfo | null} */
  #clusterOfProcess() {
    if (this.#standIn !== null) return null;
    try {
      return this.#native.runningCluster();
    } catch {
      return null; // Without the native part, no thread can have started one.
    }
  }

  // ---- starting and stopping ----

  /**
   * @param {Plan} plan
   * @returns {Promise<void>}
   */
  #begin(plan) {
    for (const cluster of this.#clusters.values()) Cluster.unbind(cluster);
    for (const warning of plan.info?.warnings ?? []) this.log.warn(warning);
    if (plan.mode === "local") {
      if (plan.info === null) this.#warnIfNotAlone();
      const provider = new LocalCluster(
        (event) => this.#dispatch(event),
        () => plan.info?.instanceId ?? this.#defaultInstanceId(),
        plan.info ?? undefined,
      );
      // A lone instance ends as one of many does: its callbacks run.
      this.#watchExit({
        releaseNow: () => {},
        stopTimeout: provider.info.stopTimeout,
        signals: plan.info?.signals ?? true,
        keepAlive: plan.info?.keepAlive ?? false,
      });
      this.#run(plan, provider);
      return Promise.resolve();
    }
    if (this.#standIn !== null) {
      this.#run(
        plan,
        this.#standIn.open((event) => this.#dispatch(event)),
      );
      return Promise.resolve();
    }
    /** @type {{ kind: "starting", plan: Plan, done: Promise<void> }} */
    const starting = { kind: "starting", plan, done: Promise.resolve() };
    this.#state = starting;
    starting.done = this.#startNative(plan).then(
      (info) => {
        if (this.#state !== starting) {
          throw new ElectionError(
            "WHENLEADER_STOPPED",
            "the cluster was stopped while it was being started",
          );
        }
        this.#run(plan, this.#nativeProvider(info));
      },
      (error) => {
        if (this.#state === starting) this.#state = { kind: "expecting", stopped: null };
        throw fromNative(error, plan.info?.leaseName);
      },
    );
    return starting.done;
  }

  /** Nothing of the native side ends, and no event comes, before this. */
  #attach() {
    if (this.#attached) return;
    this.#native.attach((event) => this.#dispatch(event), this.log.level);
    this.#attached = true;
  }

  /** @param {Plan} plan */
  async #startNative(plan) {
    this.#attach();
    const native = this.#native;
    if (plan.mode === "join" && plan.info !== null) return plan.info;
    return native.startCluster(plan.json, plan.source, plan.baseDir, plan.store);
  }

  /**
   * @param {ClusterInfo} info
   * @returns {Provider}
   */
  #nativeProvider(info) {
    const native = this.#native;
    const { isMainThread } = this.#world;
    this.#watchExit({ ...this.#waysOut(info), keepAlive: info.keepAlive });
    return {
      info,
      join: (name, run) => native.joinElection(name, run),
      // Workers share the cluster with the main thread: they only leave its elections.
      stop: async () => {
        if (isMainThread) await native.stopCluster();
      },
    };
  }

  /** How a process that may lead ends. @param {ClusterInfo} info */
  #waysOut({ stopTimeout, signals }) {
    return { releaseNow: this.#releaseNow, stopTimeout, signals };
  }

  /** Of everything that is held. */
  #releaseNow = () => {
    try {
      this.#native.releaseAllNow();
    } catch (err) {
      this.log.warn("the lease could not be released, and runs out by itself", { err });
    }
  };

  /**
   * Until the cluster stops. Only the main thread hears of signals and of the process's end.
   *
   * @param {{ releaseNow: () => void, stopTimeout: number, signals: boolean, keepAlive: boolean }} how
   */
  #watchExit({ keepAlive, ...ways }) {
    const letGo = keepAlive ? hold() : () => {};
    const unwatch = this.#world.isMainThread
      ? this.#world.watchExit({ ...ways, stop: () => this.stopCluster(), log: this.log })
      : () => {};
    this.#onStop = () => {
      unwatch();
      letGo();
    };
  }

  /**
   * @param {Plan} plan
   * @param {Provider} provider
   */
  #run(plan, provider) {
    this.#state = { kind: "running", plan, provider };
    this.#refuseWorkOnDefault(provider.info.leaseName);
    for (const cluster of this.#clusters.values()) {
      const name = Cluster.nameOf(cluster);
      this.#orReport(name, () => Cluster.bind(cluster, this.#electionFor(name)));
    }
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const cluster of this.#leftEarly) Cluster.electionOf(cluster)?.stop();
    const someLeft = this.#leftEarly.size > 0;
    this.#leftEarly.clear();
    for (const [registration, call] of waiting) {
      if (registration.removed) continue;
      try {
        this.#hang(call, this.#electionFor(call.name));
      } catch (error) {
        this.#reportRefusal(call.name, error);
        if (call.run === undefined) registration.remove(removal);
        else Run.refuse(call.run, error);
      }
    }
    for (const resolve of this.#boundListeners) resolve();
    this.#boundListeners.clear();
    if (someLeft && this.#allLeft) this.stopCluster();
    if (plan.mode === "join" && this.#elections.size === 0) {
      // It was being stopped when this thread joined it.
      this.stopCluster().then(() => this.#noteStoppedElsewhere());
    }
  }

  /** Its name was taken, but nobody knew. @param {string} name */
  #refuseWorkOnDefault(name) {
    const call = [...this.#waiting.values()].find((call) => call.run && call.name === name);
    if (call?.run === undefined) return;
    const error = takenName(name, IS_DEFAULT);
    this.#reportRefusal(name, error);
    this.#waiting.delete(call.registration);
    this.#works.delete(call.run);
    Run.refuse(call.run, error);
  }

  /**
   * @param {Call} call
   * @param {Election} election
   */
  #hang({ registration, functionName, run }, election) {
    if (run !== undefined) Run.bind(run, election, () => election.stop());
    if (!election.stopping) {
      election.add(registration);
      return;
    }
    this.log.warn("fn was registered for an election that was stopped here, and will not run", {
      election: election.name,
      function: functionName,
    });
    registration.remove(removal);
  }

  /**
   * @template T
   * @param {string | undefined} name
   * @param {() => T} join
   * @returns {T | undefined}
   */
  #orReport(name, join) {
    try {
      return join();
    } catch (error) {
      this.#reportRefusal(name, error);
      return undefined;
    }
  }

  /**
   * @param {string | undefined} election
   * @param {unknown} err
   */
  #reportRefusal(election, err) {
    // Whoever comes while another thread stops the cluster has nothing to mend.
    const level = saysStopping(err) ? "info" : "error";
    this.log[level]("this instance cannot take part in an election", { election, err });
  }

  /** @param {string | undefined} name */
  #electionFor(name) {
    const state = this.#state;
    if (state.kind !== "running") throw new Error("no cluster runs");
    const actual = name ?? state.provider.info.leaseName;
    const existing = this.#elections.get(actual);
    if (existing !== undefined) return existing;
    /** @type {Election} */
    const election = new Election(
      actual,
      () => state.provider.info.instanceId,
      (event, ...values) => {
        // What the native side tells is in its log already.
        if (event === "error") {
          this.log.warn(/** @type {Error} */ (values[0]).message, { election: actual });
        }
        this.#emit(election, event, values);
      },
    );
    // Known before it is joined, so that no event is lost.
    this.#elections.set(actual, election);
    try {
      election.attach(state.provider.join(actual, this.#works.optionsFor(actual)));
      // Who is told to lead may act on it, and a cluster that is started later could not take that back.
      const { mode, implicit } = state.plan;
      if (mode === "local" && implicit) election.standing.onFirstTrue(() => this.ledFor(ASKED));
    } catch (error) {
      this.#elections.delete(actual);
      throw fromNative(error);
    }
    // Those of work that was stopped, and runs again.
    for (const cluster of this.#clusters.values()) {
      const isItsOwn = Cluster.nameOf(cluster) === actual;
      if (isItsOwn && Cluster.electionOf(cluster) === null) Cluster.bind(cluster, election);
    }
    return election;
  }

  /** Whether the main thread, which takes no part in it, has a cluster of its workers to stop. */
  #othersRunOne() {
    return this.#world.isMainThread && this.#clusterOfProcess() !== null;
  }

  /** @param {State} state */
  async #stop(state) {
    try {
      if (state.kind === "starting") {
        await state.done.catch(() => {});
        if (state.plan.mode === "native") await this.#native.stopCluster();
      } else if (state.kind === "running") {
        const elections = [...this.#elections.values()];
        await Promise.all(elections.map((election) => election.stop()));
        await state.provider.stop();
      }
      if (this.#othersRunOne()) {
        this.#attach();
        await this.#native.stopCluster();
      }
    } finally {
      this.#unwatch();
      for (const [name, election] of this.#elections) {
        this.#followLeft(name, { election, tell: this.#tellOf(election) });
      }
      this.#elections.clear();
    }
  }

  /**
   * @param {string} name
   * @param {Left} left
   */
  async #followLeft(name, left) {
    this.#left.set(name, left);
    await left.election.whenCallbacksEnded(Number.POSITIVE_INFINITY);
    if (this.#left.get(name) !== left) return;
    this.#left.delete(name);
    this.#setNativeLevel();
  }

  #unwatch() {
    this.#onStop?.();
    this.#onStop = null;
  }

  /** @param {string} call */
  #refuseIfLed(call) {
    if (this.#ledFor === null) return;
    throw new ConfigError(
      `${call} came too late: without a configuration this process already led as its only ` +
        `instance, for ${this.#ledFor}, so that work may run here and on the cluster's leader. ` +
        "Put the configuration into whenleader.config.json, or call expectCluster() before the " +
        "first use, or call startCluster() first",
    );
  }

  /** @param {string} call */
  #leaveImplicitCluster(call) {
    this.#refuseIfLed(call);
    const state = this.#state;
    if (state.kind !== "running") return;
    // Nothing was done with it, so nobody is told of its end.
    for (const cluster of this.#clusters.values()) Cluster.bind(cluster, null);
    this.#elections.clear();
    this.#unwatch();
    this.#state = { kind: "expecting", stopped: null };
    if (state.provider instanceof LocalCluster) state.provider.abandon();
  }

  get #allLeft() {
    return [...this.#elections.values()].every((election) => election.stopping);
  }

  /** What is known of the cluster, if it is known already. */
  get #info() {
    const state = this.#state;
    if (state.kind === "running") return state.provider.info;
    return "plan" in state ? state.plan.info : null;
  }

  /** A registration that waits for ever would be silence. */
  #remind() {
    const { remindAfter } = this.#world;
    const expecting = this.#state;
    setTimeout(() => {
      if (this.#state !== expecting || this.#waiting.size === 0) return;
      this.log.warn(
        `expectCluster() was called ${remindAfter / 1000} s ago, and startCluster() was not: ` +
          `nobody leads here, and ${this.#waiting.size} registrations wait for it`,
      );
    }, remindAfter).unref();
  }

  /** @param {string} functionName */
  #warnIfStopped(functionName) {
    const state = this.#state;
    const stopped = state.kind === "expecting" ? state.stopped : null;
    if (stopped === null && state.kind !== "stopping") return;
    const how =
      stopped !== "elsewhere"
        ? "after stopCluster(): it waits for startCluster()"
        : "after another thread stopped the cluster of this process: it waits for the next use " +
          "once a cluster runs again, or for startCluster()";
    this.log.warn(`fn was registered ${how}`, { function: functionName });
  }

  #warnIfNotAlone() {
    const sign = signOfSeveralInstances(this.#world.env, this.#world.isClusterWorker);
    if (sign === null) return;
    this.log.warn(
      `no configuration was found, so this process leads as if it were the only instance, but ${sign}: ` +
        "each instance leads, and work runs once in each. Configure a cluster, for example in " +
        "whenleader.config.json, or call expectCluster() before the first use",
    );
  }

  #defaultInstanceId() {
    if (this.#ownInstanceId === null) {
      try {
        this.#ownInstanceId = this.#native.defaultInstanceId();
      } catch {
        // A process that is alone needs no native part.
        const host = this.#world.env.HOSTNAME || require("node:os").hostname();
        const random = require("node:crypto").randomBytes(4).toString("hex");
        this.#ownInstanceId = `${host}-${process.pid}-${random}`;
      }
    }
    return this.#ownInstanceId;
  }

  get #native() {
    return this.#world.loadNative();
  }

  /** @param {import("../index.js").Logger} logger */
  useLogger(logger) {
    this.#log = new Log(logger, this.#world.env.WHENLEADER_LOG);
    this.#setNativeLevel();
  }

  // ---- events ----

  /** What the native side and the local cluster call; never throws. @param {NativeEvent} event */
  #dispatch(event) {
    try {
      this.#handle(event);
    } catch (err) {
      this.log.error(`the event "${event.type}" could not be handled`, { err });
    }
  }

  /** @param {NativeEvent} event */
  #handle(event) {
    if (event.type === "log") {
      const { level, message, fields } = event;
      this.#logOf(fields).write(level === "trace" ? "debug" : level, message, fields);
      return;
    }
    const apart = this.#apart.get(event.election);
    const election = apart?.election ?? this.#elections.get(event.election);
    if (election === undefined) {
      const left = this.#left.get(event.election);
      if (event.type === "overrun" && left !== undefined) tellOverrun(left, event);
      return;
    }
    if (event.type === "attempt") {
      const { what, outcome, duration, token, traceId } = event;
      announceAttempt(election, { token, traceId, what, outcome, duration });
      return;
    }
    const tell = apart?.tell ?? this.#tellOf(election);
    switch (event.type) {
      case "promoted":
        election.promoted(event.token, event.traceId);
        break;
      case "demoted":
        election.demoted(event.token, event.reason);
        break;
      case "left":
        if (apart === undefined) this.#stoppedElsewhere(election);
        else apart.onLeft();
        break;
      case "leaderChanged":
        // The id of a local leader may have to be made first: only for those who listen.
        if (apart !== undefined || this.#isHeard(election, event.type)) {
          const { instanceId, token } = event;
          tell(event.type, { instanceId, token });
        }
        break;
      case "overrun":
        tellOverrun({ election, tell }, event);
        break;
      case "error": {
        const { code: reason, fatal, message } = event;
        const details = { election: election.name, reason, fatal };
        tell("error", new ElectionError("WHENLEADER_STORE", message, details));
      }
    }
  }

  /** @param {Election} election @returns {import("./election.js").Emit} */
  #tellOf(election) {
    return (name, ...values) => this.#emit(election, name, values);
  }

  /** That of the election which a record is about. @param {Record<string, string>} fields */
  #logOf({ election, instance }) {
    const about = [...this.#apart.values(), ...this.#left.values()].find(
      ({ info }) => info?.leaseName === election && info?.instanceId === instance,
    );
    return about?.log ?? this.log;
  }

  /** The native side tells what any of them writes. */
  #setNativeLevel() {
    if (!this.#attached) return;
    const others = [...this.#apart.values(), ...this.#left.values()];
    const logs = [this.log, ...others.flatMap(({ log }) => log ?? [])];
    this.#native.setLogLevel(mostVerbose(logs));
  }

  /**
   * @param {Election} election
   * @param {string} event
   */
  #isHeard(election, event) {
    const clusters = [...this.#clusters.values()];
    const heard = clusters.filter((cluster) => Cluster.electionOf(cluster) === election);
    const run = this.#works.runIn(election);
    return [...heard, ...(run === undefined ? [] : [run])].some(
      (emitter) => emitter.listenerCount(/** @type {keyof ClusterEvents} */ (event)) > 0,
    );
  }

  /**
   * @param {Election} election
   * @param {string} event
   * @param {unknown[]} values
   */
  #emit(election, event, values) {
    announce(election, event, values);
    const run = this.#works.runIn(election);
    if (run !== undefined) Run.tell(run, event, values);
    for (const cluster of [...this.#clusters.values()]) {
      if (Cluster.electionOf(cluster) === election) this.#tell(cluster, event, values);
    }
  }

  /**
   * @param {Cluster} cluster
   * @param {string} event
   * @param {unknown[]} values
   */
  #tell(cluster, event, values) {
    if (event === "promoted") {
      const waited = Cluster.endWait(cluster, /** @type {Term} */ (values[0]));
      if (waited) this.ledFor("waitUntilLeader()");
    }
    // An "error" that nobody listens to would be thrown. It has been logged where it was found.
    if (cluster.listenerCount(event) === 0) return;
    if (event === "promoted") this.ledFor('a listener of "promoted"');
    try {
      cluster.emit(event, ...values);
    } catch (error) {
      this.listenerFailed(cluster.election, event, error);
    }
  }

  /** @param {Election} election */
  async #stoppedElsewhere(election) {
    await this.stopElection(election);
    this.#noteStoppedElsewhere();
  }

  #noteStoppedElsewhere() {
    if (this.#state.kind === "expecting" && this.#state.stopped === "here") {
      this.#state = { kind: "expecting", stopped: "elsewhere" };
    }
  }

  /** @param {Election} election */
  #giveUpWaits(election) {
    for (const cluster of this.#clusters.values()) {
      if (Cluster.electionOf(cluster) === election) Cluster.giveUpWait(cluster);
    }
  }
}

/**
 * @param {Left} about
 * @param {Extract<NativeEvent, { type: "overrun" }>} event
 */
function tellOverrun({ election: { name }, tell }, { token, traceId, duration }) {
  const message =
    `the callbacks of term ${token} of "${name}" have not ended ${(duration / 1000).toFixed(1)} s after it did, and its ` +
    "lease is about to end: another instance may lead while they still run";
  const details = { election: name, reason: "overrun", token, traceId };
  tell("error", new ElectionError("WHENLEADER_OVERRUN", message, details));
}

/** @param {import("./term.js").Term} term */
function removal(term) {
  return new LeadershipLostError(term.election, term.token, "removed");
}

/**
 * @param {unknown} config
 * @param {(store: object) => number} registerStore
 * @param {string} [source]  what it was given to, for errors
 * @returns {{ json: string, logger: unknown, store: object | null }}
 */
function readConfig(config, registerStore, source = "startCluster()") {
  if (typeof config !== "object" || config === null || Array.isArray(config)) {
    throw new ConfigError(
      `${source} takes an object, such as ` +
        '{ cluster: { type: "StoreCluster", store: "redis://127.0.0.1:6379" } }; ' +
        `it was given ${config === null ? "null" : Array.isArray(config) ? "an array" : `a ${typeof config}`}`,
    );
  }
  const section = clusterSection(config);
  const { logger } = section;
  const beside = section === config ? undefined : Reflect.get(config, "logger");
  if (typeof Object(beside).warn === "function") {
    throw new ConfigError(
      `${source}: logger has no meaning beside the cluster; put it among the cluster's parameters` +
        (source === RUN ? "" : ", or give it as startCluster(config, { logger })"),
    );
  }
  /** @type {object | null} */
  let store = null;
  const json = toJson(config, (owner, key) => {
    if (owner !== section) return undefined;
    // A logger is for this side; JSON has no place for it.
    if (key === "logger") return null;
    const member = section[key];
    if (!STORE_KEYS.has(key) || !isOwnStore(member)) return undefined;
    store = member;
    return { json: { $store: registerStore(member) } };
  });
  return { json, logger, store };
}

/** @type {(value: unknown) => value is Record<string, unknown>} */
const isObject = (value) => typeof value === "object" && value !== null;

/**
 * Where the parameters of the cluster stand, in any of the three forms. What is wrong with them is for the
 * native side to say.
 *
 * @param {object} config
 * @returns {Record<string, unknown>}
 */
function clusterSection(config) {
  const { services, cluster } = /** @type {Record<string, unknown>} */ (config);
  const all = isObject(services) ? Object.values(services) : [];
  const section = isObject(services) ? (all.find(isOurs) ?? all.find(isCluster)) : cluster;
  return isObject(section) ? section : /** @type {Record<string, unknown>} */ (config);
}

module.exports = { Environment };
