// runWhenLeader() in real processes: hand-over and takeover, the hard stop, ends of processes, threads.

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { Program, newFolder, runProgram } = require("./support/child.js");

const CONFIG = { type: "StoreCluster", leaseDuration: 1500, renewInterval: 500 };
const OPTIONS = JSON.stringify({ leaseDuration: 1500 });
const posix = { skip: process.platform === "win32" && "Windows has no such signals" };

/** Work that says what happens to it, and ends with its term. */
const WORK = `
const { runWhenLeader } = require("whenleader");
const untilAborted = ({ signal }) => new Promise((resolve) => {
  if (signal.aborted) resolve();
  else signal.addEventListener("abort", resolve, { once: true });
});
const run = runWhenLeader("job", async (term) => {
  say("begins", process.pid, term.token);
  await untilAborted(term);
  say("ends", process.pid, term.signal.reason.reason);
}, ${OPTIONS});
const alive = setInterval(() => {}, 1000);
`;

const programs = (t, count, code = WORK, options = {}) => {
  const cwd = newFolder();
  const all = Array.from(
    { length: count },
    () => new Program(code, { cwd, config: CONFIG, ...options }),
  );
  t.after(() => {
    for (const program of all) program.kill("SIGKILL");
  });
  return all;
};

/** The one that begins, of several. */
const leaderOf = (all) =>
  Promise.any(all.map((program) => program.said("begins").then(() => program)));

test("of several instances one runs the work, and a killed one's work begins elsewhere", async (t) => {
  const all = programs(t, 3);
  const leader = await leaderOf(all);
  const others = all.filter((one) => one !== leader);
  assert.deepEqual(
    others.map(({ stdout }) => stdout),
    ["", ""],
  );
  leader.kill("SIGKILL");
  const next = await leaderOf(others);
  assert.equal(others.filter(({ stdout }) => stdout !== "").length, 1);
  assert.notEqual(next, leader);
});

test("SIGTERM aborts, waits for the work, and hands over", posix, async (t) => {
  const slow = WORK.replace(
    "await untilAborted(term);",
    "await untilAborted(term); await new Promise((resolve) => setTimeout(resolve, 700));",
  )
    .replace('say("begins"', 'say("begins", Date.now()')
    .replace('say("ends"', 'say("ends", Date.now()');
  const all = programs(t, 2, slow);
  const leader = await leaderOf(all);
  const other = all.find((one) => one !== leader);
  leader.kill("SIGTERM");
  const { signal, stdout } = await leader.ended;
  assert.equal(signal, "SIGTERM");
  const [, end] = /ends (\d+) \d+ stopped/.exec(stdout) ?? assert.fail(stdout);
  await other.said("begins");
  const [, begin] = /begins (\d+)/.exec(other.stdout);
  assert.ok(Number(begin) >= Number(end), `begins ${end - begin} ms before the other one ends`);
});

test("work that is done is run again from scratch, here or elsewhere, after the pause", async (t) => {
  const code = `
    const { runWhenLeader } = require("whenleader");
    runWhenLeader("job", () => say("ran", Date.now()), ${OPTIONS});
    setInterval(() => {}, 1000);`;
  const all = programs(t, 2, code);
  const times = () =>
    all.flatMap(({ lines }) => lines.map((line) => Number(line.split(" ")[1]))).sort();
  while (times().length < 6) await new Promise((resolve) => setTimeout(resolve, 50));
  // Each instance stays out for 500 ms at least; two of them take turns.
  for (const { lines } of all) {
    const own = lines.map((line) => Number(line.split(" ")[1]));
    for (const [i, time] of own.slice(1).entries()) assert.ok(time - own[i] >= 490, `${own}`);
  }
});

test("two processes never run the work at once while terms change hands", async (t) => {
  const code = `
    const { runWhenLeader } = require("whenleader");
    const fs = require("node:fs");
    runWhenLeader("job", async () => {
      fs.writeFileSync("working", String(process.pid), { flag: "wx" });
      await new Promise((resolve) => setTimeout(resolve, 30 + Math.random() * 100));
      fs.rmSync("working");
      say("ran");
    }, { ...${OPTIONS}, campaignInterval: 100 });
    setInterval(() => {}, 1000);`;
  const all = programs(t, 3, code);
  const ran = () => all.reduce((sum, { lines }) => sum + lines.length, 0);
  while (ran() < 30) await new Promise((resolve) => setTimeout(resolve, 50));
  for (const { stderr } of all) assert.doesNotMatch(stderr, /EEXIST/);
});

/** The lease is lost: its record is deleted. */
const LOSE = `require("node:fs").rmSync(".whenleader/e-job", { recursive: true, force: true })`;

test("work that outlives its lease ends the process with code 70 and one line that says what to do", async () => {
  const { code, stderr, stdout } = await runProgram(
    `const { runWhenLeader } = require("whenleader");
     runWhenLeader("job", ({ signal }) => {
       say("begins");
       signal.addEventListener("abort", () => say("aborted"));
       setTimeout(() => ${LOSE}, 300);
       return new Promise(() => {});
     }, ${OPTIONS});
     setInterval(() => {}, 1000);`,
    { config: CONFIG },
  );
  assert.equal(code, 70, stderr);
  assert.equal(stdout, "begins\naborted\n");
  const [line, ...rest] = stderr.split("\n").filter((line) => line.includes("code 70"));
  assert.deepEqual(rest, []);
  assert.match(line, /^whenleader: election job, term \d+: its work still ran \d\.\d s /);
  assert.match(line, /heed term\.signal, or lengthen leaseDuration/);
});

/** The store is gone: nothing of it can be read or written. */
const BREAK = `require("node:fs").renameSync(".whenleader", "away"); require("node:fs").writeFileSync(".whenleader", "")`;

test("work that never ends does nothing any more when its lease is over, whatever took it, and is ended after its signal", async () => {
  const LEASE = 3000;
  /** What the process saw of its own life: all by its clock. */
  const life = async (lose, leadLimit) => {
    const options = JSON.stringify({ leaseDuration: LEASE, leadLimit });
    const { code, stdout, stderr } = await runProgram(
      `const { runWhenLeader } = require("whenleader");
       require("node:diagnostics_channel").subscribe("whenleader:attempt", ({ what, outcome, duration }) => {
         // The lease counts from the moment at which it was asked for.
         if (outcome === "held") say("asked", performance.now() - duration);
       });
       runWhenLeader("job", ({ signal }) => {
         signal.addEventListener("abort", () => say("aborted", performance.now()));
         setInterval(() => say("works", performance.now()), 5);
         setTimeout(() => { ${lose}; say("lost", performance.now()); }, 1000);
         return new Promise(() => {});
       }, ${options});
       setInterval(() => {}, 1000);`,
      { config: { ...CONFIG, leaseDuration: LEASE } },
    );
    const times = (word) =>
      [...stdout.matchAll(new RegExp(`^${word} (.*)$`, "gm"))].map(([, time]) => Number(time));
    return { code, stderr, times };
  };
  const all = [
    [LOSE, undefined],
    [BREAK, undefined],
    [LOSE, 1500],
    [BREAK, 1500],
  ];
  const lives = await Promise.all(all.map(([lose, leadLimit]) => life(lose, leadLimit)));
  for (const [i, { code, stderr, times }] of lives.entries()) {
    const [lose, leadLimit = 2000] = all[i];
    const which = `${lose === LOSE ? "deleted" : "gone"}, leadLimit ${leadLimit}`;
    assert.equal(code, 70, `${which}: ${stderr}`);
    const [aborted] = times("aborted");
    const [lost] = times("lost");
    // Where only the record is gone, the instance leads again before the work of its old term has ended.
    const renewals = times("asked").filter((time) => time < lost);
    const asked = renewals.at(-1);
    const last = times("works").at(-1);
    const story = `${which}: asked ${asked}, lost ${lost}, aborted ${aborted}, worked until ${last}\n${stderr}`;
    assert.ok(renewals.length >= 2, `it renewed. ${story}`);
    assert.ok(last < asked + LEASE, `it works after its lease. ${story}`);
    assert.ok(last > aborted, `it has time after its signal. ${story}`);
    // The store that is gone may come back: the term goes on for as long as it may.
    if (lose === BREAK) assert.ok(aborted > lost + leadLimit / 2, `it tries again. ${story}`);
  }
});

test("the process ends also while JavaScript is stuck in a loop", posix, async (t) => {
  const [program] = programs(
    t,
    1,
    `const { runWhenLeader } = require("whenleader");
     runWhenLeader("job", () => {
       say("begins");
       for (;;);
     }, ${OPTIONS});
     setInterval(() => {}, 1000);`,
    { config: { ...CONFIG, stallTimeout: 1000 } },
  );
  const { code, stderr } = await program.ended;
  assert.equal(code, 70, stderr);
  assert.match(stderr, /its work still ran/);
});

test(
  "the process ends also when it was frozen for longer than its lease, and its work does not end",
  posix,
  async (t) => {
    const [program] = programs(
      t,
      1,
      `const { runWhenLeader } = require("whenleader");
     runWhenLeader("job", () => { say("begins"); return new Promise(() => {}); }, ${OPTIONS});
     setInterval(() => {}, 1000);`,
    );
    await program.said("begins");
    program.kill("SIGSTOP");
    await new Promise((resolve) => setTimeout(resolve, 2000));
    program.kill("SIGCONT");
    assert.equal((await program.ended).code, 70);
  },
);

test("the process ends also during its shutdown, if the work does not", posix, async (t) => {
  for (const stop of ["stopCluster()", "run.stop()"]) {
    const [program] = programs(
      t,
      1,
      `const { runWhenLeader } = require("whenleader");
       const run = runWhenLeader("job", () => {
         say("begins");
         setTimeout(() => ${stop}, 100);
         return new Promise(() => {});
       }, ${OPTIONS});
       setInterval(() => {}, 1000);`,
      { config: { ...CONFIG, stopTimeout: 1000 } },
    );
    const { code, stderr } = await program.ended;
    assert.equal(code, 70, `${stop}: ${stderr}`);
    assert.match(stderr, /its work still ran/, stop);
  }
});

test(
  "a signal ends the process when stopTimeout is over, whatever the work does",
  posix,
  async (t) => {
    const [program] = programs(
      t,
      1,
      `const { runWhenLeader } = require("whenleader");
     runWhenLeader("job", () => { say("begins"); return new Promise(() => {}); }, ${OPTIONS});
     setInterval(() => {}, 1000);`,
      { config: { ...CONFIG, stopTimeout: 500 } },
    );
    await program.said("begins");
    program.kill("SIGTERM");
    const { signal, stderr } = await program.ended;
    assert.equal(signal, "SIGTERM");
    assert.match(
      stderr,
      /SIGTERM: the stop has not ended within stopTimeout, 500 ms; the process ends/,
    );
  },
);

test("work that outlives its lease after its stop is told of and counted as well", async () => {
  for (const [stop, more] of [
    ["stopCluster()", ""],
    ["run.stop()", ""],
    ["run.stop()", 'cluster: { type: "StoreCluster", store: "file:own", stopTimeout: 200 },'],
  ]) {
    const { code, stdout, stderr } = await runProgram(
      `const { runWhenLeader } = require("whenleader");
       const run = runWhenLeader("job", () => {
         setTimeout(() => ${stop}, 300);
         return new Promise(() => {});
       }, { ...${OPTIONS}, ${more} onOverrun: "warn" });
       require("node:diagnostics_channel").subscribe("whenleader:error", ({ error }) => say(error.code));
       run.on("overrun", ({ code }) => {
         say(code, run.overruns);
         process.exit(0);
       });
       setTimeout(() => process.exit(1), 20_000);`,
      { config: { ...CONFIG, stopTimeout: 200 } },
    );
    assert.equal(code, 0, `${stop}: ${stderr}`);
    assert.equal(stdout, "WHENLEADER_OVERRUN\nWHENLEADER_OVERRUN 1\n");
    assert.match(stderr, /still run although its lease ends now/);
  }
});

test("with onOverrun warn the process goes on, tells of it, and counts it", async () => {
  const { code, stdout, stderr } = await runProgram(
    `const { runWhenLeader } = require("whenleader");
     const run = runWhenLeader("job", () => {
       setTimeout(() => ${LOSE}, 300);
       return new Promise(() => {});
     }, { ...${OPTIONS}, onOverrun: "warn" });
     run.on("overrun", ({ code }) => {
       say(code, run.overruns);
       setTimeout(() => process.exit(0), 500);
     });
     setInterval(() => {}, 1000);`,
    { config: CONFIG },
  );
  assert.equal(code, 0, stderr);
  assert.equal(stdout, "WHENLEADER_OVERRUN 1\n");
  assert.match(stderr, /still run although its lease ends now/);
});

test("work keeps to its own times on a cluster with others", async () => {
  const { stdout, stderr } = await runProgram(
    `const { runWhenLeader } = require("whenleader");
     const diagnostics = require("node:diagnostics_channel");
     let renewals = 0;
     diagnostics.subscribe("whenleader:attempt", ({ election, what }) => {
       if (election === "job" && what === "renew") renewals += 1;
     });
     const run = runWhenLeader("job", async ({ signal, remaining, ...term }) => {
       await new Promise((resolve) => setTimeout(resolve, 1200));
       say(renewals >= 4, renewals);
       setTimeout(() => process.exit(0));
     }, { leaseDuration: 3000, renewInterval: 200, leadLimit: 2000 });
     setInterval(() => {}, 1000);`,
    { config: { ...CONFIG, leaseDuration: 15000, renewInterval: 5000 } },
  );
  assert.match(stdout, /^true /, stderr);
});

test("an attempt tells the term that it renews or releases, and none while it asks for one", async () => {
  const { stdout, stderr } = await runProgram(
    `const { runWhenLeader } = require("whenleader");
     let renewals = 0;
     require("node:diagnostics_channel").subscribe("whenleader:attempt", ({ what, outcome, token, traceId }) => {
       say(what, outcome, String(token), String(traceId?.length));
       if (what === "renew") renewals += 1;
       if (renewals === 2) run.stop();
     });
     const run = runWhenLeader("job", async ({ signal, token }) => {
       say("leads", token);
       await new Promise((resolve) => signal.addEventListener("abort", resolve));
     }, { leaseDuration: 1500, renewInterval: 100 });
     run.done;`,
    { config: CONFIG },
  );
  const [, token] = /^leads (\d+)$/m.exec(stdout) ?? assert.fail(stdout + stderr);
  const attempts = new Set(stdout.split("\n").filter((line) => !/^leads|^$/.test(line)));
  assert.deepEqual(
    [...attempts],
    ["campaign held undefined undefined", `renew held ${token} 32`, `release released ${token} 32`],
  );
});

test("a name runs in one thread of a process only", async () => {
  const { stdout, stderr } = await runProgram(
    `const { runWhenLeader } = require("whenleader");
     const { Worker } = require("node:worker_threads");
     runWhenLeader("job", ({ signal }) => {
       say("main begins");
       new Worker(\`
         const { runWhenLeader, useCluster } = require("whenleader");
         const say = (...words) => require("node:fs").writeSync(1, words.join(" ") + "\\\\n");
         runWhenLeader("job", () => say("worker begins")).done.catch(({ name, message }) => say(name, message));
         runWhenLeader("own", () => say("worker runs its own"));
         useCluster("own").on("promoted", () => {
           try { useCluster("job"); } catch ({ name }) { say("watching", name); }
         });
         setInterval(() => {}, 1000);
       \`, { eval: true });
       return new Promise((resolve) => signal.addEventListener("abort", resolve));
     }, ${OPTIONS});
     setTimeout(() => process.exit(0), 3000);`,
    { config: CONFIG },
  );
  const lines = stdout.trim().split("\n");
  assert.equal(lines[0], "main begins", stderr);
  assert.ok(lines.includes("worker runs its own"), stdout + stderr);
  assert.ok(
    lines.some((line) => /^ConfigError .*job runs in another thread/.test(line)),
    stdout + stderr,
  );
  assert.ok(!lines.includes("worker begins"));
  assert.ok(lines.includes("watching ConfigError"), "nor does another thread watch it");
});

test("work in a worker thread that outlives its lease ends the process, also while that thread is stuck", async () => {
  for (const work of ["new Promise(() => {})", "(() => { for (;;); })()"]) {
    const { code, stderr } = await runProgram(
      `const { Worker } = require("node:worker_threads");
       new Worker(\`
         const { runWhenLeader } = require("whenleader");
         runWhenLeader("job", () => {
           require("node:fs").writeSync(1, "begins\\\\n");
           return ${work};
         }, ${OPTIONS});
         setInterval(() => {}, 1000);
       \`, { eval: true });
       const lose = setInterval(() => {
         if (!require("node:fs").existsSync(".whenleader/e-job")) return;
         clearInterval(lose);
         setTimeout(() => ${LOSE}, 500);
       }, 50);
       setInterval(() => {}, 1000);`,
      { config: CONFIG },
    );
    assert.equal(code, 70, stderr);
    assert.match(stderr, /election job.*its work still ran/);
  }
});

test("an exit leaves a lease to its expiry under which another thread still works", async (t) => {
  const code = `
    const { Worker, isMainThread } = require("node:worker_threads");
    new Worker(\`
      const { runWhenLeader } = require("whenleader");
      runWhenLeader("job", () => {
        require("node:fs").writeSync(1, "begins\\\\n");
        return new Promise(() => {});
      }, ${OPTIONS});
      setInterval(() => {}, 1000);
    \`, { eval: true });
    useCluster("other");
    process.on("exit", () => {
      const state = require("node:fs").readdirSync(".whenleader/e-job").sort().at(-1);
      const text = require("node:fs").readFileSync(".whenleader/e-job/" + state, "utf8");
      say("at exit", JSON.parse(text).state);
    });
    process.stdin.once("data", () => process.exit(0));`;
  const [program] = programs(t, 1, code);
  await program.said("begins");
  program.tell("exit");
  const { stdout } = await program.ended;
  assert.match(stdout, /at exit held/);
});

test("work with a cluster of its own elects there, beside the cluster of the process", async (t) => {
  const code = `
    const { runWhenLeader } = require("whenleader");
    const run = runWhenLeader("job", async (term) => {
      say("begins", term.election);
      await new Promise((resolve) => term.signal.addEventListener("abort", resolve));
      say("ends", term.signal.reason.reason);
    }, { ...${OPTIONS}, cluster: { cluster: { type: "StoreCluster", store: "file:own" } } });
    process.stdin.once("data", async () => {
      await stopCluster();
      say("stopped");
      process.exit(0);
    });`;
  const [first, second] = programs(t, 2, code, { config: undefined });
  const leader = await leaderOf([first, second]);
  const other = leader === first ? second : first;
  assert.equal(other.stdout, "");
  leader.tell("stop");
  await leader.ended;
  assert.deepEqual(leader.lines.slice(1), ["ends stopped", "stopped"]);
  await other.said("begins job");
});

test("an election of that name on the cluster of the process is another one", async () => {
  const { stdout, stderr } = await runProgram(
    `const { runWhenLeader } = require("whenleader");
     const alive = setInterval(() => {}, 1000);
     const untilAborted = ({ signal }) => new Promise((resolve) => signal.addEventListener("abort", resolve));
     (async () => {
       await startCluster();
       const tokens = [];
       const run = runWhenLeader("job", (term) => { tokens.push(term.token); return untilAborted(term); },
         { ...${OPTIONS}, cluster: { type: "StoreCluster", store: "file:own" } });
       const promoted = [];
       run.on("promoted", (term) => promoted.push(term.token));
       await new Promise((resolve) => run.once("promoted", resolve));
       const plain = await useCluster("job").waitUntilLeader();
       say("both", plain.token !== tokens[0]);
       const called = new Promise((resolve) => whenLeader(resolve, null, { election: "job" }));
       say("called", (await called).token === plain.token);
       // Its own default election, which is another one as well.
       const second = runWhenLeader("leader", untilAborted,
         { ...${OPTIONS}, cluster: { type: "StoreCluster", store: "file:own" } });
       await new Promise((resolve) => second.once("promoted", resolve));
       say("promoted", promoted.length, promoted[0] === tokens[0]);
       await stopCluster();
       say("stopped");
       clearInterval(alive);
     })();`,
    { config: CONFIG },
  );
  assert.equal(stdout, "both true\ncalled true\npromoted 1 true\nstopped\n", stderr);
});

test("work with a cluster of its own that ended by itself begins again after its campaignInterval", async () => {
  const { lines, end } = await new Promise((resolve) => {
    const program = new Program(
      `const { runWhenLeader } = require("whenleader");
       runWhenLeader("job", () => say(Date.now()), { leaseDuration: 20_000, campaignInterval: 200,
         cluster: { type: "StoreCluster", store: "file:own", keepAlive: true } });
       setTimeout(() => process.exit(0), 15_000).unref();`,
    );
    const look = setInterval(() => {
      if (program.lines.length < 3 && !program.over) return;
      clearInterval(look);
      program.kill("SIGKILL");
      resolve({ lines: program.lines, end: program.over });
    }, 50);
  });
  assert.ok(lines.length >= 3, `it ended: ${end}; ${lines}`);
});

test("what keeps the cluster from starting rejects done, and the program ends", async () => {
  const { code, stdout } = await runProgram(
    `const { runWhenLeader } = require("whenleader");
     (async () => {
       const run = runWhenLeader("job", () => {});
       run.on("error", (error) => say("told", error.fatal));
       await run.done.catch((error) => say(error.name, error.code, error.fatal));
       const again = runWhenLeader("job", () => {});
       say("free");
       await again.stop();
     })();`,
    { config: { type: "StoreCluster", store: "file:/proc/self/whenleader" } },
  );
  assert.match(stdout, /^told true\nElectionError WHENLEADER_STORE true\nfree\n$/);
  assert.equal(code, 0);
});

test("the process ends also where the system has no thread for its last words", {
  skip: process.platform !== "linux" && "needs prlimit",
}, async () => {
  const { code, stderr, stdout } = await runProgram(
    `const { runWhenLeader } = require("whenleader");
     const { execFileSync } = require("node:child_process");
     // A limit of threads is none for root.
     if (process.getuid() === 0) {
       require("node:fs").chmodSync(".", 0o777);
       process.setuid(65534);
     }
     runWhenLeader("job", () => {
       say("begins");
       execFileSync("prlimit", ["--nproc=1:1", "--pid=" + process.pid]);
       try { execFileSync("true"); } catch ({ code }) { say(code); }
       setTimeout(() => { ${LOSE} }, 300);
       return new Promise(() => {});
     }, ${OPTIONS});
     setInterval(() => {}, 1000);`,
    { config: CONFIG },
  );
  assert.equal(stdout, "begins\nEAGAIN\n");
  assert.equal(code, 70, stderr);
  assert.match(stderr, /whenleader: election job, term \d+: its work still ran/);
});

test("a loop that is stuck for four of the work's own leases gives it up, whatever the cluster's lease", async () => {
  const began = Date.now();
  const { code, stderr } = await runProgram(
    `const { runWhenLeader } = require("whenleader");
     runWhenLeader("job", () => { say("stuck"); for (;;); }, { leaseDuration: 1000 });
     setInterval(() => {}, 1000);`,
    { config: { type: "StoreCluster" } },
  );
  assert.equal(code, 70, stderr);
  // Four leases of the cluster would be a minute.
  assert.ok(Date.now() - began < 30_000);
});

test("nothing is left of work with a cluster of its own that was stopped, and the process ends", async () => {
  const { code, stdout } = await runProgram(
    `const { runWhenLeader } = require("whenleader");
     const listeners = () => ["exit", "SIGTERM", "SIGINT"].map((name) => process.listenerCount(name)).join();
     const before = listeners();
     (async () => {
       for (let i = 0; i < 5; i += 1) {
         const run = runWhenLeader("job", ({ signal }) =>
           new Promise((resolve) => signal.addEventListener("abort", resolve)),
           { ...${OPTIONS}, cluster: { type: "StoreCluster", store: "file:own", keepAlive: true } });
         await new Promise((resolve) => run.once("promoted", resolve));
         await run.stop();
       }
       say(listeners() === before);
     })();`,
  );
  assert.equal(code, 0);
  assert.equal(stdout, "true\n");
});

test("a logger of its cluster gets what the work has to tell", async () => {
  const { stdout, stderr } = await runProgram(
    `const { runWhenLeader } = require("whenleader");
     const logger = { error: (line) => say("error", line), warn() {}, info() {}, debug() {} };
     const run = runWhenLeader("job", () => { throw new Error("no upstream"); },
       { ...${OPTIONS}, cluster: { type: "StoreCluster", store: "file:own", logger } });
     run.once("demoted", () => run.stop());
     run.done;`,
  );
  assert.match(stdout, /^error .*the work failed.*no upstream/, stderr);
  assert.doesNotMatch(stderr, /no upstream/);
});

test("options that the store or the native side refuses are errors that name them", async () => {
  const { stdout } = await runProgram(
    `const { runWhenLeader } = require("whenleader");
     for (const options of [
       { leaseDuration: "15000" }, { leaseDuraton: 15000 }, { leadLimit: 14900 }, { campaignInterval: 0 },
       { onOverrun: "throw" }, { renewInterval: NaN }, { cluster: { type: "StoreCluster", store: "x://y" } },
       { cluster: 7 }, { cluster: { type: "LocalCluster" } },
     ]) {
       try { runWhenLeader("job", () => {}, options); say("taken"); }
       catch ({ name, message }) { say(name, message); }
     }`,
    { config: CONFIG },
  );
  const lines = stdout.trim().split("\n");
  for (const [i, words] of [
    "options.leaseDuration must be a whole number of milliseconds; write 15000 without quotes",
    "options.leaseDuraton is not known; did you mean leaseDuration?",
    "options.leadLimit must be at most",
    "options.campaignInterval must be",
    'options.onOverrun must be "warn" or "exit"',
    "options.renewInterval must be a whole number of milliseconds, not NaN",
    "store must be the URL of a store",
    "was given a number",
    "options.cluster cannot be a LocalCluster",
  ].entries()) {
    assert.ok(lines[i].startsWith("ConfigError ") && lines[i].includes(words), lines[i]);
  }
});

test("waiting for done keeps a process alive, and nothing else of the work does", async () => {
  const { code, stdout } = await runProgram(
    `const { runWhenLeader } = require("whenleader");
     const run = runWhenLeader("job", () => say("ran"), ${OPTIONS});
     run.on("demoted", () => run.stop());
     run.done.then(() => say("done"));`,
    { config: CONFIG },
  );
  assert.equal(code, 0);
  assert.equal(stdout, "ran\ndone\n");
  const idle = await runProgram(
    `const { runWhenLeader } = require("whenleader");
     runWhenLeader("job", () => new Promise(() => {}), ${OPTIONS});`,
    { config: CONFIG },
  );
  assert.equal(idle.code, 0);
});
