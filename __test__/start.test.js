// Which cluster this process takes part in, and when it starts.

const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const { test } = require("node:test");
const { inspect } = require("node:util");
const vm = require("node:vm");
const { Standing } = require("../lib/election.js");
const { CONFIG, fakeWorld, gate, settle, sleep } = require("./fake-native.js");
const { newFolder } = require("./support/temp.js");

function folder(files = {}) {
  const at = newFolder();
  for (const [name, content] of Object.entries(files))
    fs.writeFileSync(path.join(at, name), content);
  return at;
}

/** A world that finds nothing. */
function lonely(overrides) {
  const at = folder();
  return fakeWorld({ cwd: () => at, ...overrides });
}

function configured(overrides) {
  const at = folder({ "whenleader.config.json": JSON.stringify(CONFIG) });
  return fakeWorld({ cwd: () => at, ...overrides });
}

const refuseNative = () => {
  throw new Error("the native part was loaded");
};

/** Whether a token is as large as one of a store would be now: the time in microseconds. */
function isOfNow(token) {
  return Math.abs(token / 1_000 - Date.now()) < 3_600_000;
}

test("without a configuration fn runs at once, and the process always leads", async () => {
  const { environment } = lonely({ loadNative: refuseNative });
  const terms = [];
  environment.whenLeader((term) => terms.push(term));
  await null;
  await null;
  assert.equal(terms.length, 1);
  assert.ok(isOfNow(terms[0].token), `${terms[0].token}`);
  assert.equal(terms[0].remaining(), Number.POSITIVE_INFINITY);
  assert.equal(terms[0].isCurrent(), true);
  assert.match(terms[0].traceId, /^[0-9a-f]{32}$/);
  assert.equal(environment.useCluster().isLeader(), true);
  assert.equal(environment.useCluster("another").isLeader(), true);
});

test("without a configuration the first question is answered already", () => {
  const { environment } = lonely();
  assert.equal(environment.useCluster().isLeader(), true);
});

test("the local cluster's id is the native side's, or one of its form if that cannot be loaded", () => {
  assert.equal(lonely().environment.useCluster().getInstanceId(), "fake-default");
  const env = { HOSTNAME: "host" };
  const { environment } = lonely({ loadNative: refuseNative, env });
  const id = environment.useCluster().getInstanceId();
  assert.match(id, new RegExp(`^host-${process.pid}-[0-9a-f]{8}$`));
  assert.equal(environment.useCluster().getInstanceId(), id);
});

test("the local token is the time, grows with each round of stepDown, and deregisteredFn runs", async () => {
  const { environment } = lonely();
  const events = [];
  environment.whenLeader(
    ({ token }) => events.push(token),
    (lost) => events.push(lost.reason),
  );
  await settle();
  const cluster = environment.useCluster();
  await cluster.stepDown();
  assert.equal(cluster.isLeader(), false);
  const { token } = await cluster.waitUntilLeader({ timeout: 5000 });
  const [first] = events;
  assert.ok(isOfNow(first) && token > first, `${token} after ${first}`);
  const paused = Date.now();
  await cluster.stepDown({ pause: 50 });
  const third = (await cluster.waitUntilLeader()).token;
  assert.ok(third > token, `${third} after ${token}`);
  assert.ok(Date.now() - paused >= 45);
  await environment.stopCluster();
  assert.deepEqual(events, [first, "steppedDown", token, "steppedDown", third, "stopped"]);
  assert.equal(cluster.isLeader(), false);
});

test("a local election that ends in the turn in which it began was never led", async () => {
  const { environment } = lonely();
  await environment.useCluster().waitUntilLeader();
  const other = environment.useCluster("other");
  const heard = [];
  for (const event of ["promoted", "demoted"]) other.on(event, () => heard.push(event));
  assert.equal(other.isLeader(), true);
  const down = other.stepDown({ pause: 60_000 });
  assert.equal(other.isLeader(), false);
  await down;
  await settle();
  assert.deepEqual(heard, []);
  assert.equal(other.isLeader(), false);
});

test("a local election that was stopped while it paused does not lead again", async () => {
  const { environment } = lonely();
  const other = environment.useCluster("other");
  const { token } = await other.waitUntilLeader();
  assert.ok(isOfNow(token), `${token}`);
  await environment.useCluster().waitUntilLeader();
  other.stepDown({ pause: 20 });
  await settle();
  await other.stop();
  const terms = [];
  other.on("promoted", (term) => terms.push(term));
  await sleep(50);
  assert.deepEqual(terms, []);
  assert.equal(other.isLeader(), false);
  assert.equal(environment.useCluster().isLeader(), true);
});

test("a term of the local cluster is not current in a later one", async () => {
  const { environment } = lonely();
  const cluster = environment.useCluster();
  const first = await cluster.waitUntilLeader();
  await cluster.stepDown();
  const second = await cluster.waitUntilLeader();
  assert.deepEqual([first.isCurrent(), second.isCurrent()], [false, true]);
  assert.deepEqual([first.remaining(), second.remaining()], [0, Number.POSITIVE_INFINITY]);
});

test("registrations end with a stop, also those that still waited", async () => {
  const { environment, native, logger } = lonely();
  environment.expectCluster();
  const terms = [];
  environment.whenLeader((term) => terms.push(term));
  await environment.stopCluster();
  await environment.startCluster(CONFIG, logger);
  native.elections.get("leader").promote();
  assert.deepEqual(terms, []);
});

test("startCluster waits for a stop that is under way", async () => {
  const { environment, native, logger } = lonely();
  await environment.startCluster(CONFIG, logger);
  const first = native.elections.get("leader");
  first.promote();
  const stopped = environment.stopCluster();
  const cluster = await environment.startCluster(CONFIG);
  await stopped;
  assert.deepEqual(native.log, ["released leader", "stopCluster"]);
  assert.notEqual(native.elections.get("leader"), first);
  native.elections.get("leader").promote();
  assert.equal(cluster.isLeader(), true);
});

test("after a stop nobody leads until startCluster is called", async () => {
  const { environment, logger, lines } = lonely();
  const cluster = environment.useCluster();
  await cluster.waitUntilLeader();
  await environment.stopCluster();
  environment.useLogger(logger);
  const terms = [];
  environment.whenLeader((term) => terms.push(term));
  await settle();
  assert.equal(cluster.isLeader(), false);
  assert.deepEqual(terms, []);
  assert.match(lines.join(), /^warn [^,]*after stopCluster[^,]*$/);
  assert.equal(await environment.startCluster(), cluster);
  await settle();
  assert.equal(cluster.isLeader(), true);
  assert.equal(terms.length, 1);
});

test("a configuration that is found starts the cluster at the first use, and registrations wait for it", async () => {
  const { environment, native } = configured();
  native.startGate = gate().promise;
  const terms = [];
  environment.whenLeader((term) => terms.push(term));
  await settle();
  assert.match(native.checked.source, /whenleader\.config\.json$/);
  assert.equal(environment.useCluster().isLeader(), false);
  assert.equal(environment.useCluster().getInstanceId(), "fake-1");
  assert.equal(environment.useCluster().election, "leader");
  assert.deepEqual(terms, []);
});

test("a configuration that is found but refused is thrown at the first use, and again at the next", () => {
  const { environment, native } = configured();
  native.configError = 'leaseDuration must be a number, not "15s"';
  for (let i = 0; i < 2; i += 1) {
    assert.throws(() => environment.whenLeader(() => {}), {
      name: "ConfigError",
      code: "WHENLEADER_CONFIG",
      message: /leaseDuration/,
    });
  }
});

test("a store that refuses an implicit start is an error event and a log, and nobody leads", async () => {
  const { environment, native, lines, logger } = configured();
  const refusal = gate();
  native.startGate = refusal.promise;
  const cluster = environment.useCluster();
  const errors = [];
  cluster.on("error", (error) => errors.push(error));
  await settle();
  const started = environment.startCluster(undefined, logger); // Waits for the same start.
  refusal.fail(Object.assign(new Error("wrong password"), { code: "WHENLEADER_STORE" }));
  await assert.rejects(started, {
    code: "WHENLEADER_STORE",
    fatal: true,
    message: "wrong password",
  });
  await settle();
  assert.equal(errors.length, 1);
  assert.equal(errors[0].message, "wrong password");
  assert.match(lines.join(), /error .*did not start.*wrong password/);
  assert.equal(cluster.isLeader(), false);
  native.startGate = Promise.resolve();
  await environment.startCluster();
  native.elections.get("leader").promote();
  assert.equal(cluster.isLeader(), true);
});

test("expectCluster makes registrations and questions wait for startCluster", async () => {
  const { environment, native, logger } = lonely();
  environment.expectCluster();
  const terms = [];
  environment.whenLeader((term) => terms.push(term));
  const cluster = environment.useCluster();
  await settle();
  assert.equal(cluster.isLeader(), false);
  assert.equal(cluster.election, undefined);
  assert.deepEqual(terms, []);
  assert.equal(await environment.startCluster(CONFIG, logger), cluster);
  native.elections.get("leader").promote(9);
  assert.equal(cluster.isLeader(), true);
  assert.equal(terms[0].token, 9);
  environment.expectCluster(); // Too late to matter, and no harm.
  assert.equal(cluster.isLeader(), true);
});

test("an expectCluster that no startCluster follows is told of once", async () => {
  for (const [registered, started] of [
    [true, false],
    [false, false],
    [true, true],
  ]) {
    const { environment, logger, lines } = lonely();
    environment.useLogger(logger);
    environment.expectCluster();
    if (registered) environment.whenLeader(() => {});
    if (started) await environment.startCluster(CONFIG);
    await sleep(60);
    const told = registered && !started;
    assert.equal(lines.length, told ? 1 : 0);
    if (told) assert.match(lines[0], /^warn .*expectCluster.*1 registrations wait/);
  }
});

test("startCluster in the same turn as the first registrations is early enough", async () => {
  for (const make of [lonely, configured]) {
    const { environment, native, logger } = make();
    const terms = [];
    environment.whenLeader((term) => terms.push(term));
    environment.useCluster().getLeader();
    await environment.startCluster({ cluster: { store: "fake://explicit" } }, logger);
    assert.match(native.running, /explicit/);
    assert.deepEqual(terms, []);
    native.elections.get("leader").promote(2);
    assert.equal(terms[0].token, 2);
  }
});

test("startCluster after the implicit local cluster led for somebody is refused with the cures", async () => {
  const led = [
    (environment) => environment.useCluster().isLeader(),
    async (environment) => {
      const cluster = environment.useCluster();
      await settle();
      cluster.isLeader();
    },
    async (environment) => {
      environment.useCluster();
      await settle();
      environment.useCluster("another").isLeader();
    },
    (environment) => environment.whenLeader(function job() {}),
    (environment) => environment.useCluster().waitUntilLeader(),
    (environment) => environment.useCluster().on("promoted", () => {}),
  ];
  for (const lead of led) {
    const { environment, native } = lonely();
    await Promise.race([lead(environment), settle()]);
    await settle();
    await assert.rejects(environment.startCluster(CONFIG), (error) => {
      assert.equal(error.name, "ConfigError");
      for (const cure of ["whenleader.config.json", "expectCluster()", "startCluster() first"]) {
        assert.ok(error.message.includes(cure), error.message);
      }
      return true;
    });
    assert.throws(() => environment.expectCluster(), { name: "ConfigError" });
    assert.equal(native.running, null);
    assert.equal(environment.useCluster().isLeader(), true, "it goes on as it was");
  }
});

test("an isLeader that answered true counts as having led, in the very same turn and later", async () => {
  for (const wait of [() => {}, settle]) {
    for (const call of ["startCluster", "expectCluster"]) {
      const { environment, native } = lonely();
      const cluster = environment.useCluster();
      await wait();
      assert.equal(cluster.isLeader(), true);
      await assert.rejects(async () => environment[call](CONFIG), {
        name: "ConfigError",
        message: /came too late.* for isLeader\(\), .*expectCluster\(\) before the first use/,
      });
      assert.equal(native.running, null);
      assert.equal(cluster.isLeader(), true, "it goes on as it was");
    }
  }
  const { environment, native, logger } = lonely();
  environment.expectCluster();
  assert.equal(environment.useCluster().isLeader(), false, "a health probe that was expected");
  await environment.startCluster(CONFIG, logger);
  assert.notEqual(native.running, null);
});

test("an isLeader that answered false has led nobody", async () => {
  const { environment, native, logger } = lonely();
  const cluster = environment.useCluster();
  await settle();
  await cluster.stepDown({ pause: 60_000 });
  assert.equal(cluster.isLeader(), false);
  await environment.startCluster(CONFIG, logger);
  assert.notEqual(native.running, null);
});

test("what an isLeader that has led once costs is what it cost without", () => {
  const questions = [];
  const standing = new Standing(true, () => questions.push("asked") > 1);
  const { ask } = standing;
  let told = 0;
  standing.onFirstTrue(() => {
    told += 1;
  });
  assert.deepEqual([standing.leads, told], [false, 0]);
  assert.notEqual(standing.ask, ask);
  assert.deepEqual([standing.leads, told], [true, 1]);
  assert.equal(standing.ask, ask);
  assert.deepEqual([standing.leads, told], [true, 1]);
});

test("startCluster replaces an implicit local cluster that has not been used to lead", async () => {
  const { environment, native, logger } = lonely();
  const cluster = environment.useCluster();
  const heard = [];
  cluster.on("demoted", () => heard.push("demoted"));
  await settle();
  assert.match(inspect(cluster), /leader/, "shown to people only");
  assert.ok(isOfNow(cluster.getLeader().token));
  await environment.startCluster(CONFIG, logger);
  assert.equal(cluster.isLeader(), false);
  native.elections.get("leader").promote();
  assert.equal(cluster.isLeader(), true);
  assert.deepEqual(heard, []);
});

test("a second startCluster with the same configuration gives the same cluster, another is refused", async () => {
  const { environment, logger, native } = lonely();
  const [first, second] = await Promise.all([
    environment.startCluster(CONFIG, logger),
    environment.startCluster(CONFIG),
  ]);
  assert.equal(first, second);
  assert.equal(await environment.startCluster(), first);
  await assert.rejects(environment.startCluster({ cluster: { store: "fake://other" } }), {
    name: "ConfigError",
    message: "another configuration",
  });
  assert.equal(native.attached, 1);
});

test("a cluster that is stopped while it starts does not run afterwards", async () => {
  const { environment, native, logger } = lonely();
  const opened = gate();
  native.startGate = opened.promise;
  const started = environment.startCluster(CONFIG, logger);
  started.catch(() => {});
  const stopped = environment.stopCluster();
  opened.open();
  await assert.rejects(started, { code: "WHENLEADER_STOPPED" });
  await stopped;
  assert.equal(native.running, null);
  assert.deepEqual(native.log, ["stopCluster"]);
  await environment.startCluster(CONFIG);
  assert.equal(native.elections.get("leader").stopped, false);
});

test("startCluster refuses what is no configuration, naming it", async () => {
  for (const bad of [null, 5, "redis://h", [], true]) {
    await assert.rejects(lonely().environment.startCluster(bad), {
      name: "ConfigError",
      message: /takes an object/,
    });
  }
  const cycle = {};
  cycle.cluster = cycle;
  await assert.rejects(lonely().environment.startCluster(cycle), { message: /refers to itself/ });
  for (const bad of [5, {}, { error() {} }, "console"]) {
    await assert.rejects(lonely().environment.startCluster(CONFIG, bad), {
      name: "ConfigError",
      message: /"logger" must be/,
    });
  }
});

test("a logger in the configuration is used, and stays out of its JSON", async () => {
  const { environment, native, logger, lines } = lonely();
  native.info.warnings = ["careful"];
  await environment.startCluster({ cluster: { type: "StoreCluster", logger } });
  assert.deepEqual(JSON.parse(native.checked.json), { cluster: { type: "StoreCluster" } });
  assert.deepEqual(lines, ["warn whenleader: careful"]);
});

test("a logger is taken from the cluster's own parameters only, in each form", async () => {
  const type = "StoreCluster";
  for (const [wrap, plain] of [
    [(logger) => ({ cluster: { type, logger } }), { cluster: { type } }],
    [(logger) => ({ type, logger }), { type }],
    [
      (logger) => ({ services: { logger: { type: "Log", logger: {} }, mine: { type, logger } } }),
      { services: { logger: { type: "Log", logger: {} }, mine: { type } } },
    ],
  ]) {
    const { environment, native, logger, lines } = lonely();
    native.info.warnings = ["careful"];
    await environment.startCluster(wrap(logger));
    assert.deepEqual(JSON.parse(native.checked.json), plain);
    assert.deepEqual(lines, ["warn whenleader: careful"]);
    for (const bad of [5, "console", {}, false]) {
      await assert.rejects(lonely().environment.startCluster(wrap(bad)), {
        name: "ConfigError",
        message: /"logger" must be/,
      });
    }
  }
  await assert.rejects(lonely().environment.startCluster({ cluster: { type }, logger: console }), {
    name: "ConfigError",
    message: /logger .*beside/,
  });
});

test("signs of several instances without a configuration get one warning that each leads", async () => {
  const signs = [
    { env: { KUBERNETES_SERVICE_HOST: "10.0.0.1" } },
    { env: { NODE_UNIQUE_ID: "1" } },
    { env: { NODE_APP_INSTANCE: "0" } },
    { isClusterWorker: () => true },
  ];
  for (const sign of signs) {
    const { environment, logger, lines } = lonely(sign);
    await environment.startCluster(undefined, logger);
    environment.whenLeader(() => {});
    await settle();
    assert.equal(lines.length, 1);
    assert.match(lines[0], /^warn .*each instance leads/);
  }
  const alone = lonely();
  await alone.environment.startCluster(undefined, alone.logger);
  assert.deepEqual(alone.lines, []);
  const found = configured(signs[0]);
  await found.environment.startCluster(undefined, found.logger);
  assert.deepEqual(found.lines, []);
});

test("a worker joins the cluster that its process runs, whatever configuration it finds itself", async () => {
  for (const make of [lonely, configured]) {
    const { environment, native } = make({ isMainThread: false });
    native.running = "started by another thread";
    const terms = [];
    environment.whenLeader((term) => terms.push(term));
    await settle();
    assert.equal(native.checked, undefined);
    native.elections.get("leader").promote(3);
    assert.equal(terms[0].token, 3);
    await environment.stopCluster();
    assert.equal(native.running, "started by another thread", "it only left");
  }
  const { environment } = lonely({ isMainThread: false });
  assert.equal(environment.useCluster().isLeader(), true);
});

test("a cluster that another thread stopped is left here too, and the next one is joined at the next use", async () => {
  const { environment, native, lines, logger } = lonely({ isMainThread: false });
  native.running = "started by another thread";
  environment.useLogger(logger);
  const events = [];
  const register = (name) =>
    environment.whenLeader(
      ({ token }) => events.push(`${name} fn ${token}`),
      ({ reason }) => events.push(`${name} deregistered ${reason}`),
    );
  register("first");
  const cluster = environment.useCluster();
  await settle();
  native.elections.get("leader").promote(3);
  native.elections.get("leader").demote("taken");
  const wait = cluster.waitUntilLeader();
  await settle();
  events.length = 0;
  native.running = null;
  native.dispatch({ type: "left", election: "leader" });
  await assert.rejects(wait, { code: "WHENLEADER_STOPPED" });
  assert.deepEqual(cluster.getLeader(), { instanceId: "fake-1", token: 3 });
  await settle();
  register("second");
  await settle();
  assert.deepEqual(events, []);
  assert.match(
    lines.join("\n"),
    /warn .*fn was registered after another thread stopped the cluster/,
  );
  native.running = "again";
  register("third");
  await settle();
  native.elections.get("leader").promote(5);
  await settle();
  assert.deepEqual(events, ["second fn 5", "third fn 5"]);
  assert.equal(environment.useCluster(), cluster);
  assert.equal(cluster.isLeader(), true);
  // A stop of its own is one: nobody leads here until startCluster().
  await environment.stopCluster();
  register("fourth");
  await settle();
  assert.deepEqual(events.slice(2), ["second deregistered stopped", "third deregistered stopped"]);
});

test("a fn that is registered while a stop is under way is told to wait", async () => {
  const { environment, logger, lines } = lonely();
  await environment.startCluster(CONFIG, logger);
  const stopped = environment.stopCluster();
  environment.whenLeader(function late() {});
  assert.match(lines.join("\n"), /warn .*after stopCluster\(\): it waits for startCluster.*late/);
  await stopped;
});

test("a worker that comes while its process stops the cluster waits for nothing", async () => {
  const { environment, native, lines, logger } = lonely({ isMainThread: false });
  environment.useLogger(logger);
  native.running = "being stopped";
  const { joinElection } = native;
  native.joinElection = () => {
    throw Object.assign(new Error("the cluster is being stopped"), { code: "WHENLEADER_CONFIG" });
  };
  const cluster = environment.useCluster();
  await assert.rejects(cluster.waitUntilLeader(), { code: "WHENLEADER_STOPPED" });
  assert.match(lines[0], /error .*cannot take part in an election/);
  // Once a cluster runs again, the next use joins it.
  native.joinElection = joinElection;
  await settle();
  const terms = [];
  environment.whenLeader((term) => terms.push(term));
  await settle();
  native.elections.get("leader").promote(2);
  assert.equal(terms[0].token, 2);
  assert.equal(cluster.isLeader(), true);
});

test("only the main thread watches for exits, until its cluster is stopped", async () => {
  for (const isMainThread of [true, false]) {
    let watching = 0;
    const watchExit = () => {
      watching += 1;
      return () => {
        watching -= 1;
      };
    };
    const local = lonely({ watchExit, isMainThread });
    await local.environment.startCluster();
    assert.equal(watching, isMainThread ? 1 : 0);
    await local.environment.stopCluster();
    assert.equal(watching, 0);
    const { environment, logger } = lonely({ watchExit, isMainThread });
    await environment.startCluster(CONFIG, logger);
    assert.equal(watching, isMainThread ? 1 : 0);
    await environment.stopCluster();
    assert.equal(watching, 0);
  }
});

test("an implicit local cluster that gives way leaves no exit listeners behind", async () => {
  const watched = [];
  const watchExit = ({ signals }) => {
    const watch = { signals, over: false };
    watched.push(watch);
    return () => {
      watch.over = true;
    };
  };
  const { environment, native, logger } = lonely({ watchExit });
  environment.useCluster();
  await settle();
  native.info = { ...native.info, signals: false };
  await environment.startCluster(CONFIG, logger);
  assert.deepEqual(watched, [
    { signals: true, over: true },
    { signals: false, over: false },
  ]);
});

test("a store that refuses a start says why, in a word for programs", async () => {
  const { environment, native, logger } = lonely();
  native.startGate = Promise.reject(
    Object.assign(new Error("the store is read-only"), {
      code: "WHENLEADER_STORE",
      reason: "read-only",
    }),
  );
  await assert.rejects(environment.startCluster(CONFIG, logger), {
    name: "ElectionError",
    code: "WHENLEADER_STORE",
    reason: "read-only",
    fatal: true,
    election: "leader",
  });
});

test("no fn runs after stop, also if it was called before the cluster started", async () => {
  for (const make of [lonely, configured]) {
    const { environment, logger } = make();
    environment.useLogger(logger);
    const fns = [];
    environment.whenLeader(() => fns.push("early"));
    const cluster = environment.useCluster();
    await cluster.stop();
    assert.equal(cluster.isLeader(), false);
    environment.whenLeader(() => fns.push("late"));
    await settle();
    assert.deepEqual(fns, []);
  }
});

test("a stop of one election before the start leaves the others to start", async () => {
  const { environment, native, lines, logger } = lonely();
  environment.expectCluster();
  const fns = [];
  const register = (name, election) =>
    environment.whenLeader(() => fns.push(name), null, { election });
  register("other");
  register("jobs, early", "jobs");
  const jobs = environment.useCluster("jobs");
  const wait = jobs.waitUntilLeader();
  await Promise.all([jobs.stop(), assert.rejects(wait, { code: "WHENLEADER_STOPPED" })]);
  await assert.rejects(jobs.waitUntilLeader(), { code: "WHENLEADER_STOPPED" });
  register("jobs, late", "jobs");
  await environment.startCluster(CONFIG, logger);
  native.elections.get("leader").promote(1);
  native.elections.get("jobs")?.promote(1);
  await settle();
  assert.deepEqual(fns, ["other"]);
  assert.equal(jobs.isLeader(), false);
  assert.match(lines.join("\n"), /election that was stopped here, and will not run.*jobs/);
});

test("who waits while a cluster is started again waits for the new one, and knows the last leader", async () => {
  const { environment, native, logger } = lonely();
  const cluster = await environment.startCluster(CONFIG, logger);
  native.elections.get("leader").promote(7);
  await environment.stopCluster();
  await assert.rejects(cluster.waitUntilLeader(), { code: "WHENLEADER_STOPPED" });
  const opened = gate();
  native.startGate = opened.promise;
  const started = environment.startCluster(CONFIG, logger);
  const wait = cluster.waitUntilLeader();
  await settle();
  assert.equal(cluster.isLeader(), false);
  assert.deepEqual(cluster.getLeader(), { instanceId: "fake-1", token: 7 });
  opened.open();
  await started;
  assert.deepEqual(cluster.getLeader(), { instanceId: "fake-1", token: 7 });
  native.elections.get("leader").promote(8);
  assert.equal((await wait).token, 8);
  // The same while the stop is still under way.
  const stopped = environment.stopCluster();
  const again = environment.startCluster(CONFIG, logger);
  const next = cluster.waitUntilLeader();
  await Promise.all([stopped, again]);
  native.elections.get("leader").promote(9);
  assert.equal((await next).token, 9);
  await environment.stopCluster();
});

test("what keeps an implicit start from going on is told as the documented kind of error", async () => {
  const { environment, native, logger } = configured();
  environment.useLogger(logger);
  const heard = [];
  environment.useCluster().on("error", (error) => heard.push(error));
  native.startGate = Promise.reject(
    Object.assign(new Error("the directory cannot serve"), { code: "WHENLEADER_CONFIG" }),
  );
  await settle();
  assert.equal(heard.length, 1);
  const [{ name, code, reason, fatal, election, cause }] = heard;
  assert.deepEqual(
    [name, code, reason, fatal, election, cause.name],
    ["ElectionError", "WHENLEADER_STORE", "config", true, "leader", "ConfigError"],
  );
});

test("no duration is too long", async () => {
  const long = 2 ** 31;
  const { environment, native, logger } = lonely();
  native.info = { ...native.info, type: "LocalCluster", stopTimeout: long };
  const cluster = await environment.startCluster({ cluster: {} }, logger);
  const ended = gate();
  environment.whenLeader(
    () => {},
    () => ended.promise,
  );
  await settle();
  const stepped = cluster.stepDown({ pause: long });
  ended.open();
  await stepped;
  const wait = cluster.waitUntilLeader({ timeout: long - 0.5 });
  assert.equal(await Promise.race([wait, sleep(50)]), undefined, "neither leads nor times out");
  const refused = assert.rejects(wait, { code: "WHENLEADER_STOPPED" });
  await environment.stopCluster();
  await refused;
  // Its stop waits for the callbacks.
  await environment.startCluster({ cluster: {} }, logger);
  const slow = gate();
  environment.whenLeader(
    () => {},
    () => slow.promise,
  );
  await settle();
  const stopped = environment.stopCluster().then(() => "stopped");
  assert.equal(await Promise.race([stopped, sleep(50)]), undefined);
  slow.open();
  assert.equal(await stopped, "stopped");
});

test("errors of the native side, promises and abort signals are known across realms", async () => {
  const realm = vm.createContext({ EventTarget });
  const foreign = (code) =>
    vm.runInContext(`Object.assign(new Error("said natively"), { code: "${code}" })`, realm);
  const thrower = (code) => () => {
    throw foreign(code);
  };
  const bad = configured();
  bad.native.checkConfig = thrower("WHENLEADER_CONFIG");
  await assert.rejects(bad.environment.startCluster(CONFIG), {
    name: "ConfigError",
    code: "WHENLEADER_CONFIG",
    message: "said natively",
  });
  const refused = lonely();
  refused.native.startCluster = async () => thrower("WHENLEADER_STORE")();
  await assert.rejects(refused.environment.startCluster(CONFIG), {
    name: "ElectionError",
    code: "WHENLEADER_STORE",
  });

  const at = folder({ "package.json": JSON.stringify({ whenleader: { services: {} } }) });
  const alone = fakeWorld({ cwd: () => at });
  alone.native.checkConfig = thrower("WHENLEADER_NO_CLUSTER");
  assert.equal(alone.environment.useCluster().isLeader(), true);

  const signal = vm.runInContext(
    "Object.assign(new EventTarget(), { aborted: true, reason: 'foreign' })",
    realm,
  );
  await assert.rejects(
    alone.environment.useCluster("another").waitUntilLeader({ signal }),
    (reason) => reason === "foreign",
  );

  const logs = lonely();
  logs.native.info.warnings = ["careful"];
  const reject = vm.runInContext("async () => { throw new Error('a logger failed'); }", realm);
  await logs.environment.startCluster(CONFIG, { error: reject, warn: reject, info: reject });
  await settle(); // An unhandled rejection would fail this test.
});

test("a function that has a logger's functions is a logger", async () => {
  for (const place of ["option", "parameter", "beside"]) {
    const { environment, native, logger, lines } = lonely();
    native.info.warnings = ["careful"];
    const callable = Object.assign(() => {}, logger);
    if (place === "option") await environment.startCluster(CONFIG, callable);
    if (place === "parameter") await environment.startCluster({ type: "x", logger: callable });
    if (place === "beside") {
      await assert.rejects(environment.startCluster({ ...CONFIG, logger: callable }), {
        message: /logger .*beside/,
      });
      continue;
    }
    assert.deepEqual(lines, ["warn whenleader: careful"]);
  }
  await assert.rejects(
    lonely().environment.startCluster(CONFIG, () => {}),
    { name: "ConfigError", message: /"logger" must be/ },
  );
});

test("whoever wanted a cluster and was refused leads nowhere until another start works", async () => {
  const refuse = { ...CONFIG, cluster: { ...CONFIG.cluster, leaseDuration: "15s" } };
  const before = [
    (environment, fn) => environment.whenLeader(fn),
    (environment) => environment.useCluster(),
    () => {},
  ];
  for (const register of before) {
    for (const bad of [refuse, null, { logger: 5 }]) {
      const { environment, native } = lonely();
      native.checkConfig = () => {
        throw Object.assign(new Error("refused"), { code: "WHENLEADER_CONFIG" });
      };
      const led = [];
      register(environment, () => led.push("before"));
      await assert.rejects(environment.startCluster(bad), { name: "ConfigError" });
      environment.whenLeader(() => led.push("after"));
      await sleep(20);
      assert.deepEqual(led, []);
      assert.equal(environment.useCluster().isLeader(), false);
    }
  }
});

test("a process that leads alone already goes on when a start is refused", async () => {
  const { environment, native } = lonely();
  environment.whenLeader(() => {});
  await sleep(5);
  assert.equal(environment.useCluster().isLeader(), true);
  native.checkConfig = () => {
    throw Object.assign(new Error("refused"), { code: "WHENLEADER_CONFIG" });
  };
  await assert.rejects(environment.startCluster(CONFIG), { name: "ConfigError" });
  assert.equal(environment.useCluster().isLeader(), true);
});
