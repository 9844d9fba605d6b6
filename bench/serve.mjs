// `whenleader serve` under load: ten thousand resources, each with a leader, and a thousand check-ins a second for a
// while. What counts is what they cost of a core, and how long each takes while the client keeps a core of its own.
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { Agent, request } from "node:http";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { root } from "../tools/run.mjs";
import { pause, quantile, round } from "./stats.mjs";

const RESOURCES = 10_000;
const RATE = 1_000;
const CONNECTIONS = 64;
/** Longer than the whole run: every resource keeps its leader. */
const LEASE = "10m";

export async function serve({ stores, minutes }) {
  const results = [];
  for (const store of stores.filter((one) => one.cluster().store)) {
    results.push({ store: store.name, ...(await measured(store.cluster().store, minutes)) });
    console.error(results.at(-1));
  }
  return results;
}

async function measured(store, minutes) {
  const bin = join(root, "bin", "whenleader.js");
  const args = [bin, "serve", "--store", store, "--listen", "0", "--lease", LEASE];
  const stdio = ["ignore", "pipe", "inherit"];
  const server = spawn(process.execPath, [...args, "--log", "warn"], { stdio });
  try {
    const port = await new Promise((resolve) =>
      createInterface({ input: server.stdout }).once("line", (line) =>
        resolve(Number(line.split(":").at(-1))),
      ),
    );
    const agent = new Agent({ keepAlive: true, maxSockets: CONNECTIONS });
    const checkIn = (number) => ask(agent, port, number);
    // Each gets its leader first.
    for (let first = 0; first < RESOURCES; first += CONNECTIONS) {
      const some = Array.from(
        { length: Math.min(CONNECTIONS, RESOURCES - first) },
        (_, n) => first + n,
      );
      await Promise.all(some.map(checkIn));
    }
    const times = [];
    const before = cpuOf(server.pid);
    const begun = performance.now();
    const count = Math.round(minutes * 60 * RATE);
    const pending = [];
    for (let n = 0; n < count; n++) {
      const due = begun + (n * 1_000) / RATE;
      const early = due - performance.now();
      if (early > 1) await pause(early);
      const sent = performance.now();
      pending.push(
        checkIn((n * 7_919) % RESOURCES).then(() => times.push(performance.now() - sent)),
      );
    }
    await Promise.all(pending);
    const seconds = (performance.now() - begun) / 1_000;
    return {
      "check-ins a second": round(count / seconds),
      "ms: median": round(quantile(times, 0.5)),
      "ms: p99": round(quantile(times, 0.99)),
      "CPU % of a core": round((cpuOf(server.pid) - before) / seconds / 10),
      "RSS MiB": round(rssOf(server.pid)),
    };
  } finally {
    server.kill();
  }
}

function ask(agent, port, number) {
  const body = JSON.stringify({ id: `krn:wl:c/${number}`, resources: [`krn:app:${number}`] });
  return new Promise((resolve, reject) => {
    const asked = request({ agent, port, method: "POST", path: "/leader/elect" }, (response) => {
      let text = "";
      response.on("data", (part) => {
        text += part;
      });
      response.on("end", () => {
        if (response.statusCode === 200 && text.includes('"leader":true')) resolve();
        else reject(new Error(`${response.statusCode}: ${text}`));
      });
    });
    asked.on("error", reject);
    asked.end(body);
  });
}

/** CPU milliseconds of a process, by /proc (Linux). */
function cpuOf(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) * 10;
}

function rssOf(pid) {
  const [, pages] = readFileSync(`/proc/${pid}/statm`, "utf8").split(" ");
  return (Number(pages) * 4096) / 2 ** 20;
}
