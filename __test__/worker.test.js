// Worker threads: they share their process's part in an election, come and go, and may end at any moment.

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { runProgram } = require("./support/child.js");

const CONFIG = { type: "StoreCluster", leaseDuration: 1500, renewInterval: 500 };

/** Before each program: `spawn(code)` starts a worker that has the package's functions and `parent`. */
const WORKERS = `
const { Worker, isMainThread } = require("node:worker_threads");
const { once } = require("node:events");
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const spawn = (code, options) => new Worker(
  \`const { whenLeader, useCluster, startCluster, stopCluster, expectCluster } = require("whenleader");
   const { parentPort: parent } = require("node:worker_threads");\` + code,
  { eval: true, ...options },
);
const config = { cluster: ${JSON.stringify(CONFIG)} };
process.on("unhandledRejection", (error) => { say("unhandled", error); process.exit(9); });
`;

async function run(code, options) {
  const result = await runProgram(`${WORKERS}(async () => {${code}})();`, options);
  assert.deepEqual([result.code, result.signal], [0, null], result.stdout + result.stderr);
  return result.stdout.trim().split("\n");
}

test("a worker without a configuration leads as its process does", async () => {
  const lines = await run(`
    const worker = spawn("whenLeader(({ token }) => parent.postMessage(token));");
    say(await once(worker, "message"));`);
  assert.ok(lines.length === 1 && Number(lines[0]) > 1.7e15, `${lines}`);
});

test("a worker joins the cluster that its process runs, and leads the same term", async () => {
  const lines = await run(`
    const cluster = await startCluster(config);
    const { token } = await cluster.waitUntilLeader();
    const worker = spawn(\`
      whenLeader(
        ({ token }) => parent.postMessage(["fn", token, useCluster().isLeader()]),
        ({ reason }) => parent.postMessage(["deregistered", reason, useCluster().isLeader()]),
      );
      parent.once("message", () => {});\`);
    const [fn] = await once(worker, "message");
    say(fn[0], fn[1] === token, fn[2]);
    cluster.stepDown({ pause: 60_000 });
    say((await once(worker, "message"))[0]);
    await stopCluster();
    worker.terminate();`);
  assert.deepEqual(lines, ["fn true true", "deregistered,steppedDown,false"]);
});

test("the lease is kept until the callbacks of every thread have ended", async () => {
  const lines = await run(`
    const cluster = await startCluster(config);
    const { token } = await cluster.waitUntilLeader();
    const worker = spawn(\`
      whenLeader(() => parent.postMessage("fn"), async () => {
        await new Promise((resolve) => setTimeout(resolve, 1000));
        parent.postMessage(Date.now());
      });
      setInterval(() => {}, 1000);\`);
    await once(worker, "message");
    const ended = once(worker, "message");
    await stopCluster();
    const released = Date.now();
    say((await ended)[0] <= released);
    worker.terminate();`);
  assert.deepEqual(lines, ["true"]);
});

test("a worker that stops leaves the term to the others", async () => {
  const lines = await run(`
    const cluster = await startCluster(config);
    await cluster.waitUntilLeader();
    const worker = spawn(\`
      whenLeader(async () => {
        await stopCluster();
      }, ({ reason }) => parent.postMessage(reason));
      setInterval(() => {}, 1000);\`);
    say(await once(worker, "message"));
    await sleep(700);
    say(cluster.isLeader());
    await worker.terminate();
    say(cluster.isLeader());
    await stopCluster();`);
  assert.deepEqual(lines, ["stopped", "true", "true"]);
});

test("a worker whose process stops the cluster has left it, and can join the next one", async () => {
  const lines = await run(`
    const cluster = await startCluster(config);
    await cluster.waitUntilLeader();
    const worker = spawn(\`
      const { inspect } = require("node:util");
      const cluster = useCluster();
      const tell = (...words) => parent.postMessage(words.join(" "));
      const register = (name) => whenLeader(
        () => tell(name, "fn"),
        ({ reason }) => tell(name, "deregistered", reason),
      );
      parent.on("message", async (question) => {
        if (question === "register") register("again");
        if (question === "wait") {
          cluster.waitUntilLeader().catch(async ({ code }) => {
            tell("waited", code);
            await cluster.stepDown();
            tell(cluster.getLeader().token > 0, inspect(cluster).includes("stopped"));
            tell(await cluster.waitUntilLeader().catch(({ code }) => code));
          });
          tell("waits");
        }
        if (question === "late") { register("late"); tell("registered"); }
        if (question === "end") process.exit();
      });
      register("first");\`);
    const said = [];
    const waiting = [];
    worker.on("message", (text) => { said.push(text); waiting.splice(0).forEach((look) => look()); });
    const heard = async (text) => {
      while (!said.includes(text)) await new Promise((resolve) => waiting.push(resolve));
    };
    await heard("first fn");
    cluster.stepDown({ pause: 60_000 });
    await heard("first deregistered steppedDown");
    worker.postMessage("wait");
    await heard("waits");
    await stopCluster();
    await heard("WHENLEADER_STOPPED");
    worker.postMessage("late");
    await heard("registered");
    await startCluster(config);
    worker.postMessage("register");
    await heard("late fn");
    await heard("again fn");
    await stopCluster();
    await heard("again deregistered stopped");
    worker.postMessage("end");
    await once(worker, "exit");
    for (const line of said) say(line);`);
  assert.deepEqual(lines, [
    "first fn",
    "first deregistered steppedDown",
    "waits",
    "waited WHENLEADER_STOPPED",
    "true true",
    "WHENLEADER_STOPPED",
    "registered",
    "late fn",
    "again fn",
    "late deregistered stopped",
    "again deregistered stopped",
  ]);
});

test("a worker that ends in the middle of its callbacks is not waited for", async () => {
  const lines = await run(`
    const cluster = await startCluster(config);
    await cluster.waitUntilLeader();
    const worker = spawn(\`
      whenLeader(() => { parent.postMessage("fn"); return new Promise(() => {}); });
      setInterval(() => {}, 1000);\`);
    await once(worker, "message");
    const began = Date.now();
    const stopped = stopCluster();
    worker.terminate();
    await stopped;
    say(Date.now() - began < 1400);`);
  assert.deepEqual(lines, ["true"]);
});

test("the addon may be used by workers only", async () => {
  const lines = await run(
    `for (let i = 0; i < 5; i += 1) {
       const worker = spawn(\`
         whenLeader(({ token }) => parent.postMessage(token));
         setInterval(() => {}, 1000);\`);
       say((await once(worker, "message"))[0] > 1);
       await worker.terminate();
     }`,
    { config: CONFIG },
  );
  assert.deepEqual(lines, Array(5).fill("true"));
});

test("two hundred workers that register and are terminated crash nothing", async () => {
  const lines = await run(
    `const cluster = useCluster();
     await cluster.waitUntilLeader();
     let fns = 0;
     for (let round = 0; round < 50; round += 1) {
       const workers = Array.from({ length: 4 }, (_, i) => spawn(\`
         whenLeader(() => parent.postMessage("fn"), () => new Promise(() => {}));
         \${["", "useCluster().stepDown({ pause: 1 });", "stopCluster();", "startCluster();"][i]}
         setInterval(() => {}, 1000);\`));
       for (const worker of workers) worker.on("message", () => { fns += 1; });
       // Some are just loading, some are at work.
       if (round % 5 === 0) await Promise.race([once(workers[0], "message"), sleep(2000)]);
       else await sleep(round * 2);
       await Promise.all(workers.map((worker) => worker.terminate()));
     }
     say(fns > 5);
     await cluster.waitUntilLeader({ timeout: 20_000 });
     await stopCluster();
     say("done");`,
    { config: { ...CONFIG, stopTimeout: 500 } },
  );
  assert.deepEqual(lines, ["true", "done"]);
});

test("process.exit while workers are at work ends the process with its code", async () => {
  for (const from of ["main", "worker"]) {
    const result = await runProgram(
      `${WORKERS}
       const workers = Array.from({ length: 4 }, () => spawn(\`
         whenLeader(() => parent.postMessage("fn"));
         setInterval(() => {}, 1);\`));
       whenLeader(() => {});
       once(workers[0], "message").then(() => process.exit(6));`.replace(
        "process.exit(6)",
        from === "main" ? "process.exit(6)" : "workers[0].terminate().then(() => process.exit(6))",
      ),
      { config: CONFIG },
    );
    assert.deepEqual([result.code, result.signal], [6, null], result.stderr);
  }
});

test("the main thread stops a cluster that a worker started, in whatever state it is itself", async () => {
  for (const state of [
    "",
    "expectCluster();",
    "useCluster();",
    "useCluster(); await sleep(0);",
    "await stopCluster();",
  ]) {
    const lines = await run(`
      const worker = spawn(\`
        startCluster({ cluster: ${JSON.stringify(CONFIG)} });
        whenLeader(() => parent.postMessage("leads"), ({ reason }) => parent.postMessage(reason));
        setInterval(() => {}, 1000);\`);
      await once(worker, "message");
      const told = once(worker, "message");
      ${state}
      await stopCluster();
      say((await told)[0]);
      const other = { cluster: { ...config.cluster, leaseName: "another" } };
      say((await startCluster(other)).election);
      await stopCluster();
      await worker.terminate();
    `);
    assert.deepEqual(lines, ["stopped", "another"], state);
  }
});

test("the main thread stops a cluster whose worker has ended", async () => {
  const lines = await run(`
    const worker = spawn(\`
      startCluster({ cluster: ${JSON.stringify(CONFIG)} }).then((cluster) => cluster.waitUntilLeader())
        .then(() => process.exit());\`);
    await once(worker, "exit");
    await stopCluster();
    say((await startCluster({ cluster: { ...config.cluster, leaseName: "another" } })).election);
    await stopCluster();
  `);
  assert.deepEqual(lines, ["another"]);
});
