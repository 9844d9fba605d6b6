// Ways to lose a leadership, each with its reason, and what follows: real processes on one store.

const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const { test } = require("node:test");
const { setTimeout: sleep } = require("node:timers/promises");
const { newFolder, runProgram } = require("./support/child.js");
const { CONFIG, ask, leaderOf, service, tokens } = require("./support/service.js");

const posix = { skip: process.platform === "win32" && "Windows cannot stop a process" };

/** Where the embedded store keeps the versions of the election's record. */
const records = (cwd) => path.join(cwd, ".whenleader", "e-leader");

/** Another instance writes the next version of the record, whoever holds the present one. */
function takeOver(cwd) {
  const newest = fs.readdirSync(records(cwd)).sort().at(-1);
  const record = JSON.parse(fs.readFileSync(path.join(records(cwd), newest), "utf8"));
  const next = String(Number(newest) + 1).padStart(newest.length, "0");
  const taken = { ...record, token: record.token + 1, instance: "rival", nonce: "0".repeat(16) };
  fs.writeFileSync(path.join(records(cwd), next), `${JSON.stringify(taken)}\n`);
}

/** For a while nobody can read the records. */
async function takeAway(cwd) {
  fs.renameSync(records(cwd), `${records(cwd)}-away`);
  fs.writeFileSync(records(cwd), "");
  await sleep(2 * CONFIG.leaseDuration);
  fs.rmSync(records(cwd));
  fs.renameSync(`${records(cwd)}-away`, records(cwd));
}

async function freeze(_, leader) {
  leader.kill("SIGSTOP");
  await sleep(2 * CONFIG.leaseDuration);
  leader.kill("SIGCONT");
}

for (const [reason, lose, options = {}] of [
  ["released", (cwd) => fs.rmSync(records(cwd), { recursive: true })],
  ["taken", takeOver],
  ["unreachable", takeAway],
  ["expired", freeze, posix],
  ["stalled", (_, leader) => ask(leader, "block 3000")],
  ["steppedDown", (_, leader) => ask(leader, "stepDown")],
  ["stopped", (_, leader) => ask(leader, "stop")],
]) {
  test(
    `a loss with the reason "${reason}" is told once, and is followed by a larger token`,
    options,
    async (t) => {
      const cwd = newFolder();
      const config = { stallTimeout: 1000 };
      const { instances, start } = service(t, { cwd, count: 1, config });
      const leader = await leaderOf(instances);
      const [token] = tokens(leader);
      await lose(cwd, leader);
      await leader.said(`deregistered ${token} ${reason}`);
      const losses = leader.lines.filter((line) => line.startsWith("deregistered"));
      assert.equal(losses.length, 1, leader.stdout);
      const next = reason === "stopped" ? start() : leader;
      await next.said("fn", next === leader ? leader.lines.indexOf(losses[0]) : 0);
      assert.ok(tokens(next).at(-1) > token, `${next.stdout} after ${token}`);
    },
  );
}

test(
  "a process that was stopped for two leases leads again as a new term, also after a rival led and released",
  posix,
  async (t) => {
    const { instances, start } = service(t, { count: 1 });
    const [first] = instances;
    await first.said("fn");
    first.kill("SIGSTOP");
    const rival = start();
    await rival.said("fn");
    await ask(rival, "stop");
    await sleep(CONFIG.leaseDuration);
    first.kill("SIGCONT");
    await first.said("fn", 1);
    const [before, after] = tokens(first);
    assert.deepEqual(first.lines.slice(0, 2), [`fn ${before}`, `deregistered ${before} expired`]);
    assert.ok(after > tokens(rival)[0]);
    assert.ok(tokens(rival)[0] > before);
  },
);

test("a leadership is lost and won again fifty times", async () => {
  const { stdout, stderr, code } = await runProgram(
    `const fs = require("node:fs");
     const cluster = useCluster();
     const events = [];
     whenLeader(({ token }) => events.push(token), (lost, { token }) => events.push(-token));
     (async () => {
       const again = { timeout: 20_000 };
       for (let round = 0; round < 50; round += 1) {
         const { signal } = await cluster.waitUntilLeader(again);
         if (round % 2 === 0) {
           await cluster.stepDown({ pause: 10 });
         } else {
           fs.rmSync(".whenleader/e-leader", { recursive: true });
           while (!signal.aborted) await new Promise((resolve) => setTimeout(resolve, 5));
         }
       }
       await cluster.waitUntilLeader(again);
       await stopCluster();
       say(JSON.stringify(events));
     })();`,
    { config: { ...CONFIG, leaseDuration: 600, renewInterval: 200 } },
  );
  assert.equal(code, 0, stderr);
  const events = JSON.parse(stdout);
  const led = events.filter((token) => token > 0);
  assert.ok(led.length >= 51, `${led.length} terms`);
  assert.deepEqual(
    events,
    led.flatMap((token) => [token, -token]),
    "balanced, one after the other",
  );
  assert.deepEqual(
    led,
    [...new Set(led)].sort((a, b) => a - b),
    "tokens grow",
  );
});

test("renewals go on while fn does not end", async () => {
  const { stdout, stderr, code } = await runProgram(
    `const cluster = useCluster();
     cluster.on("demoted", ({ reason }) => say("demoted", reason));
     whenLeader(() => new Promise(() => {}));
     // biome-ignore lint/suspicious/noThenProperty: no promise, and it never ends.
     whenLeader(() => ({ then: () => say("fn") }));
     setTimeout(() => { say(cluster.isLeader()); process.exit(); }, 6000);`,
    { config: CONFIG },
  );
  assert.equal(code, 0, stderr);
  assert.equal(stdout, "fn\ntrue\n");
});

test("with stallTimeout 0 a blocked event loop never costs the leadership", async (t) => {
  const { instances } = service(t, { count: 2, config: { stallTimeout: 0 } });
  const leader = await leaderOf(instances);
  const other = instances.find((one) => one !== leader);
  assert.equal(await ask(leader, `block ${5 * CONFIG.leaseDuration}`), "true");
  assert.deepEqual([tokens(leader).length, tokens(other).length], [1, 0]);
});

test("leadLimit is how long a leader trusts its lease", posix, async (t) => {
  const config = { leaseDuration: 6000, renewInterval: 500, leadLimit: 1500 };
  const { instances } = service(t, { count: 1, config });
  const leader = await leaderOf(instances);
  for (let i = 0; i < 20; i += 1) {
    const remaining = Number(await ask(leader, "remaining"));
    assert.ok(remaining > 0 && remaining <= 1500, `${remaining} ms remain`);
    await sleep(50);
  }
  // Longer than the limit, and shorter than the lease: the record is still its own, the term is over.
  leader.kill("SIGSTOP");
  await sleep(2500);
  leader.kill("SIGCONT");
  await leader.said("expired");
  await leader.said("fn", 1);
  const [before, after] = tokens(leader);
  assert.ok(after > before);
});
