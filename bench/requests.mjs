// What a leader and a follower ask of a store in a minute, while nothing happens.

import { readFileSync } from "node:fs";
import { Instance } from "./instances.mjs";
import { pause, round } from "./stats.mjs";

const setting = { leaseDuration: 15_000, renewInterval: 5_000 };

export async function requests({ stores, minutes }) {
  const results = [];
  for (const store of stores) {
    const leaseName = `requests-${process.pid}`;
    const enter = async () => new Instance({ ...(await store.cluster()), ...setting, leaseName });
    results.push({
      store: store.name,
      ...(await (store.server ? asked(enter, store.server, minutes) : cpuOnly(enter, minutes))),
    });
  }
  return results;
}

/** By the clients that a server tells apart: those that are there before the follower starts are the leader's. */
async function asked(enter, server, minutes) {
  const clients = new Map();
  const stop = server.monitor((client, command) => {
    if (!clients.has(client)) clients.set(client, []);
    clients.get(client).push(command);
  });
  const leader = await enter();
  await leader.event("promoted");
  await pause(1_000);
  const leaders = new Set(clients.keys());
  const follower = await enter();
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
async function cpuOnly(enter, minutes) {
  const leader = await enter();
  await leader.event("promoted");
  const follower = await enter();
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
