// The cluster of a test: it has the shape of the native one, decides by what the test says, and lives on a
// virtual clock. No thread, no file, no store, no timer.

const { inspect } = require("node:util");
const { Cluster } = require("../cluster.js");
const { checkName, environment } = require("../main.js");
const { CallbackTracker, turn } = require("./callbacks.js");
const { VirtualClock } = require("./clock.js");
const { CALL, checkOptions } = require("./options.js");
const { Seat, takeToken } = require("./seat.js");

/** @typedef {import("../native-types").Provider} Provider */
/** @typedef {import("../../index.js").Term} Term */
/** @typedef {import("../../testing.js").TestCluster} PublicCluster */
/** @typedef {import("../../testing.js").TestElection} PublicElection */
/** @typedef {import("../../testing.js").TestLossReason} TestLossReason */

/** @type {readonly TestLossReason[]} */
const REASONS = [
  "expired",
  "taken",
  "unreachable",
  "released",
  "steppedDown",
  "stalled",
  "stopped",
];
/** Who leads when a test says only that somebody else does. */
const ANOTHER = "another-instance";
/** Fake timers move along in so many steps for each renewInterval. */
const SLICES = 10;

const OF_FN =
  '. A fn that goes on until its term ends never does before: then use promote({ wait: "called" })';
const OF_DEREGISTERED =
  ": a deregisteredFn waits until its fn has ended, which should happen soon after term.signal is aborted";

const OF_STOP = ": the time of a test cluster passes in cluster.advance() only";
const UNANSWERED = "a request that the store does not answer (hangStore())";

/** @implements {PublicCluster} */
class TestCluster {
  #settings;
  #clock = new VirtualClock();
  /** @type {{ state: "answers" | "fails" | "hangs" }} */
  #store = { state: "answers" };
  #callbacks = new CallbackTracker();
  /** @type {Map<string, import("./seat.js").Race>} */
  #races = new Map();
  /** @type {Map<string, Seat>} */
  #seats = new Map();
  /** @type {Map<string, TestElection>} */
  #elections = new Map();
  /** Up to which moment fake timers were moved. */
  #ticked = 0;
  #moving = false;
  /** @type {Promise<void> | null} */
  #restored = null;
  #earlierCalls;
  #earlierListeners;

  /** @param {unknown} options */
  constructor(options) {
    const settings = checkOptions(options);
    this.#settings = settings;
    environment.useStandIn(
      {
        open: (dispatch) => this.#open(dispatch),
        after: this.#clock.after,
        run: (election, functionName, call) => this.#callbacks.run(election, functionName, call),
        failed: (error) => this.#callbacks.errors.push(error),
      },
      CALL,
    );
    if (settings.logger !== undefined) environment.useLogger(settings.logger);
    this.#earlierCalls = new Set(environment.calls);
    this.#earlierListeners = new Map(
      environment.clusters.map((cluster) => [cluster, listenersOf(cluster)]),
    );
  }

  // ---- the default election ----

  get name() {
    return this.#settings.leaseName;
  }

  get token() {
    return this.#default.token;
  }

  isLeader() {
    return this.#default.isLeader();
  }

  getLeader() {
    return this.#default.getLeader();
  }

  /** @param {{ wait?: "settled" | "called" }} [options] */
  promote(options) {
    return this.#default.promote(options);
  }

  /** @param {TestLossReason} [reason] */
  demote(reason) {
    return this.#default.demote(reason);
  }

  /** @param {string} [instanceId] */
  elect(instanceId) {
    return this.#default.elect(instanceId);
  }

  // ---- all of them ----

  /** @param {string} name */
  election(name) {
    this.#check("election()");
    return this.#electionOf(checkName("cluster.election(name): name", name) ?? this.name);
  }

  get instanceId() {
    return this.#settings.instanceId;
  }

  get now() {
    return this.#clock.now;
  }

  get callbackErrors() {
    return this.#callbacks.errors;
  }

  /** @param {number} ms */
  async advance(ms) {
    checkMillis("advance", ms);
    await this.#move("advance()", async () => {
      const end = this.now + ms;
      do {
        await this.#step(Math.max(this.now, Math.min(end, this.#nextMoment)));
      } while (this.now < end || this.#nextMoment <= this.now);
    });
  }

  /** @param {number} ms */
  async freeze(ms) {
    checkMillis("freeze", ms);
    if (this.#moving) {
      // The application is frozen in the middle of what it does; advance() goes on from there.
      this.#clock.moveTo(this.now + ms);
      return turn();
    }
    return this.#move("freeze()", async () => {
      // Before anything is awaited: whoever asks now is told the truth before any event is.
      this.#clock.moveTo(this.now + ms);
      await this.#tickTo(Math.floor(this.now));
      await this.#runDue();
    });
  }

  failStore() {
    this.#setStore("failStore()", "fails");
  }

  hangStore() {
    this.#setStore("hangStore()", "hangs");
  }

  mendStore() {
    this.#setStore("mendStore()", "answers");
  }

  settled() {
    this.#check("settled()");
    return this.#callbacks.settled("cluster.settled()", "");
  }

  /** @returns {Promise<void>} */
  restore() {
    this.#restored ??= this.#restore();
    return this.#restored;
  }

  /** @returns {Promise<void>} */
  [Symbol.asyncDispose]() {
    return this.restore();
  }

  [inspect.custom]() {
    const state = this.#restored === null ? `${this.now} ms` : "restored";
    return `TestCluster { ${this.instanceId}, ${state} }`;
  }

  // ---- inside ----

  get #default() {
    return this.#electionOf(this.name);
  }

  /** @param {string} name */
  #electionOf(name) {
    const known = this.#elections.get(name);
    if (known !== undefined) return known;
    const election = new TestElection(name, {
      race: this.#race(name),
      seat: (call) => this.#seat(call, name),
      term: () => this.#term(name),
      obstacle: () => this.#obstacle(),
      now: () => this.now,
      callbacks: this.#callbacks,
    });
    this.#elections.set(name, election);
    return election;
  }

  /** @param {string} call */
  #check(call) {
    if (this.#restored !== null) {
      throw new Error(`cluster.${call}: this test cluster was restored; each test has its own`);
    }
  }

  /**
   * @param {(event: import("../native-types").NativeEvent) => void} dispatch
   * @returns {Provider}
   */
  #open(dispatch) {
    const settings = this.#settings;
    const surroundings = { settings, clock: this.#clock, store: this.#store, dispatch };
    this.#seats.clear();
    return {
      info: {
        leaseName: settings.leaseName,
        instanceId: settings.instanceId,
        stopTimeout: settings.stopTimeout,
        store: "none: a test says who leads",
      },
      join: (name) => {
        const stopping = (/** @type {Promise<void>} */ stopped) =>
          this.#callbacks.watched("a stop", OF_STOP, stopped, name, UNANSWERED);
        const seat = new Seat(this.#race(name), { ...surroundings, stopping });
        this.#seats.set(name, seat);
        return seat;
      },
      stop: async () => {},
    };
  }

  /** @param {string} name */
  #race(name) {
    const known = this.#races.get(name);
    if (known !== undefined) return known;
    const race = { name, token: 0, other: null, wins: false };
    this.#races.set(name, race);
    return race;
  }

  /**
   * @param {string} call
   * @param {string} name
   */
  #seat(call, name) {
    this.#check(call);
    const isDefault = name === this.name;
    const cluster = environment.useCluster(isDefault ? undefined : name);
    const seat = this.#seats.get(name);
    if (seat === undefined || Cluster.electionOf(cluster)?.stopping !== false) {
      throw new Error(
        `cluster.${call}: the application has left the election "${name}" by stop() or stopCluster()`,
      );
    }
    return seat;
  }

  /** @param {string} name */
  #term(name) {
    const cluster = environment.useCluster(name === this.name ? undefined : name);
    return Cluster.electionOf(cluster)?.term ?? null;
  }

  /** Why this instance cannot be promoted. */
  #obstacle() {
    if (!this.#settings.candidate) return "this instance is no candidate (candidate: false)";
    const { state } = this.#store;
    return `the store ${state === "fails" ? "fails (failStore()" : "hangs (hangStore()"}); call mendStore() first`;
  }

  /**
   * @param {string} call
   * @param {"answers" | "fails" | "hangs"} state
   */
  #setStore(call, state) {
    this.#check(call);
    this.#store.state = state;
  }

  /**
   * @param {string} call
   * @param {() => Promise<void>} move
   */
  async #move(call, move) {
    this.#check(call);
    if (this.#moving) throw new Error(`cluster.${call}: the clock is moving already; await that`);
    this.#moving = true;
    try {
      await move();
    } finally {
      this.#moving = false;
    }
  }

  /** When something is due next. */
  get #nextMoment() {
    return Math.min(this.#clock.next, ...[...this.#seats.values()].map(({ wakeAt }) => wakeAt));
  }

  /** @param {number} moment */
  async #step(moment) {
    await turn(); // What was begun before the clock moves.
    if (this.#settings.tick !== undefined) {
      const slice = this.#settings.timing.renewInterval / SLICES;
      for (let next = this.now + slice; next < moment; next += slice) {
        await this.#tickTo(Math.floor(next));
        this.#clock.moveTo(next);
      }
      await this.#tickTo(Math.ceil(moment) - 1);
    }
    this.#clock.moveTo(moment);
    await this.#runDue();
    // Of timers and an election that are due at the same moment, the election comes first.
    await this.#tickTo(Math.floor(moment));
  }

  /** Fake timers know whole milliseconds only. @param {number} moment */
  async #tickTo(moment) {
    const ms = moment - this.#ticked;
    if (ms <= 0) return;
    this.#ticked = moment;
    await this.#settings.tick?.(ms);
  }

  async #runDue() {
    for (const seat of this.#seats.values()) seat.run();
    this.#clock.runDue();
    await turn();
  }

  async #restore() {
    const { keepRegistrations } = this.#settings;
    this.#store.state = "answers";
    for (const race of this.#races.values()) race.wins = false;
    for (const seat of this.#seats.values()) seat.letGo();
    const left = environment.leaveStandIn((call) => {
      if (keepRegistrations === "earlier") return this.#earlierCalls.has(call);
      return keepRegistrations === "all";
    });
    await this.#callbacks.watched("cluster.restore()", OF_DEREGISTERED, left);
    if (keepRegistrations === "all") return;
    for (const cluster of environment.clusters) {
      const earlier = this.#earlierListeners.get(cluster);
      for (const [event, listeners] of listenersOf(cluster)) {
        for (const listener of listeners) {
          const stays = keepRegistrations === "earlier" && earlier?.get(event)?.includes(listener);
          if (!stays) cluster.removeListener(event, listener);
        }
      }
    }
  }
}

/**
 * @typedef {object} Inside
 * @property {import("./seat.js").Race} race
 * @property {(call: string) => Seat} seat
 * @property {() => Term | null} term
 * @property {() => string} obstacle
 * @property {() => number} now
 * @property {CallbackTracker} callbacks
 */

/** @implements {PublicElection} */
class TestElection {
  #inside;

  /**
   * @param {string} name
   * @param {Inside} inside
   */
  constructor(name, inside) {
    /** @readonly */
    this.name = name;
    this.#inside = inside;
  }

  get token() {
    return this.#inside.race.token;
  }

  isLeader() {
    return this.#inside.seat("isLeader()").isLeader();
  }

  getLeader() {
    return this.#inside.seat("getLeader()").leader();
  }

  /**
   * @param {{ wait?: "settled" | "called" }} [options]
   * @returns {Promise<Term>}
   */
  async promote(options = {}) {
    const wait = checkWait(options);
    const { callbacks, race } = this.#inside;
    const seat = this.#inside.seat("promote()");
    await turn(); // The seat is taken, and what was registered just now hears of the term.
    race.wins = true;
    seat.campaignNow();
    if (seat.standing === "yielding" || seat.standing === "releasing") {
      await callbacks.settled("cluster.promote()", OF_DEREGISTERED, this.name);
    }
    if (!seat.isLeader()) {
      race.wins = false;
      throw new Error(`cluster.promote(): ${this.#inside.obstacle()}`);
    }
    if (wait === "settled") await callbacks.settled("cluster.promote()", OF_FN, this.name);
    else await turn();
    const term = this.#inside.term();
    if (term === null) {
      throw new Error(
        `cluster.promote(): the application gave the leadership of "${this.name}" up again at once`,
      );
    }
    return term;
  }

  /** @param {TestLossReason} [reason] */
  async demote(reason = "taken") {
    if (!REASONS.includes(reason)) {
      throw new TypeError(
        `cluster.demote(reason) must be one of ${REASONS.join(", ")}, not ${inspect(reason)}`,
      );
    }
    await this.#end("demote()", reason, reason === "taken" ? ANOTHER : null);
  }

  async elect(instanceId = ANOTHER) {
    if (typeof instanceId !== "string" || instanceId === "") {
      throw new TypeError(
        `cluster.elect(instanceId) must be the id of another instance, not ${inspect(instanceId)}`,
      );
    }
    await this.#end("elect()", "taken", instanceId);
  }

  /**
   * @param {string} call
   * @param {TestLossReason} reason
   * @param {string | null} other  who leads from now on
   */
  async #end(call, reason, other) {
    const { callbacks, race } = this.#inside;
    const seat = this.#inside.seat(call);
    await turn();
    race.wins = false;
    const known = race.other !== null && race.other === other;
    if (!known) {
      race.other = other;
      if (other !== null) takeToken(race, this.#inside.now());
    }
    const lost = seat.isLeader();
    seat.lose(reason);
    seat.noticeLeader();
    if (lost) await callbacks.settled(`cluster.${call}`, OF_DEREGISTERED, this.name);
    else await turn();
  }
}

/** @param {import("../cluster.js").Cluster} cluster */
function listenersOf(cluster) {
  return new Map(
    cluster
      .eventNames()
      .map((event) => [
        event,
        /** @type {((...values: any[]) => void)[]} */ (cluster.rawListeners(event)),
      ]),
  );
}

/**
 * @param {string} call
 * @param {unknown} ms
 */
function checkMillis(call, ms) {
  if (typeof ms === "number" && Number.isFinite(ms) && ms >= 0) return;
  throw new TypeError(
    `cluster.${call}(ms) must be a number of milliseconds, 0 or more, not ${inspect(ms)}`,
  );
}

/**
 * @param {unknown} options
 * @returns {"settled" | "called"}
 */
function checkWait(options) {
  const { wait = "settled" } = Object(options);
  if (wait === "settled" || wait === "called") return wait;
  throw new TypeError(
    `cluster.promote({ wait }) must be "settled" or "called", not ${inspect(wait)}`,
  );
}

/** @param {unknown} options */
function useTestCluster(options) {
  return new TestCluster(options);
}

module.exports = { useTestCluster };
