// The client that the protocol was read from, Kelvin's Python SDK, against `whenleader serve`: unchanged.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { LeaderElection } from "../index.js";
import apiServer from "./support/api-server.js";
import { program } from "./support/programs.mjs";
import { Workload } from "./support/workload.mjs";

const { ApiServer } = apiServer;
const python = program("sdk", "the Python SDK with whenleader serve");
const skip = !python;

async function until(what, so) {
  for (const end = Date.now() + 20_000; Date.now() < end; await sleep(20)) {
    if (await so()) return;
  }
  assert.fail(`not in time: ${what}`);
}

for (const kind of ["sync", "async"]) {
  test(`a workload of its ${kind} kind is promoted, keeps its lease, and is demoted when it stops`, {
    skip,
  }, async (t) => {
    const server = await ApiServer.start(t, { args: ["--lease", "1500ms"] });
    const one = new Workload(t, python, { kind, port: server.port, workload: "a" });
    await one.said("promoted");
    await sleep(3_000);
    assert.deepEqual(one.lines, ["promoted"], "renewals are no changes");
    assert.equal(await one.ask("leader"), "leader true krn:wl:edge/a");
    const { resources } = (await server.get("/leader/status")).body;
    assert.deepEqual(
      [resources[0].resource, resources[0].current_leader],
      ["krn:app:flow", "krn:wl:edge/a"],
    );
    assert.equal(await one.ask("stop"), "stopped");
    assert.deepEqual(one.lines.slice(-2), ["demoted", "stopped"]);
    assert.equal(await one.ask("leader"), "leader false krn:wl:edge/a");
  });
}

test("of workloads of both kinds and a LeaderElection one leads, and the next when it is killed", {
  skip,
}, async (t) => {
  const server = await ApiServer.start(t, { args: ["--lease", "1500ms"] });
  const { port, url } = server;
  const first = new Workload(t, python, { kind: "sync", port, workload: "a" });
  await first.said("promoted");
  const second = new Workload(t, python, { kind: "async", port, workload: "b" });
  const third = new LeaderElection({ url, resource: "krn:app:flow", identity: "krn:wl:edge/c" });
  t.after(() => third.stop());
  await third.start();
  await until("all know the leader", async () => {
    const known = [await second.ask("leader"), third.currentLeader];
    return known[0] === "leader false krn:wl:edge/a" && known[1] === "krn:wl:edge/a";
  });
  first.kill("SIGKILL");
  await until("another leads", async () => third.isLeader || second.lines.includes("promoted"));
  const leads = async () => [
    third.isLeader,
    (await second.ask("leader")).startsWith("leader true"),
  ];
  assert.equal((await leads()).filter(Boolean).length, 1);
  if (third.isLeader) {
    await third.stop();
    await second.said("promoted");
  } else {
    second.kill("SIGKILL");
    assert.equal(await third.waitUntilLeader(20_000), true);
  }
});

test("a workload that is stopped for longer than its lease does not say that it leads", {
  skip: skip || process.platform === "win32",
}, async (t) => {
  const server = await ApiServer.start(t, { args: ["--lease", "1s"] });
  const one = new Workload(t, python, { kind: "sync", port: server.port, workload: "a" });
  await one.said("promoted");
  one.kill("SIGSTOP");
  await until("another leads", async () => (await server.checkIn("other", "krn:app:flow")).leader);
  const holding = setInterval(() => server.checkIn("other", "krn:app:flow").catch(() => {}), 200);
  t.after(() => clearInterval(holding));
  one.kill("SIGCONT");
  assert.match(await one.ask("leader"), /^leader false /);
});

test("a server that is restarted keeps a workload leading", { skip }, async (t) => {
  const { newFolder } = await import("./support/temp.js");
  const cwd = newFolder();
  const args = ["--lease", "3s"];
  const before = await ApiServer.start(t, { cwd, args });
  const { port } = before;
  const one = new Workload(t, python, { kind: "async", port, workload: "a" });
  await one.said("promoted");
  await before.kill();
  const after = await ApiServer.start(t, { cwd, args: [...args, "--listen", String(port)] });
  await until("it checked in again", async () => {
    const { resources } = (await after.get("/leader/status")).body;
    return resources[0]?.current_leader === "krn:wl:edge/a";
  });
  await sleep(3_500);
  assert.deepEqual(
    one.lines.filter((line) => line !== "promoted"),
    [],
    "it was never demoted",
  );
});
