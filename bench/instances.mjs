// Starts instances in processes of their own and waits for what they tell.
import { fork } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
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

/** The stores that there are here, each with a fresh place for one benchmark. */
export async function openStores() {
  const folder = mkdtempSync(join(tmpdir(), "whenleader-bench-"));
  const stores = [{ name: "file", url: `file:${folder}` }];
  const server = await RedisServer.start();
  if (server) stores.push({ name: "Redis", url: server.url, server });
  else console.log("SKIPPED: the benchmarks on Redis; install redis-server");
  return {
    stores,
    async close() {
      await server?.stop();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}
