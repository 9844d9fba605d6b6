// What isLeader() costs, as leader and as follower, beside a flag and beside the least that an honest
// answer can cost. All are measured in turns, and the ratios are taken within a turn, so that a machine
// with changing speed changes no ratio.
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { root, run, targetDir } from "../tools/run.mjs";
import { Instance } from "./instances.mjs";
import { cpu, median, round } from "./stats.mjs";

const CALLS = 2_000_000;
const TURNS = 25;

export async function isLeader({ stores }) {
  const { startCluster, useCluster } = await import("whenleader");
  const config = { type: "StoreCluster", store: stores[0].url };

  // Another process leads one election, this process leads another one.
  const rival = new Instance({ ...config, leaseName: "theirs" });
  await rival.event("promoted");
  await startCluster({ cluster: { ...config, leaseName: "theirs" } });
  const follower = useCluster("theirs");
  const leader = useCluster("mine");
  await leader.waitUntilLeader({ timeout: 10_000 });
  if (follower.isLeader()) throw new Error("two leaders");

  const state = { leading: true };
  const flag = { isLeader: () => state.leading };
  const raw = await rawAddon();
  const callers = {
    flag: caller("flag", flag, "isLeader"),
    raw: caller("raw", raw, "beforeDeadline"),
    leader: caller("leader", leader, "isLeader"),
    follower: caller("follower", follower, "isLeader"),
  };
  const names = Object.keys(callers);
  for (const name of names) callers[name](CALLS / 10);

  const nanoseconds = Object.fromEntries(names.map((name) => [name, []]));
  for (let turn = 0; turn < TURNS; turn++) {
    for (let i = 0; i < names.length; i++) {
      const name = names[(i + turn) % names.length];
      nanoseconds[name].push((cpu(() => callers[name](CALLS)) * 1e9) / CALLS);
    }
  }
  const ratio = (a, b) => round(median(nanoseconds[a].map((ns, i) => ns / nanoseconds[b][i])));

  await Promise.all([leader.stop(), follower.stop()]);
  await rival.stop();
  return {
    nanoseconds: Object.fromEntries(names.map((name) => [name, round(median(nanoseconds[name]))])),
    "leader / raw": ratio("leader", "raw"),
    "follower / flag": ratio("follower", "flag"),
  };
}

/** A loop of its own for each, so that no call site sees two functions, as in a program of a user. */
function caller(name, object, method) {
  return new Function(
    "object",
    `return function ${name}(calls) {
      let yes = 0;
      for (let i = 0; i < calls; i++) if (object.${method}()) yes++;
      return yes;
    }`,
  )(object);
}

async function rawAddon() {
  const folder = join(targetDir, "bench");
  mkdirSync(folder, { recursive: true });
  const file = join(folder, "raw.node");
  const headers = join(root, "node_modules", "node-api-headers", "include");
  const link = process.platform === "darwin" ? ["-undefined", "dynamic_lookup"] : ["-shared"];
  const source = join(root, "bench", "raw", "raw.c");
  const { code, output } = await run([
    "cc",
    "-O2",
    "-fPIC",
    ...link,
    `-I${headers}`,
    source,
    "-o",
    file,
  ]);
  if (code !== 0) throw new Error(output);
  return createRequire(import.meta.url)(file);
}
