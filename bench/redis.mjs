// A Redis server for the benchmarks, and as much of a client as they need.
import { connect } from "node:net";
import { isMissing, Server } from "../__test__/support/servers.mjs";
import { servers } from "../tools/servers/index.mjs";

export class RedisServer {
  static async start() {
    await servers();
    if (isMissing("redis", "the benchmarks on Redis")) return;
    const redis = new RedisServer();
    // What is measured is the election, and no disk.
    redis.server = await Server.start("redis", ["--flag=--appendonly", "--flag=no"]);
    redis.port = redis.server.port;
    redis.url = redis.server.url;
    return redis;
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

  stop() {
    return this.server.stop();
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
