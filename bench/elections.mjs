// What a thousand elections in one process cost.
import { readdirSync } from "node:fs";
import { pause, round } from "./stats.mjs";

const ELECTIONS = 1_000;
const QUIET = 30_000;

const [, , url] = process.argv;
const { startCluster, useCluster, whenLeader } = await import("whenleader");

// Elections alone keep no process alive.
setInterval(() => {}, 60_000);

const threads = () => readdirSync("/proc/self/task").length;
const memory = () => process.memoryUsage.rss() / 2 ** 20;
const cpu = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1_000;
};

await startCluster({ cluster: { type: "StoreCluster", store: url } });
await useCluster().waitUntilLeader({ timeout: 10_000 });
const before = { threads: threads(), memory: memory(), cpu: cpu(), at: performance.now() };

let led = 0;
const clusters = [];
await new Promise((done) => {
  for (let i = 0; i < ELECTIONS; i++) {
    clusters.push(useCluster(`election-${i}`));
    whenLeader(() => ++led === ELECTIONS && done(), undefined, { election: `election-${i}` });
  }
});
const started = { cpu: cpu(), at: performance.now() };
await pause(QUIET);
const after = { threads: threads(), memory: memory(), cpu: cpu() };
const lost = clusters.filter((cluster) => !cluster.isLeader()).length;
const stopping = performance.now();
await useCluster().stop();
await Promise.all(clusters.map((cluster) => cluster.stop()));

process.stdout.write(
  `${JSON.stringify({
    "all lead after ms": round(started.at - before.at),
    "CPU ms to start": round(started.cpu - before.cpu),
    "CPU ms a minute": round(((after.cpu - started.cpu) * 60_000) / QUIET),
    "KiB each": round(((after.memory - before.memory) * 1_024) / ELECTIONS),
    "more threads": after.threads - before.threads,
    "lost meanwhile": lost,
    "all stopped after ms": round(performance.now() - stopping),
  })}\n`,
);
process.exit();
