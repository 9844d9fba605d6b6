// Real servers for the tests, run by the launchers of tools/: on loopback, on free ports, with their data in
// temporary folders, and gone with this process.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { findProgram } from "../../tools/kubernetes/programs.mjs";
import { findServer, KINDS, whyMissing } from "../../tools/servers/kinds/index.mjs";

/** What is built from tools/kubernetes, beside the kinds of tools/servers. */
const BUILT = {
  kubernetes: {
    find: () => findProgram("etcd") && findProgram("kube-apiserver"),
    why: "no kube-apiserver with etcd here; npm test builds them with Go, or set KUBEBUILDER_ASSETS",
  },
  rival: {
    find: () => findProgram("rival"),
    why: "no client-go here; npm test builds it with Go",
  },
};

/** The program of a server, or undefined. */
export function serverProgram(kind) {
  return kind in KINDS ? findServer(kind) : BUILT[kind].find();
}

/**
 * Whether tests of this server must be left out. Says so in one line that the test command collects; under
 * CI nothing is left out.
 */
export function isMissing(kind, what) {
  if (serverProgram(kind)) return false;
  const line = `SKIPPED: ${what}: ${kind in KINDS ? whyMissing(kind) : BUILT[kind].why}`;
  if (process.env.CI) throw new Error(line);
  console.log(line);
  return true;
}

/** A server of any kind, run by tools/servers/serve.mjs, which tells what it can do. */
export class Server {
  #child;
  #asked = 0;
  #waiting = new Map();

  /**
   * Has what the launcher told: url, port, and more by its kind.
   * @param {string} kind one of tools/servers/kinds
   * @param {string[]} args `--flag=<flag of the server>`, and the options of the kind
   */
  static start(kind, args = []) {
    return new Server().launch(kind, "../../tools/servers/serve.mjs", [kind, ...args]);
  }

  /** @protected @returns {Promise<any>} */
  async launch(name, script, args) {
    const launcher = fileURLToPath(new URL(script, import.meta.url));
    const stdio = ["pipe", "pipe", "inherit"];
    this.#child = spawn(process.execPath, [launcher, ...args], { stdio });
    const told = await this.#listen(name);
    if (!told?.url) throw new Error(`${name} does not start: ${told?.missing ?? "see above"}`);
    return Object.assign(this, told);
  }

  /** @returns {Promise<any>} what is told first; undefined if the launcher ended before */
  #listen(name) {
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
          reject(new Error(`the launcher of ${name} ended`));
      });
    });
  }

  /** What only servers of this kind can be asked, as their module says. */
  ask(command, values = {}) {
    const id = this.#asked++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, [resolve, reject]);
      this.#child.stdin.write(`${JSON.stringify({ ...values, id, do: command })}\n`);
    });
  }

  /** It takes connections, and answers nothing. */
  freeze() {
    return this.ask("freeze");
  }

  thaw() {
    return this.ask("thaw");
  }

  /** It dies, and connections are refused. */
  kill() {
    return this.ask("kill");
  }

  /** On the same port, with all that it knew. */
  restart() {
    return this.ask("restart");
  }

  /** Its URL by another port, such as a proxy's. */
  urlAt(port) {
    return this.url.replace(`127.0.0.1:${this.port}`, `127.0.0.1:${port}`);
  }

  async stop() {
    const ended = once(this.#child, "close");
    this.#child.stdin.end();
    await ended;
  }
}

/** A Kubernetes API server with RBAC, run by tools/kubernetes/serve.mjs. */
export class KubernetesServer extends Server {
  /**
   * Has url, port, url6, dir, ca, token, clientCert, clientKey, and the kubeconfigs admin and adminToken.
   * @param {string[]} flags `--ipv6`, `--apiserver-flag=<flag>`
   */
  static start(flags = []) {
    const script = "../../tools/kubernetes/serve.mjs";
    return new KubernetesServer().launch("the Kubernetes API server", script, flags);
  }

  /** @param {{ method?: string, path: string, contentType?: string, body?: any, token?: string }} asked */
  request(asked) {
    return this.ask("request", asked);
  }

  async newNamespace() {
    return (await this.ask("namespace")).namespace;
  }

  /** A service account that may do with Leases what the verbs say. Returns a token of it. */
  async account(namespace, name, verbs = ["get", "create", "update", "watch"]) {
    const rules = [{ apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs }];
    return (await this.ask("account", { namespace, name, rules })).token;
  }

  /**
   * Writes a kubeconfig and returns its path. `server` is another address of this one, such as a proxy's.
   * @param {{ server?: string, token?: string, tokenFile?: string, certificate?: boolean,
   *   namespace?: string, path?: string }} content
   */
  async kubeconfig(content) {
    return (await this.ask("kubeconfig", content)).path;
  }
}
