// whenLeader(): when its callbacks run, and what their errors do.

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { fakeWorld, gate, settle, sleep, startedWorld } = require("./fake-native.js");
const { LeadershipLostError } = require("../index.js");

const unhandled = [];
process.on("unhandledRejection", (error) => unhandled.push(error));

/** Registers callbacks that write down what happens. */
function record(environment, { fn, deregistered, ...options } = {}) {
  const events = [];
  const remove = environment.whenLeader(
    async (term) => {
      events.push(`fn ${term.token}`);
      await fn?.(term);
      events.push(`fn ${term.token} ended`);
    },
    async (lost, term) => {
      events.push(`deregistered ${term.token} ${lost.reason}`);
      await deregistered?.(lost, term);
      events.push(`deregistered ${term.token} ended`);
    },
    options,
  );
  return { events, remove };
}

test("fn runs each time this instance becomes the leader, deregisteredFn each time it stops", async () => {
  const { environment, election } = await startedWorld();
  const { events } = record(environment);
  await settle();
  assert.deepEqual(events, []);
  election.promote(1);
  await settle();
  election.demote("taken");
  await settle();
  election.promote(5);
  await settle();
  election.demote("unreachable");
  await settle();
  assert.deepEqual(
    events.filter((event) => !event.endsWith("ended")),
    ["fn 1", "deregistered 1 taken", "fn 5", "deregistered 5 unreachable"],
  );
});

test("registering before the election started and while already leader both run fn", async () => {
  const { environment, native, logger } = fakeWorld();
  environment.expectCluster();
  const early = record(environment);
  await environment.startCluster({ cluster: {} }, logger);
  native.elections.get("leader").promote(3);
  const late = record(environment);
  assert.deepEqual(late.events, [], "not before the caller has the function that removes it");
  await settle();
  assert.deepEqual(early.events, ["fn 3", "fn 3 ended"]);
  assert.deepEqual(late.events, ["fn 3", "fn 3 ended"]);
});

test("deregisteredFn waits for a pending fn, whose signal is aborted at once", async () => {
  const { environment, election } = await startedWorld();
  const work = gate();
  let signal;
  const { events } = record(environment, {
    fn: (term) => {
      ({ signal } = term);
      return work.promise;
    },
  });
  election.promote(1);
  await settle();
  election.demote("taken");
  assert.equal(signal.aborted, true);
  assert.ok(signal.reason instanceof LeadershipLostError);
  assert.equal(signal.reason.reason, "taken");
  assert.equal(signal.reason.token, 1);
  await settle();
  assert.deepEqual(events, ["fn 1"]);
  work.open();
  await settle();
  assert.deepEqual(events, ["fn 1", "fn 1 ended", "deregistered 1 taken", "deregistered 1 ended"]);
});

test("the next fn waits for a pending deregisteredFn", async () => {
  const { environment, election } = await startedWorld();
  const cleanup = gate();
  const { events } = record(environment, { deregistered: () => cleanup.promise });
  election.promote(1);
  await settle();
  election.demote();
  await settle();
  election.promote(2);
  await settle();
  assert.deepEqual(events.at(-1), "deregistered 1 taken");
  cleanup.open();
  await settle();
  assert.deepEqual(events.slice(-3), ["deregistered 1 ended", "fn 2", "fn 2 ended"]);
});

test("of several terms that pass while a callback is pending only the newest runs", async () => {
  const { environment, election } = await startedWorld();
  const work = gate();
  const { events } = record(environment, {
    fn: ({ token }) => (token === 1 ? work.promise : null),
  });
  election.promote(1);
  await settle();
  for (const token of [2, 3, 4]) {
    election.demote();
    election.promote(token);
  }
  work.open();
  await settle();
  assert.deepEqual(events, [
    "fn 1",
    "fn 1 ended",
    "deregistered 1 taken",
    "deregistered 1 ended",
    "fn 4",
    "fn 4 ended",
  ]);
});

test("a fn of one registration does not hold up another's", async () => {
  const { environment, election } = await startedWorld();
  record(environment, { fn: () => new Promise(() => {}) });
  const { events } = record(environment);
  election.promote(1);
  await settle();
  election.demote();
  await settle();
  assert.equal(events.length, 4);
});

test("deregisteredFn does not run for a registration whose fn did not", async () => {
  const { environment, election } = await startedWorld();
  election.promote(1);
  const { events, remove } = record(environment);
  election.demote();
  await settle();
  await remove();
  assert.deepEqual(events, []);
});

test("any error of a callback is logged with election, token and function, and nothing else happens", async () => {
  const throwing = {
    // biome-ignore lint/suspicious/noThenProperty: such things exist.
    get then() {
      throw new Error("getter");
    },
  };
  const failures = [
    () => {
      throw new Error("sync");
    },
    () => {
      throw undefined;
    },
    async () => {
      throw null;
    },
    () => Promise.reject(new Error("rejected")),
    () => Promise.reject(undefined),
    () => throwing,
    () => ({
      // biome-ignore lint/suspicious/noThenProperty: such things exist.
      then() {
        throw "thenable";
      },
    }),
    () => ({
      // biome-ignore lint/suspicious/noThenProperty: such things exist.
      then(resolve, reject) {
        reject(Object.create(null));
        resolve();
        reject(1);
      },
    }),
    () =>
      Promise.reject(
        new Proxy(
          {},
          {
            get() {
              throw new Error("trap");
            },
            ownKeys() {
              throw new Error("trap");
            },
          },
        ),
      ),
  ];
  for (const failure of failures) {
    const { environment, election, lines } = await startedWorld();
    let deregistered = 0;
    environment.whenLeader(
      function work() {
        return failure();
      },
      function cleanup() {
        deregistered += 1;
        return failure();
      },
    );
    election.promote(7);
    await settle();
    election.demote();
    await settle();
    election.promote(8);
    await settle();
    const errors = lines.filter((line) => line.startsWith("error"));
    assert.equal(errors.length, 3, `${failure}: ${errors}`);
    assert.match(errors[0], /election=leader token=7 function=work/);
    assert.match(errors[1], /election=leader token=7 function=cleanup/);
    assert.match(errors[2], /election=leader token=8 function=work/);
    assert.equal(deregistered, 1);
    assert.deepEqual(election.settledTokens, [7]);
  }
  await sleep(10);
  assert.deepEqual(unhandled, []);
});

test("removing calls deregisteredFn if fn had run, and resolves at its end", async () => {
  const { environment, election } = await startedWorld();
  const cleanup = gate();
  let signal;
  const { events, remove } = record(environment, {
    fn: (term) => {
      ({ signal } = term);
    },
    deregistered: () => cleanup.promise,
  });
  election.promote(1);
  await settle();
  let removed = false;
  const ends = [remove(), remove()];
  ends[0].then(() => {
    removed = true;
  });
  assert.equal(signal.aborted, true);
  assert.equal(signal.reason.reason, "removed");
  await settle();
  assert.equal(removed, false);
  cleanup.open();
  await Promise.all(ends);
  assert.deepEqual(events.slice(2), ["deregistered 1 removed", "deregistered 1 ended"]);
  election.demote();
  election.promote(2);
  await settle();
  assert.equal(events.length, 4);
});

test("removing while fn is pending waits for fn and for deregisteredFn", async () => {
  const { environment, election } = await startedWorld();
  const { events, remove } = record(environment, {
    fn: ({ signal }) => new Promise((resolve) => signal.addEventListener("abort", resolve)),
  });
  election.promote(1);
  await settle();
  await remove();
  assert.deepEqual(events.slice(1), [
    "fn 1 ended",
    "deregistered 1 removed",
    "deregistered 1 ended",
  ]);
});

test("awaiting the removal inside of fn or of deregisteredFn does not wait for itself", async () => {
  for (const inFn of [true, false]) {
    for (const late of [true, false]) {
      const { environment, election } = await startedWorld();
      const self = async () => {
        if (late) await sleep(5);
        await registered.remove();
      };
      const registered = record(environment, inFn ? { fn: self } : { deregistered: self });
      election.promote(1);
      await sleep(late ? 20 : 1);
      election.demote();
      await sleep(late ? 20 : 1);
      await settle();
      assert.deepEqual(registered.events, [
        "fn 1",
        "fn 1 ended",
        `deregistered 1 ${inFn ? "removed" : "taken"}`,
        "deregistered 1 ended",
      ]);
    }
  }
});

test("a fn that waits for another registration's removal gets its real end", async () => {
  const { environment, election } = await startedWorld();
  const cleanup = gate();
  const other = record(environment, { deregistered: () => cleanup.promise });
  const { events } = record(environment, { fn: () => other.remove() });
  election.promote(1);
  await settle();
  assert.deepEqual(events, ["fn 1"]);
  cleanup.open();
  await settle();
  assert.deepEqual(events, ["fn 1", "fn 1 ended"]);
});

test("stop inside of a callback does not wait for itself, and no fn runs afterwards", async () => {
  for (const stop of ["stopCluster", "cluster.stop"]) {
    const { environment, cluster, election, native } = await startedWorld();
    const { events } = record(environment, {
      fn: async () => {
        await sleep(5);
        await (stop === "stopCluster" ? environment.stopCluster() : cluster.stop());
      },
    });
    election.promote(1);
    await sleep(50);
    assert.deepEqual(events.slice(1), [
      "fn 1 ended",
      "deregistered 1 stopped",
      "deregistered 1 ended",
    ]);
    assert.deepEqual(native.log, ["released leader", "stopCluster"]);
    election.promote(2);
    await settle();
    assert.equal(events.length, 4);
  }
});

test("stepDown or stop of one election inside of its callback does not wait for itself", async () => {
  for (const call of ["stepDown", "stop"]) {
    const { environment, native } = await startedWorld();
    const other = environment.useCluster("other");
    const { events } = record(environment, {
      fn: async () => {
        await sleep(5);
        await other[call]();
      },
      election: "other",
    });
    native.elections.get("other").promote(1);
    await sleep(50);
    const reason = call === "stop" ? "stopped" : "steppedDown";
    assert.deepEqual(events.slice(1), [
      "fn 1 ended",
      `deregistered 1 ${reason}`,
      "deregistered 1 ended",
    ]);
    assert.deepEqual(native.elections.get("other").settledTokens, [1]);
  }
});

test("what a callback began and left behind is no longer inside of it", async () => {
  const { environment, election } = await startedWorld();
  const cleanup = gate();
  let removed = false;
  const { remove } = record(environment, {
    fn: () => {
      setTimeout(async () => {
        await remove();
        removed = true;
      }, 5);
    },
    deregistered: () => cleanup.promise,
  });
  election.promote();
  await sleep(30);
  assert.equal(removed, false);
  cleanup.open();
  await settle();
  assert.equal(removed, true);
});

test("a term that ends while its first callbacks run begins for nobody else", async () => {
  for (const first of ["listener", "fn"]) {
    const { environment, cluster, election } = await startedWorld();
    const stepDown = () => {
      cluster.stepDown();
    };
    if (first === "listener") cluster.on("promoted", stepDown);
    else environment.whenLeader(stepDown);
    const { events } = record(environment);
    election.promote(1);
    await settle();
    assert.deepEqual(events, []);
  }
});

test("whenLeader inside of a callback registers", async () => {
  const { environment, election } = await startedWorld();
  let inner;
  record(environment, {
    fn: () => {
      inner = record(environment);
    },
  });
  election.promote(1);
  await settle();
  assert.deepEqual(inner.events, ["fn 1", "fn 1 ended"]);
});

test("the lease is kept until the callbacks of all registrations have ended", async () => {
  const { environment, election } = await startedWorld();
  const [first, second] = [gate(), gate()];
  record(environment, { deregistered: () => first.promise });
  const { remove } = record(environment, { deregistered: () => second.promise });
  election.promote(1);
  await settle();
  remove(); // Its deregisteredFn runs already, and must be waited for all the same.
  election.demote();
  first.open();
  await settle();
  assert.deepEqual(election.settledTokens, []);
  second.open();
  await settle();
  assert.deepEqual(election.settledTokens, [1]);
});

test("a lost term without registrations is settled at once", async () => {
  const { election } = await startedWorld();
  election.promote(1);
  election.demote();
  await settle();
  assert.deepEqual(election.settledTokens, [1]);
});

test("a term that passed while an older one's fn is pending is settled after that fn", async () => {
  const { environment, election } = await startedWorld();
  const work = gate();
  record(environment, { fn: () => work.promise });
  election.promote(1);
  await settle();
  election.demote();
  election.promote(2);
  election.demote();
  await settle();
  assert.deepEqual(election.settledTokens, []);
  work.open();
  await settle();
  assert.deepEqual(election.settledTokens, [1, 2]);
});

test("the term tells its election, instance, token, and whether it is current", async () => {
  const { environment, election } = await startedWorld();
  const terms = [];
  environment.whenLeader((term) => terms.push(term));
  election.promote(4);
  const [term] = terms;
  assert.equal(term.election, "leader");
  assert.equal(term.instanceId, "fake-1");
  assert.equal(term.token, 4);
  assert.equal(term.signal.aborted, false);
  assert.equal(term.isCurrent(), true);
  assert.equal(term.remaining(), 1000);
  election.leads = false; // The deadline passed, and nobody has told us yet.
  assert.equal(term.isCurrent(), false);
  assert.equal(term.remaining(), 0);
  election.demote();
  election.promote(5);
  assert.equal(term.isCurrent(), false);
  assert.equal(terms[1].isCurrent(), true);
  environment.useCluster().stepDown();
  assert.equal(terms[1].isCurrent(), false, "before the source has heard of it");
});

test("the order of a term: answer, event, fn; its end: answer, signals, event, deregisteredFn", async () => {
  const { environment, cluster, election } = await startedWorld();
  const order = [];
  const note = (what) => order.push(`${what} leads=${cluster.isLeader()}`);
  cluster.on("promoted", () => note("promoted"));
  cluster.on("demoted", () => note("demoted"));
  for (const name of ["a", "b"]) {
    environment.whenLeader(
      (term) => {
        note(`fn ${name}`);
        term.signal.addEventListener("abort", () => note(`abort ${name}`));
      },
      () => note(`deregistered ${name}`),
    );
  }
  election.promote();
  election.demote();
  assert.deepEqual(order, [
    "promoted leads=true",
    "fn a leads=true",
    "fn b leads=true",
    "abort a leads=false",
    "abort b leads=false",
    "demoted leads=false",
    "deregistered a leads=false",
    "deregistered b leads=false",
  ]);
});

test("a registration takes part in the election that its options name", async () => {
  const { environment, native, election } = await startedWorld();
  const reports = record(environment, { election: "reports" });
  const { events } = record(environment);
  native.elections.get("reports").promote(1);
  await settle();
  assert.deepEqual(reports.events, ["fn 1", "fn 1 ended"]);
  assert.deepEqual(events, []);
  election.promote(1);
  await settle();
  assert.equal(events.length, 2);
});

test("a name that the store refuses is thrown at the call, or logged if it came before the start", async () => {
  const { environment, logger, lines } = fakeWorld();
  environment.expectCluster();
  record(environment, { election: "refused" });
  const { events } = record(environment);
  await environment.startCluster({ cluster: {} }, logger);
  assert.equal(lines.length, 1);
  assert.match(lines[0], /^error .*election=refused .*no such name/);
  assert.throws(() => record(environment, { election: "refused" }), { name: "ConfigError" });
  assert.deepEqual(events, []);
});

test("nothing is left of a hundred thousand registrations that were removed", async () => {
  const { environment, election } = await startedWorld();
  election.promote(1);
  let runs = 0;
  const count = () => {
    runs += 1;
  };
  for (let i = 0; i < 100_000; i += 1) environment.whenLeader(count)();
  await settle();
  assert.equal(runs, 0);
  for (let i = 0; i < 100; i += 1) {
    const remove = environment.whenLeader(count);
    await null;
    await remove();
  }
  assert.equal(runs, 100);
});

test("fn does not run for a term that is over before the news of it came, and the lease is settled", async () => {
  const { environment, cluster, election } = await startedWorld();
  const { events } = record(environment);
  const heard = [];
  cluster.on("promoted", ({ token }) => heard.push(token));
  const wait = cluster.waitUntilLeader();
  election.promoteLate(1);
  await settle();
  assert.deepEqual([events, heard], [[], []]);
  election.demote("expired");
  await settle();
  assert.deepEqual(election.settledTokens, [1]);
  election.promote(2);
  assert.equal((await wait).token, 2);
  await settle();
  assert.deepEqual([events, heard], [["fn 2", "fn 2 ended"], [2]]);
});

test("fn does not run if it is registered, or becomes due, after the term ended and before the news of it", async () => {
  const { environment, cluster, election } = await startedWorld();
  const slow = gate();
  const first = record(environment, { deregistered: () => slow.promise });
  election.promote(1);
  await settle();
  election.demote("taken");
  election.promote(2);
  await settle();
  election.leads = false; // The process was frozen; `demoted` is still to come.
  const late = record(environment);
  const wait = cluster.waitUntilLeader();
  slow.open();
  await settle();
  assert.deepEqual(first.events.slice(-2), ["deregistered 1 taken", "deregistered 1 ended"]);
  assert.deepEqual(late.events, []);
  election.demote("expired");
  await settle();
  assert.deepEqual(first.events.slice(-1), ["deregistered 1 ended"]);
  election.promote(3);
  assert.equal((await wait).token, 3);
  await settle();
  assert.deepEqual(first.events.slice(-2), ["fn 3", "fn 3 ended"]);
  assert.deepEqual(late.events, ["fn 3", "fn 3 ended"]);
});

test("a listener that takes longer than the lease keeps fn from running", async () => {
  const { environment, cluster, election } = await startedWorld();
  const { events } = record(environment);
  cluster.on("promoted", () => {
    election.leads = false;
  });
  election.promote(1);
  await settle();
  assert.deepEqual(events, []);
});

test("a fn that gives a thenable that is no promise is waited for", async () => {
  const { environment, election } = await startedWorld();
  let resolve;
  const events = [];
  environment.whenLeader(
    () => ({
      // biome-ignore lint/suspicious/noThenProperty: it is what is tested.
      then: (done) => {
        resolve = done;
      },
    }),
    () => events.push("deregistered"),
  );
  election.promote(1);
  await settle();
  election.demote();
  await settle();
  assert.deepEqual([events, election.settledTokens], [[], []]);
  resolve();
  await settle();
  assert.deepEqual([events, election.settledTokens], [["deregistered"], [1]]);
});

test("removing at the moment of a loss runs deregisteredFn once, with the reason of the loss", async () => {
  for (const when of ["abort", "demoted", "deregisteredFn", "the same turn"]) {
    const { environment, cluster, election } = await startedWorld();
    const events = [];
    const removals = [];
    const remove = environment.whenLeader(
      ({ signal }) => {
        events.push("fn");
        if (when === "abort") signal.addEventListener("abort", () => removals.push(remove()));
      },
      ({ reason }) => {
        events.push(reason);
        if (when === "deregisteredFn") removals.push(remove());
      },
    );
    if (when === "demoted") cluster.on("demoted", () => removals.push(remove()));
    election.promote(1);
    await settle();
    election.demote("taken");
    if (when === "the same turn") removals.push(remove());
    assert.equal(removals.length, 1, when);
    await removals[0];
    await settle();
    election.promote(2);
    await settle();
    assert.deepEqual(events, ["fn", "taken"], when);
    assert.deepEqual(election.settledTokens, [1], when);
  }
});

test("a callback's name may be anything, or throw, and it runs", async () => {
  const { environment, election, lines } = await startedWorld();
  for (const name of [
    { value: Object.create(null) },
    { value: "" },
    {
      get() {
        throw new Error("a name that throws");
      },
    },
  ]) {
    let ran = 0;
    const odd = () => {
      ran += 1;
      throw new Error("a failure that is logged");
    };
    Object.defineProperty(odd, "name", name);
    const remove = environment.whenLeader(odd, odd);
    election.promote();
    await settle();
    election.demote();
    await settle();
    assert.equal(ran, 2);
    await remove();
  }
  assert.equal(lines.length, 6);
  for (const line of lines) assert.match(line, /anonymous function.*a failure that is logged/);
});
