// Starts instances in processes of their own and waits for what they tell.
import { fork } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Kubernetes } from "./kubernetes.mjs";
import { RedisServer } from "./redis.mjs";

const program = fileURLToPath(new URL("instance.mjs", import.meta.url));

export class Instance {
  #waiting = new Set();
  #heard = [];

  constructor(config) {
    this.child = fork(program, {
      env: { ...process.env, WHENLEADER_CONFIG: JSON.stringify({ cluster: config }) },
      stdio: ["ignore", "inherit", "inherit", "ipc"],
    });
    this.ended = new Promise((done) => this.child.on("close", done));
    this.child.on("message", (message) => {
      const heard = { ...message, at: performance.now() };
      this.#heard.push(heard);
      for (const check of this.#waiting) check(heard);
    });
  }

  /** The moment of the event: of the one that was heard already, or of the next one. */
  event(name, patience = 60_000) {
    const before = this.#heard.find(({ event }) => event === name);
    if (before) return Promise.resolve(before.at);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no ${name} in ${patience} ms`)), patience);
      const check = ({ event, at }) => {
        if (event !== name) return;
        clearTimeout(timer);
        this.#waiting.delete(check);
        resolve(at);
      };
      this.#waiting.add(check);
    });
  }

  kill() {
    this.child.kill("SIGKILL");
    return this.ended;
  }

  stop() {
    this.child.send("stop");
    return this.ended;
  }
}

/**
 * The stores that there are here (or the one of that name), each with a fresh place for one benchmark:
 * `cluster()` is what one more instance is configured with.
 */
export async function openStores(wanted) {
  const folder = mkdtempSync(join(tmpdir(), "whenleader-bench-"));
  const stores = [];
  const add = (name, url, server) =>
    stores.push({ name, url, server, cluster: () => ({ type: "StoreCluster", store: url }) });
  const is = (name) => !wanted || wanted === name;
  if (is("file")) add("file", `file:${folder}`);
  const redis = is("Redis") ? await RedisServer.start() : undefined;
  if (redis) add("Redis", redis.url, redis);
  else if (is("Redis")) console.log("SKIPPED: the benchmarks on Redis; install redis-server");
  const server = is("Kubernetes") ? await Kubernetes.start() : undefined;
  if (server) stores.push({ name: "Kubernetes", server, cluster: () => server.cluster() });
  return {
    stores,
    async close() {
      await redis?.stop();
      await server?.stop();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}
