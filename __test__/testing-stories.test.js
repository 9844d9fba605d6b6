// The same stories on a cluster under a virtual clock and on a real one, whose store is a few lines of JavaScript: an
// application is told the same in both.

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { useTestCluster } = require("../testing.js");
const { runProgram } = require("./support/child.js");

const TIMING = { leaseDuration: 1_500, renewInterval: 500 };
/** Where it matters that something has not happened yet, on a slow machine too. */
const SLOW = { leaseDuration: 6_000, renewInterval: 2_000 };

/**
 * What happens in each. A step is a word and its number: `lead` waits until this instance leads, `pass` lets time pass,
 * `take` lets another instance have the lease, `down` steps down for so long; `fail`, `hang` and `mend` are about the store.
 */
const STORIES = {
  "a store that fails": { steps: ["lead", "fail", "pass 700", "mend", "pass 1200"] },
  "a store that fails, and a leader that tries again": {
    options: { onRenewError: "retry" },
    steps: ["lead", "fail", "pass 1500", "mend", "pass 1200"],
  },
  "a store that fails for a while, and a leader that tries again in time": {
    options: { onRenewError: "retry", ...SLOW },
    steps: ["lead", "fail", "pass 2600", "mend", "pass 2500"],
  },
  "a store that hangs after a renewal": {
    options: SLOW,
    steps: ["lead", "pass 2400", "hang", "pass 2600", "pass 2000"],
  },
  "a store that hangs": { steps: ["lead", "hang", "pass 1300", "mend", "pass 1500"] },
  "a store that hangs, and a leader that tries again": {
    options: { onRenewError: "retry" },
    steps: ["lead", "hang", "pass 1300", "mend", "pass 1500"],
  },
  "somebody else takes the lease": { steps: ["lead", "take", "pass 800"] },
  "a leader that steps down": { steps: ["lead", "down 700", "pass 300", "pass 1000"] },
  "a leader that steps down twice": {
    steps: ["lead", "down 200", "pass 1000", "down 200", "pass 1000"],
  },
  "callbacks that outlive their lease": { stuck: true, steps: ["lead", "hang", "pass 2000"] },
};

/** In both worlds: runs the steps, and returns what the application was told. */
async function tell({ steps, stuck = false }, { whenLeader, useCluster }, world) {
  const told = [];
  const cluster = useCluster();
  const say = (what) => told.push(what);
  let free = () => {};
  const end = stuck && new Promise((resolve) => (free = resolve));
  cluster.on("promoted", () => say("promoted"));
  cluster.on("demoted", ({ reason }) => say(`demoted ${reason}, leads ${cluster.isLeader()}`));
  cluster.on("error", ({ code }) => say(code));
  cluster.on("leaderChanged", ({ instanceId }) => say(`leader ${instanceId}`));
  let last = 0;
  whenLeader(
    (term) => {
      say(`fn, larger ${term.token > last}, current ${term.isCurrent()}`);
      last = term.token;
      term.signal.addEventListener("abort", () => say("aborted"));
    },
    (lost) => {
      say(`ended ${lost.reason}`);
      return end;
    },
  );
  for (const step of steps) {
    const [word, number] = step.split(" ");
    say(`-- ${step}`);
    await world[word](Number(number), cluster);
    say(`leads ${cluster.isLeader()}`);
  }
  free();
  await world.end();
  say(`over, leads ${cluster.isLeader()}`);
  return told;
}

const down = (pause, cluster) => cluster.stepDown({ pause });

async function virtually(story) {
  const cluster = useTestCluster({
    ...TIMING,
    ...story.options,
    instanceId: "me",
    logger: { error() {}, warn() {}, info() {} },
  });
  const told = await tell(story, require("../index.js"), {
    lead: () => cluster.promote(),
    pass: (ms) => cluster.advance(ms),
    take: () => cluster.elect("other"),
    fail: () => cluster.failStore(),
    hang: () => cluster.hangStore(),
    mend: () => cluster.mendStore(),
    down,
    end: async () => {
      cluster.mendStore();
      // What was sent before is given up in its time, here as there.
      const stopping = require("../index.js").stopCluster();
      await cluster.advance({ ...TIMING, ...story.options }.renewInterval);
      await stopping;
    },
  });
  await cluster.restore();
  return told;
}

/** In a process of its own. */
async function really(story) {
  const { stdout, stderr } = await runProgram(
    `const tell = ${tell};
     const down = ${down};
     const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
     const records = new Map();
     let state = "answers";
     const call = (then) => {
       if (state === "fails") throw new Error("it fails");
       return state === "hangs" ? new Promise(() => {}) : then();
     };
     const store = {
       get: (key) => call(() => records.get(key)),
       compareAndSet: (key, expected, value) => call(() => {
         if ((records.get(key)?.version ?? null) !== expected) return false;
         records.set(key, value);
         return true;
       }),
     };
     (async () => {
       const story = ${JSON.stringify(story)};
       await startCluster({ store, instanceId: "me", ...${JSON.stringify(TIMING)}, ...story.options },
         { logger: { error() {}, warn() {}, info() {} } });
       const told = await tell(story, { whenLeader, useCluster }, {
         // The beginning of an interval, as on the virtual clock; and fn has been called.
         lead: async () => { await useCluster().waitUntilLeader(); await sleep(20); },
         pass: sleep,
         take: async () => {
           const [[key, { token }]] = records;
           records.set(key, { version: "x", instanceId: "other", nonce: "000000000000000f", token: token + 1, leaseDuration: 60000 });
           await sleep(700);
         },
         fail: () => { state = "fails"; },
         hang: () => { state = "hangs"; },
         mend: () => { state = "answers"; },
         down,
         end: async () => { state = "answers"; await stopCluster(); },
       });
       say(JSON.stringify(told));
     })();`,
  );
  assert.notEqual(stdout, "", stderr);
  return JSON.parse(stdout);
}

for (const [what, story] of Object.entries(STORIES)) {
  test(`${what}: told as on a real cluster`, async () => {
    assert.deepEqual(await virtually(story), await really(story));
  });
}
