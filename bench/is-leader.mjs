// What isLeader() costs, as leader and as follower, beside a flag and beside the least that an honest
// answer can cost. All are measured in turns, and the ratios are taken within a turn, so that a machine
// with changing speed changes no ratio.
import { copyFileSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { root, run, targetDir } from "../tools/run.mjs";
import { Instance } from "./instances.mjs";
import { cpu, median, round } from "./stats.mjs";

const CALLS = 2_000_000;
const TURNS = 25;

export async function isLeader({ stores }) {
  const { startCluster, stopCluster, useCluster } = await import("whenleader");
  const config = await stores[0].cluster();

  // Another process leads two elections, and this process two others.
  const rivals = ["theirs", "theirs too"].map(
    (leaseName) => new Instance({ ...config, leaseName }),
  );
  for (const rival of rivals) await rival.event("promoted");
  await startCluster({ cluster: { ...config, leaseName: "theirs" } });
  const raw = await rawAddons();
  const leaders = [await led(useCluster("mine"))];

  // While the program has one election only, the compiler knows which function is asked.
  const alone = inTurns({
    raw: caller("rawAlone", [raw[0], raw[0]], "beforeDeadline"),
    leader: caller("leaderAlone", [leaders[0], leaders[0]], "isLeader"),
  });

  leaders.push(await led(useCluster("mine too")));
  const followers = [useCluster("theirs"), useCluster("theirs too")];
  if (followers.some((follower) => follower.isLeader())) throw new Error("two leaders");
  const several = inTurns({
    flag: caller("flag", [new Flag(), new Flag()], "isLeader"),
    raw: caller("raw", raw, "beforeDeadline"),
    leader: caller("leader", leaders, "isLeader"),
    follower: caller("follower", followers, "isLeader"),
  });

  await stopCluster();
  for (const rival of rivals) await rival.stop();
  return {
    "ns, one election": medians(alone),
    "ns, two elections": medians(several),
    "leader / raw, one election": ratio(alone.leader, alone.raw),
    "leader / raw, two elections": ratio(several.leader, several.raw),
    "follower / flag": ratio(several.follower, several.flag),
  };
}

class Flag {
  leading = true;
  isLeader() {
    return this.leading;
  }
}

async function led(election) {
  await election.waitUntilLeader({ timeout: 10_000 });
  return election;
}

/** CPU nanoseconds a call, for each turn. */
function inTurns(callers) {
  const names = Object.keys(callers);
  for (const name of names) callers[name](CALLS / 10);
  const samples = Object.fromEntries(names.map((name) => [name, []]));
  for (let turn = 0; turn < TURNS; turn++) {
    for (let i = 0; i < names.length; i++) {
      const name = names[(i + turn) % names.length];
      samples[name].push((cpu(() => callers[name](CALLS)) * 1e9) / CALLS);
    }
  }
  return samples;
}

function medians(samples) {
  return Object.fromEntries(
    Object.entries(samples).map(([name, all]) => [name, round(median(all))]),
  );
}

function ratio(a, b) {
  return round(median(a.map((ns, turn) => ns / b[turn])));
}

/**
 * A loop of its own for each, so that no call site sees two functions, as in a program of a user. Which of the
 * two objects is asked changes with each call: else the compiler would ask a flag once, before the loop.
 */
function caller(name, objects, method) {
  return new Function(
    "objects",
    `return function ${name}(calls) {
      let yes = 0;
      for (let i = 0; i < calls; i++) if (objects[i & 1].${method}()) yes++;
      return yes;
    }`,
  )(objects);
}

/** Twice the same, but two functions, as two elections are. */
async function rawAddons() {
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
  const second = join(folder, "raw-2.node");
  copyFileSync(file, second);
  return [file, second].map(createRequire(import.meta.url));
}
