// The conformance tests for stores of somebody's own: right stores pass all of them, and every wrong one is caught by
// the sentence that tells what is wrong with it.

const assert = require("node:assert/strict");
const { EventEmitter } = require("node:events");
const { test } = require("node:test");
const { ConfigError } = require("../index.js");
const { storeTests } = require("../testing.js");

/** What all processes share. */
class Database {
  rows = new Map();
  changes = new EventEmitter().setMaxListeners(0);
  revision = 0;
}

/** A right store: one process's connection to it. */
class Store {
  constructor(database) {
    this.database = database;
  }

  async get(key) {
    await null;
    return this.database.rows.get(key) ?? null;
  }

  async compareAndSet(key, expected, value) {
    await null;
    const { rows, changes } = this.database;
    if ((rows.get(key)?.version ?? null) !== expected) return false;
    rows.set(key, value);
    changes.emit(key);
    return true;
  }

  watch(key, changed) {
    const { changes } = this.database;
    const listener = () => setImmediate(changed);
    changes.on(key, listener);
    return () => changes.off(key, listener);
  }
}

function testsOf(Kind, options) {
  const database = new Database();
  return storeTests({
    open: () => new Kind(database),
    remove: (key) => database.rows.delete(key),
    callTimeout: 1_000,
    ...options,
  });
}

/** Right stores of other kinds. */
const RIGHT = {
  "a store in memory": Store,
  "a store that counts its revisions, and keeps JSON text": class extends Store {
    async get(key) {
      await null;
      const row = this.database.rows.get(key);
      if (row === undefined) return undefined;
      return Buffer.from(JSON.stringify({ ...JSON.parse(row.text), version: row.revision }));
    }

    async compareAndSet(key, expected, value) {
      await null;
      const { database } = this;
      if ((database.rows.get(key)?.revision ?? null) !== expected) return false;
      database.revision += 1;
      database.rows.set(key, { revision: database.revision, text: JSON.stringify(value) });
      return { version: database.revision };
    }

    watch = undefined;
  },
  "a store with bigints and more columns, which answers at once": class {
    constructor(database) {
      this.database = database;
    }

    get(key) {
      const row = this.database.rows.get(key);
      return (
        row && { ...row, _id: key, token: BigInt(row.token), instanceId: row.instanceId ?? "" }
      );
    }

    compareAndSet(key, expected, value) {
      const { rows } = this.database;
      if ((rows.get(key)?.version ?? null) !== expected) return false;
      rows.set(key, value);
      return true;
    }
  },
};

for (const [what, Kind] of Object.entries(RIGHT)) {
  test(`${what} passes`, async (t) => {
    const begun = performance.now();
    for (const { name, run } of testsOf(Kind)) await t.test(name, run);
    const seconds = (performance.now() - begun) / 1000;
    t.diagnostic(`FIGURES: the conformance tests of ${what} took ${seconds.toFixed(1)} s`);
    assert.ok(seconds < 30);
  });
}

const later = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Wrong stores, the sentence that catches each, and a word of the cure. */
const WRONG = {
  "ignores the condition": {
    caught: "a record that is there is not made again",
    says: /although there is a record, wrote: null as the expected version means/,
    Kind: class extends Store {
      async compareAndSet(key, _expected, value) {
        this.database.rows.set(key, value);
        return true;
      }
    },
  },
  "ignores the condition of a change": {
    caught: "a version that is over is refused, and nothing is written",
    says: /WHERE key = \? AND version = \?/,
    Kind: class extends Store {
      async compareAndSet(key, expected, value) {
        if (expected === null) return super.compareAndSet(key, expected, value);
        this.database.rows.set(key, value);
        return true;
      }
    },
  },
  "has a record for every key": {
    caught: "a key without a record is told as none",
    says: /found a record that nobody wrote/,
    Kind: class extends Store {
      async get(key) {
        const none = { version: "none", instanceId: null, nonce: "", token: 0, leaseDuration: 0 };
        return (await super.get(key)) ?? none;
      }
    },
  },
  "does not find the record by a version that it answered itself": {
    caught: "the version that a write answered is the condition of the next, many times over",
    says: /answered false although that is the version of the record/,
    Kind: class extends Store {
      #written = 0;

      async compareAndSet(...args) {
        this.#written += 1;
        return this.#written < 25 && super.compareAndSet(...args);
      }
    },
    but: [
      "what comes back is what was written, exactly",
      "of many racing changes of one version exactly one wins",
    ],
  },
  "looks, and then writes": {
    caught: "of many racing creations exactly one wins",
    says: /of 8 racing creations 8 were answered as written: .*INSERT/,
    Kind: class extends Store {
      async compareAndSet(key, expected, value) {
        if (((await this.get(key))?.version ?? null) !== expected) return false;
        await later(1);
        this.database.rows.set(key, value);
        return true;
      }
    },
  },
  "looks, and then changes": {
    caught: "of many racing changes of one version exactly one wins",
    says: /of 8 racing changes of one version 8 were answered as written: .*updateOne/,
    Kind: class extends Store {
      async compareAndSet(key, expected, value) {
        if (expected === null) return super.compareAndSet(key, expected, value);
        if (((await this.get(key))?.version ?? null) !== expected) return false;
        await later(1);
        this.database.rows.set(key, value);
        return true;
      }
    },
  },
  "answers true on a conflict": {
    caught: "a record that is there is not made again",
    says: /answered that it wrote, and did not: .*matchedCount/,
    Kind: class extends Store {
      async compareAndSet(...args) {
        await super.compareAndSet(...args);
        return true;
      }
    },
  },
  "answers false although it wrote": {
    caught: "a record is made where there is none, and found by everybody",
    says: /answered false although there is no record/,
    Kind: class extends Store {
      async compareAndSet(...args) {
        await super.compareAndSet(...args);
        return false;
      }
    },
  },
  "writes also where it answers false": {
    caught: "a record that is there is not made again",
    says: /answered false and yet wrote/,
    Kind: class extends Store {
      async compareAndSet(key, expected, value) {
        const written = await super.compareAndSet(key, expected, value);
        this.database.rows.set(key, value);
        return written;
      }
    },
  },
  "throws on a conflict": {
    caught: "a record that is there is not made again",
    says: /failed: Error: duplicate key value violates.*return false/,
    Kind: class extends Store {
      async compareAndSet(...args) {
        if (await super.compareAndSet(...args)) return true;
        throw new Error("duplicate key value violates unique constraint");
      }
    },
  },
  "answers with what the driver gave": {
    caught: "a record is made where there is none, and found by everybody",
    says: /answered \{ acknowledged: true, modifiedCount: 1 \}; it must be true/,
    Kind: class extends Store {
      async compareAndSet(...args) {
        const written = await super.compareAndSet(...args);
        return { acknowledged: true, modifiedCount: written ? 1 : 0 };
      }
    },
  },
  "answers nothing": {
    caught: "a record is made where there is none, and found by everybody",
    says: /answered undefined; it must be true/,
    Kind: class extends Store {
      async compareAndSet(...args) {
        await super.compareAndSet(...args);
      }
    },
  },
  "makes a record where one should be changed": {
    caught: "a change of a record that is not there is refused, and makes none",
    says: /although there is no record, wrote: .*No upsert/,
    Kind: class extends Store {
      async compareAndSet(key, expected, value) {
        if (!this.database.rows.has(key)) expected = null;
        return super.compareAndSet(key, expected, value);
      }
    },
  },
  "deletes where a lease is released": {
    caught: "what comes back is what was written, exactly",
    says: /found no record after it had been written/,
    Kind: class extends Store {
      async compareAndSet(key, expected, value) {
        const written = await super.compareAndSet(key, expected, value);
        if (written && value.instanceId === null) this.database.rows.delete(key);
        return written;
      }
    },
  },
  "takes a released record for none": {
    caught: "a released record is still a record, and is not made again",
    says: /although there is a record, which nobody holds, wrote/,
    Kind: class extends Store {
      async compareAndSet(key, expected, value) {
        const { rows } = this.database;
        if (expected === null && rows.get(key)?.instanceId === null) rows.delete(key);
        return super.compareAndSet(key, expected, value);
      }
    },
  },
  "reads from a replica that lags": {
    caught: "a record is made where there is none, and found by everybody",
    says: /found no record although compareAndSet had answered/,
    Kind: class extends Store {
      async get(key) {
        return this.database.lagging?.get(key) ?? null;
      }

      async compareAndSet(...args) {
        const written = await super.compareAndSet(...args);
        const copy = new Map(this.database.rows);
        setTimeout(() => {
          this.database.lagging = copy;
        }, 20);
        return written;
      }
    },
  },
  "reads now and then from a cache of its own": {
    caught: "a write is seen by everybody as soon as it was answered",
    says: /still showed the record before it: .*from the primary/,
    Kind: class extends Store {
      #cache = new Map();
      #reads = 0;

      async get(key) {
        this.#reads += 1;
        if (this.#reads % 50 === 0 && this.#cache.has(key)) return this.#cache.get(key);
        const found = await super.get(key);
        this.#cache.set(key, found);
        return found;
      }
    },
  },
  "rounds tokens": {
    caught: "what comes back is what was written, exactly",
    says: /answered token as \d+ after \d+ was written: .*BIGINT/,
    Kind: class extends Store {
      async get(key) {
        const row = await super.get(key);
        return row && { ...row, token: Math.fround(row.token) };
      }
    },
  },
  "keeps tokens of 32 bits": {
    caught: "what comes back is what was written, exactly",
    says: /token as -?\d+ after/,
    Kind: class extends Store {
      async get(key) {
        const row = await super.get(key);
        return row && { ...row, token: row.token | 0 };
      }
    },
  },
  "takes nonces for numbers": {
    caught: "what comes back is what was written, exactly",
    says: /answered nonce as \d+ after "\d+" was written/,
    Kind: class extends Store {
      async get(key) {
        const row = await super.get(key);
        if (row === null) return null;
        return { ...row, nonce: /^\d+$/.test(row.nonce) ? Number(row.nonce) : row.nonce };
      }
    },
  },
  "cuts ids to 64 characters": {
    caught: "what comes back is what was written, exactly",
    says: /answered instanceId as "x+" after "x+" was written: text of up to 253 bytes/,
    Kind: class extends Store {
      async get(key) {
        const row = await super.get(key);
        return row && { ...row, instanceId: row.instanceId?.slice(0, 80) ?? null };
      }
    },
  },
  "loses emoji": {
    caught: "what comes back is what was written, exactly",
    says: /utf8mb4/,
    Kind: class extends Store {
      async get(key) {
        const row = await super.get(key);
        return (
          row && {
            ...row,
            instanceId: row.instanceId?.replace(/\p{Extended_Pictographic}/gu, "?") ?? null,
          }
        );
      }
    },
  },
  "drops the version": {
    caught: "a record is made where there is none, and found by everybody",
    says: /a record whose version is undefined; it must be the value\.version/,
    Kind: class extends Store {
      async get(key) {
        const row = await super.get(key);
        if (row === null) return null;
        const { version: _, ...rest } = row;
        return rest;
      }
    },
  },
  "counts its own versions, and does not tell of them": {
    caught: "a record is made where there is none, and found by everybody",
    says: /answered the version 1, and compareAndSet had answered "[0-9a-f]{16}"/,
    Kind: class extends Store {
      async get(key) {
        const row = await super.get(key);
        return row && { ...row, version: 1 };
      }
    },
  },
  "uses versions again": {
    caught: "every write has a version of its own",
    says: /version \d was used again: .*a counter of the store's own must never go back/,
    Kind: class extends Store {
      async get(key) {
        const row = await super.get(key);
        return row && { ...row, version: row.revision };
      }

      async compareAndSet(key, expected, value) {
        const { rows } = this.database;
        const row = rows.get(key);
        if ((row?.revision ?? null) !== expected) return false;
        const revision = row === undefined ? 1 : (row.revision % 9) + 1;
        rows.set(key, { ...value, revision });
        return { version: revision };
      }
    },
  },
  "makes versions of the time, which is too coarse": {
    caught: "a version that is over is refused, and nothing is written",
    says: /./,
    Kind: class extends Store {
      async get(key) {
        const row = await super.get(key);
        return row && { ...row, version: row.at };
      }

      async compareAndSet(key, expected, value) {
        const { rows } = this.database;
        const before = rows.get(key)?.at ?? null;
        if (before !== expected) return false;
        const at = Math.floor(Date.now() / 1000);
        rows.set(key, { ...value, at });
        return { version: at };
      }
    },
  },
  "makes versions of Dates": {
    caught: "a record is made where there is none, and found by everybody",
    says: /answered .* the member version \(no time: two writes within one tick/,
    Kind: class extends Store {
      async compareAndSet(key, expected, value) {
        const version = new Date();
        if (!(await super.compareAndSet(key, expected, { ...value, version }))) return false;
        return { version };
      }
    },
  },
  "counts anew after a deletion": {
    caught: "a record that was deleted and made again has another version",
    says: /version 1 was used again: a counter that begins anew/,
    Kind: class extends Store {
      async get(key) {
        const row = await super.get(key);
        return row && { ...row, version: row.revision };
      }

      async compareAndSet(key, expected, value) {
        const { rows } = this.database;
        const row = rows.get(key);
        if ((row?.revision ?? null) !== expected) return false;
        const revision = (row?.revision ?? 0) + 1;
        rows.set(key, { ...value, revision });
        return { version: revision };
      }
    },
  },
  "folds the case of keys": {
    caught: "keys do not touch each other, whatever is in them",
    says: /\/Leader"\) found the record of another key: .*collations that ignore case/,
    Kind: class extends Store {
      get(key) {
        return super.get(key.toLowerCase());
      }

      compareAndSet(key, ...rest) {
        return super.compareAndSet(key.toLowerCase(), ...rest);
      }
    },
  },
  "cuts trailing dots of keys": {
    caught: "keys do not touch each other, whatever is in them",
    says: /\/leader\."\) found the record of another key/,
    Kind: class extends Store {
      get(key) {
        return super.get(key.replace(/\.+$/, ""));
      }

      compareAndSet(key, ...rest) {
        return super.compareAndSet(key.replace(/\.+$/, ""), ...rest);
      }
    },
  },
  "normalizes keys": {
    caught: "keys do not touch each other, whatever is in them",
    says: /found the record of another key/,
    Kind: class extends Store {
      get(key) {
        return super.get(key.normalize());
      }

      compareAndSet(key, ...rest) {
        return super.compareAndSet(key.normalize(), ...rest);
      }
    },
  },
  "lets records expire": {
    caught: "a record stays as it is while nobody writes",
    says: /found no record after its lease had run out: .*nobody but compareAndSet may delete or expire it/,
    Kind: class extends Store {
      async get(key) {
        const row = await super.get(key);
        return row && Date.now() > row.expires ? null : row;
      }

      async compareAndSet(key, expected, value) {
        return super.compareAndSet(key, expected, {
          ...value,
          expires: Date.now() + (value.leaseDuration || 1000),
        });
      }
    },
    but: ["what comes back is what was written, exactly"], // It holds a lease of 1 ms, too.
  },
  "loses changes when many write": {
    caught: "of many rivals that change what they have read none is lost",
    says: /changes were answered as written, and \d+ are in the record/,
    Kind: class extends Store {
      async compareAndSet(key, expected, value) {
        const { database } = this;
        const written = await super.compareAndSet(key, expected, value);
        if (written && value.token < 1_000_100 && value.token % 10 === 5) {
          database.rows.set(key, { ...value, token: value.token - 1 });
        }
        return written;
      }
    },
  },
  "never settles": {
    caught: "a key without a record is told as none",
    says: /get\("cluster:whenleader-test-[0-9a-f]{8}-1"\) did not settle within 50 ms/,
    options: { callTimeout: 50 },
    Kind: class extends Store {
      get() {
        return new Promise(() => {});
      }
    },
  },
  "gives up every rival of a race": {
    caught: "of many racing creations exactly one wins",
    says: /of 8 racing creations 0 were answered as written: whoever comes first must win/,
    Kind: class extends Store {
      async compareAndSet(...args) {
        const { database } = this;
        database.busy = (database.busy ?? 0) + 1;
        const [rivals] = await Promise.all([later(2).then(() => database.busy), later(4)]);
        database.busy -= 1;
        return rivals > 1 ? false : super.compareAndSet(...args);
      }
    },
  },
  "has a watch that tells nothing": {
    caught: "a watch, if the store has one, tells of changes of others until it is ended",
    says: /did not tell of the first write: .*leave watch out/,
    options: { callTimeout: 200 },
    Kind: class extends Store {
      watch() {
        return () => {};
      }
    },
  },
  "has a watch that tells once": {
    caught: "a watch, if the store has one, tells of changes of others until it is ended",
    says: /did not tell of the second write/,
    options: { callTimeout: 200 },
    Kind: class extends Store {
      watch(key, changed) {
        this.database.changes.once(key, () => changed());
      }
    },
  },
  "has a watch that goes on after its end": {
    caught: "a watch, if the store has one, tells of changes of others until it is ended",
    says: /went on after it was ended/,
    Kind: class extends Store {
      watch(...args) {
        super.watch(...args);
        return () => {};
      }
    },
  },
  "has one watch at a time": {
    caught: "several watches, if the store has them, do not end each other",
    says: /told nothing any more after another one was ended/,
    options: { callTimeout: 200 },
    Kind: class extends Store {
      watch(...args) {
        this.end = super.watch(...args);
        return () => this.database.changes.removeAllListeners();
      }
    },
  },
};

/** Wrong stores under an election: that each of its sentences can fail, too. */
const WRONG_FOR_ELECTIONS = {
  "never answers": {
    caught: "a free lease is acquired for its whole duration, and everybody sees by whom",
    says: /the first attempt failed \(\w+, \S+\): /,
    options: { callTimeout: 50 },
    Kind: WRONG["never settles"].Kind,
  },
  "halves durations": {
    caught: "a free lease is acquired for its whole duration, and everybody sees by whom",
    says: /runs for 2\d+(\.\d+)? ms/,
    Kind: class extends Store {
      async get(key) {
        const row = await super.get(key);
        return row && { ...row, leaseDuration: Math.floor(row.leaseDuration / 2.1) };
      }
    },
  },
  "does not write renewals": {
    caught: "a renewal keeps its token and extends the lease",
    says: /.*the sentences about get and compareAndSet say which/,
    Kind: class extends Store {
      async compareAndSet(key, expected, value) {
        const row = this.database.rows.get(key);
        return row?.token === value.token ? true : super.compareAndSet(key, expected, value);
      }
    },
  },
  "does not write renewals while somebody waits": {
    caught: "a lease that is renewed is not taken over",
    says: /an attempt against a leader that renews was granted/,
    Kind: class extends Store {
      async compareAndSet(key, expected, value) {
        const row = this.database.rows.get(key);
        if (row === undefined || row.token !== value.token || value.leaseDuration === 0) {
          return super.compareAndSet(key, expected, value);
        }
        this.database.shadow = { ...value };
        return true;
      }
    },
  },
  "lets nobody take over": {
    caught: "a lease that is not renewed is taken over when it has run out, under a larger token",
    says: /a lease that nobody renewed was never taken over/,
    Kind: class extends Store {
      compareAndSet(key, expected, value) {
        const holder = this.database.rows.get(key)?.instanceId ?? value.instanceId;
        return holder !== value.instanceId ? false : super.compareAndSet(key, expected, value);
      }
    },
  },
  "does not write releases": {
    caught: "a lease that is released is free at once, and its token is never used again",
    says: /a look sees a leader after the release/,
    Kind: class extends Store {
      compareAndSet(key, expected, value) {
        return value.instanceId === null ? true : super.compareAndSet(key, expected, value);
      }
    },
  },
  "has one token for all terms": {
    caught: "a late release of an old term changes nothing",
    says: /a renewal after a late release was denied/,
    Kind: class extends Store {
      async get(key) {
        const row = await super.get(key);
        return row && { ...row, token: 7 };
      }
    },
  },
  "tells one term from another by nothing": {
    caught: "a late renewal of an old term changes nothing",
    says: /a late renewal was denied and named a \(term 7\) in place of/,
    Kind: class extends Store {
      async get(key) {
        const row = await super.get(key);
        return row && { ...row, token: 7 };
      }
    },
  },
  "is one for each process": {
    caught: "two instances under one id are two",
    says: /an attempt of a namesake was granted/,
    Kind: class extends Store {
      constructor() {
        super(new Database());
      }
    },
  },
  "looks, and then writes": {
    caught: "racing instances never lead at the same time, and no token is granted twice",
    says: /overlapped: two instances led at once|granted twice/,
    Kind: WRONG["looks, and then writes"].Kind,
  },
  "has a watch that tells nothing": {
    caught: "a watch, if the store has one, hears a release and a new term",
    says: /a watch never heard a new term/,
    options: { callTimeout: 300 },
    Kind: WRONG["has a watch that tells nothing"].Kind,
  },
  "does not forget what is deleted": {
    caught: "a deleted record ends the term, and tokens go on growing",
    says: /a renewal after the record was deleted was granted/,
    options: { remove() {} },
    Kind: Store,
  },
};

for (const [what, { Kind, caught, says, options }] of Object.entries(WRONG_FOR_ELECTIONS)) {
  test(`a store that ${what} fails its election: ${caught}`, async () => {
    const one = testsOf(Kind, options).find(({ name }) => name === caught);
    await assert.rejects(one.run(), (error) => {
      assert.equal(error.name, "StoreTestError");
      assert.match(error.message, says);
      return true;
    });
  });
}

for (const [what, { Kind, caught, says, options, but }] of Object.entries(WRONG)) {
  test(`a store that ${what} is caught: ${caught}`, async () => {
    const tests = testsOf(Kind, options);
    const one = tests.find(({ name }) => name === caught);
    assert.ok(one, "there is such a sentence");
    await assert.rejects(one.run(), (error) => {
      assert.equal(error.name, "StoreTestError");
      assert.match(error.message, says);
      return true;
    });
    // Whoever reads them in their order meets nothing earlier that is beside the point.
    if (what !== "never settles") {
      for (const { name, run } of tests.slice(0, tests.indexOf(one))) {
        if (!but?.includes(name)) await run();
      }
    }
  });
}

test("what open() gave is closed after each test, also after one that failed", async () => {
  const open = new Set();
  const database = new Database();
  const tests = (Kind) =>
    storeTests({
      open: async () => {
        const store = new Kind(database);
        open.add(store);
        return store;
      },
      close: (store) => open.delete(store),
    });
  await tests(Store)[1].run();
  assert.equal(open.size, 0);
  await assert.rejects(tests(WRONG["answers nothing"].Kind)[1].run());
  assert.equal(open.size, 0);
});

test("bad options are ConfigErrors that name the option", () => {
  const open = () => new Store(new Database());
  for (const [options, message] of [
    [undefined, /takes \{ open: \(\) => store \}, not undefined/],
    [{}, /open must be a function/],
    [{ open, clsoe: open }, /clsoe is not known; it takes open, close/],
    [{ open, close: 5 }, /close must be a function, not 5/],
    [{ open, leaseDuration: "300" }, /leaseDuration must be 100 to 60000 milliseconds, not '300'/],
    [{ open, leaseName: "" }, /leaseName must not be empty/],
    [{ open, leaseName: "x".repeat(101) }, /leaseName must have at most 100/],
  ]) {
    assert.throws(
      () => storeTests(options),
      (error) => error instanceof ConfigError && message.test(error.message),
      `${message}`,
    );
  }
});

test("something that is no store is told of by its missing function", async () => {
  const [first] = storeTests({ open: () => ({ get() {} }) });
  await assert.rejects(first.run(), /without the function compareAndSet/);
});
