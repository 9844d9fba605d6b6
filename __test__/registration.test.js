// The state machine of one registration, under thousands of random schedules.

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { LeadershipLostError } = require("../index.js");
const { Registration } = require("../lib/registration.js");
const { Term } = require("../lib/term.js");

const SCHEDULES = 5_000;
const STEPS = 40;

/** A small generator, so that a failure replays from its seed (mulberry32). */
function random(seed) {
  let state = seed;
  const next = () => {
    state = (state + 0x6d2b79f5) | 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
  return { below: (limit) => Math.floor(next() * limit), chance: (part) => next() < part };
}

const tick = () => new Promise((resolve) => setImmediate(resolve));

/**
 * Promotes, lets expire, demotes and removes at random, while callbacks are slow or fail, and checks every
 * call.
 */
async function runSchedule(seed) {
  const { below, chance } = random(seed);
  const say = (text) => `seed ${seed}: ${text}`;
  const pending = [];
  const ran = [];
  const undone = [];
  let running = null;
  let failures = 0;
  let logged = 0;
  let ends = 0;
  let removed = false;
  const removals = [];
  const violations = [];

  /** Ends at once, later, or never before the schedule does; well or not. */
  const behave = () => {
    const fails = chance(0.2);
    if (fails) failures += 1;
    if (chance(0.4)) {
      running = null;
      if (fails) throw new Error("callback");
      return undefined;
    }
    return new Promise((resolve, reject) => {
      pending.push(() => {
        running = null;
        if (fails) reject(undefined);
        else resolve();
      });
    });
  };
  const enter = (what) => {
    assert.equal(running, null, say(`${what} overlaps with ${running}`));
    running = what;
  };

  const registration = new Registration({
    fn: (term) => {
      enter(`fn ${term.token}`);
      assert.equal(removed, false, say("fn after the removal"));
      assert.equal(term.signal.aborted, false, say("fn of a term that is over"));
      assert.notEqual(term.token, expired, say("fn of a term that is over, but not told of yet"));
      assert.equal(term.token, current, say("fn of a term that is not the newest"));
      assert.equal(ran.length, undone.length, say("fn before the last deregisteredFn"));
      ran.push(term.token);
      if (chance(0.1)) removals.push(remove());
      return behave();
    },
    deregisteredFn: (lost, term) => {
      enter(`deregisteredFn ${term.token}`);
      assert.equal(term.signal.aborted, true, say("deregisteredFn of a term that is not over"));
      assert.equal(lost, term.signal.reason);
      undone.push(term.token);
      assert.deepEqual(undone, ran, say("not balanced, or out of order"));
      if (chance(0.1)) removals.push(remove());
      return behave();
    },
    onError: (error) => {
      if (error instanceof assert.AssertionError) violations.push(error);
      logged += 1;
    },
    onEnd: () => {
      ends += 1;
    },
  });
  const remove = () => {
    removed = true;
    registration.remove((term) => new LeadershipLostError("e", term.token, "removed"));
    return registration.whenEnded();
  };

  let token = 0;
  let current = null;
  let expired = null;
  const source = {
    election: "e",
    instanceId: () => "i",
    remaining: (asked) => (asked === expired ? 0 : 1),
  };
  let settledUpTo = 0;
  const steps = [
    () => {
      if (current !== null) return;
      token += 1 + below(3);
      current = token;
      registration.promoted(new Term(source, token, "trace"));
    },
    () => {
      if (current === null) return;
      const over = current;
      current = null;
      registration.lost(new LeadershipLostError("e", over, "taken"));
      registration.advance();
      registration.whenEnded(over).then(() => {
        assert.ok(!ran.includes(over) || undone.includes(over), say(`${over} settled too early`));
        assert.ok(running === null || !running.endsWith(` ${over}`), say("settled while running"));
        settledUpTo = Math.max(settledUpTo, over);
      });
    },
    () => {
      if (chance(0.3)) expired = current;
    },
    () => pending.splice(below(pending.length || 1), 1)[0]?.(),
    () => tick(),
    () => {
      if (chance(0.05)) removals.push(remove());
    },
  ];
  for (let step = 0; step < STEPS; step += 1) await steps[below(steps.length)]();

  // Everything ends in the end.
  const lastLost = current === null ? token : null;
  if (chance(0.5)) removals.push(remove());
  else if (current !== null) await steps[1]();
  await tick();
  while (pending.length > 0 || running !== null) {
    pending.shift()?.();
    await tick();
  }
  await tick();
  if (violations.length > 0) throw violations[0];
  assert.deepEqual(undone, ran, say("not balanced at the end"));
  assert.equal(logged, failures, say("errors and log differ"));
  if (lastLost !== null) assert.equal(settledUpTo, lastLost, say("a lost term was never settled"));
  assert.equal(ends, removed ? 1 : 0, say("told its end too often, or not at all"));
  await Promise.all(removals);
  return ran.length;
}

test(`callbacks never overlap, and are balanced and in order, under ${SCHEDULES} random schedules`, async () => {
  const seeds = process.env.SEED === undefined ? SCHEDULES : 1;
  let runs = 0;
  for (let i = 0; i < seeds; i += 1) runs += await runSchedule(Number(process.env.SEED ?? i));
  if (seeds > 1) assert.ok(runs > SCHEDULES, `only ${runs} callbacks ran`);
});
