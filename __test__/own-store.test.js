// A store of the application's own: what it is asked, what it may answer, and that nothing that it does is
// a crash, or leadership.

const assert = require("node:assert/strict");
const { test, after, afterEach } = require("node:test");
const { setTimeout: sleep } = require("node:timers/promises");
const { once } = require("node:events");
const { Worker } = require("node:worker_threads");
const {
  startCluster,
  stopCluster,
  expectCluster,
  useCluster,
  whenLeader,
  ConfigError,
} = require("../index.js");
const { openClient } = require("../lib/main.js");
const { ROOT, runProgram } = require("./support/child.js");
const { MemoryStore } = require("./support/own-stores.js");

const QUICK = { type: "StoreCluster", leaseDuration: 1500, renewInterval: 300 };
const silent = { error() {}, warn() {}, info() {}, debug() {} };

/** Whatever escapes anywhere fails the file. */
const escaped = [];
process.on("unhandledRejection", (error) => escaped.push(error));

// Taking part keeps no process alive.
const hold = setInterval(() => {}, 1_000);
after(() => clearInterval(hold));

expectCluster();
afterEach(async () => {
  await stopCluster();
  await sleep(0);
  assert.deepEqual(escaped.splice(0), []);
});

const start = (store, config = {}, logger = silent) =>
  startCluster({ ...QUICK, store, ...config }, { logger });

/** Waits, and not for ever. */
async function until(holds) {
  for (const end = Date.now() + 20_000; !holds(); await sleep(10)) assert.ok(Date.now() < end);
}

test("an instance leads through a store of its own, renews through it and releases through it", async () => {
  const store = new MemoryStore();
  const cluster = await start(store, { leaseName: "shop" });
  const { token } = await cluster.waitUntilLeader();
  const key = "cluster:shop";
  const first = store.records.get(key);
  assert.deepEqual(Object.keys(first), [
    "version",
    "instanceId",
    "nonce",
    "token",
    "leaseDuration",
  ]);
  assert.equal(first.instanceId, cluster.getInstanceId());
  assert.equal(first.token, token);
  assert.equal(first.leaseDuration, 1500);
  while (store.calls.filter(([name]) => name === "compareAndSet").length < 4) await sleep(50);
  const writes = store.calls.filter(([name]) => name === "compareAndSet");
  assert.equal(writes[0][2], null, "the first write is on the condition that there is no record");
  for (const [at, write] of writes.entries()) {
    assert.equal(write[1], key);
    if (at > 0) assert.equal(write[2], writes[at - 1][3].version);
  }
  assert.equal(new Set(writes.map((write) => write[3].version)).size, writes.length);
  assert.ok(cluster.isLeader());
  await stopCluster();
  const released = store.records.get(key);
  assert.equal(released.instanceId, null);
  assert.equal(released.leaseDuration, 0);
  assert.equal(released.token, token);
});

test("raw attempts on a store are made one by one, by clients that are as processes are", async () => {
  const store = new MemoryStore();
  store.watch = (key, changed) => store.onChange(key, changed);
  const [a, b] = ["a", "b"].map((instanceId) => openClient(store, { instanceId, limit: 5_000 }));
  const hints = [];
  const unwatch = b.watch("e", (hint) => hints.push(hint.what));
  assert.deepEqual(await b.peek("e"), { what: "nobody" });
  const won = await a.attempt("e", 60_000);
  assert.equal(won.what, "held");
  assert.equal(won.validFor, 60_000);
  const lost = await b.attempt("e", 60_000);
  assert.equal(lost.what, "other");
  assert.equal(lost.instanceId, "a");
  assert.equal(lost.token, won.token);
  assert.ok(lost.remaining > 30_000 && lost.remaining <= 60_000);
  assert.equal((await a.attempt("e", 60_000, won.token)).token, won.token);
  assert.equal((await b.release("e", won.token)).what, "notReleased");
  assert.deepEqual(await b.peek("e"), { what: "leader", instanceId: "a", token: won.token });
  assert.equal((await a.release("e", won.token)).what, "released");
  while (!hints.includes("free")) await sleep(10);
  assert.equal(hints[0], "watching");
  await unwatch();
  while (store.watches > 0) await sleep(10);
  store.get = () => Promise.reject(new Error("no database"));
  const failed = await b.attempt("e", 60_000);
  assert.equal(failed.what, "transient");
  assert.match(failed.message, /get\("cluster:e"\) failed: Error: no database/);
  a.close();
  b.close();
});

test("a client that is closed hears nothing more: its watches end with it", async (t) => {
  const store = new MemoryStore();
  store.watch = (key, changed) => store.onChange(key, changed);
  const [a, b] = ["a", "b"].map((instanceId) => openClient(store, { instanceId, limit: 5_000 }));
  const heard = [];
  const ends = [a.watch("e", () => {}), a.watch("f", () => {}), b.watch("e", () => heard.push(1))];
  t.after(() => Promise.all(ends.map((end) => end())));
  await until(() => store.watches === 3);
  a.close();
  await until(() => store.watches === 1);
  await ends[0]();
  await ends[1]();
  heard.length = 0;
  await b.attempt("e", 60_000);
  await until(() => heard.length > 0);
  b.close();
  await until(() => store.watches === 0);
});

test("the watches of a thread's clients end with the thread", async () => {
  const code = `
    const { parentPort } = require("node:worker_threads");
    const { openClient } = require(${JSON.stringify(`${ROOT}/lib/main.js`)});
    const { MemoryStore } = require(${MEMORY});
    const store = new MemoryStore();
    store.watch = (key, changed) => store.onChange(key, changed);
    const client = openClient(store, { instanceId: "a", limit: 5_000 });
    client.watch("e", ({ what }) => parentPort.postMessage(what));`;
  const lines = [];
  const logger = { ...silent, warn: (...values) => lines.push(values) };
  await start(new MemoryStore(), {}, logger);
  for (let round = 0; round < 5; round++) {
    const worker = new Worker(code, { eval: true });
    assert.deepEqual(await once(worker, "message"), ["watching"]);
    await worker.terminate();
  }
  await sleep(500);
  // One that goes on is told that its functions are gone, says so, and tries again for ever.
  assert.deepEqual(lines, []);
});

test("an object that is no store is refused with the member that is missing", async () => {
  for (const [store, words] of [
    [{}, /store\.get must be a function, not undefined/],
    [{ get() {} }, /store\.compareAndSet must be a function, not undefined/],
    [{ get: 5, compareAndSet() {} }, /store\.get must be a function, not 5/],
    [{ get() {}, compareAndSet() {}, watch: "yes" }, /store\.watch must be a function, not 'yes'/],
    [() => {}, /store\.get must be a function/],
  ]) {
    await assert.rejects(start(store), (error) => {
      assert.ok(error instanceof ConfigError, error.stack);
      assert.match(error.message, words);
      return true;
    });
  }
});

/** A logger that remembers. */
function recorder() {
  const lines = [];
  const take = (first, second) =>
    lines.push(typeof first === "string" ? first : String(second ?? first?.msg ?? first));
  return { lines, logger: { error: take, warn: take, info: take, debug() {} } };
}

/** The first error event after a start. */
async function startWithError(store, config) {
  const cluster = useCluster();
  const error = once(cluster, "error");
  await start(store, config);
  assert.equal(cluster.isLeader(), false);
  return (await error)[0];
}

const refusing = {
  // biome-ignore lint/suspicious/noThenProperty: that is what is tested.
  get then() {
    throw new Error("boom");
  },
};
const unreadable = new Proxy(new Error("boom"), {
  get() {
    throw new Error("inner");
  },
  getPrototypeOf() {
    throw new Error("inner");
  },
});
const circular = { name: "circular" };
circular.self = circular;

/** Every way to fail that is no answer. */
const FAILURES = {
  "throws at once": [
    () => {
      throw new Error("boom");
    },
    /failed: Error: boom/,
  ],
  "rejects with an error": [
    async () => {
      throw new TypeError("boom");
    },
    /TypeError: boom/,
  ],
  "rejects with undefined": [() => Promise.reject(undefined), /threw undefined/],
  "rejects with null": [() => Promise.reject(null), /threw null/],
  "rejects with a text": [() => Promise.reject("boom"), /threw 'boom'/],
  "rejects with a circular object": [() => Promise.reject(circular), /circular/],
  "rejects with what cannot be read": [() => Promise.reject(unreadable), /failed: it threw/],
  "rejects with a DOMException": [
    () => Promise.reject(new DOMException("late", "TimeoutError")),
    /TimeoutError: late/,
  ],
  "rejects with the code of a driver": [
    () => Promise.reject(Object.assign(new Error("not primary"), { code: 10107 })),
    /not primary \(10107\)/,
  ],
  "throws what holds a password": [
    () => {
      throw new Error("no route to mongodb://u:hunter2@h/db");
    },
    /mongodb:\/\/u:\*\*\*@h\/db/,
  ],
  "is a thenable that throws": [
    () => ({
      // biome-ignore lint/suspicious/noThenProperty: that is what is tested.
      then() {
        throw new Error("boom");
      },
    }),
    /Error: boom/,
  ],
  "is a thenable that cannot be read": [() => refusing, /Error: boom/],
  "has a loss for words": [
    () => {
      throw new Error("x".repeat(10_000));
    },
    /^.{0,900}$/,
  ],
};

for (const member of ["get", "compareAndSet"]) {
  for (const [what, [fail, words]] of Object.entries(FAILURES)) {
    test(`${member} that ${what} is an error event, and the election goes on`, async () => {
      const store = new MemoryStore();
      const works = store[member];
      store[member] = fail;
      const error = await startWithError(store);
      assert.equal(error.code, "WHENLEADER_STORE");
      assert.equal(error.reason, "failed");
      assert.equal(error.fatal, false);
      assert.match(error.message, words);
      assert.ok(error.message.includes(`${member}("cluster:leader")`), error.message);
      assert.ok(!error.message.includes("hunter2"));
      store[member] = works;
      await useCluster().waitUntilLeader();
    });
  }
}

for (const answer of [
  undefined,
  null,
  0,
  1,
  Number.NaN,
  1n,
  "",
  {},
  [],
  { version: "" },
  { version: new Date(0) },
  { matchedCount: 1 },
  () => true,
  Symbol("yes"),
]) {
  const shown = require("node:util").inspect(answer);
  test(`compareAndSet that answers ${shown} is told what it must answer, and makes nobody leader`, async () => {
    const store = new MemoryStore();
    const works = store.compareAndSet;
    store.compareAndSet = (...values) => {
      works.apply(store, values);
      return answer;
    };
    const error = await startWithError(store);
    assert.equal(error.reason, "bad-answer");
    assert.match(error.message, /compareAndSet\("cluster:leader"\) answered .*; it must be true/);
    await sleep(700);
    assert.equal(useCluster().isLeader(), false);
    store.compareAndSet = works;
    await useCluster().waitUntilLeader();
  });
}

const throwing = {
  version: "v",
  get token() {
    throw new Error("no such column");
  },
};
for (const [what, record] of Object.entries({
  "a number": 5,
  true: true,
  "an array": [],
  "a function": () => {},
  "a text that is no JSON": "rubbish",
  "JSON that is no record": "[1]",
  "an empty text": "",
  "a Buffer of rubbish": Buffer.from([0xff, 0x00]),
  "an empty object": {},
  "a version that is NaN": { version: Number.NaN },
  "a version that is an object": { version: {} },
  "a version that is a symbol": { version: Symbol("v") },
  // Two writes within a millisecond would have the same.
  "a version that is a time": { version: new Date() },
  "a circular object": circular,
  "a getter that throws": throwing,
  "an object that cannot be read": new Proxy(
    {},
    {
      get: (_, key) => {
        if (key !== "then") throw new Error("inner");
      },
    },
  ),
})) {
  test(`get that answers ${what} is a bad record, and fails the start`, async () => {
    const store = new MemoryStore();
    store.get = () => record;
    await assert.rejects(start(store), (error) => {
      assert.equal(error.code, "WHENLEADER_STORE", error.stack);
      assert.equal(error.reason, "bad-record");
      assert.match(error.message, /get\("cluster:leader"\) answered/);
      return true;
    });
  });
}

const TOKEN = 4_000_000_000_000_000;
const held = {
  version: "someone's",
  instanceId: "other",
  nonce: "00000000000000ff",
  token: TOKEN,
  leaseDuration: 60_000,
};
class Row {
  #held = held;
  get version() {
    return this.#held.version;
  }
  get instanceId() {
    return this.#held.instanceId;
  }
  get nonce() {
    return this.#held.nonce;
  }
  get token() {
    return this.#held.token;
  }
  get leaseDuration() {
    return this.#held.leaseDuration;
  }
}
class Long {
  constructor(value) {
    this.value = value;
  }
  toString() {
    return String(this.value);
  }
}
for (const [what, record] of Object.entries({
  "a plain object": held,
  "with more members": { _id: 1, ...held, createdAt: new Date(), self: circular },
  "an instance of a class with getters": new Row(),
  "JSON text": JSON.stringify(held),
  "a Buffer of JSON text": Buffer.from(JSON.stringify(held)),
  "with bigints": { ...held, token: BigInt(TOKEN), leaseDuration: 60_000n },
  "with numbers as text": { ...held, token: String(TOKEN), leaseDuration: "60000" },
  "with numbers of a driver": { ...held, token: new Long(TOKEN), leaseDuration: new Long(60_000) },
  "of a thenable that calls back twice": {
    // biome-ignore lint/suspicious/noThenProperty: that is what is tested.
    then(resolve, reject) {
      resolve(held);
      reject(new Error("boom"));
      resolve(5);
    },
  },
})) {
  test(`a record is understood ${what}`, async () => {
    const store = new MemoryStore();
    store.get = () => record;
    const cluster = useCluster();
    const seen = once(cluster, "leaderChanged");
    await start(store);
    assert.deepEqual((await seen)[0], { instanceId: "other", token: TOKEN });
    assert.equal(cluster.isLeader(), false);
  });
}

test("a record is understood in which half of a surrogate pair stands", async () => {
  const store = new MemoryStore();
  store.get = () => ({ ...held, instanceId: "web-\ud83d-1" });
  const cluster = useCluster();
  const seen = once(cluster, "leaderChanged");
  await start(store);
  assert.deepEqual((await seen)[0], { instanceId: "web-\ufffd-1", token: TOKEN });
});

for (const [what, next] of Object.entries({
  text: (n) => `rev-${n}`,
  numbers: (n) => n,
  bigints: (n) => BigInt(n) << 64n,
  "halves of surrogate pairs": (n) => `\ud83d${n}\ude00`,
  Buffers: (n) => Buffer.from([0, n, 255]),
})) {
  test(`a store with versions of its own, ${what}, gets them back in their type`, async () => {
    const util = require("node:util");
    const expected = [];
    let row = null;
    let reads = 0;
    let writes = 0;
    const store = {
      get: () => {
        reads += 1;
        return row;
      },
      compareAndSet(_, version, value) {
        expected.push(version);
        if (!util.isDeepStrictEqual(row?.version ?? null, version)) return false;
        writes += 1;
        row = { ...value, version: next(writes) };
        return writes % 2 ? row : { version: row.version };
      },
    };
    await start(store);
    await useCluster().waitUntilLeader();
    while (writes < 5) await sleep(20);
    assert.deepEqual(
      expected.slice(0, 5),
      [null, 1, 2, 3, 4].map((n) => n && next(n)),
    );
    assert.equal(reads, 2, "one at the start, one of the first attempt, and renewals need none");
    await stopCluster();
    assert.equal(row.instanceId, null);
  });
}

test("a function that never settles is given up in time and told of, and its late answer counts for nothing", async () => {
  const { lines, logger } = recorder();
  const store = new MemoryStore();
  const works = store.compareAndSet;
  const waiting = [];
  store.compareAndSet = () => new Promise((resolve) => waiting.push(resolve));
  const cluster = useCluster();
  const error = once(cluster, "error");
  await start(store, {}, logger);
  assert.match((await error)[0].message, /no answer in time/);
  while (waiting.length < 3) await sleep(20);
  assert.equal(
    lines.filter((line) => line.includes('compareAndSet("cluster:leader") did not settle')).length,
    1,
    lines.join("\n"),
  );
  // The last one is still waited for.
  for (const resolve of waiting.slice(0, -1)) resolve(true);
  await sleep(50);
  assert.equal(cluster.isLeader(), false);
  store.compareAndSet = works;
  await cluster.waitUntilLeader();
  // A stop is not kept for ever either.
  store.compareAndSet = () => new Promise(() => {});
  await stopCluster();
});

test("a write that was applied and then failed begins no second term beside the first", async () => {
  const store = new MemoryStore();
  const works = store.compareAndSet;
  store.compareAndSet = async (...values) => {
    await works.apply(store, values);
    store.compareAndSet = works;
    throw new Error("the connection broke");
  };
  await startWithError(store);
  const unheard = store.records.get("cluster:leader").token;
  const { token } = await useCluster().waitUntilLeader();
  assert.ok(token > unheard);
});

test("a write that failed and is applied two seconds later changes nothing any more", async () => {
  const store = new MemoryStore();
  const cluster = await start(store);
  const { token } = await cluster.waitUntilLeader();
  const works = store.compareAndSet;
  let late;
  store.compareAndSet = async (...values) => {
    store.compareAndSet = works;
    late = sleep(2_000).then(() => works.apply(store, values));
    throw new Error("the connection broke");
  };
  while (late === undefined) await sleep(20);
  assert.equal(await late, false, "its condition does not hold any more");
  const term = await cluster.waitUntilLeader();
  assert.ok(term.token >= token);
  assert.equal(store.records.get("cluster:leader").token, term.token);
});

test("a record that is dropped ends the term, and tokens go on growing", async () => {
  const store = new MemoryStore();
  const cluster = await start(store);
  const { token } = await cluster.waitUntilLeader();
  const demoted = once(cluster, "demoted");
  store.records.clear();
  const [lost] = await demoted;
  assert.equal(lost.reason, "released");
  assert.ok((await cluster.waitUntilLeader()).token > token);
});

test("a store that blocks the event loop leads no longer than its deadline", async () => {
  const store = new MemoryStore();
  const cluster = await start(store);
  await cluster.waitUntilLeader();
  const works = store.compareAndSet;
  const answers = new Promise((resolve) => {
    store.compareAndSet = (...values) => {
      store.compareAndSet = works;
      const before = cluster.isLeader();
      for (const end = Date.now() + 1600; Date.now() < end; );
      resolve([before, cluster.isLeader()]);
      return works.apply(store, values);
    };
  });
  assert.deepEqual(await answers, [true, false]);
  await cluster.waitUntilLeader();
});

test("a store may use this package inside of its functions, also to stop", async () => {
  const store = new MemoryStore();
  let ran = 0;
  const works = store.compareAndSet;
  let stopped;
  store.compareAndSet = async (...values) => {
    store.compareAndSet = works;
    whenLeader(() => {
      ran += 1;
    });
    useCluster().isLeader();
    return works.apply(store, values);
  };
  await start(store);
  await useCluster().waitUntilLeader();
  while (ran === 0) await sleep(5);
  await new Promise((resolve) => {
    store.compareAndSet = async (...values) => {
      store.compareAndSet = works;
      stopped = stopCluster();
      resolve();
      await stopped;
      return works.apply(store, values);
    };
  });
  await stopped;
  assert.equal(useCluster().isLeader(), false);
});

test("two starts with one store are one configuration, and another store is another one", async () => {
  const store = new MemoryStore();
  const cluster = await start(store);
  assert.equal(await start(store), cluster);
  assert.equal(await startCluster({ cluster: { ...QUICK, registry: store } }), cluster);
  await assert.rejects(start(new MemoryStore()), (error) => {
    assert.ok(error instanceof ConfigError);
    assert.match(
      error.message,
      /already takes part in a cluster on your own store \(MemoryStore\)/,
    );
    return true;
  });
  // The one that runs is still there.
  await cluster.waitUntilLeader();
});

test("store and registry must be the same, and minReplicas is for others", async () => {
  const [one, other] = [new MemoryStore(), new MemoryStore()];
  for (const [config, words] of [
    [{ store: one, registry: other }, /registry is another word for store/],
    [{ store: one, minReplicas: 1 }, /minReplicas must be left out beside a store of your own/],
    [{ type: "LocalCluster", store: one }, /belongs to StoreCluster/],
  ]) {
    await assert.rejects(startCluster({ ...QUICK, ...config }), (error) => {
      assert.ok(error instanceof ConfigError, error.stack);
      assert.match(error.message, words);
      return true;
    });
  }
});

test("an object in a JSON file cannot be a store, and the error shows the way", async () => {
  const { stderr } = await runProgram(
    "startCluster().catch((error) => require('node:fs').writeSync(2, error.message));",
    { config: { type: "StoreCluster", store: { get: "get", compareAndSet: "set" } } },
  );
  assert.match(
    stderr,
    /no JSON can hold: give it to startCluster\(\{ cluster: \{ store: \{ get, compareAndSet/,
  );
});

test("a watch makes a hand-over quick, is begun again when it breaks, and is ended at the stop", async () => {
  const { lines, logger } = recorder();
  const store = new MemoryStore();
  let changed;
  let begun = 0;
  store.watch = async (key, told) => {
    begun += 1;
    if (begun === 1) throw new Error("no stream");
    changed = told;
    return store.onChange(key, told);
  };
  store.records.set("cluster:leader", { ...held });
  const config = { leaseDuration: 30_000, renewInterval: 10_000 };
  const cluster = await start(store, config, logger);
  while (store.watches === 0) await sleep(10);
  changed(new Error("the stream broke"));
  while (begun < 3) await sleep(10);
  await sleep(100);
  const before = Date.now();
  const expected = store.records.get("cluster:leader").version;
  const released = { ...held, version: "next", instanceId: null, leaseDuration: 0 };
  assert.ok(store.set("cluster:leader", expected, released));
  await cluster.waitUntilLeader();
  assert.ok(Date.now() - before < 5_000, "without waiting for the next attempt");
  await stopCluster();
  while (store.watches > 0) await sleep(10);
  const told = lines.filter((line) => line.includes("changes are not heard of"));
  assert.equal(told.length, 2, lines.join("\n"));
  assert.match(told[0], /watch\("cluster:leader"\) failed: Error: no stream/);
  assert.match(told[1], /watch\("cluster:leader"\) broke: Error: the stream broke/);
});

test("a watch that does everything wrong does no harm", async () => {
  for (const watch of [
    () => {
      throw undefined;
    },
    () => new Promise(() => {}),
    () => 5,
    (_, changed) => {
      for (let i = 0; i < 1_000; i++) changed("event", i);
      return () => {
        throw new Error("boom");
      };
    },
    (_, changed) => {
      changed(new Error("boom"));
      return async () => {
        throw new Error("boom");
      };
    },
  ]) {
    const store = new MemoryStore();
    store.watch = watch;
    const cluster = await start(store);
    await cluster.waitUntilLeader();
    await sleep(400);
    assert.ok(cluster.isLeader());
    assert.ok(store.calls.length < 60, `${store.calls.length} calls`);
    await stopCluster();
  }
});

const MEMORY = JSON.stringify(require.resolve("./support/own-stores.js"));

test("a process that ends does not wait for functions that cannot run any more", async () => {
  const { stdout, code } = await runProgram(
    `const { MemoryStore } = require(${MEMORY});
     (async () => {
       const store = new MemoryStore();
       const cluster = await startCluster({ store, leaseDuration: 60_000, renewInterval: 20_000 });
       await cluster.waitUntilLeader();
       const begun = Date.now();
       process.on("exit", () => {
         say(Date.now() - begun < 3000 ? "at once" : "late");
       });
       process.exit();
     })();`,
  );
  assert.equal(code, 0);
  assert.equal(stdout, "at once\n");
});

test("a store keeps no process alive, and a stop does until the lease is released", async () => {
  const program = (last) =>
    runProgram(
      `const { MemoryStore } = require(${MEMORY});
       const store = new MemoryStore();
       const works = store.compareAndSet;
       store.compareAndSet = async (...values) => {
         // Nothing of it holds the process.
         await new Promise((resolve) => setTimeout(resolve, 100).unref());
         return works.apply(store, values);
       };
       process.on("exit", () => say(store.records.get("cluster:leader")?.instanceId === null));
       (async () => {
         const cluster = await startCluster({ store, leaseDuration: 6000, renewInterval: 2000 });
         await cluster.waitUntilLeader();
         ${last}
       })();`,
    );
  assert.deepEqual(await program("").then(({ code, stdout }) => [code, stdout]), [0, "false\n"]);
  const stopped = await program("stopCluster();");
  assert.deepEqual([stopped.code, stopped.stdout], [0, "true\n"]);
});

test("a store of a thread that ended is told of, and nobody leads through it", async (t) => {
  const code = `
    const { parentPort, workerData } = require("node:worker_threads");
    const { startCluster, useCluster, whenLeader } = require(${JSON.stringify(ROOT)});
    const { MemoryStore } = require(${MEMORY});
    const config = { leaseDuration: 1500, renewInterval: 300 };
    parentPort.on("message", () => {}); // It stays.
    startCluster(workerData.owns ? { ...config, store: new MemoryStore() } : undefined, {
      logger: { error() {}, warn() {}, info() {} },
    }).then((cluster) => {
      whenLeader(() => parentPort.postMessage("leads"), () => parentPort.postMessage("lost"));
      cluster.on("error", ({ reason, fatal }) => parentPort.postMessage([reason, fatal, cluster.isLeader()]));
    });`;
  const worker = (owns) => {
    const thread = new Worker(code, { eval: true, workerData: { owns } });
    t.after(() => thread.terminate());
    const said = [];
    thread.on("message", (word) => said.push(word));
    return { thread, said };
  };
  const owner = worker(true);
  await until(() => owner.said.includes("leads"));
  const other = worker(false);
  await until(() => other.said.includes("leads"));
  await owner.thread.terminate();
  await until(() => other.said.includes("lost"));
  await until(() => other.said.some((word) => Array.isArray(word)));
  assert.deepEqual(other.said.find(Array.isArray), ["thread-ended", true, false]);
});
