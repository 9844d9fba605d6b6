// Elections on a store of somebody's own, attempt by attempt, as the native side makes them: the sentences that hold
// for every store of this package (tests/conformance/suite.rs).

const { setTimeout: sleep } = require("node:timers/promises");
const { fail } = require("./view.js");

/** @typedef {import("./contract.js").Sentence} Sentence */
/** @typedef {import("./bench.js").Bench} Bench */
/** @typedef {import("./bench.js").Contender} Contender */
/** @typedef {import("../../native-types").ClientAnswer} ClientAnswer */

/** Does not run out while a test runs. */
const LONG = 60_000;
/** A lease is so many times as long as what it is tried with, at least. */
const LEASE_IN_CALLS = 10;
/** Far more than a takeover takes. */
const LEASES_UNTIL_TAKEN = 10;
const RACERS = 6;
/** Of its lease, a racer trusts this part, as a leader does. */
const TRUST = 0.75;
const RACE = 2_500;
const LEAST_TERMS = 4;
const EARLY = 2;

const SEE =
  "the sentences about get and compareAndSet say which of the two is wrong; if all of those hold, this is a fault of " +
  "whenleader: please report it";

/**
 * @param {string} what
 * @returns {never}
 */
const wrong = (what) => fail(what, SEE);

/**
 * @param {ClientAnswer} answer
 * @param {string} did
 */
function check(answer, did) {
  const { what, code, message } = answer;
  if (what === "transient" || what === "ambiguous" || what === "fatal") {
    fail(`${did} failed (${what}, ${code}): ${message}`, SEE);
  }
  return answer;
}

/**
 * @param {ClientAnswer} answer
 * @param {string} did
 * @returns {number}  the token
 */
function held(answer, did) {
  const { what, token, instanceId } = check(answer, did);
  if (what === "held" && token !== undefined) return token;
  return wrong(`${did} was denied, and the answer names ${instanceId ?? "nobody"}`);
}

/**
 * @param {ClientAnswer} answer
 * @param {string} did
 * @param {{ token: number, client: Contender } | null} leader  whom it should name
 */
function denied(answer, did, leader) {
  const { what, token, instanceId, remaining } = check(answer, did);
  if (what === "held") wrong(`${did} was granted under token ${token}`);
  if ((token ?? null) !== (leader?.token ?? null) || (leader && instanceId !== leader.client.id)) {
    const names = instanceId === undefined ? "nobody" : `${instanceId} (term ${token})`;
    const expected = leader === null ? "nobody" : `${leader.client.id} (term ${leader.token})`;
    wrong(`${did} was denied and named ${names} in place of ${expected}`);
  }
  return remaining;
}

/** Campaigns until it wins, at the moments that the answers tell. @param {Contender} client */
async function takeOver(client, /** @type {string} */ election, /** @type {number} */ lease) {
  const end = performance.now() + LEASES_UNTIL_TAKEN * lease;
  let last = "";
  while (performance.now() < end) {
    const { what, token, remaining, message } = await client.attempt(election, lease);
    if (what === "held" && token !== undefined) return token;
    last = message === undefined ? "" : `; the last attempt failed: ${message}`;
    await sleep(Math.min(Math.max(remaining ?? 20, 2), lease));
  }
  return wrong(`a lease that nobody renewed was never taken over${last}`);
}

/** Long enough for this store. @param {Bench} bench  @param {Contender} client */
async function shortLease(bench, client) {
  const election = bench.name();
  const begun = performance.now();
  const token = held(await client.attempt(election, LONG), "the first attempt");
  held(await client.attempt(election, LONG, token), "a renewal");
  const call = (performance.now() - begun) / 2;
  return Math.max(bench.leaseDuration, Math.ceil(LEASE_IN_CALLS * call));
}

/** @type {Sentence[]} */
const ELECTION = [
  {
    name: "a free lease is acquired for its whole duration, and everybody sees by whom",
    async run(bench) {
      const [a, b] = await bench.contenders("a", "b");
      const election = bench.name();
      const answer = await a.attempt(election, LONG);
      const token = held(answer, "the first attempt");
      if (answer.validFor !== LONG) wrong(`a lease of ${LONG} ms holds ${answer.validFor} ms`);
      const remaining = denied(await b.attempt(election, LONG), "an attempt of another instance", {
        client: a,
        token,
      });
      if (remaining === undefined || remaining > LONG || remaining < LONG / 2) {
        wrong(`a lease of ${LONG} ms that was just granted runs for ${remaining} ms`);
      }
      const seen = check(await b.peek(election), "a look");
      if (seen.token !== token || seen.instanceId !== a.id) wrong("a look does not see the leader");
    },
  },
  {
    name: "a renewal keeps its token and extends the lease",
    async run(bench) {
      const [a, b] = await bench.contenders("a", "b");
      const election = bench.name();
      const token = held(await a.attempt(election, 10_000), "the first attempt");
      await bench.rounds(20, async () => {
        const renewed = held(await a.attempt(election, LONG, token), "a renewal");
        if (renewed !== token) wrong(`a renewal of term ${token} answered term ${renewed}`);
      });
      const did = "an attempt of another instance";
      const remaining = denied(await b.attempt(election, LONG), did, { client: a, token });
      if (remaining === undefined || remaining < LONG / 2) {
        wrong(`a lease that was renewed for ${LONG} ms runs for ${remaining} ms`);
      }
    },
  },
  {
    name: "a lease that is not renewed is taken over when it has run out, under a larger token",
    async run(bench) {
      const [a, b] = await bench.contenders("a", "b");
      const lease = await shortLease(bench, a);
      const election = bench.name();
      const sent = performance.now();
      const old = held(await a.attempt(election, lease), "the first attempt");
      const token = await takeOver(b, election, lease);
      const waited = performance.now() - sent;
      if (waited < lease) wrong(`a lease of ${lease} ms was taken over after ${waited} ms`);
      if (token <= old) wrong(`term ${old} was followed by term ${token}`);
      denied(await a.attempt(election, lease, old), "a renewal of a term that is over", {
        client: b,
        token,
      });
    },
  },
  {
    name: "a lease that is renewed is not taken over",
    async run(bench) {
      const [a, b] = await bench.contenders("a", "b");
      const lease = 2 * (await shortLease(bench, a));
      const election = bench.name();
      const token = held(await a.attempt(election, lease), "the first attempt");
      const end = performance.now() + 2.5 * lease;
      while (performance.now() < end) {
        held(await a.attempt(election, lease, token), "a renewal in time");
        const did = "an attempt against a leader that renews";
        denied(await b.attempt(election, lease), did, { client: a, token });
        await sleep(lease / 16);
      }
    },
  },
  {
    name: "a lease that is released is free at once, and its token is never used again",
    async run(bench) {
      const [a, b] = await bench.contenders("a", "b");
      const election = bench.name();
      let holder = a;
      let token = held(await a.attempt(election, LONG), "the first attempt");
      for (const next of [b, a, a, b]) {
        const { what } = check(await holder.release(election, token), "a release");
        if (what !== "released") wrong(`the release of term ${token} by its leader did nothing`);
        if (check(await next.peek(election), "a look").what !== "nobody") {
          wrong("a look sees a leader after the release");
        }
        const won = held(await next.attempt(election, LONG), "an attempt after a release");
        if (won <= token) wrong(`term ${token} was followed by term ${won}`);
        [holder, token] = [next, won];
      }
    },
  },
  {
    name: "a late renewal of an old term changes nothing",
    async run(bench) {
      const [a, b] = await bench.contenders("a", "b");
      const election = bench.name();
      const did = "a late renewal";
      const first = held(await a.attempt(election, LONG), "the first attempt");
      check(await a.release(election, first), "a release");
      denied(await a.attempt(election, LONG, first), did, null);
      const second = held(await a.attempt(election, LONG), "an attempt after a release");
      denied(await a.attempt(election, LONG, first), did, { client: a, token: second });
      check(await a.release(election, second), "a release");
      const third = held(await b.attempt(election, LONG), "an attempt after a release");
      for (const old of [first, second]) {
        denied(await a.attempt(election, LONG, old), did, { client: b, token: third });
      }
      held(await b.attempt(election, LONG, third), "a renewal of the present term");
    },
  },
  {
    name: "a late release of an old term changes nothing",
    async run(bench) {
      const [a, b] = await bench.contenders("a", "b");
      const election = bench.name();
      const first = held(await a.attempt(election, LONG), "the first attempt");
      check(await a.release(election, first), "a release");
      const second = held(await a.attempt(election, LONG), "an attempt after a release");
      for (const [client, old] of /** @type {const} */ ([
        [a, first],
        [b, second],
        [b, first],
      ])) {
        const { what } = check(await client.release(election, old), "a late release");
        if (what !== "notReleased")
          wrong(`${client.id} released the term ${old}, which it does not lead`);
      }
      held(await a.attempt(election, LONG, second), "a renewal after a late release");
    },
  },
  {
    name: "two instances under one id are two",
    async run(bench) {
      const [one, other] = await bench.contenders("same", "same");
      const election = bench.name();
      const token = held(await one.attempt(election, LONG), "the first attempt");
      const leader = { client: one, token };
      denied(await other.attempt(election, LONG), "an attempt of a namesake", leader);
      denied(await other.attempt(election, LONG, token), "a renewal by a namesake", leader);
      const { what } = check(await other.release(election, token), "a release by a namesake");
      if (what !== "notReleased") wrong("a namesake released the lease");
      held(await one.attempt(election, LONG, token), "a renewal");
    },
  },
  {
    name: "racing instances never lead at the same time, and no token is granted twice",
    async run(bench) {
      const ids = Array.from({ length: RACERS }, (_, i) => `racer-${i}`);
      const clients = await bench.contenders(...ids);
      const lease = await shortLease(bench, clients[0]);
      const election = bench.name();
      /** @type {{ token: number, from: number, until: number }[]} */
      const terms = [];
      const end = performance.now() + Math.max(RACE, LEAST_TERMS * lease);
      await Promise.all(
        clients.map(async (client, number) => {
          let round = number;
          while (performance.now() < end) {
            const sent = performance.now();
            const answer = await client.attempt(election, lease);
            if (answer.what !== "held" || answer.token === undefined) {
              await sleep(5 + number);
              continue;
            }
            const { token } = answer;
            const term = { token, from: performance.now(), until: sent + TRUST * lease };
            terms.push(term);
            for (let renewals = 0; renewals < round % 4; renewals += 1) {
              await sleep(lease / 5);
              const before = performance.now();
              if (before >= term.until) break;
              if ((await client.attempt(election, lease, token)).what !== "held") break;
              term.until = before + TRUST * lease;
            }
            round += 1;
            // Some vanish without a word, and their leases run out.
            if (round % 3 !== 0) {
              term.until = Math.min(term.until, performance.now());
              await client.release(election, token);
            } else {
              // Until it does not believe in its own term any more; a timer may be a little early.
              await sleep(Math.max(0, term.until - performance.now()) + EARLY);
            }
          }
        }),
      );
      terms.sort((one, other) => one.token - other.token);
      if (terms.length < LEAST_TERMS) {
        wrong(`${RACERS} racing instances led in ${terms.length} terms only`);
      }
      for (const [i, next] of terms.entries()) {
        const before = terms[i - 1];
        if (before === undefined) continue;
        if (before.token === next.token) wrong(`term ${next.token} was granted twice`);
        if (before.until > next.from) {
          wrong(
            `the terms ${before.token} and ${next.token} overlapped: two instances led at once`,
          );
        }
      }
    },
  },
  {
    name: "a watch, if the store has one, hears a release and a new term",
    async run(bench) {
      const [a, b] = await bench.contenders("a", "b");
      if (!b.watches) return;
      const election = bench.name();
      /** @type {ClientAnswer[]} */
      const heard = [];
      const end = b.watch(election, (hint) => heard.push(hint));
      try {
        const hears = async (
          /** @type {(hint: ClientAnswer) => boolean} */ wanted,
          /** @type {string} */ what,
        ) => {
          if (!(await bench.eventually(() => heard.some(wanted))))
            wrong(`a watch never heard ${what}`);
          heard.length = 0;
        };
        await hears(({ what }) => what === "watching", "that it works");
        const token = held(await a.attempt(election, LONG), "the first attempt");
        await hears((hint) => hint.what === "alive" && hint.token === token, "a new term");
        check(await a.release(election, token), "a release");
        await hears(({ what }) => what === "free", "a release");
      } finally {
        await end();
      }
    },
  },
  {
    name: "a deleted record ends the term, and tokens go on growing",
    async run(bench) {
      const { remove } = bench;
      if (remove === null) return;
      const [a, b] = await bench.contenders("a", "b");
      const election = bench.name();
      const old = held(await a.attempt(election, LONG), "the first attempt");
      await remove(`cluster:${election}`);
      denied(await a.attempt(election, LONG, old), "a renewal after the record was deleted", null);
      const token = held(
        await b.attempt(election, LONG),
        "an attempt after the record was deleted",
      );
      if (token <= old) wrong(`term ${old} was followed by term ${token}`);
    },
  },
];

module.exports = { ELECTION };
