// What useCluster() gives.

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { inspect } = require("node:util");
const { fakeWorld, settle, sleep, startedWorld } = require("./fake-native.js");

test("useCluster gives the same object each time, and the default by its name too", async () => {
  const { environment, cluster } = await startedWorld();
  assert.equal(environment.useCluster(), cluster);
  assert.equal(environment.useCluster("leader"), cluster);
  const other = environment.useCluster("other");
  assert.notEqual(other, cluster);
  assert.equal(environment.useCluster("other"), other);
  assert.equal(other.election, "other");
});

test("another election of the same cluster has a leader of its own", async () => {
  const { environment, cluster, native, election } = await startedWorld();
  const other = environment.useCluster("other");
  native.elections.get("other").promote(1);
  assert.equal(other.isLeader(), true);
  assert.equal(cluster.isLeader(), false);
  election.promote(1);
  native.elections.get("other").demote();
  assert.equal(other.isLeader(), false);
  assert.equal(cluster.isLeader(), true);
});

test("isLeader asks the source at each call, and is false before the event of a loss comes", async () => {
  const { cluster, election } = await startedWorld();
  assert.equal(cluster.isLeader(), false);
  election.promote();
  assert.equal(cluster.isLeader(), true);
  election.leads = false;
  assert.equal(cluster.isLeader(), false);
});

test("getLeader tells the last leader seen, also after a stop", async () => {
  const { cluster, election } = await startedWorld();
  assert.equal(cluster.getLeader(), null);
  election.promote(4);
  assert.deepEqual(cluster.getLeader(), { instanceId: "fake-1", token: 4 });
  await cluster.stop();
  assert.deepEqual(cluster.getLeader(), { instanceId: "fake-1", token: 4 });
});

test("events tell of promotions, demotions, leaders and errors", async () => {
  const { cluster, native, election } = await startedWorld();
  const heard = [];
  cluster.on("promoted", (term) => heard.push(["promoted", term.token, term.isCurrent()]));
  cluster.on("demoted", (lost, term) =>
    heard.push(["demoted", lost.reason, term.token, term.signal.reason === lost]),
  );
  cluster.on("leaderChanged", (leader) => heard.push(["leaderChanged", leader]));
  cluster.on("error", ({ code, reason, fatal, election: name }) =>
    heard.push(["error", code, reason, fatal, name]),
  );
  election.promote(2);
  native.dispatch({ type: "leaderChanged", election: "leader", instanceId: "b", token: 3 });
  native.dispatch({
    type: "error",
    election: "leader",
    code: "timeout",
    message: "",
    fatal: false,
  });
  native.dispatch({ type: "overrun", election: "leader", token: 2 });
  election.demote("taken");
  assert.deepEqual(heard, [
    ["promoted", 2, true],
    ["leaderChanged", { instanceId: "b", token: 3 }],
    ["error", "WHENLEADER_STORE", "timeout", false, "leader"],
    ["error", "WHENLEADER_OVERRUN", "overrun", false, "leader"],
    ["demoted", "taken", 2, true],
  ]);
});

test("an error event without a listener throws nothing", async () => {
  const { cluster, native, lines } = await startedWorld();
  native.dispatch({ type: "error", election: "leader", code: "timeout", message: "", fatal: true });
  cluster.on("promoted", () => {});
  native.dispatch({ type: "promoted", election: "unknown", token: 1 });
  native.dispatch({ type: "something else", election: "leader" });
  assert.deepEqual(lines, []);
});

test("listeners that fail are logged, and the callbacks run all the same", async () => {
  const { environment, cluster, election, lines } = await startedWorld();
  cluster.on("promoted", () => {
    throw new Error("sync");
  });
  cluster.on("demoted", async () => {
    throw new Error("async");
  });
  let runs = 0;
  environment.whenLeader(() => {
    runs += 1;
  });
  election.promote();
  election.demote();
  await settle();
  assert.equal(runs, 1);
  assert.equal(lines.length, 2);
  assert.match(lines[0], /^error .*listener of "promoted" failed.*election=leader.*sync/);
  assert.match(lines[1], /^error .*listener of "demoted" failed.*async/);
});

test("waitUntilLeader resolves with the term, at once for a leader", async () => {
  const { cluster, election } = await startedWorld();
  const waiting = cluster.waitUntilLeader();
  await settle();
  election.promote(6);
  assert.equal((await waiting).token, 6);
  assert.equal((await cluster.waitUntilLeader({ timeout: 0 })).token, 6);
});

test("waitUntilLeader waits for a real leadership, not for a flag that is late", async () => {
  const { cluster, election } = await startedWorld();
  election.promote(1);
  election.leads = false;
  await assert.rejects(cluster.waitUntilLeader({ timeout: 20 }), { name: "TimeoutError" });
  election.demote("expired");
  const waiting = cluster.waitUntilLeader();
  election.promote(2);
  assert.equal((await waiting).token, 2);
});

test("waitUntilLeader ends by timeout, by its signal, or when the election is stopped", async () => {
  const { environment, cluster } = await startedWorld();
  await assert.rejects(cluster.waitUntilLeader({ timeout: 10 }), {
    name: "TimeoutError",
    code: "WHENLEADER_TIMEOUT",
    message: /"leader" within 10 ms/,
  });
  const reason = new Error("enough");
  await assert.rejects(cluster.waitUntilLeader({ signal: AbortSignal.abort(reason) }), reason);
  const controller = new AbortController();
  const aborted = cluster.waitUntilLeader({ signal: controller.signal });
  controller.abort(reason);
  await assert.rejects(aborted, reason);
  const stopped = cluster.waitUntilLeader();
  const other = environment.useCluster("other").waitUntilLeader({ timeout: 50 });
  cluster.stop();
  await assert.rejects(stopped, { code: "WHENLEADER_STOPPED", election: "leader" });
  await assert.rejects(cluster.waitUntilLeader(), { code: "WHENLEADER_STOPPED" });
  await assert.rejects(other, { code: "WHENLEADER_TIMEOUT" });
  for (const options of [
    null,
    5,
    { timeout: -1 },
    { timeout: "1" },
    { timeout: Number.NaN },
    { signal: {} },
  ]) {
    await assert.rejects(cluster.waitUntilLeader(options), TypeError);
  }
});

test("waitUntilLeader before the start waits for the start and the leadership", async () => {
  const { environment, native, logger } = fakeWorld();
  environment.expectCluster();
  const waiting = environment.useCluster().waitUntilLeader();
  await environment.startCluster({ cluster: {} }, logger);
  native.elections.get("leader").promote(8);
  assert.equal((await waiting).token, 8);
});

test("stepDown ends the leadership from the call on, and resolves when the callbacks have ended", async () => {
  const { environment, cluster, election } = await startedWorld();
  const order = [];
  environment.whenLeader(
    () => {},
    async () => {
      await sleep(10);
      order.push("deregistered");
    },
  );
  election.promote();
  const done = cluster.stepDown({ pause: 700 }).then(() => order.push("resolved"));
  assert.equal(cluster.isLeader(), false);
  await done;
  assert.deepEqual(order, ["deregistered", "resolved"]);
  await settle();
  assert.deepEqual(election.steppedDown, [700]);
  assert.deepEqual(election.settledTokens, [1]);
  await cluster.stepDown();
  assert.deepEqual(election.steppedDown, [700, null], "a follower stays out of the election too");
  for (const options of [
    null,
    { pause: -1 },
    { pause: "1" },
    { pause: Number.POSITIVE_INFINITY },
  ]) {
    await assert.rejects(cluster.stepDown(options), TypeError);
  }
});

test("stop runs deregisteredFn, waits for it, and only then releases; no fn runs after the call", async () => {
  const { environment, cluster, election, native } = await startedWorld();
  const order = native.log;
  environment.whenLeader(
    () => order.push("fn"),
    async (lost) => {
      await sleep(20);
      order.push(`deregistered ${lost.reason}`);
    },
  );
  election.promote();
  const stopped = cluster.stop();
  assert.equal(cluster.isLeader(), false);
  election.promote(2); // It was under way when stop was called.
  assert.equal(cluster.isLeader(), false);
  await stopped;
  assert.deepEqual(order, ["fn", "deregistered stopped", "released leader", "stopCluster"]);
  await cluster.stop();
  await environment.stopCluster();
});

test("stop is bounded: a callback that does not end leaves the lease to its expiry", async () => {
  const { environment, cluster, election, native } = await startedWorld();
  environment.whenLeader(() => new Promise(() => {}));
  election.promote();
  await settle();
  await cluster.stop();
  assert.deepEqual(native.log, ["stopCluster"]);
  assert.deepEqual(election.settledTokens, []);
});

test("stopping one of two elections leaves the other, stopping both stops the cluster", async () => {
  const { environment, cluster, election, native } = await startedWorld();
  const other = environment.useCluster("other");
  election.promote();
  await other.stop();
  assert.equal(cluster.isLeader(), true);
  assert.deepEqual(native.log, []);
  const late = [];
  environment.whenLeader(() => late.push("fn"), null, { election: "other" });
  await cluster.stop();
  assert.deepEqual(native.log, ["released leader", "stopCluster"]);
  assert.deepEqual(late, []);
});

test("a source that fails to stop is logged, and stop resolves", async () => {
  const { cluster, election, lines } = await startedWorld();
  election.stop = () => Promise.reject(new Error("gone"));
  await cluster.stop();
  assert.match(lines.join(), /^warn .*not left cleanly.*gone/);
});

test("inspecting shows the state and no secret", async () => {
  const { cluster, election } = await startedWorld();
  election.promote(3);
  const text = inspect(cluster);
  for (const part of ["leader", "token: 3", "fake-1", "fake://store"])
    assert.ok(text.includes(part), text);
  assert.ok(!text.includes("environment"), text);
});
