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
      const name = { store: store.name, lease: setting.leaseDuration };
      results.push({
        what: "hand-over",
        ...name,
        ...(await measure(rounds, setting, store, handOverOnce)),
      });
      console.error(results.at(-1));
      results.push({ what: "takeover", ...name, ...(await takeovers(rounds, setting, store)) });
      console.error(results.at(-1));
    }
  }
  return results;
}

let elections = 0;

async function measure(rounds, setting, store, once) {
  const samples = [];
  for (let i = 0; i < rounds; i++) samples.push(await withPair(setting, store, once));
  return { ms: summary(samples) };
}

/** A leader and a follower that wait, at any moment between two renewals. */
async function withPair(setting, store, once) {
  const leaseName = `bench-${process.pid}-${elections++}`;
  const enter = async () => new Instance({ ...(await store.cluster()), ...setting, leaseName });
  const leader = await enter();
  await leader.event("promoted");
  const follower = await enter();
  await follower.event("ready");
  // Where followers judge by what they saw, they must have seen a renewal.
  await pause(((store.url ? 0 : 1) + Math.random()) * setting.renewInterval);
  try {
    return await once(leader, follower, leaseName);
  } finally {
    await Promise.all([leader.kill(), follower.kill()]);
  }
}

async function handOverOnce(leader, follower) {
  const start = performance.now();
  leader.stop();
  return (await follower.event("promoted")) - start;
}

async function takeovers(rounds, setting, store) {
  const { server } = store;
  if (!server) {
    return measure(rounds, setting, store, async (leader, follower) => {
      const start = performance.now();
      leader.kill();
      return (await follower.event("promoted")) - start;
    });
  }
  // On a server a dead leader is only seen at the end of its lease. What counts is how long after its last
  // renewal that is, in leases: it cannot be below 1, and the time since that renewal is luck.
  const leases = [];
  // Kubernetes counts whole seconds.
  const lease = store.url
    ? setting.leaseDuration
    : Math.ceil(setting.leaseDuration / 1_000) * 1_000;
  const samples = await measure(rounds, setting, store, async (leader, follower, leaseName) => {
    await leader.kill();
    const start = performance.now();
    const left = await server.timeLeft(leaseName);
    const asked = performance.now();
    const promoted = await follower.event("promoted");
    leases.push((promoted - asked + lease - left) / lease);
    return promoted - start;
  });
  return {
    ...samples,
    "leases after the last renewal": { ...summary(leases), max: round4(leases) },
  };
}

function round4(samples) {
  return Math.round(Math.max(...samples) * 1e4) / 1e4;
}
