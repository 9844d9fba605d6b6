// `whenleader serve`: the Leader Election API by raw HTTP, on the embedded store.

const assert = require("node:assert/strict");
const { execFile } = require("node:child_process");
const fs = require("node:fs");
const net = require("node:net");
const path = require("node:path");
const { test } = require("node:test");
const { setTimeout: sleep } = require("node:timers/promises");
const { promisify } = require("node:util");
const { ApiServer, BIN } = require("./support/api-server.js");
const { newFolder, ROOT } = require("./support/child.js");

const run = promisify(execFile);

const A = "krn:wl:edge/a";
const B = "krn:wl:edge/b";
const X = "krn:app:x";

/** Asks until it is so, for longer than any lease here. */
async function until(what, so, patience = 15_000) {
  for (const end = Date.now() + patience; Date.now() < end; await sleep(50)) {
    const value = await so();
    if (value) return value;
  }
  assert.fail(`not in time: ${what}`);
}

test("a check-in is answered as the protocol says, and one of several candidates leads", async (t) => {
  const server = await ApiServer.start(t);
  const { status, headers, body } = await server.post("/leader/elect", { id: A, resources: [X] });
  assert.equal(status, 200);
  assert.equal(headers.get("content-type"), "application/json");
  assert.equal(headers.get("cache-control"), "no-store");
  assert.equal(body.lease_duration, "2s");
  assert.match(body.check_in, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
  const [mine] = body.resources;
  assert.deepEqual(
    [mine.resource, mine.leader, mine.current_leader, mine.request_leader],
    [X, true, A, A],
  );
  assert.ok(Math.abs(Date.parse(mine.last_check_in) - Date.parse(body.check_in)) < 1_000);

  const other = await server.checkIn(B);
  assert.deepEqual([other.leader, other.current_leader, other.request_leader], [false, A, B]);
  const again = await server.checkIn(A);
  assert.deepEqual([again.leader, again.token], [true, mine.token], "one term goes on");
  const elsewhere = await server.checkIn(B, "krn:app:y");
  assert.equal(elsewhere.leader, true, "each resource is an election of its own");
});

test("whoever does not check in any more is followed by another when its lease has run out", async (t) => {
  const server = await ApiServer.start(t);
  const { token } = await server.checkIn(A);
  const begun = performance.now();
  const next = await until("another leader", async () => {
    const answer = await server.checkIn(B);
    return answer.leader && answer;
  });
  const took = performance.now() - begun;
  assert.ok(took >= 1_900, `a lease is kept: ${took}`);
  assert.ok(next.token > token);
  assert.equal((await server.checkIn(A)).leader, false);
});

test("a bulk is answered in its order, each check-in as if it came alone", async (t) => {
  const server = await ApiServer.start(t);
  const { body } = await server.post("/leader/bulk/elect", {
    data: [
      { id: A, resources: [X, "krn:app:y"] },
      { id: B, resources: ["krn:app:y", "krn:app:z"] },
    ],
  });
  const leads = body.data.map(({ resources }) =>
    resources.map(({ resource, leader }) => [resource, leader]),
  );
  assert.deepEqual(leads, [
    [
      [X, true],
      ["krn:app:y", true],
    ],
    [
      ["krn:app:y", false],
      ["krn:app:z", true],
    ],
  ]);
  for (const answer of body.data) assert.equal(answer.lease_duration, "2s");
});

test("the status tells every resource and its leader, and nobody's once it is over", async (t) => {
  const server = await ApiServer.start(t);
  assert.deepEqual((await server.get("/leader/status")).body, {
    lease_duration: "2s",
    resources: [],
  });
  await server.checkIn(A, "krn:app:b");
  await server.checkIn(B, "krn:app:a");
  const { body } = await server.get("/leader/status");
  assert.deepEqual(
    body.resources.map(({ resource, current_leader }) => [resource, current_leader]),
    [
      ["krn:app:a", B],
      ["krn:app:b", A],
    ],
  );
  await until("nobody leads", async () => {
    const { resources } = (await server.get("/leader/status")).body;
    return resources.every((one) => !("current_leader" in one) && !("remaining" in one));
  });
});

test("the workloads are those that checked in, and whether they still do", async (t) => {
  const server = await ApiServer.start(t);
  await server.checkIn(A, "krn:app:flow");
  const only = { name: "a", app_name: "flow" };
  assert.deepEqual((await server.get("/workloads/list")).body, {
    data: [{ ...only, status: "running", running: true }],
  });
  await until("it is stopped", async () => {
    const { data } = (await server.get("/workloads/list")).body;
    return data[0].running === false && data[0].status === "stopped";
  });
});

test("a release ends its own term at once, and no other", async (t) => {
  const server = await ApiServer.start(t);
  const release = async (body) => (await server.post("/leader/release", body)).body.resources;
  const plain = await server.checkIn("plain", "krn:app:plain");
  const early = { id: "plain", resources: ["krn:app:plain"], token: plain.token - 1 };
  assert.equal((await release(early))[0].released, false, "of an earlier term");
  assert.equal((await release({ ...early, token: plain.token }))[0].released, true);
  const session = "s-1";
  const { token } = await server.checkIn(A, X, { session });
  assert.deepEqual(await release({ id: B, resources: [X] }), [{ resource: X, released: false }]);
  assert.deepEqual(await release({ id: A, resources: [X] }), [{ resource: X, released: false }]);
  const late = { id: A, session, token: token - 1, resources: [X] };
  assert.deepEqual(await release(late), [{ resource: X, released: false }]);
  assert.equal((await server.checkIn(B)).leader, false);
  const own = { id: A, session, token, resources: [X] };
  assert.deepEqual(await release(own), [{ resource: X, released: true }]);
  const next = await server.checkIn(B);
  assert.ok(next.leader && next.token > token);
  assert.deepEqual(await release(own), [{ resource: X, released: false }]);
  assert.deepEqual(await release({ id: B, resources: [X] }), [{ resource: X, released: true }]);
});

test("two processes under one id are two if they name their sessions", async (t) => {
  const server = await ApiServer.start(t);
  const first = await server.checkIn(A, X, { session: "1" });
  const second = await server.checkIn(A, X, { session: "2" });
  assert.deepEqual([first.leader, second.leader], [true, false]);
  const renewed = await server.checkIn(A, X, { session: "1", token: first.token });
  assert.deepEqual([renewed.leader, renewed.token], [true, first.token]);
  const late = await server.checkIn(A, X, { session: "1", token: first.token - 1 });
  assert.equal(late.leader, false, "a late renewal of an earlier term");
  const anew = await server.checkIn(A, X, { session: "1" });
  assert.ok(anew.leader && anew.token > first.token, "without a token it wants a new term");
  const old = await server.checkIn(A, X, { session: "1", token: first.token });
  assert.equal(old.leader, false);
});

test("a campaign of a session that arrives twice begins one term, through two servers as well", async (t) => {
  const cwd = newFolder();
  const [one, other] = [await ApiServer.start(t, { cwd }), await ApiServer.start(t, { cwd })];
  const first = await one.checkIn(A, X, { session: "s", after: 0 });
  for (const server of [one, other, one]) {
    const copy = await server.checkIn(A, X, { session: "s", after: 0 });
    assert.deepEqual([copy.leader, copy.token], [true, first.token]);
  }
  const next = await one.checkIn(A, X, { session: "s", after: first.token });
  assert.ok(next.leader && next.token > first.token, "a new term where the last one was");
  assert.equal((await one.checkIn(A, X)).leader, false, "its id alone is another candidate");
});

test("no page in a browser asks, and the token that a browser keeps opens nothing but the page", async (t) => {
  const server = await ApiServer.start(t, { env: { WHENLEADER_TOKEN: "hunter2" } });
  const basic = { authorization: `Basic ${Buffer.from("me:hunter2").toString("base64")}` };
  const bearer = { authorization: "Bearer hunter2" };
  const body = { id: A, resources: [X] };
  const refused = await server.post("/leader/elect", body, basic);
  assert.equal(refused.status, 401);
  const head = (headers) =>
    Object.entries(headers)
      .map(([name, value]) => `${name}: ${value}\r\n`)
      .join("");
  const raw = async (path, headers) => {
    const [method, sent] = path === "/leader/elect" ? ["POST", JSON.stringify(body)] : ["GET", ""];
    const all = {
      Host: "127.0.0.1",
      Connection: "close",
      "Content-Length": sent.length,
      ...headers,
    };
    const answer = await server.raw(`${method} ${path} HTTP/1.1\r\n${head(all)}\r\n${sent}`);
    return Number(answer.split(" ")[1]);
  };
  for (const strange of [
    { Origin: "https://evil.example" },
    { Origin: "null" },
    { "Sec-Fetch-Site": "cross-site" },
    { "Sec-Fetch-Site": "same-site" },
  ]) {
    assert.equal(
      await raw("/leader/elect", { ...bearer, ...strange }),
      403,
      JSON.stringify(strange),
    );
    assert.equal(await raw("/leader/status", { ...bearer, ...strange }), 403);
  }
  assert.equal(
    await raw("/", { ...basic, "Sec-Fetch-Site": "cross-site" }),
    200,
    "a link to the page",
  );
  assert.equal(await raw("/leader/elect", { ...bearer, "Sec-Fetch-Site": "none" }), 200);

  const open = await ApiServer.start(t);
  const asked = async (host) =>
    (
      await open.raw(`GET /leader/status HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`)
    ).split(" ")[1];
  assert.equal(await asked("evil.example"), "403", "a name that leads here");
  for (const host of ["127.0.0.1:80", "localhost", "LOCALHOST:8080", "[::1]:80"]) {
    assert.equal(await asked(host), "200", host);
  }
});

test("answers that nobody reads end their connections", async (t) => {
  const server = await ApiServer.start(t, { args: ["--log", "debug"] });
  const page = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".repeat(1_000);
  const socket = net
    .connect(server.port, "127.0.0.1")
    .on("error", () => {})
    .pause();
  t.after(() => socket.destroy());
  // More than the system's buffers hold.
  for (let n = 0; n < 100; n++) socket.write(page);
  await until(
    "it is given up",
    () => /a connection broke.*writing/.test(server.program.stderr),
    40_000,
  );
  assert.equal((await server.checkIn(A)).leader, true);
});

test("nothing is kept of resources that were only released or not answered", async (t) => {
  const server = await ApiServer.start(t);
  const resources = Array.from({ length: 1_000 }, (_, n) => `krn:app:${n}`);
  const { status } = await server.post("/leader/release", { id: A, resources });
  assert.equal(status, 200);
  assert.deepEqual((await server.get("/leader/status")).body.resources, []);
  assert.match((await server.get("/metrics")).text, /^whenleader_elections 0$/m);
});

test("a log that nobody reads any more ends no server", async (t) => {
  const server = await ApiServer.start(t, { args: ["--log", "debug"] });
  server.program.child.stderr.destroy();
  server.program.child.stdout.destroy();
  for (let n = 0; n < 20; n++) await server.get("/nothing");
  assert.equal((await server.checkIn(A)).leader, true);
});

test("a token that is set and empty is refused", async () => {
  const env = { ...process.env, WHENLEADER_TOKEN: "" };
  const failed = await run(process.execPath, [BIN, "serve", "--listen", "0"], {
    env,
    cwd: newFolder(),
  }).catch((error) => error);
  assert.equal(failed.code, 1);
  assert.match(failed.stderr, /WHENLEADER_TOKEN is set and empty/);
});

test("a server that is killed and started again finds every leader, and lets none be followed early", async (t) => {
  const cwd = newFolder();
  const first = await ApiServer.start(t, { cwd, args: ["--lease", "4s"] });
  const { token } = await first.checkIn(A);
  await first.checkIn(A, "krn:app:y", { session: "s" });
  const checkedIn = performance.now();
  await first.kill();
  const second = await ApiServer.start(t, { cwd, args: ["--lease", "4s"] });
  const other = await second.checkIn(B);
  assert.deepEqual([other.leader, other.current_leader], [false, A]);
  const renewed = await second.checkIn(A);
  assert.deepEqual([renewed.leader, renewed.token], [true, token]);
  // The other resource is not renewed: its lease lasts as long as if nothing had happened.
  await until("it is followed", async () => (await second.checkIn(B, "krn:app:y")).leader);
  const took = performance.now() - checkedIn;
  assert.ok(took >= 3_900, `${took}`);
});

test("a server that stops cleanly leaves the leases to its clients", async (t) => {
  const cwd = newFolder();
  const first = await ApiServer.start(t, { cwd, args: ["--lease", "10s"] });
  const { token } = await first.checkIn(A);
  const { code, stderr } = await first.stop();
  assert.equal(code, 0, stderr);
  const second = await ApiServer.start(t, { cwd, args: ["--lease", "10s"] });
  assert.equal((await second.checkIn(B)).leader, false);
  const renewed = await second.checkIn(A);
  assert.deepEqual([renewed.leader, renewed.token], [true, token]);
});

test("several servers on one store agree, whichever is asked", async (t) => {
  const cwd = newFolder();
  const servers = [await ApiServer.start(t, { cwd }), await ApiServer.start(t, { cwd })];
  const tokens = new Set();
  for (let round = 0; round < 10; round++) {
    const [one, other] = round % 2 === 0 ? servers : [...servers].reverse();
    const leader = await one.checkIn(A);
    assert.equal(leader.leader, true);
    tokens.add(leader.token);
    const denied = await other.checkIn(B);
    assert.deepEqual([denied.leader, denied.current_leader], [false, A]);
  }
  assert.equal(tokens.size, 1, "one term, whichever server it is renewed with");
  for (const server of servers) {
    const { resources } = (await server.get("/leader/status")).body;
    assert.deepEqual([resources.length, resources[0].current_leader], [1, A]);
  }
});

test("a server whose memory is old begins no term anew, shortens none, and counts each change once", async (t) => {
  const cwd = newFolder();
  const [one, other] = [
    await ApiServer.start(t, { cwd, args: ["--lease", "8s"] }),
    await ApiServer.start(t, { cwd, args: ["--lease", "500ms"] }),
  ];
  for (const session of [undefined, "s"]) {
    const resource = `krn:app:${session}`;
    const more = (token) => (session ? { session, after: token } : {});
    // The other server saw B lead, and not that it released.
    assert.equal((await other.checkIn(B, resource)).leader, true);
    await one.post("/leader/release", { id: B, resources: [resource] });
    const first = await one.checkIn(A, resource, more(0));
    const begun = performance.now();
    const again = await other.checkIn(A, resource, more(0));
    assert.deepEqual([again.leader, again.token], [true, first.token], "one term goes on");
    while (performance.now() - begun < 2_000) {
      assert.equal((await other.checkIn(B, resource)).leader, false, "A was told 8 s");
      await sleep(100);
    }
  }
  // B and A of each of the two, as either saw it.
  assert.match((await other.get("/metrics")).text, /^whenleader_leader_changes_total 4$/m);
});

test("what another server did is a change here, too, with its time and its lease", async (t) => {
  const cwd = newFolder();
  const servers = [await ApiServer.start(t, { cwd }), await ApiServer.start(t, { cwd })];
  const [one, other] = servers;
  const metric = async (server, name) => {
    const { text } = await server.get("/metrics");
    return Number(text.match(new RegExp(`^whenleader_${name} (\\d+)$`, "m"))[1]);
  };
  const seen = async (server) => (await server.get("/leader/status")).body.resources[0];
  await one.checkIn(A);
  await one.post("/leader/release", { id: A, resources: [X] });
  await other.checkIn(B);
  assert.equal(await metric(other, "leader_changes_total"), 1);
  const shown = await until("it is seen", async () => {
    const shown = await seen(one);
    return shown.current_leader === B && shown;
  });
  assert.match(shown.remaining, /^[12]/, "as the store knows it");
  assert.ok(Math.abs(Date.parse(shown.last_check_in) - Date.now()) < 3_000);
  assert.equal(await metric(one, "elections_led"), 1);
  assert.equal(await metric(one, "leader_changes_total"), 3, "A, nobody, B");
  const page = await one.get("/");
  assert.equal(page.text.match(/<tr>/g).length, 2 + 1 + 3, "the heads, the resource, the changes");

  // It leads on by the other server: never seen as ended here, and never as another term.
  for (const end = Date.now() + 5_000; Date.now() < end; await sleep(300)) {
    const { leader } = await other.checkIn(B);
    assert.equal(leader, true);
    assert.equal((await seen(one)).current_leader, B);
    assert.equal(await metric(one, "elections_led"), 1);
  }
  assert.equal(await metric(one, "leader_changes_total"), 3);
  await until("its end is seen", async () => !(await seen(one)).current_leader);
  assert.equal(await metric(one, "elections_led"), 0);
  assert.equal(await metric(one, "leader_changes_total"), 4, "and nobody");
});

test("a copy of a campaign that arrives when its term was released begins none", async (t) => {
  const server = await ApiServer.start(t);
  const campaign = (after, session = "s") => server.checkIn(A, X, { session, after });
  const { token } = await campaign(0);
  const own = { id: A, session: "s", token, resources: [X] };
  assert.equal((await server.post("/leader/release", own)).body.resources[0].released, true);
  const late = await campaign(0);
  assert.deepEqual([late.leader, late.current_leader], [false, undefined], "nobody leads");
  const next = await server.checkIn(B);
  assert.ok(next.leader && next.token > token, "and whoever asks may");
  assert.equal((await campaign(0)).current_leader, B);
  await server.post("/leader/release", { id: B, resources: [X] });
  const again = await campaign(token);
  assert.ok(
    again.leader && again.token > next.token,
    "its leader knows of its term, and wants another",
  );
  // Whoever has forgotten it is kept out for one lease at most.
  const release = { ...own, token: again.token };
  assert.equal((await server.post("/leader/release", release)).body.resources[0].released, true);
  await until("it leads again", async () => (await campaign(0)).leader);
});

test("a server that starts counts no change for the leaders that it finds", async (t) => {
  const cwd = newFolder();
  const first = await ApiServer.start(t, { cwd });
  await first.checkIn(A);
  const second = await ApiServer.start(t, { cwd });
  assert.equal((await second.checkIn(B)).current_leader, A);
  assert.match((await second.get("/metrics")).text, /^whenleader_leader_changes_total 0$/m);
});

test("racing candidates never both lead, on two servers", async (t) => {
  const cwd = newFolder();
  const servers = [await ApiServer.start(t, { cwd }), await ApiServer.start(t, { cwd })];
  const ids = Array.from({ length: 16 }, (_, n) => `krn:wl:edge/${n}`);
  for (let round = 0; round < 5; round++) {
    const resource = `krn:app:race-${round}`;
    const answers = await Promise.all(ids.map((id, n) => servers[n % 2].checkIn(id, resource)));
    const leaders = answers.filter(({ leader }) => leader);
    assert.equal(leaders.length, 1);
  }
});

test("a reset clears every election, where the server is for tests", async (t) => {
  const server = await ApiServer.start(t);
  await server.checkIn(A);
  const refused = await server.post("/leader/reset", "");
  assert.equal(refused.status, 403);
  assert.equal(refused.body.error.code, "reset-not-allowed");
  assert.match(refused.body.error.message, /--allow-reset/);
  assert.equal((await server.checkIn(B)).leader, false);

  const forTests = await ApiServer.start(t, { args: ["--allow-reset"] });
  await forTests.checkIn(A);
  const done = await forTests.post("/leader/reset", "");
  assert.deepEqual([done.status, done.text], [200, ""]);
  assert.deepEqual((await forTests.get("/leader/status")).body.resources, []);
  const { text } = await forTests.get("/metrics");
  assert.match(text, /^whenleader_leader_changes_total 2$/m, "a leader, and nobody");
  assert.equal((await forTests.checkIn(B)).leader, true);
});

test("every bad body gets 400 with a word for programs, and words for people", async (t) => {
  const server = await ApiServer.start(t);
  const good = { id: A, resources: [X] };
  for (const [body, words] of [
    ["", /no JSON/],
    ["{", /no JSON/],
    ['{"id":', /no JSON/],
    ["\u0000", /no JSON/],
    ["[".repeat(60_000), /no JSON/],
    ["null", /must be an object/],
    ["[]", /must be an object/],
    ['"x"', /must be an object/],
    ["{}", /id is missing/],
    [{ resources: [X] }, /id is missing/],
    [{ ...good, id: 5 }, /id must be/],
    [{ ...good, id: "" }, /id must not be empty/],
    [{ ...good, id: "x".repeat(254) }, /at most 253 bytes, not 254/],
    [{ id: A }, /resources is missing/],
    [{ ...good, resources: X }, /resources must be a list/],
    [{ ...good, resources: [] }, /resources must name one at least/],
    [{ ...good, resources: [5] }, /resources\[0\] must be/],
    [{ ...good, resources: [X, " "] }, /resources\[1\] must not/],
    [{ ...good, resources: ["x".repeat(254)] }, /at most 253 bytes/],
    [{ ...good, resources: [":".repeat(200)] }, /be shorter for the embedded store/],
    [{ ...good, resources: [X, "y", X] }, /resources\[2\] names "krn:app:x" once more/],
    [
      { ...good, resources: Array.from({ length: 1_001 }, (_, n) => `${n}`) },
      /1000 resources, not 1001/,
    ],
    [{ ...good, after: 1 }, /after is for a session/],
    [{ ...good, session: "s", token: 1, after: 1 }, /after is for a session/],
    [{ ...good, session: 1 }, /session must be/],
    [{ ...good, session: "s", token: "1" }, /token must be a number/],
  ]) {
    const { status, body: answer } = await server.post("/leader/elect", body);
    assert.equal(status, 400, JSON.stringify(body));
    assert.equal(answer.error.code, "bad-request");
    assert.match(answer.error.message, words);
    const { status: ofRelease } = await server.post("/leader/release", body);
    assert.equal(ofRelease, 400);
  }
  for (const [body, words] of [
    [{}, /data is missing/],
    [{ data: good }, /data must be a list/],
    [{ data: [good, 5] }, /data\[1\] must be an object/],
    [{ data: [good, { ...good, id: null }] }, /data\[1\]\.id must be/],
  ]) {
    const { status, body: answer } = await server.post("/leader/bulk/elect", body);
    assert.equal(status, 400, JSON.stringify(body));
    assert.match(answer.error.message, words);
  }
  assert.deepEqual((await server.get("/leader/status")).body.resources, [], "nothing was begun");
  const odd = { ...good, later: { deep: [1] }, session: null };
  assert.equal(
    (await server.post("/leader/elect", odd)).status,
    200,
    "unknown fields are passed over",
  );
});

test("unknown paths and methods are refused with those that there are", async (t) => {
  const server = await ApiServer.start(t);
  for (const path of [
    "/nothing",
    "/leader",
    "/leader/elect/",
    "//leader/elect",
    "/LEADER/ELECT",
    "/..%2f",
  ]) {
    const { status, body } = await server.get(path);
    assert.deepEqual([status, body.error.code], [404, "not-found"], path);
    assert.match(body.error.message, /\/leader\/elect/);
  }
  for (const [method, path, allowed] of [
    ["GET", "/leader/elect", "POST"],
    ["PUT", "/leader/elect", "POST"],
    ["DELETE", "/leader/reset", "POST"],
    ["POST", "/leader/status", "GET"],
    ["OPTIONS", "/", "GET"],
  ]) {
    const { status, headers, body } = await server.ask(method, path);
    assert.deepEqual([status, headers.get("allow")], [405, allowed], `${method} ${path}`);
    assert.equal(body.error.code, "method-not-allowed");
  }
  const head = await server.ask("HEAD", "/leader/status");
  assert.deepEqual([head.status, head.text], [200, ""]);
});

test("a body that is too large is refused unread", async (t) => {
  const server = await ApiServer.start(t);
  const { status, body } = await server.post("/leader/elect", " ".repeat(65_537));
  assert.deepEqual([status, body.error.code], [413, "too-large"]);
  const announced =
    "POST /leader/elect HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n";
  assert.match(await server.raw(announced), /^HTTP\/1\.1 413 /);
  const chunks = `2000\r\n${" ".repeat(8_192)}\r\n`.repeat(9);
  const chunked = `POST /leader/elect HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n${chunks}`;
  assert.match(await server.raw(chunked), /^HTTP\/1\.1 413 /);
  assert.equal((await server.checkIn(A)).leader, true);
});

test("a body that does not come is waited for no longer than ten seconds, and holds up nobody", async (t) => {
  const server = await ApiServer.start(t);
  const slow = 'POST /leader/elect HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\n{"id":';
  const begun = performance.now();
  const waiting = Array.from({ length: 20 }, () => server.raw(slow, { time: 25_000 }));
  assert.equal((await server.checkIn(A)).leader, true);
  for (const answer of await Promise.all(waiting)) {
    assert.match(answer, /^HTTP\/1\.1 408 /);
    assert.match(answer, /"code":"too-slow"/);
  }
  assert.ok(performance.now() - begun >= 9_500);
});

test("what is no HTTP, and a body that breaks off, end their own connection only", async (t) => {
  const server = await ApiServer.start(t);
  for (const bytes of [
    "\u0016\u0003\u0001\u0002\u0000",
    "GET / HTTP/9.9\r\n\r\n",
    "nonsense\r\n\r\n",
    `GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n${"X-Y: z\r\n".repeat(100)}\r\n`,
    `GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ${"y".repeat(30_000)}\r\n\r\n`,
    "POST /leader/elect HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "POST /leader/elect HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
  ]) {
    const answer = await server.raw(bytes, { end: true });
    assert.match(answer, /^(HTTP\/1\.1 4|$)/, JSON.stringify(bytes.slice(0, 60)));
  }
  const broken = "POST /leader/elect HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\n{";
  await server.raw(broken, { end: true });
  assert.equal((await server.checkIn(A)).leader, true);
});

test("requests that are sent together are answered in their order", async (t) => {
  const server = await ApiServer.start(t);
  const elect = (id) => {
    const body = JSON.stringify({ id, resources: [X] });
    return `POST /leader/elect HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
  };
  const close = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
  const answer = await server.raw(elect(A) + elect(B) + elect(A) + close);
  const leads = [...answer.matchAll(/"leader":(true|false),"request_leader":"([^"]*)"/g)];
  assert.deepEqual(
    leads.map(([, leader, id]) => [leader, id]),
    [
      ["true", A],
      ["false", B],
      ["true", A],
    ],
  );
  assert.match(answer, /\{"status":"ok"\}$/);
});

test("without the token nobody is let in, but for the health", async (t) => {
  const file = path.join(newFolder(), "token");
  fs.writeFileSync(file, "hunter2\n");
  const server = await ApiServer.start(t, { args: ["--token-file", file] });
  const bearer = (token) => ({ authorization: `Bearer ${token}` });
  const basic = (text) => ({ authorization: `Basic ${Buffer.from(text).toString("base64")}` });
  for (const headers of [
    {},
    bearer(""),
    bearer("hunter"),
    bearer("hunter22"),
    bearer("HUNTER2"),
    basic("hunter2"),
    basic("hunter2:"),
    { authorization: "hunter2" },
    { authorization: "Digest hunter2" },
  ]) {
    const { status, headers: told, body } = await server.post("/leader/elect", "{", headers);
    assert.deepEqual([status, body.error.code], [401, "unauthorized"], JSON.stringify(headers));
    assert.equal(told.get("www-authenticate"), "Bearer");
  }
  for (const path of ["/leader/status", "/workloads/list", "/metrics"]) {
    assert.equal((await server.get(path)).status, 401, path);
  }
  const page = await server.get("/");
  assert.equal(page.status, 401);
  assert.match(page.headers.get("www-authenticate"), /^Basic /, "a browser asks for it");
  assert.equal((await server.get("/", basic("anybody:hunter2"))).status, 200);
  assert.equal((await server.get("/leader/status", bearer("hunter2"))).status, 200);
  assert.equal(
    (await server.get("/leader/status", { authorization: "bearer hunter2" })).status,
    200,
  );
  assert.equal((await server.get("/healthz")).status, 200);
  assert.ok(!server.program.stderr.includes("hunter2"));

  const byEnvironment = await ApiServer.start(t, { env: { WHENLEADER_TOKEN: "hunter3" } });
  assert.equal((await byEnvironment.get("/leader/status")).status, 401);
  assert.equal((await byEnvironment.get("/leader/status", bearer("hunter3"))).status, 200);
});

test("the health tells whether the store answers", async (t) => {
  const cwd = newFolder();
  const server = await ApiServer.start(t, { cwd });
  assert.deepEqual((await server.get("/healthz")).body, { status: "ok" });
  fs.rmSync(path.join(cwd, ".whenleader"), { recursive: true });
  fs.writeFileSync(path.join(cwd, ".whenleader"), "no folder");
  const { status, body } = await server.get("/healthz");
  assert.equal(status, 503);
  assert.match(body.error.message, /embedded store/);
  const refused = await server.post("/leader/elect", { id: A, resources: [X] });
  assert.equal(refused.status, 503);
  assert.match(refused.body.error.message, /embedded store/);
});

test("the metrics count what happened, in the format of Prometheus", async (t) => {
  const server = await ApiServer.start(t);
  await server.checkIn(A);
  await server.checkIn(A);
  await server.checkIn(B);
  await server.post("/leader/elect", "{");
  const { text, headers } = await server.get("/metrics");
  assert.match(headers.get("content-type"), /^text\/plain; version=0\.0\.4/);
  const value = (name) =>
    Number(text.match(new RegExp(`^${name.replace(/[{}+]/g, "\\$&")} (\\S+)$`, "m"))?.[1]);
  for (const [name, number] of [
    ["whenleader_elections", 1],
    ["whenleader_elections_led", 1],
    ['whenleader_check_ins_total{outcome="granted"}', 2],
    ['whenleader_check_ins_total{outcome="denied"}', 1],
    ['whenleader_check_ins_total{outcome="failed"}', 0],
    ["whenleader_leader_changes_total", 1],
    ['whenleader_http_responses_total{status="2xx"}', 3],
    ['whenleader_http_responses_total{status="4xx"}', 1],
    ["whenleader_check_in_duration_seconds_count", 3],
    ['whenleader_check_in_duration_seconds_bucket{le="+Inf"}', 3],
  ]) {
    assert.equal(value(name), number, name);
  }
  assert.ok(value("whenleader_check_in_duration_seconds_sum") > 0);
  for (const line of text.trimEnd().split("\n")) {
    assert.match(
      line,
      /^(# (HELP|TYPE) whenleader_\w+ .+|whenleader_\w+(\{\w+="[^"]+"\})? [\d.e+-]+)$/,
    );
  }
});

test("what is being answered when the server stops is answered", async (t) => {
  const server = await ApiServer.start(t);
  const half =
    'POST /leader/elect HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 44\r\n\r\n{"id":"a",';
  const rest = '"resources":["krn:app:x"]}'.padEnd(34);
  const socket = net.connect(server.port, "127.0.0.1");
  let answer = "";
  socket.setEncoding("utf8").on("data", (text) => {
    answer += text;
  });
  socket.write(half);
  await sleep(300);
  server.program.kill("SIGTERM");
  await sleep(300);
  await assert.rejects(fetch(`${server.url}/healthz`), "no new connection is taken");
  socket.write(rest);
  const { code } = await server.program.ended;
  assert.equal(code, 0);
  assert.match(answer, /^HTTP\/1\.1 200 /);
});

test("TLS is served with a certificate and its key", async (t) => {
  const { Authority, hasOpenssl } = await import("../tools/servers/certificates.mjs");
  if (!hasOpenssl()) return t.skip("openssl is missing");
  const folder = newFolder();
  new Authority(folder).signServer("server", "/CN=server");
  const [ca, cert, key] = ["ca.crt", "server.crt", "server.key"].map((name) =>
    path.join(folder, name),
  );
  const server = await ApiServer.start(t, { args: ["--cert", cert, "--key", key] });
  assert.match(server.url, /^https:/);
  const https = require("node:https");
  const status = await new Promise((resolve, reject) => {
    const options = {
      ca: fs.readFileSync(ca),
      port: server.port,
      host: "127.0.0.1",
      path: "/healthz",
    };
    https.get(options, (response) => resolve(response.resume().statusCode)).on("error", reject);
  });
  assert.equal(status, 200);
  const plain = await server
    .raw("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    .catch(() => "");
  assert.doesNotMatch(plain, /HTTP/);
});

test("a process has one server, also if two are started at once, and another one after it", async () => {
  const code = `
    const { environment } = require(${JSON.stringify(path.join(ROOT, "lib", "main.js"))});
    const options = {
      store: "file:.whenleader", baseDir: process.cwd(), listen: "127.0.0.1:0", lease: "2s", allowReset: false,
    };
    const keepAlive = setInterval(() => {}, 1_000);
    (async () => {
      const refused = await environment.serve({ ...options, lease: "x" }).catch(({ message }) => message);
      const both = await Promise.allSettled([environment.serve(options), environment.serve(options)]);
      await environment.stopServing();
      const again = await environment.serve(options);
      await environment.stopServing();
      clearInterval(keepAlive);
      console.log(JSON.stringify([refused, both.map(({ value, reason }) => value ?? reason.message), again]));
    })();`;
  const { stdout } = await run(process.execPath, ["-e", code], { cwd: newFolder() });
  const [refused, [first, second], again] = JSON.parse(stdout);
  assert.match(refused, /lease must be/);
  assert.match(first, /^127\.0\.0\.1:\d+$/);
  assert.match(second, /this process serves already/);
  assert.match(again, /^127\.0\.0\.1:\d+$/);
});

test("bad arguments are refused with what is right", async () => {
  for (const [args, code, words] of [
    [[], 2, /There is serve/],
    [["server"], 2, /'server' is not known; there is serve/],
    [["serve", "now"], 2, /options only/],
    [["serve", "--port", "5"], 2, /--port/],
    [["serve", "--log", "loud"], 2, /--log must be one of silent, error/],
    [["serve", "--lease", "5"], 1, /lease must be a duration like "5s"/],
    [["serve", "--lease", "1ms"], 1, /lease must be 100ms to 22h, not 1ms/],
    [["serve", "--lease", "23h"], 1, /lease must be 100ms to 22h, not 82800s/],
    [["serve", "--lease=-5s"], 1, /lease must be a duration/],
    [["serve", "--store", "mongo://x"], 1, /store must be the URL of a store/],
    [["serve", "--store", "redis://:hunter2@127.0.0.1:x"], 1, /store must/],
    [["serve", "--cert", "x"], 1, /cert and key must be given together/],
    [["serve", "--cert", "/no/cert", "--key", "/no/key"], 1, /cert must be certificates in PEM/],
    [["serve", "--listen", "256.0.0.1:80"], 1, /cannot be listened at/],
    [["serve", "--token-file", "/no/token"], 1, /token/],
  ]) {
    const cwd = newFolder();
    const failed = await run(process.execPath, [BIN, ...args], { cwd }).catch((error) => error);
    assert.equal(failed.code, code, `${args}: ${failed.stderr}`);
    assert.match(failed.stderr, words);
    assert.ok(!failed.stderr.includes("hunter2"), failed.stderr);
  }
  const { stdout } = await run(process.execPath, [BIN, "--help"]);
  assert.match(stdout, /^Usage: whenleader serve/);
});

test("an address that others can reach is warned of without a token", async (t) => {
  const server = await ApiServer.start(t, { args: ["--listen", "0.0.0.0:0"] });
  assert.match(server.program.stderr, /warn .*give the server a token/);
});
