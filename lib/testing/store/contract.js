// What is asked of the functions of a store, sentence by sentence. Elections (election.js) rest on it.

const { randomBytes } = require("node:crypto");
const { setTimeout: sleep } = require("node:timers/promises");
const { fail, isSame, mustBeSame, shown } = require("./view.js");

/** @typedef {import("../../../index.js").LeaseRecord} LeaseRecord */
/** @typedef {import("./view.js").View} View */
/** @typedef {import("./bench.js").Bench} Bench */
/** @typedef {{ name: string, run: (bench: Bench) => Promise<void> }} Sentence */

const RIVALS = 8;
/** What cannot be seen once is looked for so often, as far as time allows. */
const ROUNDS = 20;
const MANY = 60;
/** Writes of each rival that changes what it read. */
const CHANGES = 8;
/** How long a watch may go on after its end, for what was under way. */
const GRACE = 250;
const WATCHED = 300;

const ATOMIC_CREATE =
  "making a record must be one atomic operation: INSERT ... ON CONFLICT DO NOTHING, a unique key, insertOne with the " +
  "key as _id, If-None-Match: *. A look followed by a write is none";
const ATOMIC_UPDATE =
  "the comparison must be part of the write itself: UPDATE ... WHERE key = ? AND version = ? and its count of rows, " +
  "updateOne({ _id: key, version }), If-Match. A look followed by a write is none";
const LINEARIZABLE =
  "a read must show every write that was answered before it began: read from the primary, with the strongest read " +
  "concern, and without a cache";

const HARD_IDS = [
  "web-1-4711-0a1b2c3d",
  "🦀 é e\u0301 ß ﬁ \"double\" 'single' `tick` \\ %2e %s $\u007bx} $(x) {} [] <b> & ; -- # \u200d",
  "x".repeat(253),
  "🦀".repeat(63),
  "null",
  "0",
  "true",
  "a  b",
  "WEB-1",
  "web-1",
];
const HARD_NONCES = [
  "9d2e4a1f0b3c5d67",
  "0000000000000000",
  "1234567890123456",
  "00000000000000e5",
  "ffffffffffffffff",
];
const HARD_TOKENS = [
  1,
  2 ** 31,
  2 ** 32 + 1,
  1_795_968_000_123_457,
  Number.MAX_SAFE_INTEGER - 1,
  Number.MAX_SAFE_INTEGER,
];
const HARD_DURATIONS = [15_000, 1, 86_400_000];

/** Names that a store may take for one another, or for something of its own. */
const ODD_NAMES = [
  "leader",
  "Leader",
  "LEADER",
  "leader.",
  "leader..",
  "leader/",
  "leader:lease",
  "a/b",
  "a//b",
  "a\\b",
  "a b",
  "a+b",
  "a%20b",
  "a%b",
  "a_b",
  "a.b",
  "a$b",
  "a*",
  "a?",
  "..",
  ".",
  "__proto__",
  "é",
  "e\u0301",
  "🦀",
  "{x}",
  "'; --",
  "$(x)",
  "null",
];

let last = 0;

/**
 * A record as an election writes it.
 *
 * @param {Partial<LeaseRecord>} [fields]
 * @returns {LeaseRecord}
 */
function record(fields = {}) {
  last += 1;
  return {
    version: randomBytes(8).toString("hex"),
    instanceId: `instance-${last}`,
    nonce: randomBytes(8).toString("hex"),
    token: 1_795_968_000_000_000 + last,
    leaseDuration: 15_000,
    ...fields,
  };
}

/**
 * A write that must be refused, and leave what was there.
 *
 * @param {View} view
 * @param {string} key
 * @param {import("../../../index.js").LeaseVersion | null} expected
 * @param {LeaseRecord | null} before  null: no record
 * @param {{ why: string, cure: string }} words
 */
async function mustBeRefused(view, key, expected, before, { why, cure }) {
  const value = record();
  const written = await view.set(key, expected, value);
  const found = await view.get(key);
  const call = `compareAndSet(${JSON.stringify(key)}, ${shown(expected)}, value), although ${why},`;
  const isThere = found !== null && isSame(found, value);
  if (isThere) fail(`${call} ${written === null ? "answered false and yet wrote" : "wrote"}`, cure);
  if (written !== null) {
    fail(
      `${call} answered that it wrote, and did not`,
      "the answer must tell whether this very call wrote: the count of rows that were changed (matchedCount, " +
        "affectedRows, rowCount) and not that the database took the statement. false means that nothing was written",
    );
  }
  if (found === null && before === null) return;
  if (found === null || before === null || !isSame(found, before)) {
    fail(`${call} changed the record`, cure);
  }
}

/**
 * Rivals call at once; exactly one may win.
 *
 * @param {View[]} views
 * @param {string} key
 * @param {import("../../../index.js").LeaseVersion | null} expected
 * @param {{ what: string, cure: string }} words
 */
async function race(views, key, expected, { what, cure }) {
  const values = views.map(() => record());
  const answers = await Promise.all(
    views.map((view, i) => view.set(key, expected, /** @type {LeaseRecord} */ (values[i]))),
  );
  const winners = values.filter((_, i) => answers[i] !== null);
  const told = `of ${views.length} racing ${what} ${winners.length} were answered as written`;
  if (winners.length > 1) fail(told, cure);
  const [winner] = winners;
  if (winner === undefined) {
    return fail(
      told,
      "whoever comes first must win, and the others get false. A store that gives up all of them (a deadlock, a failed " +
        "transaction) must try again inside of compareAndSet",
    );
  }
  for (const view of views) {
    const found = await view.find(key, `after ${what} had raced`);
    if (!isSame(found, winner)) {
      fail(`the record is another than the one that won the racing ${what}`, cure);
    }
  }
  return winner;
}

/** @type {Sentence[]} */
const CONTRACT = [
  {
    name: "a key without a record is told as none",
    async run(bench) {
      const [a, b] = await bench.views(2);
      const key = bench.key();
      for (const view of [a, b, a]) {
        if ((await view.get(key)) !== null) {
          fail(
            `get(${JSON.stringify(key)}) found a record that nobody wrote`,
            "null or undefined says that there is none, and only the key that was asked for counts",
          );
        }
      }
    },
  },
  {
    name: "a record is made where there is none, and found by everybody",
    async run(bench) {
      const views = await bench.views(3);
      const key = bench.key();
      const value = record();
      const written = await views[0].write(key, null, value);
      for (const view of views) {
        const found = await view.find(
          key,
          "although compareAndSet had answered that it was written",
        );
        if (found.word !== written.word) {
          fail(
            `get(${JSON.stringify(key)}) answered the version ${shown(found.version)}, and compareAndSet ` +
              `had answered ${shown(written.version)}`,
            "true says that the record has value.version from now on, so keep that and give it back. A store with " +
              "versions of its own returns the new one from compareAndSet, and the same from get",
          );
        }
      }
    },
  },
  {
    name: "what comes back is what was written, exactly",
    async run(bench) {
      const [a, b] = await bench.views(2);
      const key = bench.key();
      const values = [
        ...HARD_IDS.map((instanceId) => record({ instanceId })),
        ...HARD_NONCES.map((nonce) => record({ nonce })),
        ...HARD_TOKENS.map((token) => record({ token })),
        ...HARD_DURATIONS.map((leaseDuration) => record({ leaseDuration })),
        record({ instanceId: null, nonce: "0000000000000000", leaseDuration: 0 }),
        record(),
      ];
      /** @type {import("../../../index.js").LeaseVersion | null} */
      let version = null;
      for (const value of values) {
        const written = await a.write(key, version, value);
        const found = await b.find(key, "after it had been written");
        if (found.word !== written.word) {
          fail(
            "after a write was answered, a read still showed the record before it",
            LINEARIZABLE,
          );
        }
        mustBeSame(key, found, value);
        version = written.version;
      }
    },
  },
  {
    name: "a record that is there is not made again",
    async run(bench) {
      const [a, b] = await bench.views(2);
      const key = bench.key();
      const value = record();
      await a.write(key, null, value);
      const words = {
        why: "there is a record",
        cure: "null as the expected version means: only if there is no record. No upsert",
      };
      await mustBeRefused(a, key, null, value, words);
      await mustBeRefused(b, key, null, value, words);
    },
  },
  {
    name: "a released record is still a record, and is not made again",
    async run(bench) {
      const [a, b] = await bench.views(2);
      const key = bench.key();
      const { version } = await a.write(key, null, record());
      const released = record({ instanceId: null, nonce: "0000000000000000", leaseDuration: 0 });
      await a.write(key, version, released);
      await mustBeRefused(b, key, null, released, {
        why: "there is a record, which nobody holds",
        cure: "a record whose instanceId is null keeps the last token; only where nothing was ever written there is none",
      });
    },
  },
  {
    name: "a version that is over is refused, and nothing is written",
    async run(bench) {
      const [a, b] = await bench.views(2);
      const key = bench.key();
      const first = await a.write(key, null, record());
      const second = await a.write(key, first.version, record());
      const value = record();
      const third = await a.write(key, second.version, value);
      for (const view of [a, b]) {
        for (const old of [first, second]) {
          await mustBeRefused(view, key, old.version, value, {
            why: `the record is of version ${shown(third.version)}`,
            cure: ATOMIC_UPDATE,
          });
        }
      }
    },
  },
  {
    name: "a change of a record that is not there is refused, and makes none",
    async run(bench) {
      const [a, b] = await bench.views(2);
      const { version } = await a.write(bench.key(), null, record());
      await mustBeRefused(b, bench.key(), version, null, {
        why: "there is no record",
        cure: "with an expected version nothing but a record of that version is changed. No upsert",
      });
    },
  },
  {
    name: "of many racing creations exactly one wins",
    async run(bench) {
      const views = await bench.views(RIVALS);
      await bench.rounds(ROUNDS, async () => {
        await race(views, bench.key(), null, { what: "creations", cure: ATOMIC_CREATE });
      });
    },
  },
  {
    name: "of many racing changes of one version exactly one wins",
    async run(bench) {
      const views = await bench.views(RIVALS);
      const key = bench.key();
      let { version } = await views[0].write(key, null, record());
      await bench.rounds(ROUNDS, async () => {
        await race(views, key, version, { what: "changes of one version", cure: ATOMIC_UPDATE });
        ({ version } = await views[0].find(key, "after a race"));
      });
    },
  },
  {
    name: "of many rivals that change what they have read none is lost",
    async run(bench) {
      const views = await bench.views(RIVALS);
      const key = bench.key();
      const start = 1_000_000;
      await views[0].write(key, null, record({ token: start }));
      let written = 0;
      const over = bench.deadline();
      await Promise.all(
        views.map(async (view) => {
          for (let own = 0; own < CHANGES && !over(); ) {
            const found = await view.find(key, "while it was being changed");
            const token = Number(found.fields.token) + 1;
            if ((await view.set(key, found.version, record({ token }))) !== null) {
              own += 1;
              written += 1;
            }
          }
        }),
      );
      const { fields } = await views[0].find(key, "after it had been changed");
      if (Number(fields.token) !== start + written) {
        fail(
          `${written} changes were answered as written, and ${Number(fields.token) - start} are in the record`,
          ATOMIC_UPDATE,
        );
      }
    },
  },
  {
    name: "a write is seen by everybody as soon as it was answered",
    async run(bench) {
      const views = await bench.views(4);
      const key = bench.key();
      /** @type {import("../../../index.js").LeaseVersion | null} */
      let version = null;
      let round = 0;
      await bench.rounds(MANY, async () => {
        const value = record();
        const writer = views[round % views.length];
        const written = await writer.write(key, version, value);
        version = written.version;
        const seen = await Promise.all(
          views.map((view) => view.find(key, "as soon as it had been written")),
        );
        if (seen.some((found) => !isSame(found, value))) {
          fail(
            "after a write was answered, a read still showed the record before it",
            LINEARIZABLE,
          );
        }
        round += 1;
      });
    },
  },
  {
    name: "the version that a write answered is the condition of the next, many times over",
    async run(bench) {
      const [a, b] = await bench.views(2);
      const key = bench.key();
      let { version } = await a.write(key, null, record());
      let view = b;
      await bench.rounds(MANY, async () => {
        ({ version } = await view.write(key, version, record()));
        view = view === a ? b : a;
      });
    },
  },
  {
    name: "every write has a version of its own",
    async run(bench) {
      const [a] = await bench.views(1);
      const key = bench.key();
      const same = record();
      /** @type {Set<string>} */
      const words = new Set();
      /** @type {import("../../../index.js").LeaseVersion | null} */
      let version = null;
      await bench.rounds(MANY, async () => {
        // As renewals of one leader: all but the version stays.
        const written = await a.write(key, version, { ...same, version: record().version });
        const found = await a.find(key, "after it had been written");
        for (const { word } of written.word === found.word ? [written] : [written, found]) {
          if (words.has(word)) {
            fail(
              `version ${shown(written.version)} was used again`,
              "keep value.version, a fresh word in every write; a counter of the store's own must never go back, and a " +
                "time is too coarse. Whoever watches a leader by its version takes one that renews for dead otherwise",
            );
          }
          words.add(word);
        }
        version = found.version;
      });
    },
  },
  {
    name: "keys do not touch each other, whatever is in them",
    async run(bench) {
      const [a, b] = await bench.views(2);
      const names = [...ODD_NAMES.map((name) => bench.name(name)), bench.longestName()];
      const values = new Map(names.map((name) => [`cluster:${name}`, record()]));
      for (const [key, value] of values) {
        if ((await a.get(key)) !== null) {
          fail(
            `get(${JSON.stringify(key)}) found the record of another key`,
            "keys are compared byte by byte: mind collations that ignore case, accents or trailing spaces, and what a " +
              "path or a pattern makes of them. Encode the key where the store has rules of its own",
          );
        }
        await a.write(key, null, value);
      }
      for (const [key, value] of values) {
        const found = await b.find(key, "after others had been written");
        if (!isSame(found, value)) {
          fail(
            `get(${JSON.stringify(key)}) found the record of another key`,
            "keys are compared byte by byte; encode the key where the store has rules of its own",
          );
        }
      }
    },
  },
  {
    name: "a record stays as it is while nobody writes",
    async run(bench) {
      const [a, b] = await bench.views(2);
      const key = bench.key();
      const value = record({ leaseDuration: bench.leaseDuration });
      const { word } = await a.write(key, null, value);
      await sleep(2 * bench.leaseDuration);
      for (const view of [a, b]) {
        const found = await view.find(key, "after its lease had run out");
        mustBeSame(key, found, value);
        if (found.word !== word) {
          fail(
            `the version changed from ${word.slice(1)} to ${found.word.slice(1)} although nobody wrote`,
            "it may change with a write only: a takeover waits as long as it does",
          );
        }
      }
    },
  },
  {
    name: "a record that was deleted and made again has another version",
    async run(bench) {
      const { remove } = bench;
      if (remove === null) return;
      const [a, b] = await bench.views(2);
      const key = bench.key();
      const { version, word } = await a.write(key, null, record());
      await remove(key);
      if ((await b.get(key)) !== null) {
        fail(`get(${JSON.stringify(key)}) found a record after remove()`, LINEARIZABLE);
      }
      await mustBeRefused(b, key, version, null, {
        why: "the record was deleted",
        cure: "with an expected version nothing but a record of that version is changed. No upsert",
      });
      const again = record();
      const made = await b.write(key, null, again);
      if (made.word === word) {
        fail(
          `version ${shown(version)} was used again`,
          "a counter that begins anew brings versions back, and a late write of a former leader would be taken: keep " +
            "value.version instead",
        );
      }
      await mustBeRefused(a, key, version, again, {
        why: "the record was deleted and made again",
        cure: ATOMIC_UPDATE,
      });
    },
  },
  {
    name: "a watch, if the store has one, tells of changes of others until it is ended",
    async run(bench) {
      const [a, b] = await bench.views(2);
      if (!a.watches) return;
      const key = bench.key();
      let told = 0;
      const end = await a.watch(key, (error) => {
        if (error === undefined) told += 1;
      });
      let { version } = await b.write(key, null, record());
      for (const what of ["the first write", "the second write"]) {
        if (!(await bench.eventually(() => told > 0))) {
          fail(
            `a watch on ${JSON.stringify(key)} did not tell of ${what}`,
            "changed() must be called for every write, of whichever process, from the moment on that watch() returned; " +
              "leave watch out if the store cannot do it",
          );
        }
        await sleep(WATCHED / 3);
        told = 0;
        ({ version } = await b.write(key, version, record()));
      }
      if (end === null) return;
      await end();
      await sleep(GRACE);
      told = 0;
      await b.write(key, version, record());
      await sleep(WATCHED);
      if (told > 0) {
        fail(
          `a watch on ${JSON.stringify(key)} went on after it was ended`,
          "the function that watch() returned must end it, or every restart leaves one behind",
        );
      }
    },
  },
  {
    name: "several watches, if the store has them, do not end each other",
    async run(bench) {
      const [a, b] = await bench.views(2);
      if (!a.watches) return;
      const [key, other] = [bench.key(), bench.key()];
      const told = [0, 0];
      const first = await a.watch(key, () => {});
      const elsewhere = await a.watch(other, () => {});
      const ends = await Promise.all(
        told.map((_, i) =>
          (i === 0 ? a : b).watch(key, () => {
            told[i] += 1;
          }),
        ),
      );
      await first?.();
      await elsewhere?.();
      await b.write(key, null, record());
      if (!(await bench.eventually(() => told.every((count) => count > 0)))) {
        fail(
          `a watch on ${JSON.stringify(key)} told nothing any more after another one was ended`,
          "each call of watch() is ended by the function that it returned, and by nothing else",
        );
      }
      for (const end of ends) await end?.();
    },
  },
];

module.exports = { CONTRACT };
