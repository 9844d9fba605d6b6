// The part that this instance takes in one election, as src/candidate.rs decides it, on a virtual clock and
// against a store that is a few fields: when to renew, what a failure does, when a term is over.
//
// What differs: the store answers within the call, or not at all, and there is no jitter. Whether this
// instance wins is the test's decision (`Race.wins`).

const { randomBytes } = require("node:crypto");
const { RELEASE_TRIES } = require("./timing.js");

/** @typedef {import("../native-types").ElectionSource} ElectionSource */
/** @typedef {import("../native-types").NativeEvent} NativeEvent */
/** @typedef {import("../../index.js").LossReason} LossReason */

/**
 * One election as everybody sees it. It outlives the seats: tokens only grow.
 *
 * @typedef {object} Race
 * @property {string} name
 * @property {number} token  the largest that was given
 * @property {string | null} other  who leads, if it is not this instance
 * @property {boolean} wins  this instance gets the lease whenever it asks
 */

/**
 * What all elections of a test cluster share.
 *
 * @typedef {object} Surroundings
 * @property {import("./options.js").Settings} settings
 * @property {import("./clock.js").VirtualClock} clock
 * @property {{ state: "answers" | "fails" | "hangs" }} store
 * @property {(event: NativeEvent) => void} dispatch
 * @property {(stopped: Promise<void>) => Promise<void>} stopping  says so if that takes long
 */

/** @typedef {"campaign" | "renew" | "release"} Op */

const TRACE_ID_BYTES = 16;
/** As those of real stores, which are at least the time in microseconds: what holds a token must hold so much. */
const FIRST_TOKEN = 1_800_000_000_000_000;
const NEVER = Number.POSITIVE_INFINITY;

/**
 * The next term's, whoever begins it. As the time goes on, so do tokens.
 *
 * @param {Race} race
 * @param {number} now
 */
function takeToken(race, now) {
  race.token = Math.max(race.token + 1, FIRST_TOKEN + Math.floor(now * 1_000));
}

/** @implements {ElectionSource} */
class Seat {
  #race;
  #settings;
  #clock;
  #store;
  #dispatch;
  #whileStopping;

  /** @type {"follower" | "leader" | "yielding" | "releasing" | "stopped"} */
  #standing = "follower";
  /** Of the present term, or of the last one. */
  #token = 0;
  #anchor = 0;
  #deadline = 0;
  /** Of the last term. */
  #traceId = "";
  /** When the next request is due, unless one is pending. */
  #next;
  /** Of a request that the store does not answer. @type {{ op: Op, anchor: number, giveUp: number } | null} */
  #pending = null;
  #failures = 0;
  #storeLost = false;
  #pausedUntil = 0;
  /** Of a lease that is kept for callbacks. */
  #kept = { callbacksEnded: false, releaseBy: 0, pause: 0, tries: 0 };
  /** The last term's callbacks, until they end. @type {{ token: number, traceId: string, ended: number, overrun: number } | null} */
  #unsettled = null;
  #stopping = false;
  /** @type {(() => void) | null} */
  #onStopped = null;
  /** @type {{ instanceId: string, token: number } | null} */
  #seen = null;
  /** @type {NativeEvent[]} */
  #events = [];
  #running = false;

  /**
   * @param {Race} race
   * @param {Surroundings} surroundings
   */
  constructor(race, { settings, clock, store, dispatch, stopping }) {
    this.#race = race;
    this.#settings = settings;
    this.#clock = clock;
    this.#store = store;
    this.#dispatch = dispatch;
    this.#whileStopping = stopping;
    this.#next = clock.now;
    // As events of the native side: never while the caller is still at work.
    queueMicrotask(() => {
      this.noticeLeader();
      this.run();
    });
  }

  // ---- what the library asks ----

  /** No database holds its lease. */
  guard() {
    return /** @type {const} */ ("alone");
  }

  isLeader = () => this.#standing === "leader" && this.#clock.now < this.#deadline;

  /** @param {number} token */
  remaining(token) {
    return token === this.#token && this.isLeader() ? this.#deadline - this.#clock.now : 0;
  }

  leader() {
    return this.#seen;
  }

  /** @param {number} token */
  settled(token) {
    if (this.#unsettled?.token === token) this.#unsettled = null;
    if (this.#standing === "yielding" && token === this.#token) this.#kept.callbacksEnded = true;
    this.run();
  }

  /** @param {number | null} pause */
  stepDown(pause) {
    const { now } = this.#clock;
    const wait = pause ?? this.#settings.timing.defaultPause;
    if (this.#standing === "leader") this.#yield("steppedDown", wait);
    else if (this.#standing === "follower")
      this.#pausedUntil = Math.max(this.#pausedUntil, now + wait);
    else this.#kept.pause = Math.max(this.#kept.pause, wait);
    this.run();
  }

  /** @returns {Promise<void>} */
  stop() {
    this.#stopping = true;
    /** @type {Promise<void>} */
    const stopped = new Promise((resolve) => {
      this.#onStopped = resolve;
    });
    if (this.#standing === "leader") {
      this.#yield("stopped", 0);
    } else if (this.#standing === "yielding") {
      const limit = this.#clock.now + this.#settings.stopTimeout;
      this.#kept.releaseBy = Math.min(this.#kept.releaseBy, limit);
    } else if (this.#standing === "follower" && this.#pending === null) {
      this.#finishStop();
    }
    // Else the campaign's end decides: a lease that it wins must be released.
    this.run();
    return this.#whileStopping(stopped);
  }

  // ---- what the test says ----

  get standing() {
    return this.#standing;
  }

  get token() {
    return this.#token;
  }

  /** It asks at once, and the race decides. */
  campaignNow() {
    this.#pausedUntil = this.#clock.now;
    this.#next = this.#clock.now;
    this.#kept.pause = 0;
    this.run();
  }

  /** @param {LossReason} reason */
  lose(reason) {
    if (this.#standing === "leader") this.#lose(reason);
    this.run();
  }

  /** Somebody else leads. */
  noticeLeader() {
    const { other, token } = this.#race;
    if (other !== null) this.#saw({ instanceId: other, token });
    this.#flush();
  }

  /** The test is over, and the store answers again: nobody waits for what it left unanswered. */
  letGo() {
    this.#pending = null;
    if (this.#standing !== "follower") this.#next = this.#clock.now;
    else if (this.#stopping) this.#finishStop();
    else this.#next = NEVER;
    this.run();
  }

  /** When something is due, at the latest. */
  get wakeAt() {
    let wake = this.#pending?.giveUp ?? this.#due;
    if (this.#standing === "leader") wake = Math.min(wake, this.#deadline);
    if (this.#standing === "yielding") wake = Math.min(wake, this.#kept.releaseBy);
    return Math.min(wake, this.#unsettled?.overrun ?? NEVER);
  }

  /** All that is due by now. */
  run() {
    if (this.#running) return; // A callback asked for it: the loop below goes on.
    this.#running = true;
    try {
      do {
        this.#passTime();
        this.#flush();
        while (this.#sendWhatIsDue()) this.#passTime();
        this.#flush();
      } while (this.wakeAt <= this.#clock.now);
    } finally {
      this.#running = false;
    }
  }

  // ---- time ----

  #passTime() {
    const { now } = this.#clock;
    if (this.#standing === "leader" && now >= this.#deadline) {
      if (this.#pending !== null) this.#lostTheStore("hangs");
      this.#lose(this.#pending !== null || this.#failures > 0 ? "unreachable" : "expired");
    }
    if (this.#pending !== null && now >= this.#pending.giveUp) {
      const { op, anchor } = this.#pending;
      this.#pending = null;
      this.#failed(op, anchor, "hangs");
    }
    if (this.#standing === "yielding" && now >= this.#kept.releaseBy) this.#leave();
    if (this.#unsettled !== null && now >= this.#unsettled.overrun) {
      const { token, traceId, ended } = this.#unsettled;
      this.#unsettled.overrun = NEVER;
      const duration = now - ended;
      this.#tell({ type: "overrun", election: this.#race.name, token, traceId, duration });
    }
  }

  /** If no request is pending. */
  get #due() {
    switch (this.#standing) {
      case "stopped":
        return NEVER;
      case "follower":
        return this.#stopping ? NEVER : Math.max(this.#next, this.#pausedUntil);
      case "yielding":
        return this.#kept.callbacksEnded ? 0 : this.#next;
      default:
        return this.#next;
    }
  }

  /** @returns {boolean}  whether something was */
  #sendWhatIsDue() {
    const { now } = this.#clock;
    if (this.#pending !== null || now < this.#due) return false;
    const { timing } = this.#settings;
    /** @type {Op} */
    let op = "renew";
    let limit = timing.campaignLimit;
    if (this.#standing === "follower") {
      op = "campaign";
    } else if (this.#standing === "leader") {
      const left = this.#deadline - now;
      const retries = this.#settings.onRenewError === "retry";
      limit = retries ? Math.min(left, timing.retriedRenewalLimit) : left;
    } else if (this.#standing === "releasing" || this.#kept.callbacksEnded) {
      op = "release";
      limit = timing.releaseLimit;
      this.#standing = "releasing";
      this.#kept.tries += 1;
    }
    if (this.#store.state === "hangs") {
      this.#pending = { op, anchor: now, giveUp: now + limit };
    } else if (this.#store.state === "fails") {
      this.#failed(op, now, "fails");
    } else {
      this.#answered(op, now);
    }
    return true;
  }

  // ---- answers ----

  /**
   * @param {Op} op
   * @param {number} anchor
   */
  #answered(op, anchor) {
    const { timing } = this.#settings;
    this.#failures = 0;
    this.#storeLost = false;
    this.#next = anchor + timing.renewInterval;
    if (op === "release") {
      this.#leave();
    } else if (op === "renew") {
      this.#anchor = anchor;
      this.#deadline = anchor + timing.leadLimit;
      if (this.#standing === "yielding" && this.#unsettled !== null)
        this.#unsettled.overrun = anchor + timing.overrunAfter;
    } else if (this.#race.wins && this.#settings.candidate) {
      this.#won(anchor);
    }
  }

  /** @param {number} anchor */
  #won(anchor) {
    const race = this.#race;
    takeToken(race, this.#clock.now);
    race.other = null;
    this.#token = race.token;
    this.#anchor = anchor;
    this.#deadline = anchor + this.#settings.timing.leadLimit;
    this.#standing = "leader";
    this.#traceId = randomBytes(TRACE_ID_BYTES).toString("hex");
    const { name: election, token } = race;
    this.#tell({ type: "promoted", election, token, traceId: this.#traceId });
    this.#saw({ instanceId: this.#settings.instanceId, token: race.token });
  }

  /**
   * @param {Op} op
   * @param {number} anchor
   * @param {"fails" | "hangs"} how  as it was when this was sent: it may have been mended since
   */
  #failed(op, anchor, how) {
    this.#failures += 1;
    this.#lostTheStore(how);
    const retry = Math.max(
      anchor + this.#settings.timing.retryAfter(this.#failures),
      this.#clock.now,
    );
    this.#next = retry;
    if (this.#standing === "leader" && this.#settings.onRenewError === "stepDown") {
      this.#lose("unreachable");
      this.#next = retry;
    } else if (op === "release" && this.#kept.tries >= RELEASE_TRIES) {
      this.#leave();
    } else if (this.#standing === "follower" && this.#stopping) {
      this.#finishStop();
    }
  }

  /** @param {"fails" | "hangs"} how */
  #lostTheStore(how) {
    if (this.#storeLost) return;
    this.#storeLost = true;
    const [code, what] =
      how === "hangs"
        ? ["timeout", "did not answer in time (hangStore())"]
        : ["unreachable", "failed (failStore())"];
    this.#tell({
      type: "error",
      election: this.#race.name,
      code,
      message: `election ${this.#race.name}: the store of the test cluster ${what}`,
      fatal: false,
    });
  }

  // ---- the end of a term ----

  /** Leadership and lease end together. @param {LossReason} reason */
  #lose(reason) {
    this.#endTerm(reason);
    this.#standing = "follower";
    this.#pending = null;
    this.#next = this.#clock.now;
  }

  /**
   * Leadership ends now, the lease when the callbacks have ended.
   *
   * @param {LossReason} reason
   * @param {number} pause
   */
  #yield(reason, pause) {
    this.#endTerm(reason);
    this.#standing = "yielding";
    const releaseBy = this.#clock.now + this.#settings.stopTimeout;
    this.#kept = { callbacksEnded: false, releaseBy, pause, tries: 0 };
  }

  /** @param {LossReason} reason */
  #endTerm(reason) {
    const { now } = this.#clock;
    const { timing } = this.#settings;
    const until = this.#anchor + timing.overrunAfter;
    const overrun = now < until ? until : now + timing.shortestNotice;
    this.#unsettled = { token: this.#token, traceId: this.#traceId, ended: now, overrun };
    this.#tell({ type: "demoted", election: this.#race.name, token: this.#token, reason });
  }

  /** The lease that was kept or released is no longer our business. */
  #leave() {
    this.#pending = null;
    this.#standing = "follower";
    this.#pausedUntil = this.#clock.now + this.#kept.pause;
    this.#next = this.#pausedUntil;
    if (this.#stopping) this.#finishStop();
  }

  #finishStop() {
    this.#pending = null;
    this.#standing = "stopped";
    this.#onStopped?.();
  }

  // ---- events ----

  /** @param {{ instanceId: string, token: number }} leader */
  #saw(leader) {
    if (this.#seen?.instanceId === leader.instanceId && this.#seen.token === leader.token) return;
    this.#seen = leader;
    this.#tell({ type: "leaderChanged", election: this.#race.name, ...leader });
  }

  /** Told when all is as it will stay: callbacks ask questions. @param {NativeEvent} event */
  #tell(event) {
    this.#events.push(event);
  }

  #flush() {
    for (let event = this.#events.shift(); event !== undefined; event = this.#events.shift()) {
      this.#dispatch(event);
    }
  }
}

module.exports = { Seat, takeToken };
