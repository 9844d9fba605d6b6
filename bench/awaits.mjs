// What an await costs anywhere in a process while work runs in it, beside what it costs when none does: in each version
// of Node.js, in turns.
import { fileURLToPath } from "node:url";
import { otherNodes } from "../tools/nodes.mjs";
import { run } from "../tools/run.mjs";
import { median, round } from "./stats.mjs";

const AWAITS = 200_000;
const TURNS = 25;
const isMain = process.argv[1] === fileURLToPath(import.meta.url);

export async function awaits() {
  const nodes = [
    { path: process.execPath },
    ...(await otherNodes()).filter(({ path }) => path !== undefined),
  ];
  const rows = [];
  for (const { path } of nodes) {
    const { code, output } = await run([path, fileURLToPath(import.meta.url)]);
    if (code !== 0) throw new Error(output);
    rows.push(JSON.parse(output.trim().split("\n").at(-1)));
  }
  return rows;
}

if (isMain) console.log(JSON.stringify(await measured()));

async function measured() {
  const { runWhenLeader } = await import("whenleader");
  const samples = { without: [], with: [] };
  await nanoseconds();
  for (let turn = 0; turn < TURNS; turn += 1) {
    samples.without.push(await nanoseconds());
    const work = runWhenLeader(`turn ${turn}`, ({ signal }) => {
      return new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
    });
    while (!work.isLeader()) await new Promise((resolve) => setImmediate(resolve));
    samples.with.push(await nanoseconds());
    await work.stop();
  }
  return {
    "Node.js": process.version,
    "ns without work": round(median(samples.without)),
    "ns with work": round(median(samples.with)),
    ratio: round(median(samples.with.map((ns, turn) => ns / samples.without[turn]))),
  };
}

/** CPU time of one await, outside of any work. */
async function nanoseconds() {
  const before = process.cpuUsage();
  for (let i = 0; i < AWAITS; i += 1) await something();
  const { user, system } = process.cpuUsage(before);
  return ((user + system) * 1000) / AWAITS;
}

async function something() {}
