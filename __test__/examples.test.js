// The examples run as they are: alone without a configuration, and two at a time on the embedded store.

const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { after, test } = require("node:test");

const folder = path.join(path.dirname(__dirname), "examples");
const work = fs.mkdtempSync(path.join(os.tmpdir(), "whenleader-examples-"));
const PATIENCE = 20_000;
const running = new Set();

after(() => {
  for (const child of running) child.kill("SIGKILL");
  fs.rmSync(work, { recursive: true, force: true });
});

/** For each example: what it says as the leader, and what it says in the end, in this order. */
const EXAMPLES = {
  "cron.mjs": {
    leads: [/ leads \(term \d+\)/, / tick/, / tick/],
    ends: [/ leads no longer \(stopped\)/],
  },
  "poller.mjs": {
    leads: [/starts to poll/, /poll 1/, /poll 4/, /will try again/, /poll 6/],
    ends: [/polls no longer: stopped/, /all is quiet/],
  },
  "outbox.mjs": {
    leads: [/relays/, /delivered order 1/, /delivered order 6/, /refused: term \d+ is over/],
    ends: [/relays no longer/],
  },
  "several-elections.mjs": {
    leads: [/mail: mine/, /leading mail, reports, cleanup/],
    ends: [/mail: no longer mine/],
  },
  "worker-threads.cjs": {
    leads: [/worker 1 starts/, /worker 2 starts/],
    ends: [],
  },
};

test("every example is run here and told of in their README", () => {
  const files = fs.readdirSync(folder).filter((name) => /\.(mjs|cjs|js)$/.test(name));
  assert.deepEqual(files.sort(), Object.keys(EXAMPLES).sort());
  const readme = fs.readFileSync(path.join(folder, "README.md"), "utf8");
  for (const name of files) assert.ok(readme.includes(name), `README.md does not tell of ${name}`);
});

for (const [name, { leads, ends }] of Object.entries(EXAMPLES)) {
  test(`${name} does its work without a configuration`, { timeout: PATIENCE }, async () => {
    const only = start(name);
    for (const line of leads) await only.says(line);
    // Nobody waits for an instance that is alone: a signal just ends it.
    await only.stop([]);
  });

  test(`${name} works on one of two instances, and on the other one after a hand-over`, {
    timeout: PATIENCE,
  }, async () => {
    const config = {
      type: "StoreCluster",
      store: `file:${path.join(work, name)}`,
      leaseDuration: 3_000,
      renewInterval: 1_000,
    };
    const first = start(name, config);
    await first.says(leads[0]);
    const second = start(name, config);
    await first.says(leads.at(-1));
    assert.ok(!leads[0].test(second.said()), `two lead:\n${second.said()}`);
    await first.stop(ends);
    await second.says(leads[0]);
    await second.stop(ends);
  });
}

function start(name, cluster) {
  const env = { ...process.env };
  delete env.WHENLEADER_CONFIG;
  if (cluster) env.WHENLEADER_CONFIG = JSON.stringify({ cluster });
  const child = spawn(process.execPath, [path.join(folder, name)], { env });
  running.add(child);
  let output = "";
  let errors = "";
  const waiting = new Set();
  child.stdout.setEncoding("utf8").on("data", (text) => {
    output += text;
    for (const check of waiting) check();
  });
  child.stderr.setEncoding("utf8").on("data", (text) => {
    errors += text;
  });
  const ended = new Promise((resolve) => {
    child.on("close", (code, signal) => {
      running.delete(child);
      resolve({ code, signal });
      for (const check of waiting) check();
    });
  });

  return {
    said: () => output,
    /** Each call looks behind what the call before has found. */
    says: (pattern) =>
      new Promise((resolve, reject) => {
        const check = () => {
          if (pattern.test(output)) resolve();
          else if (child.exitCode !== null) reject(new Error(`${name} ended: ${output}${errors}`));
          else return;
          waiting.delete(check);
        };
        waiting.add(check);
        check();
      }),
    async stop(patterns) {
      child.kill("SIGTERM");
      const { code, signal } = await ended;
      // The package stops the cluster, and then lets the signal do its work.
      assert.equal(signal, "SIGTERM", `ended with ${code}: ${errors}`);
      assert.equal(errors, "");
      for (const pattern of patterns) assert.match(output, pattern);
    },
  };
}

test("the example tests pass", async () => {
  const tests = path.join(folder, "testing");
  const files = fs.readdirSync(tests).filter((name) => name.endsWith(".test.mjs"));
  const env = { ...process.env };
  delete env.NODE_TEST_CONTEXT;
  const child = spawn(process.execPath, ["--test", ...files], { cwd: tests, env });
  running.add(child);
  let said = "";
  for (const out of [child.stdout, child.stderr]) out.on("data", (text) => (said += text));
  const [code] = await new Promise((resolve) => child.on("close", (...how) => resolve(how)));
  running.delete(child);
  assert.equal(code, 0, said);
  assert.match(said, /pass [1-9]/);
});

test("the demo ends by itself with code 0", async () => {
  const show = spawn(process.execPath, [path.join(folder, "demo", "show.mjs")], { cwd: work });
  running.add(show);
  let said = "";
  for (const out of [show.stdout, show.stderr]) out.on("data", (text) => (said += text));
  const timer = setTimeout(() => show.kill("SIGKILL"), 6 * PATIENCE);
  const [code, signal] = await new Promise((resolve) => show.on("close", (...how) => resolve(how)));
  clearTimeout(timer);
  running.delete(show);
  assert.deepEqual([code, signal], [0, null], said);
  assert.match(said, /took over/);
});
