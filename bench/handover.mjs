// How long nobody leads: after a clean stop, and after kill -9.
import { Instance } from "./instances.mjs";
import { pause, summary } from "./stats.mjs";

/** A store that holds nothing so short is measured with what it holds. */
function settingOf(store, lease) {
  const leaseDuration = Math.max(lease, store.shortest);
  return { leaseDuration, renewInterval: Math.round(leaseDuration / 3) };
}

export async function handover({ stores, rounds, leases }) {
  const results = [];
  const found = (result) => {
    results.push(result);
    console.error(result);
  };
  for (const store of stores) {
    for (const setting of leases.map((lease) => settingOf(store, lease))) {
      const name = { store: store.name, lease: setting.leaseDuration };
      found({ what: "hand-over", ...name, ...(await handOvers(rounds, setting, store)) });
      found({ what: "takeover", ...name, ...(await takeovers(rounds, setting, store)) });
    }
  }
  return results;
}

async function handOvers(rounds, setting, store) {
  const samples = [];
  for (let i = 0; i < rounds; i++) {
    samples.push(
      await withPair(setting, store, await store.cluster(), async (leader, follower) => {
        const start = performance.now();
        leader.stop();
        return (await follower.event("promoted")) - start;
      }),
    );
  }
  return { ms: summary(samples) };
}

async function takeovers(rounds, setting, store) {
  const samples = [];
  // On a server a dead leader is only seen at the end of its lease. What counts is how long after its last
  // renewal that is, in leases: it cannot be below 1, and the time since that renewal is luck.
  const leases = [];
  for (let i = 0; i < rounds; i++) {
    const way = await store.way?.();
    const own = way?.cluster ?? (await store.cluster());
    try {
      await withPair(setting, store, own, async (leader, follower, election) => {
        const start = performance.now();
        await leader.kill();
        const renewed = await way?.renewed(election);
        const promoted = await follower.event("promoted");
        samples.push(promoted - start);
        if (way) leases.push((promoted - renewed) / store.lasts(setting.leaseDuration));
      });
    } finally {
      await way?.close();
    }
  }
  if (leases.length === 0) return { ms: summary(samples) };
  const exact = Math.round(Math.max(...leases) * 1e4) / 1e4;
  return {
    ms: summary(samples),
    "leases after the last renewal": { ...summary(leases), max: exact },
  };
}

let elections = 0;

/** A leader (configured with `own`) and a follower that wait, at any moment between two renewals. */
async function withPair(setting, store, own, once) {
  const leaseName = `bench-${process.pid}-${elections++}`;
  const leader = new Instance({ ...own, ...setting, leaseName });
  let follower;
  try {
    await leader.event("promoted");
    follower = new Instance({ ...(await store.cluster()), ...setting, leaseName });
    await follower.event("ready");
    // Where followers judge by what they saw, they must have seen a renewal.
    await pause(((store.watched ? 1 : 0) + Math.random()) * setting.renewInterval);
    return await once(leader, follower, leaseName);
  } finally {
    await Promise.all([leader.kill(), follower?.kill()]);
  }
}
