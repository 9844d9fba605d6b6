// runWhenLeader(): when its work runs, how it ends, and what is told of it.

const assert = require("node:assert/strict");
const diagnostics = require("node:diagnostics_channel");
const { once } = require("node:events");
const { setTimeout: delay } = require("node:timers/promises");
const { test } = require("node:test");
const { setFlagsFromString } = require("node:v8");
const { runInNewContext } = require("node:vm");
const { ConfigError, currentTerm, runWhenLeader } = require("../index.js");
const { CONFIG, fakeWorld, gate, settle, sleep, startedWorld } = require("./fake-native.js");

const unhandled = [];
process.on("unhandledRejection", (error) => unhandled.push(error));

const HOW = { options: "{}", cluster: undefined, signal: undefined };

/** Work that a test ends, and what came of it. */
function work() {
  const events = [];
  const gates = [];
  const run = async (term) => {
    events.push(`begins ${term.token}`);
    const end = gate();
    gates.push(end);
    term.signal.addEventListener("abort", () =>
      events.push(`aborted ${term.signal.reason.reason}`),
    );
    try {
      return await end.promise;
    } finally {
      events.push(`ends ${term.token}`);
    }
  };
  return { events, gates, run };
}

/**
 * How many of them are there when the garbage has been collected. Once is not enough: a collection that was
 * under way when they were given up, and functions that are being compiled, still keep some.
 */
async function aliveAfterCollection(references) {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  let alive = references.length;
  for (let i = 0; i < 50 && alive > 1; i += 1) {
    await delay(5);
    collect();
    alive = references.filter((reference) => reference.deref() !== undefined).length;
  }
  return alive;
}

async function running(how = {}) {
  const world = await startedWorld();
  const { events, gates, run: job } = work();
  const run = world.environment.runWhenLeader("job", job, { ...HOW, ...how });
  return { ...world, events, gates, run, election: world.native.elections.get("job") };
}

test("work runs when this instance becomes the leader, and from scratch in the next term", async () => {
  const { election, events, gates, run } = await running();
  await settle();
  assert.deepEqual(events, []);
  assert.equal(run.isLeader(), false);
  election.promote(1);
  await settle();
  assert.equal(run.isLeader(), true);
  election.demote("taken");
  await settle();
  assert.equal(run.isLeader(), false);
  gates[0].open();
  await settle();
  election.promote(2);
  await settle();
  assert.deepEqual(events, ["begins 1", "aborted taken", "ends 1", "begins 2"]);
  assert.deepEqual(election.steppedDown, [], "a term that is over is nobody's to hand back");
  assert.deepEqual(election.settledTokens, [1], "the lease is kept until the work has ended");
});

test("the next term waits for work that has not ended", async () => {
  const { election, events, gates } = await running();
  election.promote(1);
  await settle();
  election.demote("unreachable");
  election.promote(2);
  await settle();
  assert.deepEqual(events, ["begins 1", "aborted unreachable"]);
  gates[0].open();
  await settle();
  assert.deepEqual(events, ["begins 1", "aborted unreachable", "ends 1", "begins 2"]);
});

test("work that returns while its term lasts hands the name back, for as long as its campaign interval says", async () => {
  const { election, events, gates, lines } = await running();
  election.promote(1);
  await settle();
  gates[0].open();
  await settle();
  await settle();
  assert.deepEqual(election.steppedDown, [null]);
  assert.deepEqual(events, ["begins 1", "ends 1", "aborted steppedDown"]);
  assert.deepEqual(election.settledTokens, [1], "and it is released at once");
  assert.match(lines.at(-1), /info whenleader: the work has ended.*election=job token=1/);
});

test("whatever work throws, its name is handed back", async () => {
  const hostile = {
    get code() {
      throw new Error("no");
    },
  };
  for (const thrown of [hostile, Object.create(null), undefined, null, Symbol("s"), 7]) {
    const { election, gates } = await running();
    election.promote(1);
    await settle();
    gates[0].fail(thrown);
    await settle();
    await settle();
    assert.equal(election.steppedDown.length, 1);
    assert.deepEqual(election.settledTokens, [1]);
  }
});

test("work that throws is logged with election, token and trace, and counts as a return", async () => {
  const { election, gates, lines } = await running();
  election.promote(1);
  await settle();
  gates[0].fail(new Error("no upstream"));
  await settle();
  await settle();
  assert.equal(election.steppedDown.length, 1);
  const line = lines.find((line) => line.startsWith("error"));
  assert.match(line, /the work failed.*election=job token=1.*trace=ab.*no upstream/);
});

test("work may be an ordinary function", async () => {
  const { environment, native } = await startedWorld();
  let calls = 0;
  environment.runWhenLeader("job", () => (calls += 1), HOW);
  const election = native.elections.get("job");
  election.promote(1);
  await settle();
  assert.equal(calls, 1);
  assert.equal(election.steppedDown.length, 1);
});

test("what the work throws because its term ended is a normal end, and an error of its own is reported", async () => {
  const own = new Error("own");
  for (const [thrown, isReported] of [
    [(signal) => signal.reason, false],
    [(signal) => delay(1_000, undefined, { signal }), false],
    [(signal) => fetch("http://127.0.0.1:9", { signal }), false],
    [(signal) => Object.assign(new Error("gave up"), { cause: signal.reason }), false],
    [(signal) => once(process, "never", { signal }), false],
    [() => own, true],
    [() => undefined, true],
    [() => Object.assign(new Error("gave up"), { cause: own }), true],
  ]) {
    const { environment, native, lines } = await startedWorld();
    const end = gate();
    environment.runWhenLeader(
      "job",
      async ({ signal }) => {
        await end.promise;
        throw await thrown(signal);
      },
      HOW,
    );
    const election = native.elections.get("job");
    election.promote(1);
    await settle();
    election.demote("taken");
    end.open();
    await sleep(20);
    const errors = lines.filter((line) => line.startsWith("error"));
    assert.equal(errors.length, isReported ? 1 : 0, `${thrown}: ${errors}`);
    if (isReported) assert.match(errors[0], /failed while its term ended/);
  }
});

test("an AbortError while the term lasts is an error of its own", async () => {
  const { election, gates, lines } = await running();
  election.promote(1);
  await settle();
  gates[0].fail(new DOMException("aborted", "AbortError"));
  await settle();
  assert.ok(lines.some((line) => line.startsWith("error")));
});

test("the database's word that the term is over hands the name back and is no error", async () => {
  const { LeadershipLostError } = require("../index.js");
  const { election, gates, lines } = await running();
  election.promote(1);
  await settle();
  gates[0].fail(new LeadershipLostError("job", 1, "taken"));
  await settle();
  assert.equal(election.steppedDown.length, 1);
  assert.deepEqual(
    lines.filter((line) => line.startsWith("error")),
    [],
  );
});

test("no name, no function and options that are wrong are thrown at the call", () => {
  const nothing = () => {};
  for (const [args, words] of [
    [[], "name must be given"],
    [[null, nothing], "name must be given"],
    [[7, nothing], "not 7"],
    [["", nothing], "not be empty"],
    [["job"], "work must be a function"],
    [["job", "run"], "not 'run'"],
    [["job", nothing, 5], "options must be an object"],
    [["job", nothing, []], "options must be an object"],
    [["job", nothing, { signal: "now" }], "options.signal must be an AbortSignal"],
  ]) {
    assert.throws(
      () => runWhenLeader(...args),
      (error) => error instanceof TypeError && error.message.includes(words),
      words,
    );
  }
});

test("a wrong option of the election is a ConfigError at the call, and the name stays free", async () => {
  const { environment } = await startedWorld();
  const wrong = { ...HOW, options: '{"leaseDuration":1}' };
  assert.throws(() => environment.runWhenLeader("job", () => {}, wrong), ConfigError);
  environment.runWhenLeader("job", () => {}, HOW);
});

test("the election is joined with the options of the work", async () => {
  const { environment, native } = await startedWorld();
  const options = '{"leaseDuration":3000}';
  environment.useCluster("job"); // Whoever asked first does not decide.
  environment.runWhenLeader("other", () => {}, { ...HOW, options });
  assert.equal(native.elections.get("other").options, options);
  const early = fakeWorld();
  early.environment.useCluster("job");
  early.environment.expectCluster();
  early.environment.runWhenLeader("job", () => {}, { ...HOW, options });
  await early.environment.startCluster(CONFIG, early.logger);
  assert.equal(early.native.elections.get("job").options, options);
});

test("a taken name is thrown at the call, whoever has taken it, and before the start too", async () => {
  const taken = (environment, words) =>
    assert.throws(
      () => environment.runWhenLeader("job", () => {}, HOW),
      (error) => error instanceof ConfigError && error.message.includes(words),
    );
  for (const isStarted of [true, false]) {
    const world = isStarted ? await startedWorld() : fakeWorld();
    world.environment.expectCluster();
    world.environment.runWhenLeader("job", () => {}, HOW);
    taken(world.environment, "each needs a name of its own");
    const other = isStarted ? await startedWorld() : fakeWorld();
    other.environment.expectCluster();
    other.environment.whenLeader(() => {}, null, { election: "job" });
    taken(other.environment, "whenLeader() or useCluster()");
  }
});

test("a name is free again when done has resolved, and its cluster objects see the next election", async () => {
  const { environment, native, run } = await running();
  const cluster = environment.useCluster("job");
  await run.stop();
  await run.done;
  const next = work();
  environment.runWhenLeader("job", next.run, HOW);
  const election = native.elections.get("job");
  election.promote(9);
  await settle();
  assert.deepEqual(next.events, ["begins 9"]);
  assert.equal(cluster.isLeader(), true);
});

test("stop aborts, waits for the work, then releases, and its work does not run again", async () => {
  const { election, events, gates, native, run } = await running();
  election.promote(1);
  await settle();
  const order = [];
  const stopped = run.stop().then(() => order.push("stopped"));
  run.done.then(() => order.push("done"));
  await settle();
  assert.deepEqual(events, ["begins 1", "aborted stopped"]);
  assert.deepEqual(native.log, []);
  gates[0].open();
  await stopped;
  assert.deepEqual(native.log, ["released job"]);
  assert.deepEqual(order.sort(), ["done", "stopped"]);
  election.promote(2);
  await settle();
  assert.equal(events.length, 3);
  assert.equal(run.isLeader(), false);
});

test("stop inside of the work does not wait for itself", async () => {
  const { environment, native } = await startedWorld();
  const events = [];
  const run = environment.runWhenLeader(
    "job",
    async () => {
      await run.stop();
      events.push("goes on");
    },
    HOW,
  );
  native.elections.get("job").promote(1);
  await run.done;
  assert.deepEqual(events, ["goes on"]);
});

test("a signal stops it, and one that was aborted before never lets it run", async () => {
  const controller = new AbortController();
  const { election, events, gates, run } = await running({ signal: controller.signal });
  election.promote(1);
  await settle();
  controller.abort();
  gates[0].open();
  await run.done;
  assert.deepEqual(events, ["begins 1", "aborted stopped", "ends 1"]);

  const { environment, native } = await startedWorld();
  const late = environment.runWhenLeader("job", () => assert.fail("ran"), {
    ...HOW,
    signal: AbortSignal.abort(),
  });
  await late.done;
  assert.equal(native.elections.get("job"), undefined);
});

test("stopCluster ends all work in order: abort, wait, release", async () => {
  const { election, environment, events, gates, native, run } = await running();
  const other = work();
  const second = environment.runWhenLeader("other", other.run, HOW);
  election.promote(1);
  native.elections.get("other").promote(4);
  await settle();
  const stopped = environment.stopCluster().then(() => native.log.push("resolved"));
  await settle();
  assert.deepEqual(events, ["begins 1", "aborted stopped"]);
  assert.deepEqual(other.events, ["begins 4", "aborted stopped"]);
  assert.deepEqual(native.log, []);
  gates[0].open();
  other.gates[0].open();
  await stopped;
  assert.deepEqual(native.log.slice(0, 2).sort(), ["released job", "released other"]);
  assert.equal(native.log.at(-1), "resolved");
  await Promise.all([run.done, second.done]);
});

test("work that was asked for before the start waits for it, and may be stopped before it", async () => {
  const { environment, logger, native } = fakeWorld();
  environment.expectCluster();
  const { events, run: job } = work();
  const run = environment.runWhenLeader("job", job, HOW);
  const given = environment.runWhenLeader("given-up", job, HOW);
  assert.equal(run.isLeader(), false);
  await given.stop();
  await environment.startCluster(CONFIG, logger);
  assert.equal(native.elections.has("given-up"), false);
  native.elections.get("job").promote(3);
  await settle();
  assert.deepEqual(events, ["begins 3"]);
});

test("a name that the store refuses is thrown at the call; before the start it is logged and done rejects", async () => {
  const { environment } = await startedWorld();
  assert.throws(() => environment.runWhenLeader("refused", () => {}, HOW), ConfigError);

  const early = fakeWorld();
  early.environment.expectCluster();
  const run = early.environment.runWhenLeader("refused", () => {}, HOW);
  await early.environment.startCluster(CONFIG, early.logger);
  await assert.rejects(run.done, ConfigError);
  assert.ok(early.lines.some((line) => line.includes("cannot take part")));
  await run.stop();
  await settle();
  assert.deepEqual(unhandled, []);
});

test("events tell of promotions, demotions and leaders, and listeners that fail change nothing", async () => {
  const { election, native, run, lines } = await running();
  const events = [];
  run.on("promoted", (term) => events.push(`promoted ${term.token}`));
  run.on("promoted", () => {
    throw new Error("mine");
  });
  run.on("demoted", (lost, term) => events.push(`demoted ${term.token} ${lost.reason}`));
  run.on("leaderChanged", ({ instanceId }) => events.push(`leader ${instanceId}`));
  election.promote(1);
  native.dispatch({ type: "leaderChanged", election: "job", instanceId: "b", token: 2 });
  election.demote("taken");
  assert.deepEqual(events, ["promoted 1", "leader b", "demoted 1 taken"]);
  assert.ok(lines.some((line) => /a listener of "promoted" failed.*mine/.test(line)));
});

test("work that outlives its lease is emitted as overrun, with its term, and counted", async () => {
  const { election, native, run } = await running();
  election.promote(1);
  await settle();
  election.demote("taken");
  const overrun = { type: "overrun", election: "job", token: 1, traceId: "ab", duration: 4_750 };
  native.dispatch(overrun);
  assert.equal(run.overruns, 1, "without a listener, too");
  const [told] = await Promise.all([once(run, "overrun"), native.dispatch(overrun)]);
  assert.equal(told[0].code, "WHENLEADER_OVERRUN");
  assert.deepEqual([told[0].token, told[0].traceId], [1, "ab"]);
  assert.match(told[0].message, /term 1 of "job" have not ended 4\.8 s after it did/);
  assert.equal(run.overruns, 2);
});

test("currentTerm tells the term anywhere inside of the work, and nothing outside", async () => {
  const { environment, native } = await startedWorld();
  const seen = [];
  const see = (where) => seen.push(`${where} ${currentTerm()?.election} ${currentTerm()?.token}`);
  const job = async (term) => {
    assert.equal(currentTerm(), term);
    await sleep(1);
    see("awaited");
    await new Promise((resolve) =>
      setTimeout(() => {
        see("timer");
        resolve();
      }, 1),
    );
    await Promise.all([settle().then(() => see("all"))]);
    await sleep(20);
  };
  environment.runWhenLeader("a", job, HOW);
  environment.runWhenLeader("b", job, HOW);
  native.elections.get("a").promote(1);
  native.elections.get("b").promote(2);
  assert.equal(currentTerm(), undefined);
  await sleep(15);
  assert.equal(currentTerm(), undefined, "while work runs elsewhere");
  // What was left behind is not inside, whatever else runs.
  const left = gate();
  environment.runWhenLeader("c", () => setTimeout(() => left.open(currentTerm()), 10), HOW);
  environment.runWhenLeader("d", () => sleep(50), HOW);
  native.elections.get("c").promote(3);
  native.elections.get("d").promote(4);
  assert.equal(await left.promise, undefined);
  assert.deepEqual(seen.sort(), [
    "all a 1",
    "all b 2",
    "awaited a 1",
    "awaited b 2",
    "timer a 1",
    "timer b 2",
  ]);
});

test("currentTerm tells the term inside of a callback of whenLeader, until that has ended", async () => {
  const { environment, election } = await startedWorld();
  const seen = [];
  environment.whenLeader(
    async (term) => {
      await sleep(1);
      seen.push(currentTerm() === term);
    },
    async (_, term) => {
      await sleep(1);
      seen.push(currentTerm() === term);
    },
  );
  election.promote(1);
  await sleep(10);
  election.demote("taken");
  await sleep(10);
  assert.deepEqual(seen, [true, true]);
});

test("channels tell of promotions, demotions, attempts and errors, with the term's trace id", async () => {
  const heard = [];
  const listen = (message, name) => heard.push({ name, ...message });
  const names = ["promoted", "demoted", "attempt", "error"].map((name) => `whenleader:${name}`);
  for (const name of names) diagnostics.subscribe(name, listen);
  const { election, native } = await running();
  election.promote(1);
  native.dispatch({
    type: "attempt",
    election: "job",
    what: "renew",
    outcome: "held",
    duration: 1.5,
    ...{ token: 1, traceId: "ab" },
  });
  election.demote("taken");
  const overrun = { type: "overrun", election: "job", token: 1, traceId: "ab", duration: 9 };
  native.dispatch(overrun);
  native.dispatch({ type: "error", election: "job", code: "timeout", message: "m", fatal: false });
  for (const name of names) diagnostics.unsubscribe(name, listen);
  election.promote(2);
  const about = { election: "job", instanceId: "fake-1" };
  const term = { token: 1, traceId: "ab" };
  const [promoted, attempt, demoted, late, error] = heard;
  assert.deepEqual([late.token, late.traceId, late.error.code], [1, "ab", "WHENLEADER_OVERRUN"]);
  assert.deepEqual(promoted, { name: "whenleader:promoted", ...about, ...term });
  assert.deepEqual(attempt, {
    name: "whenleader:attempt",
    ...about,
    ...term,
    what: "renew",
    outcome: "held",
    duration: 1.5,
  });
  assert.deepEqual(demoted, { name: "whenleader:demoted", ...about, ...term, reason: "taken" });
  assert.equal(error.error.code, "WHENLEADER_STORE");
  assert.equal(heard.length, 5);
});

test("without a configuration the work runs at once, and again after the pause", async () => {
  const { environment } = fakeWorld();
  const tokens = [];
  const run = environment.runWhenLeader("job", (term) => tokens.push(term.token), {
    ...HOW,
    options: '{"campaignInterval":10}',
  });
  await sleep(80);
  assert.ok(tokens.length >= 3, `${tokens}`);
  await run.stop();
  const { length } = tokens;
  await sleep(40);
  assert.equal(tokens.length, length);

  const short = environment.runWhenLeader("short", (term) => tokens.push(term.token), {
    ...HOW,
    options: '{"leaseDuration":30}',
  });
  await sleep(80);
  assert.ok(tokens.length >= length + 3, "a third of a shorter lease");
  await short.stop();
});

test("the default election of the cluster is a taken name, also where that is known only at the start", async () => {
  const { environment } = await startedWorld();
  assert.throws(
    () => environment.runWhenLeader("leader", () => {}, HOW),
    /default election of the cluster/,
  );
  const early = fakeWorld();
  early.environment.expectCluster();
  const run = early.environment.runWhenLeader("leader", () => assert.fail("ran"), HOW);
  const led = [];
  early.environment.whenLeader((term) => led.push(term.token));
  await early.environment.startCluster(CONFIG, early.logger);
  await assert.rejects(run.done, /default election of the cluster/);
  early.native.elections.get("leader").promote(5);
  await settle();
  assert.deepEqual(led, [5]);
  assert.equal(early.native.elections.get("leader").options, undefined);
});

test("whenLeader is refused for an election of work, and useCluster may watch it", async () => {
  const { environment, election } = await running();
  assert.throws(
    () => environment.whenLeader(() => {}, null, { election: "job" }),
    (error) => error instanceof ConfigError && error.message.includes("belongs to work"),
  );
  const cluster = environment.useCluster("job");
  election.promote(1);
  assert.equal(cluster.isLeader(), true);
});

test("startCluster inside of work whose end the stop waits for is refused, and does not wait for ever", async () => {
  const { environment, logger, native } = await startedWorld();
  const told = gate();
  environment.runWhenLeader(
    "job",
    async () => {
      await environment.stopCluster();
      await environment.startCluster(CONFIG, logger).then(told.open, told.open);
    },
    HOW,
  );
  native.elections.get("job").promote(1);
  assert.ok((await told.promise) instanceof ConfigError);
});

test("a cluster that does not start is told to work that waits for it", async () => {
  const world = fakeWorld({ env: { WHENLEADER_CONFIG: JSON.stringify(CONFIG) } });
  world.native.startGate = Promise.reject(
    Object.assign(new Error("refused"), { code: "WHENLEADER_STORE" }),
  );
  world.native.startGate.catch(() => {});
  world.environment.useLogger(world.logger);
  const run = world.environment.runWhenLeader("job", () => {}, HOW);
  const refused = assert.rejects(run.done, { code: "WHENLEADER_STORE" });
  const [error] = await once(run, "error");
  assert.equal(error.code, "WHENLEADER_STORE");
  await refused;
});

test("a stop waits no longer than stopTimeout for work that does not end, and its name is taken until it has", async () => {
  const { environment, native } = fakeWorld();
  native.info = { ...native.info, type: "LocalCluster", stopTimeout: 50 };
  await environment.startCluster(CONFIG);
  const end = gate();
  let token = 0;
  const run = environment.runWhenLeader(
    "job",
    (term) => {
      token = term.token;
      return end.promise;
    },
    HOW,
  );
  await settle();
  assert.ok(token > 0);
  await environment.stopCluster();
  await environment.startCluster(CONFIG);
  assert.throws(() => environment.runWhenLeader("job", () => {}, HOW), /is taken/);
  const watching = environment.useCluster("job");
  assert.ok(watching.isLeader());
  assert.equal(run.isLeader(), false);
  end.open();
  await run.done;
  const again = environment.runWhenLeader("other", () => {}, HOW);
  await again.stop();
  await environment.stopCluster();
});

test("work that is stopped in the turn in which it was asked for takes no part, and its name is free", async () => {
  for (const ticks of [0, 1, 2, 3, 4]) {
    const { environment } = fakeWorld();
    let ran = 0;
    const run = environment.runWhenLeader(
      "job",
      () => {
        ran += 1;
      },
      HOW,
    );
    for (let i = 0; i < ticks; i += 1) await null;
    await run.stop();
    await run.done;
    await settle();
    assert.equal(run.isLeader(), false, `${ticks}`);
    await environment.runWhenLeader("job", () => {}, HOW).stop();
    assert.ok(ran <= 1);
    await environment.stopCluster();
  }
});

test("tokens of a process that is alone grow, also over terms of one millisecond and a clock that is set back", async (t) => {
  const { environment } = fakeWorld();
  const tokens = [];
  t.mock.method(Date, "now", () => 1_800_000_000_000 - tokens.length * 60_000);
  for (let i = 0; i < 5; i += 1) {
    const run = environment.runWhenLeader("job", (term) => tokens.push(term.token), HOW);
    await settle();
    await run.stop();
  }
  assert.equal(tokens.length, 5);
  for (const [i, token] of tokens.slice(1).entries()) assert.ok(token > tokens[i], `${tokens}`);
});

test("a fn of whenLeader that throws because its term ended is no error, and one of its own is", async () => {
  const { environment, native, lines } = await startedWorld();
  const begin = (end) =>
    environment.whenLeader(
      ({ signal }) =>
        new Promise((_, reject) => {
          signal.addEventListener("abort", () => reject(end(signal)));
        }),
    );
  begin(({ reason }) => new Error("the request failed", { cause: reason }));
  begin(() => new Error("mine"));
  await settle();
  native.elections.get("leader").promote(1);
  await settle();
  await environment.stopCluster();
  await settle();
  const failed = lines.filter((line) => /of a registration failed/.test(line));
  assert.equal(failed.length, 1, `${lines}`);
  assert.match(failed[0], /mine/);
});

test("a process that is alone forgets work that was stopped", async () => {
  const { environment } = fakeWorld();
  const left = [];
  for (let i = 0; i < 50; i += 1) {
    const run = environment.runWhenLeader("job", () => {}, HOW);
    left.push(new WeakRef(run));
    await settle();
    await run.stop();
  }
  const alive = await aliveAfterCollection(left);
  assert.ok(alive < 5, `${alive} of 50`);
});

test("nothing is left of a thousand pieces of work that were stopped", async () => {
  const { environment, native, cluster } = await startedWorld();
  const { signal } = new AbortController();
  let listeners = 0;
  const counted = {
    aborted: false,
    addEventListener: (...args) => {
      listeners += 1;
      signal.addEventListener(...args);
    },
    removeEventListener: (...args) => {
      listeners -= 1;
      signal.removeEventListener(...args);
    },
  };
  /** @type {WeakRef<() => void>[]} */
  const works = [];
  for (let i = 0; i < 1_000; i += 1) {
    const work = () => {};
    works.push(new WeakRef(work));
    const run = environment.runWhenLeader("job", work, { ...HOW, signal: counted });
    await run.stop();
  }
  assert.equal(listeners, 0);
  const alive = await aliveAfterCollection(works);
  // What the engine itself still has in hand is one of them, or none.
  assert.ok(alive <= 1, `${alive} of 1000`);
  // Node.js warns of more than ten.
  const many = Array.from({ length: 20 }, (_, i) =>
    environment.runWhenLeader(`job ${i}`, () => {}, { ...HOW, signal: counted }),
  );
  assert.equal(listeners, 1);
  await Promise.all(many.map((run) => run.stop()));
  assert.equal(listeners, 0);
  environment.runWhenLeader("job", () => {}, HOW);
  assert.equal(native.elections.get("job").stopped, false);
  assert.equal(cluster.isLeader(), false);
});

test.after(() => assert.deepEqual(unhandled, []));
