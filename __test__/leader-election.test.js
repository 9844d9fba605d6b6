// LeaderElection, with `whenleader serve`, and with servers that answer badly.

const assert = require("node:assert/strict");
const { once } = require("node:events");
const path = require("node:path");
const { test } = require("node:test");
const { setTimeout: sleep } = require("node:timers/promises");
const { inspect } = require("node:util");
const { ConfigError, LeaderElection } = require("..");
const { ElectionError } = require("../lib/errors.js");
const { ApiServer } = require("./support/api-server.js");
const { Program, ROOT } = require("./support/child.js");
const { fakeWorld } = require("./fake-native.js");
const { StubApi, granted, send } = require("./support/stub-api.js");

const RESOURCE = "krn:app:orders";
const PATIENCE = 15_000;

const silent = { error() {}, warn() {}, info() {}, debug() {} };

let count = 0;

/** Stopped with the test. */
function election(t, options) {
  count += 1;
  const one = new LeaderElection({
    resource: RESOURCE,
    identity: `krn:wl:edge/${count}`,
    logger: silent,
    keepAlive: true,
    ...options,
  });
  t.after(() => one.stop());
  return one;
}

async function until(what, so) {
  for (const end = Date.now() + PATIENCE; Date.now() < end; await sleep(10)) {
    if (await so()) return;
  }
  assert.fail(`not in time: ${what}`);
}

/** An environment's variables, for one test at a time. */
function environment(t, variables) {
  const names = [
    "CLUSTER_NAME",
    "WORKLOAD_NAME",
    "APP_NAME",
    "LEADER_API_ADDRESS",
    "LEADER_API_PORT",
  ];
  const set = (values) => {
    for (const name of names.map((name) => `KELVIN_${name}`)) {
      if (values[name] === undefined) delete process.env[name];
      else process.env[name] = values[name];
    }
  };
  const before = { ...process.env };
  set(variables);
  t.after(() => set(before));
}

test("of two one leads, and when it stops the other one does, under a larger token", async (t) => {
  const { url } = await ApiServer.start(t);
  const [first, second] = [election(t, { url }), election(t, { url })];
  const terms = [];
  for (const one of [first, second]) one.on("promoted", ({ token }) => terms.push(token));
  await first.start();
  assert.equal(await first.waitUntilLeader(PATIENCE), true);
  assert.equal(first.isLeader, true);
  assert.equal(first.currentLeader, first.identity);
  await second.start();
  await until("the other one knows the leader", () => second.currentLeader === first.identity);
  assert.equal(second.isLeader, false);
  assert.equal(await second.waitUntilLeader(100), false);

  const begun = performance.now();
  await first.stop();
  assert.equal(first.isLeader, false);
  assert.equal(await second.waitUntilLeader(PATIENCE), true);
  assert.ok(performance.now() - begun < 1_800, "the lease was released");
  assert.equal(first.currentLeader, first.identity, "kept after a stop");
  assert.ok(terms[1] > terms[0]);
});

test("hooks are given by assignment and by call, replaced and cleared", async (t) => {
  const { url } = await ApiServer.start(t);
  const one = election(t, { url });
  const heard = [];
  const returned = one.onPromoted(() => heard.push("never"));
  assert.equal(typeof returned, "function");
  one.onPromoted = () => heard.push("promoted");
  one.onDemoted(() => heard.push("demoted"));
  for (const bad of [5, "x", {}]) {
    assert.throws(() => {
      one.onPromoted = bad;
    }, /onPromoted must be a function, or null for none/);
    assert.throws(() => one.onDemoted(bad), /onDemoted must be a function/);
  }
  await one.start();
  await one.waitUntilLeader(PATIENCE);
  await one.stop();
  assert.deepEqual(heard, ["promoted", "demoted"]);

  one.onPromoted = null;
  one.onDemoted = one.onPromoted;
  await one.start();
  await one.waitUntilLeader(PATIENCE);
  await one.stop();
  assert.deepEqual(heard, ["promoted", "demoted"], "cleared");
});

test("hooks run on changes only, one after the other, and their errors are logged", async (t) => {
  const { url } = await ApiServer.start(t, { args: ["--lease", "600ms"] });
  const lines = [];
  const logger = { ...silent, error: (line) => lines.push(line) };
  const one = election(t, { url, logger });
  const heard = [];
  one.onPromoted = async () => {
    heard.push("promoting");
    await sleep(300);
    heard.push("promoted");
    throw new Error("as it should");
  };
  one.onDemoted = () => {
    heard.push("demoted");
    throw undefined;
  };
  await one.start();
  await one.waitUntilLeader(PATIENCE);
  await one.stop();
  assert.deepEqual(heard, ["promoting", "promoted", "demoted"]);
  await one.start();
  await one.waitUntilLeader(PATIENCE);
  await sleep(1_500);
  assert.equal(heard.length, 5, "renewals are no changes");
  await one.stop();
  assert.match(lines[0], /onPromoted failed; the election goes on.*as it should/);
  assert.match(lines[1], /onDemoted failed; the election goes on/);
});

test("a start while it runs does nothing, and it starts again after a stop", async (t) => {
  const stub = await StubApi.start(t, (body, response) => send(response, granted(body)));
  const one = election(t, { url: stub.url });
  await Promise.all([one.start(), one.start()]);
  await one.start();
  assert.equal(await one.waitUntilLeader(PATIENCE), true);
  assert.equal(new Set(stub.asked.map(({ body }) => body.session)).size, 1);
  await one.stop();
  await one.stop();
  assert.equal(one.isLeader, false);
  const asked = stub.asked.length;
  await sleep(700);
  assert.equal(stub.asked.length, asked, "nothing is asked after a stop");
  await one.start();
  assert.equal(await one.waitUntilLeader(PATIENCE), true);
  const sessions = new Set(stub.asked.map(({ body }) => body.session));
  assert.equal(sessions.size, 2);
});

test("a stop inside of a hook is safe, and so is a start", async (t) => {
  const { url } = await ApiServer.start(t, { args: ["--lease", "900ms"] });
  const one = election(t, { url });
  const heard = [];
  one.onPromoted = async () => {
    heard.push("promoted");
    await one.stop();
    heard.push("stopped");
  };
  one.onDemoted = async () => {
    heard.push("demoted");
    if (heard.length < 4) await one.start();
  };
  await one.start();
  await until("both terms are over", () => heard.length === 6);
  assert.deepEqual(heard, ["promoted", "stopped", "demoted", "promoted", "stopped", "demoted"]);
  assert.equal(one.isLeader, false);
});

test("an answer that is under way when it stops brings no leadership back", async (t) => {
  const held = [];
  const stub = await StubApi.start(t, (body, response) => held.push([body, response]));
  const one = election(t, { url: stub.url });
  const heard = [];
  one.onPromoted = () => heard.push("promoted");
  await one.start();
  await until("it asks", () => held.length > 0);
  const stopped = one.stop();
  for (const [body, response] of held) send(response, granted(body));
  await stopped;
  await sleep(300);
  assert.deepEqual([one.isLeader, heard], [false, []]);
});

test("check-ins come three times a lease, each up to a fifth earlier or later", async (t) => {
  const lease = { lease_duration: "900ms" };
  const stub = await StubApi.start(t, (body, response) => send(response, granted(body, lease)));
  const one = election(t, { url: stub.url });
  await one.start();
  await until("many check-ins", () => stub.asked.length > 20);
  const gaps = stub.asked.slice(1).map(({ at }, n) => at - stub.asked[n].at);
  // A busy machine makes them longer, never shorter.
  assert.ok(Math.min(...gaps) >= 235, `${gaps}`);
  const sorted = gaps.toSorted?.() ?? [...gaps].sort((a, b) => a - b);
  assert.ok(sorted[Math.floor(gaps.length / 2)] < 450, `${gaps}`);
  assert.ok(Math.max(...gaps) - Math.min(...gaps) > 20, "they are spread");
});

test("the lease that a server tells counts, also when it changes", async (t) => {
  let lease = "600ms";
  const stub = await StubApi.start(t, (body, response) =>
    send(response, granted(body, { lease_duration: lease })),
  );
  const one = election(t, { url: stub.url });
  await one.start();
  await one.waitUntilLeader(PATIENCE);
  lease = "1m30s";
  const before = stub.asked.length;
  await until("it heard of it", () => stub.asked.length > before);
  const after = stub.asked.length;
  await sleep(2_000);
  assert.ok(stub.asked.length <= after + 1, "a third of 90 s has not passed");
  assert.equal(one.isLeader, true);
});

test("no bad answer makes a leader, and a good one after it does", async (t) => {
  const answers = [
    ["no lease_duration", (body) => granted(body, { lease_duration: undefined })],
    ['"0"', (body) => granted(body, { lease_duration: "0" })],
    ["0s", (body) => granted(body, { lease_duration: "0s" })],
    ["-5s", (body) => granted(body, { lease_duration: "-5s" })],
    ["1e3s", (body) => granted(body, { lease_duration: "1e3s" })],
    ["300 years", (body) => granted(body, { lease_duration: "2629800h" })],
    ["a number", (body) => granted(body, { lease_duration: 5 })],
    ["leader as a string", (body) => granted(body, {}, { leader: "true" })],
    ["leader as a number", (body) => granted(body, {}, { leader: 1 })],
    ["no leader", (body) => granted(body, {}, { leader: undefined })],
    ["another resource", (body) => granted(body, {}, { resource: "krn:app:other" })],
    ["no resources", (body) => granted(body, { resources: undefined })],
    ["resources of another type", (body) => granted(body, { resources: { [RESOURCE]: true } })],
    ["a list", () => []],
    ["null", () => null],
  ];
  const raw = [
    ["500", (response, good) => send(response, good, 500)],
    ["201", (response, good) => send(response, good, 201)],
    ["a redirect", (response) => response.writeHead(307, { location: "/leader/elect" }).end()],
    ["401", (response, good) => send(response, good, 401)],
    ["404", (response, good) => send(response, good, 404)],
    ["HTML", (response) => response.end("<!doctype html><title>Hello</title>")],
    ["nothing", (response) => response.end()],
    ["a part", (response, good) => response.end(JSON.stringify(good).slice(0, -1))],
    ["no HTTP", (response) => response.socket.end("hello\r\n\r\n")],
    ["the end", (response) => response.socket.destroy()],
    [
      "10 MB",
      (response, good) => response.end(JSON.stringify({ ...good, filler: "x".repeat(1e7) })),
    ],
    ["depth", (response) => response.end("[".repeat(100_000))],
  ];
  const all = [
    ...answers.map(([name, make]) => [name, (response, _, body) => send(response, make(body))]),
    ...raw,
  ];
  for (const [name, answer] of all) {
    let bad = 3;
    const stub = await StubApi.start(t, (body, response) => {
      bad -= 1;
      const good = granted(body);
      if (bad >= 0) answer(response, good, body);
      else send(response, good);
    });
    const one = election(t, { url: stub.url });
    let led = false;
    one.onPromoted = () => {
      led = bad >= 0;
    };
    await one.start();
    assert.equal(await one.waitUntilLeader(PATIENCE), true, name);
    assert.equal(led, false, name);
    await one.stop();
    stub.close();
  }
});

test("an answer that never ends costs no more than its time, and nothing that it said", async (t) => {
  let endless = true;
  const stub = await StubApi.start(t, (body, response) => {
    const good = JSON.stringify(granted(body));
    if (!endless) return response.end(good);
    response.writeHead(200, { "content-type": "application/json" });
    response.write(good.slice(0, -1));
    const timer = setInterval(() => response.write(" "), 20);
    response.on("close", () => clearInterval(timer));
  });
  const one = election(t, { url: stub.url });
  await one.start();
  await sleep(1_500);
  assert.equal(one.isLeader, false);
  endless = false;
  assert.equal(await one.waitUntilLeader(PATIENCE), true);
});

test("failed check-ins change nothing until the lease is about to end, and then it is never true", async (t) => {
  let away = false;
  const stub = await StubApi.start(t, (body, response) => {
    if (away) response.writeHead(503).end();
    else send(response, granted(body, { lease_duration: "2s" }));
  });
  const one = election(t, { url: stub.url });
  const lost = new Promise((resolve) => one.on("demoted", resolve));
  await one.start();
  await one.waitUntilLeader(PATIENCE);
  const last = stub.asked.at(-1).at;
  away = true;
  // Reads from now on, against the moment before the last good check-in was sent (which was before it came).
  for (let leads = true; leads; await sleep(5)) {
    leads = one.isLeader;
    if (leads) assert.ok(performance.now() - last < 2_000, "the lease has ended");
  }
  assert.ok(performance.now() - last > 1_000, "it was not given up early");
  const { reason } = await lost;
  assert.equal(reason, "unreachable");
});

test("whoever is told that it does not lead, or is not told of its resource, stops at once", async (t) => {
  for (const [what, item] of [
    ["another leader", { leader: false, current_leader: "krn:wl:edge/other" }],
    ["nobody", { leader: false, current_leader: undefined }],
    ["a string", { leader: "true" }],
    ["another resource", { resource: "krn:app:other" }],
  ]) {
    let over = false;
    const stub = await StubApi.start(t, (body, response) =>
      send(response, granted(body, { lease_duration: "6s" }, over ? item : {})),
    );
    const one = election(t, { url: stub.url });
    await one.start();
    await one.waitUntilLeader(PATIENCE);
    const demoted = once(one, "demoted");
    over = true;
    const before = stub.asked.length;
    await demoted;
    assert.equal(one.isLeader, false, what);
    assert.equal(stub.asked.length, before + 1, `${what}: the first answer decides`);
    await one.stop();
  }
});

test("a process that stood still past its lease does not say that it leads", async (t) => {
  const server = await ApiServer.start(t, { args: ["--lease", "1s"] });
  const { url } = server;
  const program = new Program(
    `const { LeaderElection } = require("whenleader");
     const one = new LeaderElection({ url: ${JSON.stringify(url)}, resource: "krn:app:x", identity: "krn:wl:e/w", keepAlive: true });
     one.start().then(() => one.waitUntilLeader()).then(() => {
       say("leads", one.isLeader);
       process.stdin.on("data", () => say("now", one.isLeader));
     });`,
  );
  t.after(() => program.kill("SIGKILL"));
  await program.said("leads true");
  if (process.platform === "win32") return;
  program.kill("SIGSTOP");
  program.tell("?");
  const other = () => server.checkIn("krn:wl:e/other", "krn:app:x");
  await until("another leads", async () => (await other()).leader);
  program.kill("SIGCONT");
  await program.said("now");
  assert.ok(program.lines.includes("now false"), program.stdout);
});

test("a process that ends releases its lease: by exit, and by a signal", async (t) => {
  const server = await ApiServer.start(t, { args: ["--lease", "10s"] });
  const { url } = server;
  for (const how of ["exit", "SIGTERM"]) {
    const resource = `krn:app:${how}`;
    const program = new Program(
      `const { LeaderElection } = require("whenleader");
       const one = new LeaderElection({ url: ${JSON.stringify(url)}, resource: "${resource}", identity: "krn:wl:e/w", keepAlive: true });
       one.onDemoted = () => say("demoted");
       one.start().then(() => one.waitUntilLeader()).then(() => {
         say("leads");
         process.stdin.on("data", () => process.exit(3));
       });`,
    );
    t.after(() => program.kill("SIGKILL"));
    await program.said("leads");
    assert.equal((await server.checkIn("krn:wl:e/other", resource)).leader, false);
    if (how === "exit") program.tell("now");
    else program.kill(how);
    const { code, signal, stdout, stderr } = await program.ended;
    if (how === "exit") assert.equal(code, 3, stderr);
    else if (process.platform !== "win32") {
      assert.equal(signal, how, stderr);
      assert.match(stdout, /demoted/);
    }
    const next = await server.checkIn("krn:wl:e/other", resource);
    assert.equal(next.leader, process.platform !== "win32" || how === "exit", how);
  }
});

test("without its platform's variables election is disabled, with one warning that names them", async (t) => {
  environment(t, {
    KELVIN_CLUSTER_NAME: "edge",
    KELVIN_LEADER_API_PORT: "0",
    KELVIN_LEADER_API_ADDRESS: "h",
  });
  const lines = [];
  const logger = { ...silent, warn: (line) => lines.push(line) };
  const one = new LeaderElection({ logger });
  await one.start();
  assert.equal(await one.waitUntilLeader(), false);
  assert.deepEqual(
    [one.isLeader, one.currentLeader, one.resource, one.identity],
    [false, null, null, null],
  );
  await one.stop();
  assert.equal(lines.length, 1);
  assert.match(lines[0], /disabled, and isLeader stays false/);
  assert.match(lines[0], /KELVIN_WORKLOAD_NAME, KELVIN_APP_NAME/);
  assert.match(lines[0], /KELVIN_LEADER_API_PORT must be a port, 1 to 65535, not \\?"0/);
  assert.match(inspect(one), /disabled/);
});

test("its platform's variables say with whom to elect, and as whom", async (t) => {
  const { port } = await ApiServer.start(t);
  environment(t, {
    KELVIN_CLUSTER_NAME: "edge",
    KELVIN_WORKLOAD_NAME: "pump",
    KELVIN_APP_NAME: "flow",
    KELVIN_LEADER_API_ADDRESS: "127.0.0.1",
    KELVIN_LEADER_API_PORT: String(port),
  });
  const one = new LeaderElection({ logger: silent });
  t.after(() => one.stop());
  assert.deepEqual([one.resource, one.identity], ["krn:app:flow", "krn:wl:edge/pump"]);
  await one.start();
  assert.equal(await one.waitUntilLeader(PATIENCE), true);
  assert.match(inspect(one), /krn:app:flow.*leader/s);
});

test("bad options are refused by name, with what would be right", (t) => {
  environment(t, {});
  const url = "http://127.0.0.1:1";
  const good = { url, resource: RESOURCE, identity: "me", logger: silent };
  for (const [options, words] of [
    [null, /takes an object of options/],
    [[], /takes an object of options/],
    [{ url }, /the environment has no KELVIN_APP_NAME/],
    [{ ...good, resource: "orders" }, /resource name like krn:app:my-app/],
    [{ ...good, resource: "krn:app:" }, /resource name like krn:app:my-app/],
    [{ ...good, resource: 5 }, /resource must be a resource name.*not 5/],
    [{ ...good, identity: "" }, /identity must not be empty/],
    [{ ...good, identity: "x".repeat(254) }, /at most 253 bytes/],
    [{ ...good, url: "redis://h" }, /url must begin with http:\/\/ or https:\/\//],
    [{ ...good, url: "h:8080" }, /url must/],
    [{ ...good, url: "http://a,b" }, /url must name one host/],
    [{ ...good, url: "http://u:hunter2@h" }, /url must hold neither user nor password/],
    [{ ...good, url: "http://h?hunter2=1" }, /url must have no other parameters/],
    [{ ...good, token: "a b" }, /token must be a bearer token/],
    [{ ...good, leaseDuration: 5 }, /leaseDuration must be left out: the server says/],
    [{ ...good, leaseName: "x" }, /it is called resource/],
    [{ ...good, resourse: "x" }, /resourse is not known; did you mean resource\?/],
    [{ ...good, onRenewError: "never" }, /onRenewError must be "stepDown" or "retry"/],
    [{ ...good, logger: {} }, /"logger" must be an object/],
  ]) {
    assert.throws(
      () => new LeaderElection(options),
      (error) => {
        assert.ok(error instanceof ConfigError || error instanceof TypeError, inspect(error));
        assert.match(error.message, words);
        assert.ok(!error.message.includes("hunter2"), error.message);
        return true;
      },
    );
  }
  const unnamed = new LeaderElection({ ...good, identity: undefined });
  assert.match(unnamed.identity, new RegExp(`-${process.pid}-`), "an identity of its own");
  const one = new LeaderElection(good);
  assert.rejects(one.waitUntilLeader("5"), /must be a number of milliseconds/);
});

test("the token is sent, and shown nowhere", async (t) => {
  const lines = [];
  const note = (line) => lines.push(line);
  const logger = { error: note, warn: note, info: note, debug: note };
  const stub = await StubApi.start(t, (_, response) => response.writeHead(401).end("who are you?"));
  const one = election(t, { url: stub.url, token: "hunter2", logger });
  const failed = once(one, "error");
  await one.start();
  const [error] = await failed;
  assert.equal(stub.asked[0].headers.authorization, "Bearer hunter2");
  assert.deepEqual([error.code, error.reason, error.fatal], ["WHENLEADER_STORE", "refused", true]);
  assert.match(error.message, /401.*who are you\?.*token/);
  assert.ok(!inspect([one, error, lines]).includes("hunter2"));
});

test("a server that is away at the start is found when it is there", async (t) => {
  const server = await ApiServer.start(t);
  const { port } = server;
  await server.kill();
  const one = election(t, { url: `http://127.0.0.1:${port}` });
  const failed = once(one, "error");
  await one.start();
  await failed;
  await ApiServer.start(t, { args: ["--listen", String(port)] });
  assert.equal(await one.waitUntilLeader(PATIENCE), true);
});

test("on a slow way a campaign that is sent twice is one, and the term goes on", async (t) => {
  const server = await ApiServer.start(t, { args: ["--lease", "4s"] });
  const { createServer, connect } = require("node:net");
  // Each answer comes more than a second late: longer than an election waits before it asks once more.
  const slow = createServer((socket) => {
    const there = connect(server.port, "127.0.0.1");
    socket.pipe(there);
    there.on("data", (data) => setTimeout(() => socket.writable && socket.write(data), 1_100));
    for (const one of [socket, there]) one.on("error", () => {});
    socket.on("close", () => there.destroy());
    there.on("close", () => socket.end());
  });
  slow.listen(0, "127.0.0.1");
  await once(slow, "listening");
  t.after(() => slow.close());
  const one = election(t, { url: `http://127.0.0.1:${slow.address().port}` });
  const events = [];
  one.on("promoted", () => events.push("promoted"));
  one.on("demoted", () => events.push("demoted"));
  await one.start();
  assert.equal(await one.waitUntilLeader(PATIENCE), true);
  await sleep(6_000);
  assert.deepEqual(events, ["promoted"]);
});

test("one lease that was told far too short does not keep it from leading for ever", async (t) => {
  let lease = "5ms";
  const stub = await StubApi.start(t, (body, response) =>
    setTimeout(() => send(response, granted(body, { lease_duration: lease })), 40),
  );
  const one = election(t, { url: stub.url });
  await one.start();
  await until("some were answered", () => stub.asked.length > 5);
  await sleep(1_000);
  const before = stub.asked.length;
  await sleep(2_000);
  assert.ok(stub.asked.length - before < 10, "it asks ever more rarely");
  lease = "2s";
  assert.equal(await one.waitUntilLeader(PATIENCE), true);
});

test("whatever its status is worth, a server that answers check-ins is elected with", async (t) => {
  for (const answer of [
    (response) => response.writeHead(500).end(),
    (response) => response.writeHead(400).end("{}"),
    (response) => response.end("x".repeat(20_000_000)),
    () => {},
  ]) {
    const stub = await StubApi.start(t, (body, response) => send(response, granted(body)));
    stub.status = answer;
    const one = election(t, { url: stub.url });
    await one.start();
    assert.equal(await one.waitUntilLeader(PATIENCE), true, String(answer));
    await one.stop();
    stub.close();
  }
});

test("hooks do not overlap, also when it is started again before the last one has ended", async (t) => {
  const { url } = await ApiServer.start(t, { args: ["--lease", "1s"] });
  const one = election(t, { url, stopTimeout: 200 });
  const heard = [];
  let running = 0;
  const hook = (name, time) => async () => {
    running += 1;
    heard.push(`${name} ${running}`);
    await sleep(time);
    running -= 1;
  };
  one.onPromoted = hook("promoted", 10);
  one.onDemoted = hook("demoted", 3_000);
  await one.start();
  await one.waitUntilLeader(PATIENCE);
  await one.stop();
  await one.start();
  await until("the second term's hook", () => heard.length === 3);
  assert.deepEqual(heard, ["promoted 1", "demoted 1", "promoted 1"]);
});

test("many in one process add no listeners of their own, and all end", async (t) => {
  const { url } = await ApiServer.start(t);
  const warnings = [];
  const warn = (warning) => warnings.push(warning);
  process.on("warning", warn);
  t.after(() => process.off("warning", warn));
  const all = Array.from({ length: 30 }, (_, n) => election(t, { url, resource: `krn:app:${n}` }));
  await Promise.all(all.map((one) => one.start()));
  for (const one of all) assert.equal(await one.waitUntilLeader(PATIENCE), true);
  await Promise.all(all.map((one) => one.stop()));
  assert.ok(all.every(({ isLeader }) => !isLeader));
  assert.deepEqual(warnings, []);
});

test("after this module was loaded anew, the older one leads nothing any more", async (t) => {
  const server = await ApiServer.start(t, { args: ["--lease", "1s"] });
  const program = new Program(
    `const { LeaderElection } = require("whenleader");
     const options = { url: ${JSON.stringify(server.url)}, resource: "krn:app:x", identity: "krn:wl:e/w", keepAlive: true };
     (async () => {
       const old = new LeaderElection(options);
       old.onDemoted = () => say("demoted");
       await old.start();
       await old.waitUntilLeader();
       for (const file of Object.keys(require.cache)) delete require.cache[file];
       const { LeaderElection: Newer } = require("whenleader");
       const newer = new Newer({ ...options, resource: "krn:app:y" });
       await newer.start();
       say("newer", await newer.waitUntilLeader(10_000));
       await new Promise((resolve) => setTimeout(resolve, 500));
       say("older", old.isLeader, await old.waitUntilLeader(100));
       say("again", await old.start().then(() => "started", (error) => error.message));
       await old.stop();
       await newer.stop();
       say("ended");
       process.exit();
     })();`,
  );
  t.after(() => program.kill("SIGKILL"));
  await program.said("ended");
  const { lines } = program;
  assert.ok(lines.includes("demoted") && lines.includes("newer true"), program.stdout);
  assert.ok(lines.includes("older false false"), program.stdout);
  assert.match(program.stdout, /again .*loaded anew/);
  await until("nobody leads", async () => (await server.checkIn("other", "krn:app:x")).leader);
});

test("several elections in one process, with one server and with two, do not touch each other", async (t) => {
  const servers = [await ApiServer.start(t), await ApiServer.start(t)];
  const all = servers.flatMap(({ url }) =>
    ["krn:app:a", "krn:app:b"].map((resource) => election(t, { url, resource })),
  );
  await Promise.all(all.map((one) => one.start()));
  for (const one of all) assert.equal(await one.waitUntilLeader(PATIENCE), true);
  await all[0].stop();
  assert.deepEqual(
    all.map(({ isLeader }) => isLeader),
    [false, true, true, true],
  );
});

test("a session that was stopped leaves nothing behind, however often it is started again", async (t) => {
  const { url } = await ApiServer.start(t);
  const lib = (file) => JSON.stringify(path.join(ROOT, "lib", file));
  const program = new Program(
    `const { LeaderElection } = require("whenleader");
     const refs = [];
     for (const type of [require(${lib("election.js")}).Election, require(${lib("registration.js")}).Registration]) {
       const { promoted } = type.prototype;
       type.prototype.promoted = function (...values) {
         refs.push(new WeakRef(this));
         return promoted.apply(this, values);
       };
     }
     const one = new LeaderElection({ url: ${JSON.stringify(url)}, resource: "krn:app:x", identity: "krn:wl:e/w" });
     one.onPromoted = () => {};
     (async () => {
       for (let n = 0; n < 20; n += 1) {
         await one.start();
         await one.waitUntilLeader();
         await one.stop();
       }
       // Events that are under way hold some for a moment.
       for (let n = 0; n < 20; n += 1) {
         await new Promise((resolve) => setTimeout(resolve, 20));
         gc();
       }
       say("there were", refs.length, "and are", refs.filter((ref) => ref.deref() !== undefined).length);
     })();`,
    { flags: ["--expose-gc"] },
  );
  t.after(() => program.kill("SIGKILL"));
  await program.said("there were");
  const [there, are] = program.stdout.match(/\d+/g).map(Number);
  assert.equal(there, 40, program.stdout);
  assert.ok(are <= 2, program.stdout);
});

test("whatever of a stopped session JavaScript still holds, no thread works for it", async (t) => {
  if (process.platform !== "linux") return t.skip("elsewhere nobody says how often a thread woke");
  const { url } = await ApiServer.start(t);
  const prelude = `
    const fs = require("node:fs");
    const { LeaderElection } = require("whenleader");
    const { Election } = require(${JSON.stringify(path.join(ROOT, "lib", "election.js"))});
    const kept = [];
    const { attach } = Election.prototype;
    Election.prototype.attach = function (source) {
      kept.push(source);
      return attach.call(this, source);
    };
    const wakes = () => {
      const statuses = fs.readdirSync("/proc/self/task").map((id) =>
        fs.readFileSync("/proc/self/task/" + id + "/status", "utf8"),
      );
      const own = statuses.find((text) => /^Name:\\s*whenleader$/m.test(text));
      return Number(/^voluntary_ctxt_switches:\\s*(\\d+)/m.exec(own)[1]);
    };
    const tell = async () => {
      await new Promise((resolve) => setTimeout(resolve, 500));
      const before = wakes();
      await new Promise((resolve) => setTimeout(resolve, 2_000));
      say("held", kept.length, "woken", wakes() - before);
    };`;
  for (const [what, cycle] of [
    [
      "LeaderElection",
      `const one = new LeaderElection({ url: ${JSON.stringify(url)}, resource: "krn:app:x", identity: "krn:wl:e/w" });
       const cycle = async () => { await one.start(); await one.waitUntilLeader(); await one.stop(); };`,
    ],
    [
      "startCluster",
      `const cycle = async () => {
         const cluster = await startCluster({ cluster: { type: "StoreCluster", store: "file:here" } });
         await cluster.waitUntilLeader();
         await stopCluster();
       };`,
    ],
  ]) {
    const program = new Program(
      `${prelude} ${cycle}
       (async () => { for (let n = 0; n < 40; n += 1) await cycle(); await tell(); })();`,
    );
    t.after(() => program.kill("SIGKILL"));
    await program.said("woken");
    const [held, woken] = program.stdout.match(/\d+/g).map(Number);
    assert.equal(held, 40, what);
    assert.ok(woken < 40, `${what}: ${program.stdout}`);
  }
});

test("a stop waits for every session that has not ended, also for one before the last", async (t) => {
  const { url } = await ApiServer.start(t, { args: ["--lease", "1s"] });
  const one = election(t, { url });
  const heard = [];
  one.onDemoted = async () => {
    if (heard.length > 0) return;
    await one.start();
    heard.push("started again");
    await sleep(1_000);
    heard.push("ended");
  };
  await one.start();
  await one.waitUntilLeader(PATIENCE);
  const first = one.stop();
  await until("it was started again", () => heard.length === 1);
  await one.stop();
  assert.deepEqual(heard, ["started again", "ended"]);
  await first;
});

test("hooks do not overlap with those of any session before", async (t) => {
  const stub = await StubApi.start(t, (body, response) => send(response, granted(body)));
  const one = election(t, { url: stub.url, stopTimeout: 100 });
  const heard = [];
  one.onPromoted = () => heard.push("promoted");
  one.onDemoted = async () => {
    heard.push("demoting");
    await sleep(1_500);
    heard.push("demoted");
  };
  await one.start();
  await one.waitUntilLeader(PATIENCE);
  await one.stop();
  // This one ends before it has led, and so without a hook.
  await one.start();
  await one.stop();
  await one.start();
  assert.equal(await one.waitUntilLeader(PATIENCE), true);
  assert.deepEqual(heard, ["promoted", "demoting"]);
  await until("the next hook", () => heard.length > 3);
  assert.deepEqual(heard, ["promoted", "demoting", "demoted", "promoted"]);
});

test("onDemoted runs for terms whose onPromoted ran, and for no other", async (t) => {
  const stub = await StubApi.start(t, (body, response) => send(response, granted(body)));
  const one = election(t, { url: stub.url, stopTimeout: 100 });
  const heard = [];
  one.onPromoted = () => heard.push("promoted");
  one.onDemoted = async () => {
    heard.push("demoted");
    await sleep(1_000);
    heard.push("ended");
  };
  await one.start();
  await one.waitUntilLeader(PATIENCE);
  await one.stop();
  // A term that is over before the hook of the one before has ended.
  await one.start();
  assert.equal(await one.waitUntilLeader(PATIENCE), true);
  await sleep(50);
  await one.stop();
  await until("the first hook has ended", () => heard.includes("ended"));
  await sleep(200);
  assert.deepEqual(heard, ["promoted", "demoted", "ended"]);
  one.onDemoted = () => heard.push("demoted");
  await one.start();
  await one.waitUntilLeader(PATIENCE);
  await one.stop();
  assert.deepEqual(heard.slice(3), ["promoted", "demoted"]);
});

test("a bad variable of the platform disables election, with one warning that names it", async (t) => {
  const good = {
    KELVIN_CLUSTER_NAME: "edge",
    KELVIN_WORKLOAD_NAME: "pump",
    KELVIN_APP_NAME: "flow",
    KELVIN_LEADER_API_ADDRESS: "127.0.0.1",
    KELVIN_LEADER_API_PORT: "8080",
  };
  for (const [name, value] of [
    ["KELVIN_APP_NAME", "my app"],
    ["KELVIN_LEADER_API_ADDRESS", "a,b"],
    ["KELVIN_LEADER_API_ADDRESS", "h:x"],
    ["KELVIN_LEADER_API_ADDRESS", "[::1"],
    ["KELVIN_WORKLOAD_NAME", "a\tb"],
  ]) {
    environment(t, { ...good, [name]: value });
    const lines = [];
    const one = new LeaderElection({
      logger: { ...silent, warn: (line) => lines.push(line) },
    });
    await one.start();
    assert.equal(one.isLeader, false);
    assert.equal(one.resource, null);
    assert.equal(lines.length, 1, `${name}=${value}`);
    assert.match(lines[0], new RegExp(`disabled.*${name}`));
  }
});

test("a session of this very object that has not ended is no other process", async (t) => {
  const { url } = await ApiServer.start(t, { args: ["--lease", "600ms"] });
  const one = election(t, { url, identity: "me", stopTimeout: 10_000 });
  const errors = [];
  one.on("error", (error) => errors.push(error.message));
  let ended = false;
  one.onDemoted = async () => {
    if (ended) return;
    await one.start();
    await sleep(3_000); // The lease is kept meanwhile.
    ended = true;
  };
  await one.start();
  await one.waitUntilLeader(PATIENCE);
  await one.stop();
  assert.equal(ended, true);
  assert.equal(await one.waitUntilLeader(PATIENCE), true);
  assert.deepEqual(errors, []);
});

test("another process under the same identity is told of", async (t) => {
  const server = await ApiServer.start(t, { args: ["--lease", "600ms"] });
  const { token } = await server.checkIn("me", RESOURCE, { session: "other" });
  const keep = setInterval(
    () => server.checkIn("me", RESOURCE, { session: "other", token }).catch(() => {}),
    150,
  );
  t.after(() => clearInterval(keep));
  const one = election(t, { url: server.url, identity: "me" });
  const failed = once(one, "error");
  await one.start();
  const [error] = await failed;
  assert.equal(error.reason, "id-shared");
  assert.equal(one.isLeader, false);
});

test("what was checked is what is started, whatever the environment says meanwhile", async (t) => {
  const { port } = await ApiServer.start(t);
  const variables = {
    KELVIN_CLUSTER_NAME: "edge",
    KELVIN_WORKLOAD_NAME: "pump",
    KELVIN_APP_NAME: "flow",
    KELVIN_LEADER_API_ADDRESS: "127.0.0.1",
    KELVIN_LEADER_API_PORT: String(port),
  };
  environment(t, variables);
  const one = new LeaderElection({ logger: silent });
  t.after(() => one.stop());
  for (const later of [{ ...variables, KELVIN_APP_NAME: "other" }, {}]) {
    environment(t, later);
    const promoted = once(one, "promoted");
    await one.start();
    const [term] = await promoted;
    assert.deepEqual([term.election, term.instanceId], ["krn:app:flow", "krn:wl:edge/pump"]);
    assert.equal(await one.waitUntilLeader(PATIENCE), true);
    await one.stop();
  }
});

test("what the native side refuses at the start is told as of every cluster", () => {
  const { environment, native } = fakeWorld();
  const checked = { info: { ...native.info, leaseName: RESOURCE }, config: {} };
  for (const [code, type] of [
    ["WHENLEADER_CONFIG", ConfigError],
    ["WHENLEADER_STORE", ElectionError],
  ]) {
    native.startElection = () => {
      throw Object.assign(new Error("as it should"), { code });
    };
    assert.throws(
      () => environment.startApart(checked, { log: environment.log, tell() {}, onLeft() {} }),
      (error) => error instanceof type && error.code === code && /as it should/.test(error.message),
    );
  }
});

test("a function with a property of its own called hook is a hook", async (t) => {
  const { url } = await ApiServer.start(t);
  const one = election(t, { url });
  const heard = [];
  one.onPromoted = Object.assign(() => heard.push("promoted"), { hook: null });
  await one.start();
  assert.equal(await one.waitUntilLeader(PATIENCE), true);
  assert.deepEqual(heard, ["promoted"]);
});
