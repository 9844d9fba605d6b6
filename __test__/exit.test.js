// The ways out of a process that leads: whichever it takes, the lease is not left behind.

const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const { test } = require("node:test");
const { Program, ROOT, newFolder, runProgram } = require("./support/child.js");

const CONFIG = { type: "StoreCluster", leaseDuration: 1500, renewInterval: 500 };
const posix = { skip: process.platform === "win32" && "Windows has no signals" };

/** What the newest version of the election's record says. */
function record(cwd, election = "leader") {
  const folder = path.join(cwd, ".whenleader", `e-${election}`);
  const newest = fs.readdirSync(folder).sort().at(-1);
  return JSON.parse(fs.readFileSync(path.join(folder, newest), "utf8"));
}

/** Runs a program that leads at some time, and gives how it ended, and what it left. */
async function end(code, options) {
  const cwd = newFolder();
  const result = await runProgram(code, { cwd, config: CONFIG, ...options });
  return { ...result, state: record(cwd).state };
}

/** Starts a program, waits until it leads, and gives what it did when it got the signals. */
async function endBy(signals, code, options) {
  const cwd = newFolder();
  const program = new Program(code, { cwd, config: CONFIG, ...options });
  await program.said("leads");
  for (const signal of signals) {
    program.kill(signal);
    await program.said("got").catch(() => {});
  }
  const result = await program.ended;
  return { ...result, state: record(cwd).state };
}

const LEADS = 'whenLeader(() => say("leads"), () => say("deregistered"));\n';

test("a program that has nothing more to do ends by itself, as a leader and as a follower", async () => {
  const leader = await end(`${LEADS} useCluster().waitUntilLeader().then(() => say("done"));`);
  assert.deepEqual([leader.code, leader.stdout, leader.state], [0, "leads\ndone\n", "free"]);
  assert.equal(leader.stderr, "");

  const cwd = newFolder();
  const rival = new Program(`${LEADS} setInterval(() => {}, 1000);`, { cwd, config: CONFIG });
  await rival.said("leads");
  const follower = await runProgram(
    `${LEADS} startCluster().then((cluster) => say("leader", cluster.isLeader()));`,
    { cwd, config: CONFIG },
  );
  assert.deepEqual([follower.code, follower.stdout], [0, "leader false\n"]);
  rival.kill("SIGKILL");
  await rival.ended;
});

test("a top-level await of startCluster or of stopCluster is not cut short", async () => {
  const { code, stdout, state } = await end(
    `import { startCluster, stopCluster, useCluster } from "whenleader";
     await startCluster();
     const { token } = await useCluster().waitUntilLeader();
     console.log(token > 0);
     await useCluster().stepDown({ pause: 50 });
     console.log((await useCluster().waitUntilLeader()).token > token);
     await stopCluster();
     console.log("stopped");`,
    { type: "module" },
  );
  assert.deepEqual([code, stdout, state], [0, "true\ntrue\nstopped\n", "free"]);
});

test("keepAlive holds a process that only waits, until the cluster is stopped", async () => {
  const program = new Program(
    `${LEADS}
     process.stdin.on("data", () => { process.stdin.unref(); stopCluster(); }).unref();`,
    { config: { ...CONFIG, keepAlive: true } },
  );
  await program.said("leads");
  await new Promise((resolve) => setTimeout(resolve, 300));
  assert.notEqual(program.over, true);
  program.tell("stop");
  const { code, stdout } = await program.ended;
  assert.deepEqual([code, stdout], [0, "leads\nderegistered\n"]);
});

test("process.exit releases, wherever it is called", async () => {
  for (const [where, code] of [
    ["after a while", `${LEADS} useCluster().waitUntilLeader().then(() => process.exit(3));`],
    ["in fn", "whenLeader(() => process.exit(3));"],
    ["in an asynchronous fn", "whenLeader(async () => { await null; process.exit(3); });"],
    ["in deregisteredFn", "whenLeader(() => useCluster().stepDown(), () => process.exit(3));"],
    ["in a listener", 'useCluster().on("promoted", () => process.exit(3));'],
    [
      "in an abort listener",
      `whenLeader(({ signal }) => {
       signal.addEventListener("abort", () => process.exit(3));
       stopCluster();
     });`,
    ],
  ]) {
    const result = await end(`${code} setInterval(() => {}, 1000);`);
    assert.deepEqual([result.code, result.signal, result.state], [3, null, "free"], where);
  }
});

test("an uncaught exception and an unhandled rejection end the process as always, and release", async () => {
  for (const failure of ["throw new Error('mine')", "Promise.reject(new Error('mine'))"]) {
    const { code, stderr, state } = await end(
      `useCluster().waitUntilLeader().then(() => setTimeout(() => { ${failure}; }));`,
    );
    assert.equal(code, 1, failure);
    assert.match(stderr, /Error: mine/);
    assert.equal(state, "free");
  }
});

test("exiting while an attempt or a start is under way neither hangs nor crashes", async () => {
  for (const code of [
    "startCluster(); process.exit(5);",
    "startCluster(); setImmediate(() => process.exit(5));",
    "startCluster().then(() => process.exit(5));",
    "startCluster().then(() => { useCluster().waitUntilLeader(); setImmediate(() => process.exit(5)); });",
    "startCluster().then(() => { stopCluster(); process.exit(5); });",
  ]) {
    const store = "redis://127.0.0.1:1"; // Nobody answers there.
    for (const config of [CONFIG, { ...CONFIG, store }]) {
      const { code: exit, signal, stderr } = await runProgram(code, { config });
      assert.deepEqual([exit, signal], [5, null], `${code} ${stderr}`);
    }
  }
});

test(
  "a signal runs deregisteredFn, releases, and then ends the process as it always does",
  posix,
  async () => {
    for (const signal of ["SIGTERM", "SIGINT"]) {
      const result = await endBy(
        [signal],
        `whenLeader(() => say("leads"), async () => {
         await new Promise((resolve) => setTimeout(resolve, 100));
         say("deregistered");
       });
       setInterval(() => {}, 1000);`,
      );
      assert.equal(result.signal, signal, result.stderr);
      assert.equal(result.stdout, "leads\nderegistered\n");
      assert.equal(result.state, "free");
    }
  },
);

test("a second signal ends the process at once", posix, async () => {
  const began = Date.now();
  const { signal, state } = await endBy(
    ["SIGINT", "SIGINT"],
    `whenLeader(() => say("leads"), () => { say("got"); return new Promise(() => {}); });
     setInterval(() => {}, 1000);`,
    // The release has a third of renewInterval.
    { config: { ...CONFIG, leaseDuration: 30_000, renewInterval: 10_000, stopTimeout: 60_000 } },
  );
  assert.equal(signal, "SIGINT");
  assert.equal(state, "free");
  assert.ok(Date.now() - began < 30_000);
});

test("a callback that does not end delays a signal by stopTimeout at most", posix, async () => {
  const { signal, stderr, state } = await endBy(
    ["SIGTERM"],
    // A thread that is busy: its timers are late.
    `whenLeader(() => { say("leads"); return new Promise(() => {}); });
     setInterval(() => { for (const end = Date.now() + 40; Date.now() < end; ); }, 1);`,
    { config: { ...CONFIG, stopTimeout: 300 } },
  );
  assert.equal(signal, "SIGTERM");
  assert.equal(state, "free", "they end with the process, so nobody has to wait for them");
  assert.match(stderr, /SIGTERM: the stop has not ended within stopTimeout, 300 ms/);
});

test("a signal waits for the callbacks, however long stopTimeout is", posix, async () => {
  const exit = JSON.stringify(path.join(ROOT, "lib", "exit.js"));
  const { signal, stdout } = await runProgram(
    `require(${exit}).watchExit({
       stop: () => new Promise((resolve) => setTimeout(resolve, 300)).then(() => say("stopped")),
       releaseNow: () => say("released"),
       stopTimeout: 2 ** 31,
       signals: true,
       log: { info: () => {} },
     });
     process.kill(process.pid, "SIGTERM");
     setInterval(() => {}, 1000);`,
  );
  assert.deepEqual([signal, stdout], ["SIGTERM", "stopped\nreleased\n"]);
});

test("an application that has a listener of its own decides itself", posix, async () => {
  const stops = await endBy(
    ["SIGTERM"],
    `${LEADS} process.on("SIGTERM", async () => { await stopCluster(); say("mine"); process.exit(7); });
     setInterval(() => {}, 1000);`,
  );
  assert.deepEqual(
    [stops.code, stops.stdout, stops.state],
    [7, "leads\nderegistered\nmine\n", "free"],
  );
  const exits = await endBy(
    ["SIGTERM"],
    `${LEADS} process.on("SIGTERM", () => process.exit(7)); setInterval(() => {}, 1000);`,
  );
  assert.deepEqual([exits.code, exits.stdout, exits.state], [7, "leads\n", "free"]);
  const ignores = await endBy(
    ["SIGTERM", "SIGTERM"],
    `${LEADS}
     let count = 0;
     process.on("SIGTERM", () => {
       count += 1;
       say("got", count, useCluster().isLeader());
       if (count === 2) setTimeout(() => process.exit(8));
     });
     setInterval(() => {}, 1000);`,
  );
  assert.equal(ignores.stdout, "leads\ngot 1 true\ngot 2 true\n");
  assert.equal(ignores.code, 8);
});

test(
  "a listener that ends the process only if it is the last one finds that it is",
  posix,
  async () => {
    const { signal, stdout } = await endBy(
      ["SIGTERM"],
      `${LEADS}
     function last() {
       if (process.listenerCount("SIGTERM") > 1) return;
       say("last");
       process.off("SIGTERM", last);
       process.kill(process.pid, "SIGTERM");
     }
     process.on("SIGTERM", last);
     setInterval(() => {}, 1000);`,
    );
    assert.deepEqual([signal, stdout], ["SIGTERM", "leads\nlast\n"]);
  },
);

test("signals: false leaves signals alone", posix, async () => {
  const { signal, stdout } = await endBy(["SIGTERM"], `${LEADS} setInterval(() => {}, 1000);`, {
    config: { ...CONFIG, signals: false },
  });
  assert.deepEqual([signal, stdout], ["SIGTERM", "leads\n"]);
});

test("after stopCluster nothing of ours is left on the process", async () => {
  const { stdout } = await end(
    `const count = () => ["exit", "SIGTERM", "SIGINT"].map((name) => process.listenerCount(name)).join();
     const before = count();
     useCluster().waitUntilLeader().then(async () => {
       const during = count();
       await stopCluster();
       say(before, during, count());
     });`,
  );
  assert.equal(stdout, "0,0,0 1,1,1 0,0,0\n");
});

test(
  "a lone instance without a configuration ends as one of many does: its callbacks run",
  posix,
  async () => {
    const program = new Program(
      `whenLeader(() => say("leads"), async () => {
       await new Promise((resolve) => setTimeout(resolve, 100));
       say("deregistered");
     });
     setInterval(() => {}, 1000);`,
    );
    await program.said("leads");
    program.kill("SIGTERM");
    const { signal, stdout } = await program.ended;
    assert.deepEqual([signal, stdout], ["SIGTERM", "leads\nderegistered\n"]);
  },
);

/** What ends as the package does, in a folder of its own. */
function copyOfPackage() {
  const copy = newFolder();
  for (const name of fs.readdirSync(ROOT)) {
    if (/^(index\.js|native\.js|package\.json|lib|.*\.node)$/.test(name)) {
      fs.cpSync(path.join(ROOT, name), path.join(copy, name), { recursive: true });
    }
  }
  return copy;
}

const TWO_COPIES = `
  const copies = [require("whenleader"), require(${JSON.stringify(copyOfPackage())})];
  const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  async function lead(ms) {
    for (const [index, copy] of copies.entries()) {
      copy.whenLeader(() => {}, async () => {
        say("stopping", index);
        await sleep(ms * (index + 1));
        say("deregistered", index);
      });
      await copy.useCluster().waitUntilLeader();
    }
    await sleep(50);
    say("leads");
  }
  setInterval(() => {}, 1000);
`;

test(
  "two copies of the package in one process both stop before a signal ends it",
  posix,
  async () => {
    const config = (leaseName) => JSON.stringify({ ...CONFIG, leaseName });
    for (const start of [
      "",
      `await copies[0].startCluster(${config("one")}); await copies[1].startCluster(${config("two")});`,
    ]) {
      const program = new Program(`${TWO_COPIES} (async () => { ${start} await lead(100); })();`);
      await program.said("leads");
      program.kill("SIGTERM");
      const { signal } = await program.ended;
      assert.equal(signal, "SIGTERM");
      assert.deepEqual(program.lines.slice(1).sort(), [
        "deregistered 0",
        "deregistered 1",
        "stopping 0",
        "stopping 1",
      ]);
    }
  },
);

test(
  "a second signal ends a process of two copies at once, also if one has stopped",
  posix,
  async () => {
    const program = new Program(
      `${TWO_COPIES} lead(0).then(() => {
       copies[1].whenLeader(() => say("ready"), () => sleep(60_000));
     });`,
    );
    await program.said("ready");
    program.kill("SIGTERM");
    await program.said("deregistered 0");
    await program.said("deregistered 1");
    program.kill("SIGTERM");
    assert.equal((await program.ended).signal, "SIGTERM");
  },
);

test("two copies leave a signal to the application, and step aside for it", posix, async () => {
  const program = new Program(
    `${TWO_COPIES} lead(0);
     process.on("SIGTERM", () => {
       say("listeners", process.listenerCount("SIGTERM"));
       setTimeout(() => { say("later", process.listenerCount("SIGTERM")); process.exit(7); }, 50);
     });`,
  );
  await program.said("leads");
  program.kill("SIGTERM");
  const { code, stdout } = await program.ended;
  assert.deepEqual([code, stdout], [7, "leads\nlisteners 1\nlater 2\n"]);
});

test("the lease is released also if an earlier exit listener ends the process", async () => {
  const { code, state } = await end(
    `process.on("exit", () => process.exit(3));
     useCluster().waitUntilLeader().then(() => process.exit(2));`,
  );
  assert.deepEqual([code, state], [3, "free"]);
});

test(
  "JavaScript that was loaded anew ends what was loaded before, and delays no signal",
  posix,
  async () => {
    const program = new Program(
      `const older = require("whenleader");
     (async () => {
       await older.startCluster(${JSON.stringify(CONFIG)});
       older.whenLeader(() => say("older"), ({ reason }) => say("older", reason));
       await older.useCluster().waitUntilLeader();
       for (const file of Object.keys(require.cache)) {
         if (!file.endsWith(".node")) delete require.cache[file];
       }
       const newer = require("whenleader");
       await newer.startCluster(${JSON.stringify(CONFIG)});
       newer.whenLeader(() => say("newer"), ({ reason }) => say("newer", reason));
       await newer.useCluster().waitUntilLeader();
       setTimeout(() => say("leads", newer.useCluster().isLeader()), 50);
     })();
     setInterval(() => {}, 1000);`,
    );
    await program.said("leads");
    const began = Date.now();
    program.kill("SIGTERM");
    const { signal, stdout } = await program.ended;
    assert.equal(signal, "SIGTERM");
    assert.equal(stdout, "older\nolder stopped\nnewer\nleads true\nnewer stopped\n");
    assert.ok(Date.now() - began < 10_000, "less than stopTimeout");
  },
);
