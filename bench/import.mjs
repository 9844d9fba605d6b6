// What `require("whenleader")` costs: CPU and memory in fresh processes, beside an empty module; and what
// the package takes on the disk.
import { statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { root, run, targetDir } from "../tools/run.mjs";
import { median, round } from "./stats.mjs";

const PROCESSES = 30;

export async function importing() {
  const empty = join(targetDir, "bench", "empty.cjs");
  writeFileSync(empty, "module.exports = {};\n");
  const whole = join(root, "index.js");
  const samples = { whole: [], empty: [] };
  for (let i = 0; i < PROCESSES; i++) {
    samples.empty.push(await once(empty));
    samples.whole.push(await once(whole));
  }
  const of = (what) =>
    round(median(samples.whole.map((one, i) => one[what] - samples.empty[i][what])));
  return {
    "CPU ms": of("cpu"),
    "RSS MiB": of("rss"),
    threads: of("threads"),
    "disk MiB": await onDisk(),
  };
}

async function once(file) {
  const script = `
    const threads = () => { try { return fs.readdirSync("/proc/self/task").length } catch { return 0 } };
    const t = threads(), m = process.memoryUsage.rss(), c = process.cpuUsage();
    require(${JSON.stringify(file)});
    const { user, system } = process.cpuUsage(c);
    console.log(JSON.stringify({ cpu: (user + system) / 1000, rss: (process.memoryUsage.rss() - m) / 2 ** 20, threads: threads() - t }));
  `;
  const { code, output } = await run([process.execPath, "-e", script]);
  if (code !== 0) throw new Error(output);
  return JSON.parse(output);
}

async function onDisk() {
  const { output } = await run(["npm", "pack", "--dry-run", "--json"]);
  const files = JSON.parse(output.slice(output.indexOf("[")))[0];
  const { readdirSync } = await import("node:fs");
  const binary = readdirSync(root).find((name) => name.endsWith(".node"));
  const size = statSync(join(root, binary)).size;
  return { package: round(files.unpackedSize / 2 ** 20), binary: round(size / 2 ** 20) };
}
