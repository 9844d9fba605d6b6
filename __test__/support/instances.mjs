// Instances of an example, each a process of its own: which of them leads, as they say themselves, and how they end.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

/** Long enough for a busy machine; what needs it has failed. */
export const PATIENCE = 30_000;

/** Each example says this when its work begins. */
const LEADS = /^leads: term (\d+)$/;

const alive = new Set();
process.on("exit", () => {
  for (const child of alive) child.kill("SIGKILL");
});

/** @param {() => unknown} holds  may be asynchronous  @param {string | (() => string)} what */
export async function until(holds, what, patience = PATIENCE) {
  for (const end = Date.now() + patience; Date.now() < end; await sleep(5)) {
    const value = await holds();
    if (value) return value;
  }
  return assert.fail(`not within ${patience} ms: ${typeof what === "string" ? what : what()}`);
}

class Instance {
  /** What it said, line by line. @type {string[]} */
  lines = [];
  errors = "";
  /** How it ended. @type {{ code: number | null, signal: string | null } | undefined} */
  end;
  #rest = "";

  constructor(script, env) {
    const { NODE_TEST_CONTEXT: _, ...inherited } = process.env;
    this.child = spawn(process.execPath, [script], { env: { ...inherited, ...env } });
    alive.add(this.child);
    this.child.stdout.setEncoding("utf8").on("data", (text) => {
      const lines = (this.#rest + text).split("\n");
      this.#rest = lines.pop();
      this.lines.push(...lines);
    });
    this.child.stderr.setEncoding("utf8").on("data", (text) => {
      this.errors += text;
    });
    this.ended = new Promise((resolve) => {
      this.child.on("close", (code, signal) => {
        alive.delete(this.child);
        this.end = { code, signal };
        resolve(this.end);
      });
    });
  }

  /** The last term of its own that it told of; 0: none. */
  get term() {
    const terms = this.lines.map((line) => Number(LEADS.exec(line)?.[1] ?? 0));
    return Math.max(0, ...terms);
  }

  signal(name) {
    this.child.kill(name);
  }

  /** @param {RegExp} line */
  says(line) {
    return until(
      () => {
        assert.ok(!this.end || this.lines.some((said) => line.test(said)), this.story());
        return this.lines.some((said) => line.test(said));
      },
      () => `${line} is said. ${this.story()}`,
    );
  }

  story() {
    const last = [...this.lines.slice(-15), ...this.errors.split("\n").slice(-15)];
    return `${JSON.stringify(this.end ?? "it runs")}\n${last.join("\n")}`;
  }
}

/** Several instances of one example. */
export class Instances {
  /** All that ever ran. @type {Instance[]} */
  all = [];

  /**
   * @param {import("node:test").TestContext} t
   * @param {string} example  its file in examples/run
   * @param {Record<string, string>} env
   */
  constructor(t, example, env) {
    this.script = fileURLToPath(new URL(`../../examples/run/${example}`, import.meta.url));
    this.env = env;
    t.after(() => this.killAll());
  }

  start() {
    const instance = new Instance(this.script, this.env);
    this.all.push(instance);
    return instance;
  }

  get running() {
    return this.all.filter(({ end }) => !end);
  }

  /** The one with the largest term, which is larger than `above`. */
  async leader(above = 0) {
    let leader;
    await until(
      () => {
        for (const instance of this.running) {
          if (instance.term > above && instance.term > (leader?.term ?? 0)) leader = instance;
        }
        return leader;
      },
      () => `somebody leads after term ${above}. ${this.story()}`,
    );
    return leader;
  }

  /** kill -9 for the leader, and another instance in its place. Returns who leads then. */
  async killLeader() {
    const leader = await this.leader();
    leader.signal("SIGKILL");
    await leader.ended;
    this.start();
    return this.leader(leader.term);
  }

  /** It is told to end, and ends as a process does that has nothing against it. Returns who leads then. */
  async stopLeader() {
    const leader = await this.leader();
    leader.signal("SIGTERM");
    assert.deepEqual(await leader.ended, { code: null, signal: "SIGTERM" }, leader.story());
    this.start();
    return this.leader(leader.term);
  }

  /** It stands still until another one leads. */
  async freezeLeader(meanwhile = async () => {}) {
    const leader = await this.leader();
    leader.signal("SIGSTOP");
    const next = await this.leader(leader.term);
    await meanwhile();
    leader.signal("SIGCONT");
    return { leader, next };
  }

  async killAll() {
    for (const instance of this.running) {
      instance.signal("SIGCONT");
      instance.signal("SIGKILL");
      await instance.ended;
    }
  }

  story() {
    return this.all.map((instance, i) => `[${i}] ${instance.story()}`).join("\n");
  }
}
