// A Redis server for the benchmarks, and as much of a client as they need.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { env } from "../tools/run.mjs";
import { servers } from "../tools/servers/index.mjs";

export class RedisServer {
  static async start() {
    await servers();
    const program = env.WHENLEADER_REDIS_SERVER;
    if (!program) return;
    const server = new RedisServer();
    server.port = await freePort();
    server.url = `redis://127.0.0.1:${server.port}`;
    server.folder = mkdtempSync(join(tmpdir(), "whenleader-redis-"));
    const flags = [
      "--port",
      server.port,
      "--bind",
      "127.0.0.1",
      "--save",
      "",
      "--appendonly",
      "no",
    ];
    server.child = spawn(program, [...flags, "--dir", server.folder], { stdio: "ignore" });
    for (let tries = 0; tries < 100; tries++) {
      if ((await server.ask("PING").catch(() => "")) === "PONG") return server;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error("redis-server does not start");
  }

  /** One command on a connection of its own: what it costs does not matter here. */
  ask(...words) {
    return new Promise((resolve, reject) => {
      const socket = connect(this.port, "127.0.0.1", () => socket.write(encode(words)));
      let text = "";
      socket.setEncoding("utf8").on("error", reject);
      socket.on("data", (more) => {
        text += more;
        const answer = decode(text);
        if (answer === undefined) return;
        socket.destroy();
        resolve(answer);
      });
    });
  }

  /** The milliseconds until a lease ends, by the keys that name its election. */
  async timeLeft(election) {
    const times = [];
    for (const key of await this.ask("KEYS", `*${election}*`))
      times.push(Number(await this.ask("PTTL", key)));
    return Math.min(...times.filter((time) => time > 0));
  }

  /** Calls `seen(client, command)` for every command that a client sends, until the answered function is called. */
  monitor(seen) {
    const socket = connect(this.port, "127.0.0.1", () => socket.write(encode(["MONITOR"])));
    let rest = "";
    socket.setEncoding("utf8").on("data", (more) => {
      const lines = (rest + more).split("\r\n");
      rest = lines.pop();
      for (const line of lines) {
        // What a script does inside the server is no request.
        const [, client, command] = line.match(/^\+[\d.]+ \[\d+ ([^\]]+)\] "(\w+)"/) ?? [];
        if (client && client !== "lua") seen(client, command.toUpperCase());
      }
    });
    return () => socket.destroy();
  }

  async stop() {
    const ended = new Promise((done) => this.child.on("close", done));
    this.child.kill("SIGKILL");
    await ended;
    rmSync(this.folder, { recursive: true, force: true });
  }
}

function encode(words) {
  const parts = words.map((word) => `$${Buffer.byteLength(String(word))}\r\n${word}\r\n`);
  return `*${words.length}\r\n${parts.join("")}`;
}

/** A whole answer, or undefined while more of it is on its way. Knows only what the questions above bring. */
function decode(text) {
  if (!text.endsWith("\r\n")) return;
  const lines = text.split("\r\n").slice(0, -1);
  if (!text.startsWith("*")) return lines[0].slice(1);
  const count = Number(lines[0].slice(1));
  if (lines.length < 1 + 2 * count) return;
  return lines.slice(1).filter((_, i) => i % 2 === 1);
}

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}
