// What a leader and a follower ask of a store in a minute, while nothing happens: ways there and back, of whatever kind
// (a renewal, a look, a sign of life).

import { readFileSync } from "node:fs";
import { Instance } from "./instances.mjs";
import { pause, round } from "./stats.mjs";

const setting = { leaseDuration: 15_000, renewInterval: 5_000 };

export async function requests({ stores, minutes }) {
  const results = [];
  for (const store of stores) {
    const leaseName = `requests-${process.pid}`;
    const enter = (cluster) => new Instance({ ...cluster, ...setting, leaseName });
    results.push({
      store: store.name,
      ...(await (store.way ? asked(enter, store, minutes) : cpuOnly(enter, store, minutes))),
    });
    console.error(results.at(-1));
  }
  return results;
}

/** Each instance has a way of its own to the server, on which is counted. */
async function asked(enter, store, minutes) {
  const ways = { leader: await store.way(), follower: await store.way() };
  const leader = enter(ways.leader.cluster);
  await leader.event("promoted");
  const follower = enter(ways.follower.cluster);
  await follower.event("ready");
  await pause(2_000);
  const count = () => Object.values(ways).map((way) => way.roundTrips());
  const before = count();
  await pause(minutes * 60_000);
  const [ofLeader, ofFollower] = count().map((after, i) => round((after - before[i]) / minutes));
  await leader.stop();
  await follower.kill();
  for (const way of Object.values(ways)) await way.close();
  return { "round trips a minute": { leader: ofLeader, follower: ofFollower } };
}

/** The embedded store has no requests; what it costs is CPU. */
async function cpuOnly(enter, store, minutes) {
  const leader = enter(store.cluster());
  await leader.event("promoted");
  const follower = enter(store.cluster());
  await follower.event("ready");
  await pause(2_000);
  const before = [cpuOf(leader), cpuOf(follower)];
  await pause(minutes * 60_000);
  const [a, b] = [cpuOf(leader), cpuOf(follower)].map((ms, i) => round((ms - before[i]) / minutes));
  await leader.stop();
  await follower.kill();
  return { "CPU ms a minute": { leader: a, follower: b } };
}

/** CPU milliseconds of a process, by /proc (Linux). */
function cpuOf({ child }) {
  const fields = readFileSync(`/proc/${child.pid}/stat`, "utf8").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) * 10;
}
