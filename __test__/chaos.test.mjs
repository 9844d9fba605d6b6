// Real processes are killed, stopped, blocked and cut off, round after round, while they write down each
// `true` that isLeader() told them. An independent recorder then proves that terms never overlap.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { KINDS } from "../tools/servers/kinds/index.mjs";
import apiServer from "./support/api-server.js";
import { HttpRegistry } from "./support/http-registry.mjs";
import { TcpProxy } from "./support/proxy.mjs";
import { judge } from "./support/recorder.mjs";
import { isMissing, KubernetesServer, Server, serverProgram } from "./support/servers.mjs";
import { NEEDED, nameOf, STORES as STORES_OF } from "./support/stores.mjs";

const { ApiServer } = apiServer;
const ROUNDS = Number(process.env.WHENLEADER_CHAOS_ROUNDS ?? 30);
/** The shortest lease that Kubernetes can hold, for all alike. */
const LEASE = 1_000;
const RENEW = 300;
/** Long enough for a busy machine; a round that needs it has failed. */
const PATIENCE = 30_000;

const program = fileURLToPath(new URL("support/contender.mjs", import.meta.url));

/** Three instances, and whatever stands between them and their store. */
class Arena {
  constructor(folder, clusterOf) {
    this.folder = folder;
    this.clusterOf = clusterOf;
    this.logs = [];
    this.contenders = [];
    this.count = 0;
  }

  async enter() {
    const id = `i${this.count++}`;
    const file = join(this.folder, `${id}.log`);
    const { proxy, ...cluster } = await this.clusterOf();
    const config = { type: "StoreCluster", leaseDuration: LEASE, renewInterval: RENEW, ...cluster };
    const child = fork(program, [JSON.stringify(config), file], { stdio: "inherit" });
    const contender = { id, child, proxy, leads: false, frozen: false };
    contender.ended = new Promise((done) => child.on("close", done));
    child.on("close", (code, signal) => {
      contender.end = `${id} ended by itself: ${signal ?? code}`;
    });
    child.on("message", ({ event, leads }) => {
      if (event === "promoted") contender.leads = true;
      if (event === "demoted") contender.leads = false;
      if (event === "unblocked") contender.unblocked = { leads };
    });
    this.logs.push({ id, file });
    this.contenders.push(contender);
    return contender;
  }

  async leave(contender) {
    await contender.ended;
    await contender.proxy?.close();
    this.contenders.splice(this.contenders.indexOf(contender), 1);
  }

  /** The one that leads, as the processes tell it, other than `old`. */
  async leader(old) {
    for (const end = Date.now() + PATIENCE; Date.now() < end; await sleep(5)) {
      const leader = this.contenders.find((one) => one.leads && !one.frozen && one !== old);
      if (leader) return leader;
      for (const { end } of this.contenders) assert.equal(end, undefined);
    }
    assert.fail(`nobody leads after ${PATIENCE} ms`);
  }

  async close() {
    for (const contender of [...this.contenders]) {
      contender.child.kill("SIGCONT");
      contender.child.kill("SIGKILL");
      await this.leave(contender);
    }
  }
}

/** What is done to the leader; each ends with three instances that run. */
const FAULTS = {
  async "kill -9"(arena, leader) {
    leader.child.kill("SIGKILL");
    await arena.leave(leader);
    await arena.enter();
    await arena.leader();
  },
  async "SIGSTOP until a rival leads, then SIGCONT"(arena, leader) {
    leader.child.kill("SIGSTOP");
    leader.frozen = true;
    await arena.leader(leader);
    leader.child.kill("SIGCONT");
    leader.frozen = false;
    await sleep(RENEW);
  },
  async "a clean stop"(arena, leader) {
    leader.child.send({ command: "stop" });
    await arena.leave(leader);
    await arena.enter();
    await arena.leader();
  },
  async "stepDown()"(arena, leader) {
    leader.child.send({ command: "stepDown", ms: LEASE });
    await arena.leader(leader);
  },
  async "a blocked event loop"(arena, leader) {
    leader.unblocked = undefined;
    leader.child.send({ command: "block", ms: 2 * LEASE });
    while (!leader.unblocked) await sleep(20);
    await arena.leader();
  },
  async "SIGSTOP for a moment"(arena, leader) {
    leader.child.kill("SIGSTOP");
    await sleep(RENEW);
    leader.child.kill("SIGCONT");
    await arena.leader();
  },
};

const NETWORK_FAULTS = {
  async "cut off until a rival leads"(arena, leader) {
    leader.proxy.cut();
    await arena.leader(leader);
    leader.proxy.open();
  },
  async "frozen network until a rival leads, then everything arrives late"(arena, leader) {
    leader.proxy.freeze();
    await arena.leader(leader);
    leader.proxy.open();
    await sleep(RENEW);
  },
  async "blocked event loop, and cut off meanwhile"(arena, leader) {
    leader.unblocked = undefined;
    leader.child.send({ command: "block", ms: 2 * LEASE });
    leader.proxy.freeze();
    while (!leader.unblocked) await sleep(20);
    assert.equal(leader.unblocked.leads, false, "the first answer after the block is honest");
    leader.proxy.open();
    await arena.leader();
  },
  async "the store is frozen for two leases"(arena) {
    await arena.server.freeze();
    await sleep(2 * LEASE);
    await arena.server.thaw();
    await arena.leader();
  },
  async "the store is killed and started again"(arena) {
    await arena.server.kill();
    await sleep(LEASE);
    await arena.server.restart();
    await arena.leader();
  },
};

/** Where a store's own faults, and those of the way to it, come on top. */
const ALL_FAULTS = { ...FAULTS, ...NETWORK_FAULTS };

/** All that is needed, and what somebody names. */
const PLAYED = Object.keys(STORES_OF).filter(
  (kind) => NEEDED.includes(kind) || serverProgram(kind),
);

/**
 * The stores; each is one row. `cluster` tells what an instance is configured with that comes to the server by that
 * port, which is a proxy's of its own.
 * @type {{ name: string, kind?: string, start?: () => Promise<any>, cluster: (server: any, port: number) => any }[]}
 */
const STORES = [
  { name: "the embedded store", cluster: (folder) => ({ store: `file:${join(folder, "store")}` }) },
  ...PLAYED.map((kind) => {
    const { url, shortest = 0 } = STORES_OF[kind];
    const times = Math.max(1, Math.ceil(shortest / LEASE));
    const cluster = (server, port) => ({
      store: url(server, port),
      leaseDuration: times * LEASE,
      renewInterval: times * RENEW,
    });
    return { name: nameOf(kind), kind, cluster };
  }),
  {
    name: "Kubernetes",
    kind: "kubernetes",
    async start() {
      const server = await KubernetesServer.start();
      const namespace = await server.newNamespace();
      const token = await server.account(namespace, "elector");
      return Object.assign(server, { place: { namespace, token } });
    },
    async cluster(server, port) {
      const { namespace, token } = server.place;
      const config = await server.kubeconfig({ server: server.urlAt(port), token });
      return { type: "KubernetesCluster", config, namespace, leaseName: "chaos" };
    },
  },
  {
    name: "a Leader Election API",
    async start() {
      const server = new ApiServer({ args: ["--lease", `${LEASE}ms`] });
      await server.listens();
      return server;
    },
    cluster: (_, port) => ({
      type: "LeaderApiCluster",
      url: `http://127.0.0.1:${port}`,
      resource: "krn:app:chaos",
      // The server says.
      leaseDuration: undefined,
      renewInterval: undefined,
    }),
  },
  {
    name: "a store of the application's own",
    start: () => HttpRegistry.start(),
    cluster: (server, port) => ({ httpRegistry: server.urlAt(port) }),
  },
];

async function play(arena, faults) {
  for (let i = 0; i < 3; i++) await arena.enter();
  await arena.leader();
  const names = Object.keys(faults);
  for (let round = 0; round < ROUNDS; round++) {
    const name = names[round % names.length];
    const leader = await arena.leader();
    await faults[name](arena, leader).catch((error) => {
      error.message = `round ${round}, ${name}: ${error.message}`;
      throw error;
    });
    // Some time of its own for whoever leads now.
    await sleep(Math.random() * RENEW);
  }
  await arena.leader();
  await arena.close();
  const verdict = judge(arena.logs);
  assert.deepEqual(verdict.problems, []);
  assert.ok(verdict.terms > ROUNDS / 3, `${verdict.terms} terms`);
  assert.ok(verdict.answers > 50 * ROUNDS, `${verdict.answers} answers`);
  return `${ROUNDS} rounds, ${verdict.terms} terms, ${verdict.answers} answers, overlap ${verdict.overlap} us`;
}

// They wait more than they work.
describe("real processes", { concurrency: 2 }, () => {
  let folder;
  before(() => {
    folder = mkdtempSync(join(tmpdir(), "whenleader-chaos-"));
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  for (const { name, kind, start = kind && (() => Server.start(kind)), cluster } of STORES) {
    const what = start ? "the leader, the network and the store" : "the leader";
    test(`on ${name}, terms never overlap and tokens only grow, whatever happens to ${what}`, async (t) => {
      if (kind && isMissing(kind, `real processes on ${name}`)) return;
      const logs = mkdtempSync(join(folder, "arena-"));
      const server = start && (await start());
      t.after(() => server?.stop());
      const arena = new Arena(logs, async () => {
        if (!server) return cluster(logs);
        const proxy = await TcpProxy.to(server.port);
        return { ...(await cluster(server, proxy.port)), proxy };
      });
      arena.server = server;
      t.after(() => arena.close());
      t.diagnostic(await play(arena, server ? ALL_FAULTS : FAULTS));
    });
  }

  test("every store that can be started is played on", () => {
    const started = Object.keys(KINDS).filter(
      (kind) => KINDS[kind].start && KINDS[kind].store !== false,
    );
    assert.deepEqual(Object.keys(STORES_OF).sort(), started.sort());
  });

  test("the recorder sees an overlap, a token that goes back, and unbalanced callbacks", async () => {
    const { writeFileSync } = await import("node:fs");
    const log = (id, ...lines) => {
      const file = join(folder, `${id}.planted`);
      writeFileSync(file, `${lines.join("\n")}\n`);
      return { id, file };
    };
    const overlap = judge([
      log("a", "fn 1 0", "true 1 0 1", "true 1 100 101"),
      log("b", "fn 2 50", "true 2 50 51"),
    ]);
    assert.equal(overlap.overlap, 49);
    assert.match(overlap.problems.join(), /terms 1 and 2 overlap by 49 us/);
    assert.match(
      judge([log("c", "fn 2 0", "dereg 2 1 taken", "fn 1 2")]).problems.join(),
      /token 1 came after 2/,
    );
    assert.match(
      judge([log("d", "fn 1 0", "fn 2 1")]).problems.join(),
      /ran before deregisteredFn/,
    );
    assert.match(
      judge([log("e", "true 1 0 1"), log("f", "true 1 5 6")]).problems.join(),
      /led by e and by f/,
    );
  });
});
