// whenleader/testing as users use it: an application under a virtual clock.

const assert = require("node:assert/strict");
const { once } = require("node:events");
const { afterEach, test } = require("node:test");
const { useTestCluster } = require("../testing.js");
const {
  ConfigError,
  LeadershipLostError,
  expectCluster,
  startCluster,
  stopCluster,
  useCluster,
  whenLeader,
} = require("../index.js");
const { runProgram } = require("./support/child.js");
const { gate } = require("./fake-native.js");

/** The tokens that were seen in this test. */
let tokens = [];

/** The how manyth term it is that was seen: 1, 2, 3. Tokens themselves look as on a real store, and grow. */
function nth(token) {
  if (!tokens.includes(token)) {
    assert.ok(token > Math.max(0, ...tokens), `${token} after ${tokens}`);
    assert.ok(token >= 1.8e15 && Number.isSafeInteger(token), `${token}`);
    tokens.push(token);
  }
  return tokens.indexOf(token) + 1;
}

// As the modules of an application do: once, when they are imported.
const early = [];
const earlyCluster = useCluster();
earlyCluster.on("promoted", (term) => early.push(`promoted ${nth(term.token)}`));
whenLeader(
  (term) => {
    early.push(`fn ${nth(term.token)}`);
  },
  (lost) => {
    early.push(`ended ${lost.reason}`);
  },
);

const silent = { error() {}, warn() {}, info() {} };
let cluster;

/** Each test's own; what the application's modules did before is forgotten. */
function begin(options) {
  early.length = 0;
  tokens = [];
  cluster = useTestCluster({ logger: silent, ...options });
  return cluster;
}

afterEach(() => cluster?.restore());

/** Registers callbacks that say what they are told. */
function listen(options) {
  const said = [];
  const terms = [];
  whenLeader(
    (term) => {
      terms.push(term);
      said.push(`fn ${nth(term.token)}`);
    },
    (lost) => {
      said.push(`ended ${lost.reason}`);
    },
    options,
  );
  return { said, terms };
}

test("nobody leads before the test says so", async () => {
  const cluster = begin();
  const { said } = listen();
  await cluster.advance(60_000);
  assert.equal(useCluster().isLeader(), false);
  assert.equal(useCluster().getLeader(), null);
  assert.equal(cluster.isLeader(), false);
  assert.equal(cluster.token, 0);
  assert.deepEqual([said, early], [[], []]);
});

test("promote() resolves with the term when each fn has ended", async () => {
  const cluster = begin({ instanceId: "web-1" });
  const connected = gate();
  let ready = false;
  whenLeader(async () => {
    await connected.promise;
    ready = true;
  });
  const { said } = listen();
  setTimeout(connected.open, 20);
  const term = await cluster.promote();
  assert.equal(ready, true);
  assert.deepEqual(said, ["fn 1"]);
  assert.equal(useCluster().isLeader(), true);
  assert.equal(cluster.isLeader(), true);
  assert.deepEqual([nth(term.token), term.election, term.instanceId], [1, "leader", "web-1"]);
  assert.match(term.traceId, /^[0-9a-f]{32}$/);
  assert.deepEqual(useCluster().getLeader(), { instanceId: "web-1", token: term.token });
  assert.equal(useCluster().getInstanceId(), "web-1");
  assert.equal((await cluster.promote()).token, term.token, "it leads already");
});

test("a fn that goes on as long as its term is not waited for if the test says so", async () => {
  const cluster = begin();
  let rounds = 0;
  whenLeader(async (term) => {
    while (term.isCurrent()) {
      rounds += 1;
      await once(term.signal, "abort");
    }
  });
  await cluster.promote({ wait: "called" });
  assert.equal(rounds, 1);
  await cluster.demote();
  assert.equal(rounds, 1);
});

test("demote() resolves when each deregisteredFn has ended, with any reason", async () => {
  const cluster = begin();
  const reasons = [
    "expired",
    "taken",
    "unreachable",
    "released",
    "steppedDown",
    "stalled",
    "stopped",
  ];
  for (const reason of reasons) {
    const term = await cluster.promote();
    let undone = null;
    const remove = whenLeader(
      () => {},
      async (lost) => {
        await new Promise((resolve) => setTimeout(resolve, 5));
        undone = lost;
      },
    );
    await cluster.promote();
    const demoted = once(useCluster(), "demoted");
    await cluster.demote(reason);
    assert.equal(undone.reason, reason);
    assert.ok(undone instanceof LeadershipLostError);
    assert.equal(useCluster().isLeader(), false);
    assert.equal(term.isCurrent(), false);
    assert.equal((await demoted)[0].reason, reason);
    await cluster.advance(60_000);
    assert.equal(useCluster().isLeader(), false, "it does not come back by itself");
    await remove();
  }
  await assert.rejects(cluster.demote("removed"), { name: "TypeError", message: /must be one of/ });
  await assert.rejects(cluster.demote("bored"), { name: "TypeError", message: /'bored'/ });
});

test("another instance leads after demote(), and tokens only grow", async () => {
  const cluster = begin();
  const changes = [];
  useCluster().on("leaderChanged", ({ instanceId, token }) =>
    changes.push(`${instanceId} ${nth(token)}`),
  );
  await cluster.promote();
  await cluster.demote();
  await cluster.elect("web-2");
  await cluster.elect("web-2");
  assert.equal(nth(cluster.token), 3);
  await cluster.promote();
  await cluster.elect("web-3");
  assert.deepEqual(changes, [
    `${cluster.instanceId} 1`,
    "another-instance 2",
    "web-2 3",
    `${cluster.instanceId} 4`,
    "web-3 5",
  ]);
  const leader = { instanceId: "web-3", token: cluster.token };
  assert.deepEqual(useCluster().getLeader(), leader);
  assert.deepEqual(cluster.getLeader(), leader);
});

test("signals are aborted, then demoted is emitted, then deregisteredFn runs", async () => {
  const cluster = begin();
  const order = [];
  useCluster().on("promoted", () => order.push("promoted"));
  useCluster().on("demoted", () => order.push(`demoted, leads ${useCluster().isLeader()}`));
  whenLeader(
    (term) => {
      order.push(`fn, leads ${useCluster().isLeader()}`);
      term.signal.addEventListener("abort", () => order.push("aborted"));
    },
    () => {
      order.push("ended");
    },
  );
  await cluster.promote();
  await cluster.demote();
  assert.deepEqual(order, [
    "promoted",
    "fn, leads true",
    "aborted",
    "demoted, leads false",
    "ended",
  ]);
});

test("who registers while this instance leads is called at once", async () => {
  const cluster = begin();
  await cluster.promote();
  const { said } = listen();
  await null;
  assert.deepEqual(said, ["fn 1"]);
});

test("deregisteredFn waits for its fn, and the next fn for that", async () => {
  const cluster = begin();
  const gates = [gate(), gate(), gate()];
  const order = [];
  whenLeader(
    async (term) => {
      const number = nth(term.token);
      order.push(`fn ${number}`);
      await gates[number === 1 ? 0 : 2].promise;
      order.push(`fn ${number} ended`);
    },
    async () => {
      order.push("undo");
      await gates[1].promise;
      order.push("undone");
    },
  );
  await cluster.promote({ wait: "called" });
  const demoted = cluster.demote("unreachable");
  const again = cluster.promote();
  gates[0].open();
  setTimeout(gates[1].open, 10);
  setTimeout(gates[2].open, 20);
  await Promise.all([demoted, again]);
  assert.deepEqual(order, ["fn 1", "fn 1 ended", "undo", "undone", "fn 2", "fn 2 ended"]);
});

test("time passes for leases only in advance(): renewals keep the term", async () => {
  const cluster = begin();
  const term = await cluster.promote();
  assert.equal(term.remaining(), 10_000);
  await cluster.advance(4_000);
  assert.equal(term.remaining(), 6_000);
  await cluster.advance(1_000);
  assert.equal(term.remaining(), 10_000);
  await cluster.advance(24 * 60 * 60 * 1000 + 1);
  assert.equal(term.remaining(), 9_999);
  assert.equal(cluster.now, 24 * 60 * 60 * 1000 + 5_001);
  assert.equal(term.isCurrent(), true);
});

test("a store that fails ends the term at the next renewal, as onRenewError's stepDown", async () => {
  const cluster = begin();
  const { said } = listen();
  const errors = [];
  useCluster().on("error", (error) => errors.push(error));
  await cluster.promote();
  cluster.failStore();
  await cluster.advance(4_999);
  assert.equal(useCluster().isLeader(), true);
  await cluster.advance(1);
  assert.equal(useCluster().isLeader(), false);
  await cluster.advance(60_000);
  assert.deepEqual(said, ["fn 1", "ended unreachable"]);
  assert.deepEqual(
    errors.map(({ code, reason, election }) => [code, reason, election]),
    [["WHENLEADER_STORE", "unreachable", "leader"]],
  );
  cluster.mendStore();
  await cluster.advance(5_000);
  assert.deepEqual(said, ["fn 1", "ended unreachable", "fn 2"]);
});

test("a store that fails is tried again until the deadline, with onRenewError: retry", async () => {
  const cluster = begin({ onRenewError: "retry" });
  const { said } = listen();
  const term = await cluster.promote();
  cluster.failStore();
  await cluster.advance(6_000);
  cluster.mendStore();
  await cluster.advance(1_000);
  assert.ok(term.remaining() > 9_000, `${term.remaining()}`);
  cluster.failStore();
  await cluster.advance(15_000);
  assert.deepEqual(said, ["fn 1", "ended unreachable"]);
});

test("a store that hangs ends the term at the deadline of its last renewal", async () => {
  for (const onRenewError of ["stepDown", "retry"]) {
    const cluster = begin({ leaseDuration: 3_000, renewInterval: 1_000, onRenewError });
    const { said } = listen();
    await cluster.promote();
    await cluster.advance(1_000);
    cluster.hangStore();
    await cluster.advance(1_999);
    assert.equal(useCluster().isLeader(), true);
    await cluster.advance(1);
    assert.equal(useCluster().isLeader(), false);
    assert.deepEqual(said, ["fn 1", "ended unreachable"]);
    await cluster.restore();
  }
});

test("tokens look as on a real store: they grow with the time, in microseconds", async () => {
  const cluster = begin();
  const first = await cluster.promote();
  await cluster.demote("released");
  await cluster.advance(1_500.5);
  const second = await cluster.promote();
  assert.ok(first.token >= 1.8e15, `${first.token}`);
  assert.equal(second.token - first.token, 1_500_500);
  await cluster.elect("web-2");
  assert.equal(cluster.token, second.token + 1, "in the same moment");
});

test("what a store did that was mended since is told as it was", async () => {
  const cluster = begin({ leaseDuration: 3_000, renewInterval: 1_000 });
  const errors = [];
  useCluster().on("error", ({ reason, message }) => errors.push(`${reason}: ${message}`));
  await cluster.promote();
  cluster.hangStore();
  await cluster.advance(1_000);
  cluster.mendStore(); // The renewal that was sent is lost all the same.
  await cluster.advance(1_000);
  assert.equal(errors.length, 1, `${errors}`);
  assert.match(errors[0], /^timeout: .*did not answer in time \(hangStore\(\)\)/);
  await cluster.advance(1_000);
  cluster.failStore();
  await cluster.advance(1_000);
  assert.match(errors[1], /^unreachable: .*failed \(failStore\(\)\)/);
});

test("a follower that stops waits for its campaign: a lease that it wins must be released", async () => {
  const cluster = begin();
  await cluster.elect("web-2");
  cluster.hangStore();
  await cluster.advance(5_000);
  let stopped = false;
  const stopping = stopCluster().then(() => {
    stopped = true;
  });
  await cluster.advance(4_999);
  assert.equal(stopped, false, "the campaign is given up after one renewInterval");
  await cluster.advance(1);
  await stopping;
});

test("a stop that waits for a store that hangs says what would let it go on", async () => {
  const cluster = begin();
  await cluster.promote();
  cluster.hangStore();
  const warned = once(process, "warning");
  const stopping = stopCluster();
  const [warning] = await warned;
  assert.equal(warning.name, "WhenLeaderTestWarning");
  assert.match(
    warning.message,
    /^a stop still waits for a request .*hangStore.*cluster\.advance\(\)/,
  );
  await cluster.advance(60_000);
  await stopping;
});

test("restore() waits for no store, whatever state the test left it in", async () => {
  for (const state of ["hangStore", "failStore"]) {
    for (const passed of [0, 7_000, 60_000]) {
      const cluster = begin();
      const { said } = listen();
      await cluster.promote();
      cluster[state]();
      await cluster.advance(passed);
      const stopping = stopCluster();
      await Promise.resolve();
      await cluster.restore();
      await stopping;
      assert.equal(said.filter((what) => what.startsWith("fn")).length, 1, `${said}`);
      assert.equal(said.length, 2, `${said}`);
      const left = begin();
      await left.promote();
      left[state]();
      await left.advance(passed);
      await left.restore();
    }
  }
});

test("a leadLimit of one's own is the deadline", async () => {
  const cluster = begin({ leadLimit: 6_000 });
  const term = await cluster.promote();
  assert.equal(term.remaining(), 6_000);
});

test("a frozen process knows at once, before it is told, and then its term is expired", async () => {
  const cluster = begin();
  const { said, terms } = listen();
  await cluster.promote();
  const thawed = cluster.freeze(10_000);
  assert.equal(useCluster().isLeader(), false);
  assert.equal(terms[0].isCurrent(), false);
  assert.equal(terms[0].remaining(), 0);
  assert.equal(terms[0].signal.aborted, false, "no event told yet");
  await thawed;
  assert.deepEqual(said, ["fn 1", "ended expired", "fn 2"]);
  await cluster.freeze(9_999);
  assert.equal(useCluster().isLeader(), true, "that was not too long");
  assert.equal(terms[1].isCurrent(), true);
});

test("an application may be frozen in the middle of what advance() began", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const cluster = begin({ tick: (ms) => t.mock.timers.tick(ms) });
  const { said } = listen();
  const term = await cluster.promote();
  let frozen = null;
  setTimeout(() => {
    cluster.freeze(30_000);
    frozen = [useCluster().isLeader(), term.signal.aborted];
  }, 12_000);
  await cluster.advance(20_000);
  assert.deepEqual(frozen, [false, false]);
  assert.deepEqual(said, ["fn 1", "ended expired", "fn 2"]);
  assert.ok(cluster.now >= 41_500, `${cluster.now}`);
});

test("stepDown() keeps this instance out for its pause, in virtual time", async () => {
  const cluster = begin();
  const { said } = listen();
  await cluster.promote();
  await useCluster().stepDown({ pause: 60_000 });
  assert.deepEqual(said, ["fn 1", "ended steppedDown"]);
  await cluster.advance(59_999);
  assert.equal(useCluster().isLeader(), false);
  await cluster.advance(1);
  assert.deepEqual(said, ["fn 1", "ended steppedDown", "fn 2"]);
  await useCluster().stepDown();
  await cluster.advance(14_999);
  assert.equal(useCluster().isLeader(), false, "without a pause it is one lease");
  await cluster.promote();
  assert.equal(useCluster().isLeader(), true, "the test may be faster than the pause");
});

test("stepDown() of a leader whose callbacks take long is followed by promote() when they ended", async () => {
  const cluster = begin();
  const slow = gate();
  whenLeader(
    () => {},
    () => slow.promise,
  );
  const first = await cluster.promote();
  const down = useCluster().stepDown({ pause: 1_000 });
  const again = cluster.promote();
  setTimeout(slow.open, 10);
  assert.ok((await again).token > first.token);
  await down;
});

test("callbacks that outlive the lease of a lost term are told of", async () => {
  const cluster = begin();
  const stuck = gate();
  const errors = [];
  useCluster().on("error", (error) => errors.push(error.code));
  whenLeader(
    () => {},
    () => stuck.promise,
  );
  await cluster.promote();
  cluster.hangStore();
  await cluster.advance(14_749);
  assert.deepEqual(errors, ["WHENLEADER_STORE"]);
  await cluster.advance(1);
  assert.deepEqual(errors, ["WHENLEADER_STORE", "WHENLEADER_OVERRUN"]);
  stuck.open();
});

test("waitUntilLeader() resolves with the term, or times out in virtual time", async () => {
  const cluster = begin();
  const waited = useCluster().waitUntilLeader();
  await cluster.promote();
  assert.equal((await waited).token, cluster.token);
  assert.equal((await useCluster().waitUntilLeader()).token, cluster.token);
  await cluster.demote();
  let outcome = "pending";
  useCluster()
    .waitUntilLeader({ timeout: 1_000 })
    .catch(({ code }) => {
      outcome = code;
    });
  await cluster.advance(999);
  assert.equal(outcome, "pending");
  await cluster.advance(1);
  assert.equal(outcome, "WHENLEADER_TIMEOUT");
  const vain = useCluster().waitUntilLeader();
  const given = assert.rejects(vain, { code: "WHENLEADER_STOPPED" });
  await cluster.restore();
  await given;
});

test("each election of an application has a leader of its own", async () => {
  const cluster = begin({ leaseName: "shop" });
  const mail = listen({ election: "mail" });
  const shop = listen();
  const term = await cluster.election("mail").promote();
  assert.equal(term.election, "mail");
  assert.deepEqual([mail.said, shop.said], [["fn 1"], []]);
  assert.deepEqual([useCluster("mail").isLeader(), useCluster().isLeader()], [true, false]);
  await cluster.promote();
  await cluster.election("mail").elect("web-2");
  assert.deepEqual([mail.said, shop.said], [["fn 1", "ended taken"], ["fn 1"]]);
  assert.equal(useCluster().election, "shop");
  assert.equal(cluster.name, "shop");
  assert.equal(cluster.election("shop").isLeader(), true);
  // Nobody need have registered yet.
  await cluster.election("reports").promote();
  const reports = listen({ election: "reports" });
  await null;
  assert.deepEqual(reports.said, ["fn 1"]);
});

test("what callbacks throw is logged and kept for the test, and stops nothing", async () => {
  const cluster = begin();
  whenLeader(
    () => {
      throw new Error("at once");
    },
    async () => {
      throw new Error("later");
    },
  );
  const { said } = listen();
  await cluster.promote();
  await cluster.demote();
  assert.deepEqual(
    cluster.callbackErrors.map(({ message }) => message),
    ["at once", "later"],
  );
  assert.deepEqual(said, ["fn 1", "ended taken"]);
});

test("an application that removes its registration is asked no more", async () => {
  const cluster = begin();
  const said = [];
  const remove = whenLeader(
    () => {
      said.push("fn");
    },
    (lost) => {
      said.push(lost.reason);
    },
  );
  await cluster.promote();
  await remove();
  await cluster.demote();
  await cluster.promote();
  assert.deepEqual(said, ["fn", "removed"]);
});

test("an application that starts its own cluster gets the test's", async () => {
  const cluster = begin();
  expectCluster();
  const started = await startCluster({ store: "redis://127.0.0.1:1", leaseName: "other" });
  assert.equal(started, useCluster());
  await cluster.promote();
  assert.equal(started.isLeader(), true);
});

test("an application that stops its cluster is waited for, and may start it again", async () => {
  const cluster = begin();
  const { said } = listen();
  await cluster.promote();
  await stopCluster();
  assert.deepEqual(said, ["fn 1", "ended stopped"]);
  assert.equal(useCluster().isLeader(), false);
  await assert.rejects(cluster.promote(), /has left the election "leader"/);
  await startCluster({ store: "redis://127.0.0.1:1" });
  const again = listen();
  await cluster.promote();
  assert.deepEqual(again.said, ["fn 2"]);
  await useCluster().stop();
  assert.deepEqual(again.said, ["fn 2", "ended stopped"]);
});

test("a stop waits for callbacks, at most stopTimeout of virtual time", async () => {
  const cluster = begin({ stopTimeout: 2_000 });
  const stuck = gate();
  whenLeader(
    () => {},
    () => stuck.promise,
  );
  await cluster.promote();
  let stopped = false;
  const stopping = stopCluster().then(() => {
    stopped = true;
  });
  await cluster.advance(1_999);
  assert.equal(stopped, false);
  await cluster.advance(1);
  await stopping;
  stuck.open();
});

test("what modules registered before is there for every test, and what a test registered is not", async () => {
  const first = begin();
  const { said } = listen();
  const heard = [];
  useCluster().on("promoted", (term) => heard.push(nth(term.token)));
  await first.promote();
  assert.deepEqual(early, ["promoted 1", "fn 1"]);
  await first.restore();
  assert.deepEqual(early, ["promoted 1", "fn 1", "ended stopped"]);
  assert.deepEqual(said, ["fn 1", "ended stopped"]);
  assert.equal(useCluster().getLeader(), null);
  assert.equal(useCluster().isLeader(), false);

  const second = begin();
  await second.promote();
  assert.deepEqual(early, ["promoted 1", "fn 1"]);
  assert.equal(earlyCluster, useCluster());
  assert.deepEqual([said.length, heard], [2, [1]]);
});

test("a test in which the application shut down leaves the next one as it was", async () => {
  const first = begin();
  await first.promote();
  await stopCluster();
  await first.restore();
  const second = begin();
  await second.promote();
  assert.deepEqual(early, ["promoted 1", "fn 1"]);
});

test("all registrations are kept, or none, if the test says so", async () => {
  await runProgram(
    `const { useTestCluster } = require("whenleader/testing");
     const { whenLeader, useCluster } = require("whenleader");
     let count = 0;
     const register = () => {
       whenLeader(() => { count += 1; });
       useCluster().on("promoted", () => { count += 10; });
     };
     const led = async (options, registers) => {
       const cluster = useTestCluster(options);
       if (registers) register();
       count = 0;
       await cluster.promote();
       await cluster.restore();
       return count;
     };
     (async () => {
       console.log(await led({ keepRegistrations: "all" }, true));
       console.log(await led({ keepRegistrations: "earlier" }, true));
       console.log(await led({ keepRegistrations: "none" }, false));
       console.log(await led({}, false));
     })();`,
    { bare: true },
  ).then(({ stdout, stderr }) => assert.equal(stdout, "11\n22\n11\n0\n", stderr));
});

test("fake timers move along with the election, in its order", async (t) => {
  t.mock.timers.enable({ apis: ["setInterval", "setTimeout"] });
  const cluster = begin({ tick: (ms) => t.mock.timers.tick(ms) });
  const polls = [];
  let timer;
  whenLeader(
    (term) => {
      timer = setInterval(() => polls.push(term.isCurrent()), 1_000);
    },
    () => clearInterval(timer),
  );
  await cluster.promote();
  await cluster.advance(3_000);
  assert.deepEqual(polls, [true, true, true]);
  cluster.hangStore();
  await cluster.advance(60_000);
  assert.equal(polls.length, 9, "the deadline is at 10 s");
  assert.ok(polls.every(Boolean), `${polls}`);
});

test("a timer that fires after a freeze asks before the news have come", async (t) => {
  t.mock.timers.enable({ apis: ["setInterval"] });
  const cluster = begin({ tick: (ms) => t.mock.timers.tick(ms) });
  const asked = [];
  let timer;
  whenLeader(
    (term) => {
      timer = setInterval(() => asked.push([term.isCurrent(), term.signal.aborted]), 30_000);
    },
    () => clearInterval(timer),
  );
  await cluster.promote();
  await cluster.freeze(30_000);
  assert.deepEqual(asked, [[false, false]]);
});

test("a wrong use is refused in words that tell the cure", async () => {
  const cluster = begin();
  assert.throws(() => useTestCluster(), {
    name: "ConfigError",
    message: /another test cluster runs already; await its restore\(\) first/,
  });
  for (const bad of [-1, Number.NaN, "5", undefined]) {
    await assert.rejects(cluster.advance(bad), { name: "TypeError", message: /milliseconds/ });
  }
  await assert.rejects(cluster.promote({ wait: "long" }), { name: "TypeError" });
  await assert.rejects(cluster.elect(5), { name: "TypeError", message: /elect\(instanceId\)/ });
  assert.throws(() => cluster.election(""), { name: "TypeError", message: /not be empty/ });
  const first = cluster.advance(1);
  await assert.rejects(cluster.advance(1), /the clock is moving already/);
  await first;
  cluster.failStore();
  await assert.rejects(cluster.promote(), /the store fails \(failStore\(\)\); call mendStore\(\)/);
  cluster.mendStore();
  await cluster.advance(60_000);
  assert.equal(cluster.isLeader(), false, "a refused promote() has no late effect");
  await cluster.restore();
  await cluster.restore();
  await assert.rejects(cluster.promote(), /this test cluster was restored/);
  assert.throws(() => cluster.failStore(), /this test cluster was restored/);
  const watcher = begin({ candidate: false });
  await assert.rejects(watcher.promote(), /candidate: false/);
  await watcher.elect("web-2");
  assert.equal(useCluster().getLeader().instanceId, "web-2");
});

test("bad options are ConfigErrors that name the option and the value", () => {
  for (const [options, message] of [
    [5, /takes an object of options, not 5/],
    [null, /takes an object of options/],
    [{ leaseDuratoin: 5 }, /\.leaseDuratoin is not known; it takes leaseName/],
    [{ instanceId: "" }, /\.instanceId must not be empty/],
    [{ leaseName: 5 }, /\.leaseName must be a name like "leader", not 5/],
    [{ onRenewError: "panic" }, /must be "stepDown" or "retry", not "panic"/],
    [{ keepRegistrations: true }, /must be "earlier", "all" or "none", not true/],
    [{ candidate: "no" }, /must be true or false, not "no"/],
    [{ tick: 5 }, /\.tick must be a function that moves fake timers/],
    [{ stopTimeout: 86_400_001 }, /\.stopTimeout must be at most 86400000 ms/],
    [{ logger: {} }, /"logger" must be an object/],
  ]) {
    assert.throws(
      () => useTestCluster(options),
      (error) => error instanceof ConfigError && message.test(error.message),
      `${message}`,
    );
  }
  begin(); // Nothing of them is left.
});

test("await using restores by itself", async () => {
  const cluster = begin();
  await cluster.promote();
  await cluster[Symbol.asyncDispose]();
  begin();
});

test("who waits for a callback that does not end is told for which, and of the cure", async () => {
  const cluster = begin();
  const stuck = gate();
  whenLeader(async function pollForEver() {
    await stuck.promise;
  });
  const warned = once(process, "warning");
  const promoted = cluster.promote();
  const [warning] = await warned;
  assert.equal(warning.name, "WhenLeaderTestWarning");
  assert.match(warning.message, /promote\(\) still waits for pollForEver to end.*wait: "called"/);
  stuck.open();
  await promoted;
});

test("importing it first keeps an application with a configuration from electing", async () => {
  const { stdout, stderr, code } = await runProgram(
    `import { useTestCluster } from "whenleader/testing";
     import { whenLeader, useCluster } from "whenleader";
     whenLeader((term) => console.log("fn", term.token));
     console.log(useCluster().isLeader());
     await new Promise((resolve) => setTimeout(resolve, 50));
     const cluster = useTestCluster();
     await cluster.promote();
     console.log(useCluster().isLeader(), process.getActiveResourcesInfo().filter((what) => !/Pipe|File|TTY|Message/.test(what)).join());`,
    { type: "module", config: { store: "nonsense://" } },
  );
  assert.equal(stderr, "");
  assert.equal(stdout, "false\nfn 1800000000000000\ntrue \n");
  assert.equal(code, 0);
});

test("a test process loads no addon, starts no thread, writes no file, and ends by itself", async () => {
  const { stdout, stderr, code } = await runProgram(
    `const { useTestCluster } = require("whenleader/testing");
     const { whenLeader, useCluster, startCluster, stopCluster } = require("whenleader");
     const fs = require("node:fs");
     const threads = () => (fs.existsSync("/proc/self/task") ? fs.readdirSync("/proc/self/task").length : 0);
     const before = threads();
     whenLeader(() => {}, () => {});
     const cluster = useTestCluster();
     (async () => {
       await cluster.promote();
       await cluster.advance(100_000);
       useCluster().waitUntilLeader().catch(() => {});
       await useCluster().stepDown();
       useCluster().waitUntilLeader({ timeout: 1e6 }).catch(() => {});
       await cluster.promote();
       useCluster().getInstanceId();
       await startCluster({ store: { get() {}, compareAndSet() {} } });
       await stopCluster();
       await startCluster({ store: { get() {}, compareAndSet() {} } });
       await cluster.restore();
       const next = useTestCluster();
       useCluster().waitUntilLeader({ timeout: 1e6 });
       console.log(Object.keys(require.cache).some((file) => file.endsWith(".node") || /whenleader.native\\.js|main.native/.test(file)));
       console.log(threads() - before, fs.readdirSync(".").filter((name) => !name.startsWith("program-")).join());
     })();`,
    { bare: true },
  );
  assert.equal(stderr, "");
  assert.equal(stdout, "false\n0 node_modules\n");
  assert.equal(code, 0);
});

test("an application that was used before it is refused, with the cure", async () => {
  const late = await runProgram(
    `whenLeader(function poll() {});
     setImmediate(() => {
       const { useTestCluster } = require("whenleader/testing");
       try { useTestCluster(); } catch (error) { say(error.name, error.message); }
     });`,
  );
  assert.match(late.stdout, /^ConfigError useTestCluster\(\) came too late: .*the fn poll given/);
  assert.match(late.stdout, /Import "whenleader\/testing" before the application/);
  const inTime = await runProgram(
    `whenLeader(function poll({ token }) { say("fn", token); });
     const { useTestCluster } = require("whenleader/testing");
     setImmediate(() => useTestCluster().promote());`,
  );
  assert.equal(inTime.stdout, "fn 1800000000000000\n", inTime.stderr);
});

test("where a real cluster runs a test cluster is refused, and after its stop it is not", async () => {
  const { stdout, stderr } = await runProgram(
    `const { useTestCluster } = require("whenleader/testing");
     const refused = () => {
       try { useTestCluster(); say("accepted"); } catch (error) { say(error.name, error.message); }
     };
     (async () => {
       const start = startCluster({ store: "file:x", leaseDuration: 1500, renewInterval: 500 });
       refused();
       await start;
       refused();
       await stopCluster();
       refused();
     })();`,
  );
  const [starting, running, stopped] = stdout.split("\n");
  for (const line of [starting, running]) {
    assert.match(line ?? "", /^ConfigError .*a real cluster runs .*await stopCluster\(\)/, stderr);
  }
  assert.equal(stopped, "accepted");
});

test("what work of runWhenLeader throws is kept for the test, but not what its end makes it throw", async () => {
  const { code, stdout, stderr } = await runProgram(
    `const { useTestCluster } = require("whenleader/testing");
     const { runWhenLeader } = require("whenleader");
     let round = 0;
     runWhenLeader("job", async ({ signal }) => {
       round += 1;
       await new Promise((resolve) => signal.addEventListener("abort", resolve));
       throw round === 1 ? signal.reason : new Error("its own");
     });
     (async () => {
       const cluster = useTestCluster();
       const job = cluster.election("job");
       for (const _ of [1, 2]) {
         await job.promote({ wait: "called" });
         await job.demote();
         say(cluster.callbackErrors.map(({ message }) => message).join());
       }
       await cluster.restore();
       process.exit(0);
     })();`,
  );
  assert.equal(code, 0, stderr);
  assert.equal(stdout, "\nits own\n");
});

test("work that the application stopped stays stopped in the next test, and its name is free", async () => {
  const { code, stdout, stderr } = await runProgram(
    `const { useTestCluster } = require("whenleader/testing");
     const { runWhenLeader } = require("whenleader");
     const work = ({ signal }) => new Promise((resolve) => signal.addEventListener("abort", resolve));
     const aborter = new AbortController();
     const first = runWhenLeader("first", work);
     runWhenLeader("second", work, { signal: aborter.signal });
     (async () => {
       const cluster = useTestCluster();
       await first.stop();
       aborter.abort();
       await cluster.restore();
       const next = useTestCluster();
       await first.done;
       for (const name of ["first", "second"]) await runWhenLeader(name, work).stop();
       say("free");
       await next.restore();
       process.exit(0);
     })();`,
  );
  assert.equal(code, 0, stderr);
  assert.equal(stdout, "free\n");
});

test("work of runWhenLeader obeys a test cluster, also with a cluster of its own, in one round after the other", async () => {
  const { code, stdout, stderr } = await runProgram(
    `const { useTestCluster } = require("whenleader/testing");
     const { runWhenLeader } = require("whenleader");
     const run = runWhenLeader("job", async ({ signal }) => {
       say("begins");
       await new Promise((resolve) => signal.addEventListener("abort", resolve));
       say("ends", signal.reason.reason);
     }, { cluster: { type: "StoreCluster", store: "file:never" } });
     run.on("promoted", () => say("promoted"));
     (async () => {
       for (const round of [1, 2]) {
         const cluster = useTestCluster();
         const job = cluster.election("job");
         await job.promote({ wait: "called" });
         say(round, run.isLeader());
         if (round === 1) await job.demote();
         else await run.stop();
         await cluster.restore();
       }
       say(require("node:fs").existsSync("never"));
       process.exit(0);
     })();`,
  );
  assert.equal(code, 0, stderr);
  const round = (number, reason) => `promoted\nbegins\n${number} true\nends ${reason}\n`;
  assert.equal(stdout, `${round(1, "taken")}${round(2, "stopped")}false\n`);
});
