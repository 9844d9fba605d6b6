// isLeader() and term.isCurrent() at the first instruction after a block or a stop, while all news of the
// loss is still under way.

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { setTimeout: sleep } = require("node:timers/promises");
const { Program, newFolder } = require("./support/child.js");

const LEASE = 1000;
const CONFIG = {
  type: "StoreCluster",
  leaseDuration: LEASE,
  renewInterval: 300,
  stallTimeout: 500,
};
const ROUNDS = 10;
const CHECKS_A_ROUND = 1_000;
const skip = process.platform === "win32" && "Windows cannot stop a process";

/**
 * Believes what it was told, and asks after each interruption in one go, before anything can be told. A
 * term's last answer of true is noted with the time before the question, its first one with the time after the
 * answer, so that true answers of two terms can overlap only if one of them was wrong.
 */
const INSTANCE = `
const cluster = useCluster();
const pause = new Int32Array(new SharedArrayBuffer(4));
const clock = () => Number(process.hrtime.bigint());
const terms = {};
let term = null;
let [checks, rounds] = [0, 0];
whenLeader((now) => { term = now; say("fn"); }, () => say("deregistered"));
function ask(times) {
  for (let i = 0; i < times; i += 1) {
    const before = clock();
    const leads = cluster.isLeader() && term.isCurrent();
    const after = clock();
    checks += 1;
    if (!leads) continue;
    const seen = (terms[term.token] ??= { first: after, last: before });
    seen.last = before;
  }
}
const interruptions = [
  // The event loop is blocked.
  () => Atomics.wait(pause, 0, 0, ${2 * LEASE}),
  // The process is stopped from outside, in the middle of work that asks nothing.
  () => { say("stop me"); for (const began = clock(); clock() - began < ${LEASE} * 1e6; ); },
];
(async () => {
  while (rounds < ${ROUNDS}) {
    const { token } = await cluster.waitUntilLeader();
    while (term?.token !== token) await null;
    ask(10);
    interruptions[rounds % 2]();
    const believed = !term.signal.aborted;
    ask(${CHECKS_A_ROUND});
    if (believed) rounds += 1;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  await stopCluster();
  say("result", JSON.stringify({ terms, checks, rounds }));
})();
`;

test("no answer is a stale true in 10,000 checks right after blocks and stops", {
  skip,
}, async (t) => {
  const cwd = newFolder();
  const instances = [1, 2].map(() => new Program(INSTANCE, { cwd, config: CONFIG }));
  let stops = 0;
  for (const instance of instances) {
    t.after(() => {
      instance.kill("SIGCONT");
      instance.kill("SIGKILL");
    });
    (async () => {
      for (let from = 0; !instance.over; ) {
        const at = instance.lines.indexOf("stop me", from);
        if (at < 0) {
          await sleep(5);
          continue;
        }
        from = at + 1;
        instance.kill("SIGSTOP");
        stops += 1;
        await sleep(2 * LEASE);
        instance.kill("SIGCONT");
      }
    })();
  }
  const results = [];
  for (const instance of instances) {
    const { stdout, stderr, code } = await instance.ended;
    assert.equal(code, 0, stderr);
    results.push(
      JSON.parse(
        stdout
          .split("\n")
          .find((line) => line.startsWith("result"))
          .slice(7),
      ),
    );
  }
  const checks = results.reduce((sum, result) => sum + result.rounds * CHECKS_A_ROUND, 0);
  assert.ok(checks >= 10_000, `${checks} checks`);
  assert.ok(stops >= ROUNDS / 2, `${stops} stops`);
  const terms = results
    .flatMap((result) => Object.entries(result.terms))
    .map(([token, seen]) => ({ token: Number(token), ...seen }))
    .sort((a, b) => a.token - b.token);
  assert.ok(terms.length >= ROUNDS, `only ${terms.length} terms`);
  for (const [i, term] of terms.slice(1).entries()) {
    const { token, last } = terms[i];
    assert.ok(last < term.first, `term ${token} was led after term ${term.token} had begun`);
  }
});
