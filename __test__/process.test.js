// Several real processes on one store: who leads, and what a process does that lost.

const assert = require("node:assert/strict");
const { once } = require("node:events");
const net = require("node:net");
const { test } = require("node:test");
const { setTimeout: sleep } = require("node:timers/promises");
const { PATIENCE, Program, newFolder, runProgram } = require("./support/child.js");
const { CONFIG, ask, leaderOf, leads, service, tokens } = require("./support/service.js");

const posix = { skip: process.platform === "win32" && "Windows cannot stop a process" };

test("of three instances exactly one leads; when it is killed, another one does", async (t) => {
  const { instances } = service(t);
  const first = await leaderOf(instances);
  const answers = await Promise.all(instances.map((one) => ask(one, "leads")));
  assert.equal(answers.filter((answer) => answer === "true").length, 1);
  assert.equal(answers[instances.indexOf(first)], "true");
  const others = instances.filter((one) => one !== first);
  assert.ok(!others.some(leads));
  const id = await ask(first, "id");
  first.kill("SIGKILL");
  await first.ended;
  const second = await leaderOf(others);
  assert.ok(tokens(second)[0] > tokens(first)[0], "the token grows");
  const leader = JSON.parse(await ask(second, "leader"));
  assert.notEqual(leader.instanceId, id);
  assert.equal(leader.token, tokens(second)[0]);
});

test(
  "a process that was stopped for longer than its lease knows at once that it does not lead",
  posix,
  async (t) => {
    const { instances } = service(t, { count: 2 });
    const first = await leaderOf(instances);
    const other = instances.find((one) => one !== first);
    first.kill("SIGSTOP");
    await other.said("fn");
    // The question waits in its input: it is answered before or after the events, but never with true.
    first.tell("leads");
    await sleep(50);
    first.kill("SIGCONT");
    await first.said("answer");
    assert.ok(first.lines.includes("answer false"), first.stdout);
    await first.said("deregistered");
    assert.equal(await ask(other, "leads"), "true");
  },
);

test("a blocked event loop keeps the lease until stallTimeout, and no longer", async (t) => {
  const { instances } = service(t, { count: 2, config: { stallTimeout: 2500 } });
  const leader = await leaderOf(instances);
  const other = instances.find((one) => one !== leader);
  assert.equal(await ask(leader, "block 2000"), "true", "longer than the lease");
  const answer = ask(leader, "block 8000");
  await other.said("fn");
  assert.equal(await answer, "false");
  await leader.said("stalled");
  assert.equal(tokens(leader).length, 1);
});

test("a term that ended while the event loop was blocked is no reason to run fn", async () => {
  const { stdout, stderr, code } = await runProgram(
    `const cluster = useCluster();
     cluster.on("promoted", ({ token }) => say("promoted", cluster.isLeader()));
     whenLeader(() => say("fn", cluster.isLeader()), ({ reason }) => say("deregistered", reason));
     startCluster().then(() => {
       // Granted and given up again before this thread hears of anything.
       for (const end = Date.now() + 4000; Date.now() < end; );
       cluster.waitUntilLeader().then(() => process.exit());
     });`,
    { config: { ...CONFIG, stallTimeout: 1000 } },
  );
  assert.equal(code, 0, stderr);
  assert.deepEqual(stdout.split("\n"), ["promoted true", "fn true", ""]);
});

test("callbacks that end after the stop of their election, but within their lease, overrun nothing", async () => {
  const { stdout, stderr, code } = await runProgram(
    `whenLeader(() => say("fn"), async () => {
       await new Promise((resolve) => setTimeout(resolve, 800));
       say("ended");
     });
     (async () => {
       const cluster = await startCluster();
       await cluster.waitUntilLeader();
       await stopCluster();
       say("stopped");
       setTimeout(() => say("alive"), 4500);
     })();`,
    { config: { ...CONFIG, leaseDuration: 3000, stopTimeout: 200, onOverrun: "exit" } },
  );
  assert.equal(code, 0, stderr);
  assert.deepEqual(stdout.split("\n"), ["fn", "stopped", "ended", "alive", ""]);
  assert.match(
    stderr,
    /callbacks have not ended within stopTimeout; the lease is kept until it expires/,
  );
});

test("a clean stop hands over at once, after the callbacks", async (t) => {
  const { instances } = service(t, { config: { leaseDuration: 30_000, renewInterval: 10_000 } });
  const first = await leaderOf(instances);
  const others = instances.filter((one) => one !== first);
  const began = Date.now();
  await ask(first, "stop");
  const second = await leaderOf(others);
  assert.ok(Date.now() - began < 9_000, "without waiting for the next attempt");
  assert.match(first.stdout, /deregistered \d+ stopped/);
  assert.equal(await ask(first, "leads"), "false");
  await ask(second, "stop");
  await leaderOf(others.filter((one) => one !== second));
  assert.equal(tokens(first).length, 1, "no callback after the stop");
});

test("stepDown hands over to another instance, and the old one stays out of the election", async (t) => {
  const { instances } = service(t, {
    count: 2,
    config: { leaseDuration: 30_000, renewInterval: 10_000 },
  });
  const first = await leaderOf(instances);
  const other = instances.find((one) => one !== first);
  await ask(first, "stepDown");
  assert.match(first.stdout, /deregistered \d+ steppedDown/);
  await other.said("fn");
  assert.equal(await ask(first, "leads"), "false");
  // For longer, or on a busy machine it might come back before.
  await ask(other, "stepDown 20000");
  await first.said("fn", first.lines.length);
  assert.ok(tokens(first)[1] > tokens(other)[0]);
});

test("each election has a leader of its own", async (t) => {
  const cwd = newFolder();
  const program = (lead) => {
    const one = new Program(
      `for (const election of ["a", "b", undefined]) {
         whenLeader(({ election: name, token }) => say("fn", name), null, { election });
         useCluster(election);
       }
       setInterval(() => {}, 1000);
       ${lead}`,
      { cwd, config: CONFIG },
    );
    t.after(() => one.kill("SIGKILL"));
    return one;
  };
  const first = program("");
  for (const name of ["a", "b", "leader"]) await first.said(`fn ${name}`);
  const second = program("process.stdin.once('data', () => {});");
  await sleep(700);
  assert.deepEqual(second.lines, []);
  first.kill("SIGKILL");
  for (const name of ["a", "b", "leader"]) await second.said(`fn ${name}`);
});

test("an instance that is no candidate only watches", async (t) => {
  const { instances, start } = service(t, { count: 1 });
  const leader = await leaderOf(instances);
  const watcher = start({ candidate: false });
  for (
    const end = Date.now() + PATIENCE;
    (await ask(watcher, "leader")) === "null";
    await sleep(20)
  ) {
    assert.ok(Date.now() < end, "it sees no leader");
  }
  assert.equal(JSON.parse(await ask(watcher, "leader")).instanceId, await ask(leader, "id"));
  leader.kill("SIGKILL");
  await sleep(2500);
  assert.equal(await ask(watcher, "leads"), "false");
  assert.deepEqual(tokens(watcher), []);
});

test("two instances with the same id are two: one leads, and it is said", async (t) => {
  const { instances } = service(t, { config: { instanceId: "pod-0" } });
  await leaderOf(instances);
  await sleep(1500);
  const answers = await Promise.all(instances.map((one) => ask(one, "leads")));
  assert.equal(answers.filter((answer) => answer === "true").length, 1);
  // Not at once: the other's record may be what a killed process left. One that renews is no such record.
  const warned = () => instances.filter((one) => /pod-0/.test(one.stderr));
  for (const end = Date.now() + PATIENCE; warned().length === 0 && Date.now() < end; ) {
    await sleep(100);
  }
  assert.ok(warned().length > 0, "no warning");
});

test("an instance that is killed and started again under its id leads as a new term", async (t) => {
  const { instances, start } = service(t, { count: 1, config: { instanceId: "pod-0" } });
  const first = await leaderOf(instances);
  first.kill("SIGKILL");
  await first.ended;
  const second = start();
  await second.said("fn");
  assert.ok(tokens(second)[0] > tokens(first)[0]);
  assert.doesNotMatch(second.stderr, /another process/);
});

test("a store that is away is told of once, and keeps nobody waiting", async (t) => {
  const server = net.createServer((socket) => socket.destroy());
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const store = `redis://127.0.0.1:${server.address().port}`;
  t.after(() => server.close());
  const program = new Program(
    `const cluster = useCluster();
     cluster.on("error", ({ code, reason, fatal }) => say("error", code, reason !== undefined, fatal));
     startCluster().then(() => say("started"));
     whenLeader(() => say("fn"));
     setTimeout(async () => {
       say("leads", cluster.isLeader());
       await stopCluster();
       say("stopped");
     }, 3000);`,
    { config: { ...CONFIG, store } },
  );
  const { stdout, stderr, code } = await program.ended;
  assert.equal(code, 0);
  const lines = stdout.split("\n");
  assert.ok(lines.includes("started"), stdout + stderr);
  assert.equal(lines.filter((line) => line.startsWith("error")).length, 1, stdout);
  assert.ok(lines.includes("error WHENLEADER_STORE true false"), stdout);
  assert.deepEqual(lines.slice(-3), ["leads false", "stopped", ""]);
  assert.equal(
    stderr.split("\n").filter((line) => line.includes("trying again")).length,
    1,
    stderr,
  );
});

test("callbacks that outlive their lease are told of, and with onOverrun exit the process ends with 70", async () => {
  const code = `
    useCluster().on("error", ({ code }) => say(code));
    whenLeader(async () => {
      say("fn");
      await useCluster().stepDown();
      await new Promise((resolve) => setTimeout(resolve, 4000));
      say("ended");
      process.exit(0);
    });
    setInterval(() => {}, 1000);`;
  const stopTimeout = 10_000;
  const warned = await runProgram(code, { config: { ...CONFIG, stopTimeout } });
  assert.equal(warned.code, 0);
  const forced = await runProgram(code, { config: { ...CONFIG, stopTimeout, onOverrun: "exit" } });
  // A lease that is yielded is renewed while its callbacks run: nothing overruns.
  assert.deepEqual([warned.stdout, forced.stdout, forced.code], ["fn\nended\n", "fn\nended\n", 0]);

  const lost = `
    useCluster().on("error", ({ code }) => say(code));
    whenLeader(() => { say("fn"); return new Promise(() => {}); }, () => say("never"));
    setTimeout(() => require("node:fs").rmSync(".whenleader/e-leader", { recursive: true }), 700);
    setTimeout(() => process.exit(0), 4000);`;
  const told = await runProgram(lost, { config: CONFIG });
  assert.deepEqual([told.code, told.stdout], [0, "fn\nWHENLEADER_OVERRUN\n"]);
  const ended = await runProgram(lost, { config: { ...CONFIG, onOverrun: "exit" } });
  assert.equal(ended.code, 70, ended.stderr);
  assert.match(ended.stderr, /work still ran \d\.\d s after the term had ended.*code 70/);
});

test("the logger gets what the native side does, with its fields, and stdout stays free", async () => {
  const code = `
    const lines = [];
    const log = (level) => (text) => lines.push(level + " " + text);
    const logger = { error: log("error"), warn: log("warn"), info: log("info"), debug: log("debug") };
    startCluster({ cluster: ${JSON.stringify(CONFIG)} }, { logger }).then(async (cluster) => {
      const { token, traceId } = await cluster.waitUntilLeader();
      await stopCluster();
      say(JSON.stringify({ lines, token, traceId }));
    });`;
  const { stdout, stderr } = await runProgram(code);
  const { lines, token, traceId } = JSON.parse(stdout);
  assert.equal(stderr, "");
  const now = lines.find((line) => line.startsWith("info whenleader: leader now"));
  assert.ok(now, stdout);
  for (const field of ["election=leader", `token=${token}`, `trace=${traceId}`]) {
    assert.ok(now.includes(field), now);
  }
  for (const words of ["among the processes of this machine only", "no longer the leader"]) {
    assert.ok(
      lines.some((line) => line.includes(words)),
      stdout,
    );
  }
  assert.ok(!lines.some((line) => line.startsWith("debug")));
  const verbose = await runProgram(code, { env: { WHENLEADER_LOG: "debug" } });
  assert.match(verbose.stdout, /debug whenleader: attempt/);
});

test("after a stop files and threads are as before, and starting again works, twenty times", async () => {
  const { stdout, stderr, code } = await runProgram(`
    const fs = require("node:fs");
    const count = (folder) => (fs.existsSync(folder) ? fs.readdirSync(folder).length : 0);
    (async () => {
      const counts = [];
      for (let i = 0; i < 20; i += 1) {
        const cluster = await startCluster({ cluster: ${JSON.stringify(CONFIG)} });
        whenLeader(() => {});
        await cluster.waitUntilLeader();
        await stopCluster();
        // The thread that watches files looks up only now and then.
        if (i === 1 || i === 19) await new Promise((resolve) => setTimeout(resolve, 500));
        counts.push([count("/proc/self/fd"), count("/proc/self/task")].join());
      }
      say(JSON.stringify(counts));
    })();`);
  assert.equal(code, 0, stderr);
  const counts = JSON.parse(stdout);
  assert.equal(counts.length, 20);
  // Threads for files come and go by themselves; what leaks one thing a round would be far off.
  const [first, last] = [counts[1], counts.at(-1)].map((both) => both.split(",").map(Number));
  const grown = last.map((number, i) => number - first[i]);
  assert.ok(Math.max(...grown) < 6, `files and threads after each stop: ${counts.join(" ")}`);
});
