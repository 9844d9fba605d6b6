// What `require("whenleader")` costs, and what it costs to lead on the embedded store: CPU, memory and threads in
// fresh processes, beside an empty module; and what the package takes on the disk.
import { statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { root, run, targetDir } from "../tools/run.mjs";
import { median, round } from "./stats.mjs";

const PROCESSES = 30;

const START = `
  startCluster({ cluster: { type: "StoreCluster", store: "file:" + process.argv[1] } });
  await useCluster().waitUntilLeader();
`;

export async function importing({ stores }) {
  const empty = join(targetDir, "bench", "empty.cjs");
  writeFileSync(empty, "module.exports = {};\n");
  const whole = join(root, "index.js");
  const directory = stores[0].url.replace(/^file:/, "");
  const samples = { empty: [], whole: [], started: [] };
  for (let i = 0; i < PROCESSES; i++) {
    samples.empty.push(await once(empty));
    samples.whole.push(await once(whole));
    samples.started.push(await once(whole, START, `${directory}/import-${i}`));
  }
  const costs = (name) => {
    const of = (what) =>
      round(median(samples[name].map((one, i) => one[what] - samples.empty[i][what])));
    return { "CPU ms": of("cpu"), "RSS MiB": of("rss"), threads: of("threads") };
  };
  return {
    import: costs("whole"),
    "import and lead": costs("started"),
    "disk MiB": await onDisk(),
  };
}

async function once(file, then = "", ...args) {
  const script = `
    const threads = () => { try { return fs.readdirSync("/proc/self/task").length } catch { return 0 } };
    const t = threads(), m = process.memoryUsage.rss(), c = process.cpuUsage();
    const { startCluster, useCluster } = require(${JSON.stringify(file)});
    (async () => {
      ${then}
      const { user, system } = process.cpuUsage(c);
      const rss = (process.memoryUsage.rss() - m) / 2 ** 20;
      console.log(JSON.stringify({ cpu: (user + system) / 1000, rss, threads: threads() - t }));
      process.exit();
    })();
  `;
  const { code, output } = await run([process.execPath, "-e", script, ...args]);
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
