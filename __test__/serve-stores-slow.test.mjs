// `whenleader serve` on a store that is slow, or does not answer at all: nobody waits for others without need.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import apiServer from "./support/api-server.js";
import { TcpProxy } from "./support/proxy.mjs";
import { isMissing, Server } from "./support/servers.mjs";

const { ApiServer } = apiServer;
const X = "krn:app:x";

/** A server of the API on Redis behind a proxy. `undefined`: there is no Redis. */
async function behindProxy(t, lease) {
  if (isMissing("redis", "whenleader serve on a slow Redis")) return undefined;
  const store = await Server.start("redis");
  t.after(() => store.stop());
  const proxy = await TcpProxy.to(store.port);
  t.after(() => proxy.close());
  const args = ["--store", store.urlAt(proxy.port), "--lease", lease];
  return { proxy, server: await ApiServer.start(t, { args }) };
}

const names = (number) => Array.from({ length: number }, (_, n) => `r${n}`);

async function timed(work) {
  const begun = performance.now();
  const result = await work;
  return { result, took: performance.now() - begun };
}

test("followers hold up no renewal, and those that wait are answered together", async (t) => {
  const behind = await behindProxy(t, "6s");
  if (!behind) return;
  const { proxy, server } = behind;
  const { token } = await server.checkIn("leader", X, { session: "s", after: 0 });
  proxy.delay = 100;
  const before = proxy.roundTrips;
  const followers = timed(Promise.all(names(60).map((id) => server.checkIn(id, X))));
  await sleep(50);
  const renewed = await timed(server.checkIn("leader", X, { session: "s", token }));
  assert.equal(renewed.result.leader, true);
  // One after the other, they would take 12 s.
  assert.ok(renewed.took < 2_000, `${renewed.took}`);
  const { result, took } = await followers;
  for (const { leader, current_leader, remaining } of result) {
    assert.deepEqual([leader, current_leader], [false, "leader"]);
    assert.match(remaining, /s$/);
  }
  assert.ok(took < 4_000, `${took}`);
  assert.ok(proxy.roundTrips - before < 20, `${proxy.roundTrips - before}`);
});

test("a bulk and a release ask for many resources at once", async (t) => {
  const behind = await behindProxy(t, "30s");
  if (!behind) return;
  const { proxy, server } = behind;
  const resources = names(1_000);
  const data = resources.map((resource) => ({ id: "a", resources: [resource] }));
  await server.checkIn("a", X);
  proxy.delay = 10;
  // One after the other, a round trip for each would take 20 s.
  const bulk = await timed(server.post("/leader/bulk/elect", { data }));
  assert.equal(bulk.result.status, 200, bulk.result.text);
  const led = bulk.result.body.data.map(({ resources: [{ resource, leader }] }) => [
    resource,
    leader,
  ]);
  assert.deepEqual(
    led,
    resources.map((resource) => [resource, true]),
    "in their order",
  );
  assert.ok(bulk.took < 12_000, `${bulk.took}`);
  const release = await timed(server.post("/leader/release", { id: "a", resources }));
  const ended = release.result.body.resources.map(({ resource, released }) => [resource, released]);
  assert.deepEqual(
    ended,
    resources.map((resource) => [resource, true]),
  );
  assert.ok(release.took < 12_000, `${release.took}`);
});

test("a bulk asks for one resource in its order, whichever else it names", async (t) => {
  const behind = await behindProxy(t, "10s");
  if (!behind) return;
  const { proxy, server } = behind;
  proxy.delay = 5;
  const data = names(40).flatMap((resource) => [
    { id: "a", resources: ["a", resource].toSorted() },
    { id: "b", resources: [resource, "b"] },
  ]);
  const { body } = await server.post("/leader/bulk/elect", { data });
  for (const [at, { resources }] of body.data.entries()) {
    assert.deepEqual(
      resources.map(({ resource }) => resource),
      data[at].resources,
    );
    for (const { resource, leader, request_leader: id } of resources) {
      assert.equal(leader, id === "a" || resource === "b", `${id} for ${resource}`);
    }
  }
});

test("a store that hangs holds up no status, however many leases ended and however many ask", async (t) => {
  const behind = await behindProxy(t, "3s");
  if (!behind) return;
  const { proxy, server } = behind;
  const resources = names(500);
  await server.post("/leader/elect", { id: "a", resources });
  await sleep(3_500);
  proxy.freeze();
  const asked = ["/leader/status", "/leader/status", "/", "/leader/status"].map((path) =>
    timed(server.get(path)),
  );
  const answers = await Promise.all(asked);
  for (const { result, took } of answers) {
    assert.equal(result.status, 200);
    assert.ok(took < 8_000, `${took}`);
  }
  assert.equal(answers[0].result.body.resources.length, 500, "as they were seen");
  proxy.open();
  for (let tries = 0; tries < 100; tries++) {
    const { body } = await server.get("/leader/status");
    if (!body.resources.some((one) => "current_leader" in one)) return;
    await sleep(200);
  }
  assert.fail("they were never looked at");
});
