// What a leader and a follower ask of a store in a minute, while nothing happens.

import { readFileSync } from "node:fs";
import { Instance } from "./instances.mjs";
import { pause, round } from "./stats.mjs";

const config = { type: "StoreCluster", leaseDuration: 15_000, renewInterval: 5_000 };

export async function requests({ stores, minutes }) {
  const results = [];
  for (const store of stores) {
    const own = { ...config, store: store.url, leaseName: `requests-${process.pid}` };
    results.push({
      store: store.name,
      ...(await (store.server ? asked(own, store.server, minutes) : cpuOnly(own, minutes))),
    });
  }
  return results;
}

/** By the connections: those that are there before the follower starts are the leader's. */
async function asked(own, server, minutes) {
  const clients = new Map();
  const stop = server.monitor((client, command) => {
    if (!clients.has(client)) clients.set(client, []);
    clients.get(client).push(command);
  });
  const leader = new Instance(own);
  await leader.event("promoted");
  await pause(1_000);
  const leaders = new Set(clients.keys());
  const follower = new Instance(own);
  await follower.event("ready");
  await pause(2_000);
  for (const commands of clients.values()) commands.length = 0;
  await pause(minutes * 60_000);

  // Pings only keep the connection of the notifications known to be alive; they ask the store nothing.
  const found = { "requests a minute": {}, "pings a minute": {} };
  for (const who of ["leader", "follower"]) {
    const own = [...clients].filter(([client]) => leaders.has(client) === (who === "leader"));
    const commands = own.flatMap(([, all]) => all);
    const pings = commands.filter((command) => command === "PING").length;
    found["requests a minute"][who] = round((commands.length - pings) / minutes);
    found["pings a minute"][who] = round(pings / minutes);
  }
  stop();
  await leader.stop();
  await follower.kill();
  return found;
}

/** The embedded store has no requests; what it costs is CPU. */
async function cpuOnly(own, minutes) {
  const leader = new Instance(own);
  await leader.event("promoted");
  const follower = new Instance(own);
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
