// The deadlines of an election, as src/timing.rs derives them: the one statement of them in JavaScript. Its
// test holds both against each other. L is leaseDuration, R is renewInterval, S is how long a leader trusts
// its last success.

/** @readonly */
const DEFAULTS = { leaseDuration: 15_000, renewInterval: 5_000 };

const LONGEST_LEASE = 24 * 60 * 60 * 1000;
const SHORTEST_RENEW = 50;
const MARGIN = 250;
const MARGIN_DIVISOR = 100;
const SHORTEST_ATTEMPT = 100;
const SHORTEST_GAP = 10;
const QUICK_RETRIES = 3;
const RELEASE_TRIES = 3;

/** What was refused: the parameter, and words that follow "must". */
class BadTiming {
  /**
   * @param {string} parameter
   * @param {string} rule
   */
  constructor(parameter, rule) {
    this.parameter = parameter;
    this.rule = rule;
  }
}

class Timing {
  /**
   * @param {number} lease
   * @param {number} renew
   * @param {number | undefined} leadLimit  undefined: the usual formula
   * @throws {BadTiming}
   */
  constructor(lease, renew, leadLimit) {
    if (renew < SHORTEST_RENEW) {
      throw new BadTiming("renewInterval", `be at least ${SHORTEST_RENEW} ms`);
    }
    if (lease > LONGEST_LEASE) {
      throw new BadTiming("leaseDuration", `be at most ${LONGEST_LEASE} ms (24 hours)`);
    }
    if (renew >= lease) {
      throw new BadTiming(
        "renewInterval",
        `be lower than leaseDuration, ${lease} ms; a third of it is usual`,
      );
    }
    const latest = latestStop(lease);
    const limit = leadLimit ?? Math.min(latest, (lease + renew) / 2);
    if (limit > latest) {
      throw new BadTiming(
        "leadLimit",
        `be at most ${Math.floor(latest)} ms: leaseDuration less a margin of ${Math.floor(lease - latest)} ms`,
      );
    }
    if (limit < renew + SHORTEST_ATTEMPT) {
      throw new BadTiming(
        leadLimit === undefined ? "renewInterval" : "leadLimit",
        `leave at least ${SHORTEST_ATTEMPT} ms for a renewal: a leader of ${lease} ms leases stops ` +
          `${Math.floor(limit)} ms after its last success, and renews every ${renew} ms`,
      );
    }
    this.lease = lease;
    this.renewInterval = renew;
    /** S */
    this.leadLimit = limit;
  }

  get campaignLimit() {
    return this.renewInterval;
  }

  get retriedRenewalLimit() {
    return (this.leadLimit - this.renewInterval) / 2;
  }

  get releaseLimit() {
    return this.renewInterval / RELEASE_TRIES;
  }

  /** After the so many'th failure in a row, from its send. @param {number} failures */
  retryAfter(failures) {
    const halvings = Math.max(0, QUICK_RETRIES - (failures - 1));
    return Math.max(this.renewInterval / 2 ** halvings, SHORTEST_GAP);
  }

  get overrunAfter() {
    return latestStop(this.lease);
  }

  get shortestNotice() {
    return MARGIN;
  }

  get defaultPause() {
    return this.lease;
  }

  get defaultStopTimeout() {
    return this.lease;
  }
}

/** @param {number} lease */
function latestStop(lease) {
  return Math.max(0, lease - Math.max(MARGIN, lease / MARGIN_DIVISOR));
}

module.exports = { Timing, BadTiming, DEFAULTS, LONGEST_LEASE, RELEASE_TRIES };
