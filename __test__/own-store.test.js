// A store of the application's own: what it is asked, what it may answer, and that nothing that it does is
// a crash, or leadership.

const assert = require("node:assert/strict");
const { test, afterEach } = require("node:test");
const { setTimeout: sleep } = require("node:timers/promises");
const { startCluster, stopCluster, ConfigError } = require("../index.js");
const { openClient } = require("../lib/main.js");
const { MemoryStore } = require("./support/own-stores.js");

const QUICK = { type: "StoreCluster", leaseDuration: 1500, renewInterval: 300 };
const silent = { error() {}, warn() {}, info() {}, debug() {} };

afterEach(() => stopCluster());

const start = (store, config = {}, logger = silent) =>
  startCluster({ ...QUICK, store, ...config }, { logger });

test("an instance leads through a store of its own, renews through it and releases through it", async () => {
  const store = new MemoryStore();
  const cluster = await start(store, { leaseName: "shop" });
  const { token } = await cluster.waitUntilLeader();
  const key = "cluster:shop";
  const first = store.records.get(key);
  assert.deepEqual(Object.keys(first), [
    "version",
    "instanceId",
    "nonce",
    "token",
    "leaseDuration",
  ]);
  assert.equal(first.instanceId, cluster.getInstanceId());
  assert.equal(first.token, token);
  assert.equal(first.leaseDuration, 1500);
  while (store.calls.filter(([name]) => name === "compareAndSet").length < 4) await sleep(50);
  const writes = store.calls.filter(([name]) => name === "compareAndSet");
  assert.equal(writes[0][2], null, "the first write is on the condition that there is no record");
  for (const [at, write] of writes.entries()) {
    assert.equal(write[1], key);
    if (at > 0) assert.equal(write[2], writes[at - 1][3].version);
  }
  assert.equal(new Set(writes.map((write) => write[3].version)).size, writes.length);
  assert.ok(cluster.isLeader());
  await stopCluster();
  const released = store.records.get(key);
  assert.equal(released.instanceId, null);
  assert.equal(released.leaseDuration, 0);
  assert.equal(released.token, token);
});

test("raw attempts on a store are made one by one, by clients that are as processes are", async () => {
  const store = new MemoryStore();
  store.watch = (key, changed) => store.onChange(key, changed);
  const [a, b] = ["a", "b"].map((instanceId) => openClient(store, { instanceId, limit: 5_000 }));
  const hints = [];
  const unwatch = b.watch("e", (hint) => hints.push(hint.what));
  assert.deepEqual(await b.peek("e"), { what: "nobody" });
  const won = await a.attempt("e", 60_000);
  assert.equal(won.what, "held");
  assert.equal(won.validFor, 60_000);
  const lost = await b.attempt("e", 60_000);
  assert.equal(lost.what, "other");
  assert.equal(lost.instanceId, "a");
  assert.equal(lost.token, won.token);
  assert.ok(lost.remaining > 30_000 && lost.remaining <= 60_000);
  assert.equal((await a.attempt("e", 60_000, won.token)).token, won.token);
  assert.equal((await b.release("e", won.token)).what, "notReleased");
  assert.deepEqual(await b.peek("e"), { what: "leader", instanceId: "a", token: won.token });
  assert.equal((await a.release("e", won.token)).what, "released");
  while (!hints.includes("free")) await sleep(10);
  assert.equal(hints[0], "watching");
  await unwatch();
  while (store.watches > 0) await sleep(10);
  store.get = () => Promise.reject(new Error("no database"));
  const failed = await b.attempt("e", 60_000);
  assert.equal(failed.what, "transient");
  assert.match(failed.message, /get\("cluster:e"\) failed: Error: no database/);
  a.close();
  b.close();
});

test("an object that is no store is refused with the member that is missing", async () => {
  for (const [store, words] of [
    [{}, /store\.get must be a function, not undefined/],
    [{ get() {} }, /store\.compareAndSet must be a function, not undefined/],
    [{ get: 5, compareAndSet() {} }, /store\.get must be a function, not 5/],
    [{ get() {}, compareAndSet() {}, watch: "yes" }, /store\.watch must be a function, not 'yes'/],
    [() => {}, /store\.get must be a function/],
  ]) {
    await assert.rejects(start(store), (error) => {
      assert.ok(error instanceof ConfigError, error.stack);
      assert.match(error.message, words);
      return true;
    });
  }
});
