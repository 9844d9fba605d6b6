// Our instances and programs in Go compete for one Lease of a real Kubernetes API server: each respects what
// the other one wrote. The Go side is client-go's leaderelection, which every controller uses.
import assert from "node:assert/strict";
import { fork, spawn } from "node:child_process";
import { mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { judge } from "./support/recorder.mjs";
import { isMissing, KubernetesServer, serverProgram } from "./support/servers.mjs";

const HANDOVERS = Number(process.env.WHENLEADER_RIVALRY_ROUNDS ?? 20);
const FAULTS = Math.ceil(HANDOVERS / 7);
const LEASE = 3_000;
const RETRY = 300;
/** Long enough for a busy machine; a round that needs it has failed. */
const PATIENCE = 30_000;

const program = fileURLToPath(new URL("support/contender.mjs", import.meta.url));

/** A process that wants to lead, of either kind. */
class Contender {
  leads = false;
  ready = false;

  constructor(id, child) {
    this.id = id;
    this.child = child;
    this.ended = new Promise((done) => {
      child.on("close", (code, signal) => {
        this.leads = false;
        this.end = `${id} ended by itself: ${signal ?? code}`;
        done();
      });
    });
  }

  heard({ event }) {
    if (event === "promoted") this.leads = true;
    if (event === "demoted") this.leads = false;
    if (event === "started") this.ready = true;
  }

  signal(name) {
    this.child.kill(name);
  }
}

class Ours extends Contender {
  static kind = "whenleader";

  constructor(id, file, place) {
    const config = {
      type: "KubernetesCluster",
      config: place.kubeconfig,
      namespace: place.namespace,
      leaseName: place.lease,
      leaseDuration: LEASE,
      renewInterval: RETRY,
    };
    super(id, fork(program, [JSON.stringify(config), file], { stdio: "inherit" }));
    this.child.on("message", (message) => this.heard(message));
  }

  stop() {
    this.child.send({ command: "stop" });
  }
}

class Rival extends Contender {
  static kind = "client-go";

  constructor(id, file, place) {
    const settings = {
      kubeconfig: place.kubeconfig,
      namespace: place.namespace,
      lease: place.lease,
      identity: id,
      "lease-duration": `${LEASE}ms`,
      "renew-deadline": `${(2 / 3) * LEASE}ms`,
      "retry-period": `${RETRY}ms`,
      log: file,
    };
    const args = Object.entries(settings).map(([name, value]) => `--${name}=${value}`);
    // What client-go logs is told only where it matters.
    const told = `${file}.stderr`;
    const stdio = ["pipe", "pipe", openSync(told, "w")];
    super(id, spawn(serverProgram("rival"), args, { stdio }));
    createInterface({ input: this.child.stdout }).on("line", (line) =>
      this.heard(JSON.parse(line)),
    );
    this.ended.then(() => {
      this.end += `\n${readFileSync(told, "utf8").slice(-2000)}`;
    });
  }

  stop() {
    this.child.stdin.write("stop\n");
  }
}

/** Two sides, each with one process at a time. */
class Match {
  logs = [];
  contenders = new Set();
  /** Milliseconds from the command to the other side's leadership, by the kind of who takes over. */
  times = new Map();
  outages = 0;

  constructor(folder, place) {
    this.folder = folder;
    this.place = place;
  }

  async enter(Kind) {
    const id = `${Kind.kind}-${this.logs.length}`;
    const file = join(this.folder, `${id}.log`);
    writeFileSync(file, "");
    this.logs.push({ id, file });
    const contender = new Kind(id, file, this.place);
    this.contenders.add(contender);
    await this.until(() => contender.ready, `${id} runs`);
    return contender;
  }

  async leave(contender) {
    await contender.ended;
    this.contenders.delete(contender);
  }

  async until(holds, what) {
    for (const end = Date.now() + PATIENCE; Date.now() < end; await sleep(2)) {
      if (holds()) return;
      for (const { end } of this.contenders) assert.equal(end, undefined);
    }
    assert.fail(`not within ${PATIENCE} ms: ${what}`);
  }

  /** The leader is asked to go; returns who leads then, and a new process of the same kind as the old one. */
  async handOver(leader, follower) {
    const start = performance.now();
    // It ends by itself, and is not missed.
    this.contenders.delete(leader);
    leader.stop();
    await this.until(() => follower.leads, `${follower.id} leads after the stop of ${leader.id}`);
    const kind = follower.constructor.kind;
    this.times.set(kind, [...(this.times.get(kind) ?? []), performance.now() - start]);
    await leader.ended;
    return [follower, await this.enter(leader.constructor)];
  }

  async freeze(leader, follower) {
    leader.signal("SIGSTOP");
    await this.until(() => follower.leads, `${follower.id} leads while ${leader.id} stands still`);
    leader.signal("SIGCONT");
    await this.until(() => !leader.leads, `${leader.id} sees that it lost`);
    assert.ok(follower.leads);
    return [follower, leader];
  }

  async kill(leader, follower) {
    this.contenders.delete(leader);
    leader.signal("SIGKILL");
    await leader.ended;
    await this.until(() => follower.leads, `${follower.id} leads after the death of ${leader.id}`);
    return [follower, await this.enter(leader.constructor)];
  }

  /** The API server is away for longer than a lease: nobody leads then, and afterwards one of them does. */
  async outage(leader, follower) {
    const { server } = this.place;
    const frozen = this.outages++ % 2 === 0;
    await (frozen ? server.freeze() : server.kill());
    await sleep(LEASE);
    await this.until(() => !leader.leads && !follower.leads, "nobody leads without an API server");
    await (frozen ? server.thaw() : server.restart());
    await this.until(() => leader.leads || follower.leads, "somebody leads after an outage");
    return leader.leads ? [leader, follower] : [follower, leader];
  }

  async close() {
    for (const contender of this.contenders) {
      contender.signal("SIGCONT");
      contender.signal("SIGKILL");
      await this.leave(contender);
    }
  }
}

const median = (values) => Math.round(values.sort((a, b) => a - b)[Math.floor(values.length / 2)]);

describe("rivalry", { concurrency: false }, () => {
  let folder;
  before(() => {
    folder = mkdtempSync(join(tmpdir(), "whenleader-rivalry-"));
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  test("an instance and a program with client-go take the Lease from each other, and never lead both", async (t) => {
    const what = "rivalry with client-go";
    if (isMissing("kubernetes", what) || isMissing("rival", what)) return;
    const server = await KubernetesServer.start();
    t.after(() => server.stop());
    const namespace = await server.newNamespace();
    const token = await server.account(namespace, "candidates");
    const kubeconfig = await server.kubeconfig({ token });
    const match = new Match(folder, { server, kubeconfig, namespace, lease: "leader" });
    t.after(() => match.close());

    let leader = await match.enter(Ours);
    await match.until(() => leader.leads, "somebody leads");
    let follower = await match.enter(Rival);
    // Both ways in each round.
    for (const [step, rounds] of [
      ["handOver", HANDOVERS],
      ["freeze", FAULTS],
      ["kill", FAULTS],
      ["outage", FAULTS],
    ]) {
      for (let i = 0; i < 2 * rounds; i++) {
        [leader, follower] = await match[step](leader, follower);
        // Some time of its own for whoever leads now.
        await sleep(Math.random() * RETRY);
      }
    }
    await match.close();

    const verdict = judge(match.logs);
    assert.deepEqual(verdict.problems, []);
    const each = HANDOVERS + 2 * FAULTS;
    assert.ok(verdict.terms >= each, `${verdict.terms} terms of ours`);
    assert.ok(verdict.stretches >= each, `${verdict.stretches} of client-go`);
    assert.ok(verdict.answers > 20 * each, `${verdict.answers} answers`);
    for (const [kind, times] of match.times)
      t.diagnostic(`FIGURES: clean hand-over to ${kind}: ${median(times)} ms`);
    t.diagnostic(
      `${verdict.terms} terms and ${verdict.stretches} of client-go, ${verdict.answers} answers, overlap ${verdict.overlap} us`,
    );
  });

  test("the recorder sees that a leader without tokens overlaps with a term, or with another one", () => {
    const log = (id, ...lines) => {
      const file = join(folder, `${id}.planted`);
      writeFileSync(file, `${lines.join("\n")}\n`);
      return { id, file };
    };
    const ours = log("a", "fn 1 0", "true 1 10 11", "true 1 100 101");
    const inside = judge([ours, log("b", "leads 1 50 51", "leads 1 60 61")]);
    assert.equal(inside.overlap, 9);
    assert.match(inside.problems.join(), /term 1 of a and stretch 1 of b overlap by 9 us/);
    const around = judge([ours, log("c", "leads 1 0 1", "leads 1 200 201")]);
    assert.equal(around.overlap, 89);
    const beside = judge([ours, log("d", "leads 1 0 1", "leads 1 8 11", "leads 2 100 102")]);
    assert.deepEqual(beside.problems, []);
    assert.deepEqual([beside.terms, beside.stretches], [1, 2]);
    const two = judge([
      log("e", "leads 1 0 1", "leads 1 20 21"),
      log("f", "leads 1 10 11", "leads 1 30 31"),
    ]);
    assert.match(two.problems.join(), /stretch 1 of f overlap by 9 us/);
  });
});
