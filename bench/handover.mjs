// How long nobody leads: after a clean stop, and after kill -9.
import { Instance } from "./instances.mjs";
import { pause, summary } from "./stats.mjs";

const SETTINGS = [
  { leaseDuration: 1_500, renewInterval: 500 },
  { leaseDuration: 15_000, renewInterval: 5_000 },
];

export async function handover({ stores, rounds }) {
  const results = [];
  for (const store of stores) {
    for (const setting of SETTINGS) {
      const config = { type: "StoreCluster", store: store.url, ...setting };
      const name = { store: store.name, lease: setting.leaseDuration };
      results.push({
        what: "hand-over",
        ...name,
        ...(await measure(rounds, config, handOverOnce)),
      });
      console.error(results.at(-1));
      results.push({ what: "takeover", ...name, ...(await takeovers(rounds, config, store)) });
      console.error(results.at(-1));
    }
  }
  return results;
}

let elections = 0;

async function measure(rounds, config, once) {
  const samples = [];
  for (let i = 0; i < rounds; i++) samples.push(await withPair(config, once));
  return { ms: summary(samples) };
}

/** A leader and a follower that wait, at any moment between two renewals. */
async function withPair(config, once) {
  const own = { ...config, leaseName: `bench-${process.pid}-${elections++}` };
  const leader = new Instance(own);
  await leader.event("promoted");
  const follower = new Instance(own);
  await follower.event("ready");
  await pause(Math.random() * config.renewInterval);
  try {
    return await once(leader, follower, own);
  } finally {
    await Promise.all([leader.kill(), follower.kill()]);
  }
}

async function handOverOnce(leader, follower) {
  const start = performance.now();
  leader.stop();
  return (await follower.event("promoted")) - start;
}

async function takeovers(rounds, config, { server }) {
  if (!server) {
    return measure(rounds, config, async (leader, follower) => {
      const start = performance.now();
      leader.kill();
      return (await follower.event("promoted")) - start;
    });
  }
  // On a server a dead leader is only seen at the end of its lease. What counts is how long after its last
  // renewal that is, in leases: it cannot be below 1, and the time since that renewal is luck.
  const leases = [];
  const samples = await measure(rounds, config, async (leader, follower, { leaseName }) => {
    await leader.kill();
    const start = performance.now();
    const left = await server.timeLeft(leaseName);
    const took = (await follower.event("promoted")) - start;
    leases.push((took + config.leaseDuration - left) / config.leaseDuration);
    return took;
  });
  return {
    ...samples,
    "leases after the last renewal": { ...summary(leases), max: round4(leases) },
  };
}

function round4(samples) {
  return Math.round(Math.max(...samples) * 1e4) / 1e4;
}
