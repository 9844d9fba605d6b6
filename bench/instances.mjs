// Starts instances in processes of their own and waits for what they tell.
import { fork } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Kubernetes } from "./kubernetes.mjs";
import { SERVER_KINDS, ServerStore } from "./servers.mjs";

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

/** The embedded store: nothing is asked of anybody. */
class FileStore {
  name = "file";
  watched = false;
  shortest = 0;
  folder = mkdtempSync(join(tmpdir(), "whenleader-bench-"));

  lasts(leaseDuration) {
    return leaseDuration;
  }

  cluster() {
    return { type: "StoreCluster", store: `file:${this.folder}` };
  }

  stop() {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** What can be asked for by name. */
export const STORES = ["file", ...SERVER_KINDS, "kubernetes"];

/** The stores of those names that there are here, each with a fresh place. */
export async function openStores(names) {
  const stores = [];
  for (const name of names) {
    if (name === "file") stores.push(new FileStore());
    else if (name === "kubernetes") stores.push(await Kubernetes.start());
    else stores.push(await ServerStore.start(name));
  }
  const opened = stores.filter(Boolean);
  return { stores: opened, close: () => Promise.all(opened.map((store) => store.stop())) };
}
