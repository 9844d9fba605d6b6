// The virtual clock's deadlines are the native side's: the formulas, what is refused in which words, and what a
// real cluster tells.

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { BadTiming, Timing } = require("../lib/testing/timing.js");
const { useTestCluster } = require("../testing.js");
const { whenLeader } = require("../index.js");
const native = require("../native.js");
const figures = require("../tests/figures/timing.json");
const { runProgram } = require("./support/child.js");

/** How much a slow machine may take between the send of an attempt and the question. */
const LATE = 400;

test("the formulas have the figures that src/timing.rs is tested for", () => {
  for (const { leaseDuration, renewInterval, leadLimit, refused, ...expected } of figures) {
    const make = () => new Timing(leaseDuration, renewInterval, leadLimit ?? undefined);
    if (refused !== undefined) {
      assert.throws(
        make,
        (error) =>
          error instanceof BadTiming && [error.parameter, error.rule].join() === refused.join(),
      );
      continue;
    }
    const timing = make();
    const { leadLimit: trust, campaignLimit, retriedRenewalLimit, releaseLimit } = timing;
    const { overrunAfter, shortestNotice, defaultPause, defaultStopTimeout } = timing;
    const retryAfter = [1, 2, 3, 4, 5].map((failures) => timing.retryAfter(failures));
    assert.deepEqual(
      {
        trust,
        campaignLimit,
        retriedRenewalLimit,
        releaseLimit,
        retryAfter,
        overrunAfter,
        shortestNotice,
        defaultPause,
        defaultStopTimeout,
      },
      expected,
    );
  }
});

test("a bad option is refused in the words that a real configuration would get", () => {
  const given = figures
    .filter(({ refused }) => refused !== undefined)
    .map(({ leaseDuration, renewInterval, leadLimit }) => ({
      leaseDuration,
      renewInterval,
      ...(leadLimit !== null && { leadLimit }),
    }));
  const more = [
    { leaseDuration: 2_000 },
    { renewInterval: 20_000 },
    { leaseDuration: "15000" },
    { leaseDuration: "soon" },
    { renewInterval: -1 },
    { renewInterval: 1.5 },
    { leaseDuration: true },
    { leadLimit: [] },
    { leadLimit: { ms: 5 } },
    { stopTimeout: 86_400_001 },
    { onRenewError: "panic" },
    { candidate: 1 },
    { leaseName: "" },
    { leaseName: " a" },
    { instanceId: "a\n" },
  ];
  for (const options of [...given, ...more]) {
    const told = (call) => {
      try {
        call();
      } catch (error) {
        return error.message;
      }
      return assert.fail(`${JSON.stringify(options)} was accepted`);
    };
    const real = told(() => native.checkConfig(JSON.stringify(options), "useTestCluster()", "."));
    assert.equal(
      told(() => useTestCluster(options)),
      real,
    );
  }
});

test("a real cluster's leader has as long as one under a virtual clock", async () => {
  const options = figures
    .filter(({ refused, leaseDuration }) => refused === undefined && leaseDuration >= 1_000)
    .map(({ leaseDuration, renewInterval, leadLimit }) => ({
      leaseDuration,
      renewInterval,
      ...(leadLimit !== null && { leadLimit }),
    }));
  const { stdout, stderr } = await runProgram(
    `(async () => {
       for (const [i, options] of ${JSON.stringify(options)}.entries()) {
         await startCluster({ store: "file:x", leaseName: "e" + i, ...options });
         const term = await useCluster().waitUntilLeader();
         say(term.remaining());
         await stopCluster();
       }
     })();`,
    { env: { WHENLEADER_LOG: "silent" } },
  );
  const real = stdout.trim().split("\n").map(Number);
  assert.equal(real.length, options.length, stderr);
  for (const [i, each] of options.entries()) {
    const cluster = useTestCluster(each);
    let virtual;
    whenLeader((term) => {
      virtual = term.remaining();
    });
    await cluster.promote();
    await cluster.restore();
    const shown = `${JSON.stringify(each)}: ${real[i]} of ${virtual}`;
    assert.ok(real[i] <= virtual && real[i] > virtual - LATE, shown);
  }
});
