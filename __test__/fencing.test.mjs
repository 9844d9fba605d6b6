// Transactions that a deposed leader cannot commit, with every client, on real databases.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { once } from "node:events";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import whenleader from "../index.js";
import cancel from "../lib/fence/cancel.js";
import child from "./support/child.js";
import { isMissing, Server, serverProgram } from "./support/servers.mjs";
import { DATABASES, Interceptor } from "./support/sql-clients.mjs";
import { NEEDED } from "./support/stores.mjs";
import temp from "./support/temp.js";

const { LeadershipLostError, startCluster, stopCluster, useCluster } = whenleader;
const { CANCEL_TIME } = cancel;
const { PATIENCE, Program, ROOT } = child;
const { newFolder } = temp;

const LEASE = 3_000;
const RENEW = 500;
const TIMING = { leaseDuration: LEASE, renewInterval: RENEW, onRenewError: "retry" };
const posix = { skip: process.platform === "win32" && "Windows cannot stop a process" };

/**
 * @param {() => unknown} holds
 * @param {string | (() => string)} what
 */
async function until(holds, what, pause = 10) {
  for (const end = Date.now() + PATIENCE; Date.now() < end; await sleep(pause)) {
    if (await holds()) return;
  }
  const words = typeof what === "function" ? what() : what;
  assert.fail(`not within ${PATIENCE} ms: ${words}`);
}

/** @param {Promise<unknown>} promise @returns {Promise<any>} */
const failure = (promise) =>
  promise.then(
    (value) => assert.fail(`it was fulfilled with ${value}`),
    (error) => error,
  );

let elections = 0;

const databases = Object.entries(DATABASES).filter(
  ([, { kind }]) => NEEDED.includes(kind) || serverProgram(kind),
);

for (const [name, database] of databases) {
  describe(`fencing on ${name}`, { concurrency: false }, () => {
    const [admin] = database.clients;
    /** @type {any} */
    let server;
    /** @type {any} */
    let prompt;
    const sql = (text) => admin.rows(prompt, text);

    before(async () => {
      if (isMissing(database.kind, `fencing on ${name}`)) return;
      server = await Server.start(database.kind);
      prompt = admin.pool(server.url, 3);
      await startCluster({ type: "StoreCluster", store: server.url, ...TIMING });
      // The cluster lasts as long as somebody takes part.
      await useCluster().waitUntilLeader({ timeout: PATIENCE });
      await sql("CREATE TABLE done (what VARCHAR(100) NOT NULL)");
      if (database.deadlock)
        await sql("CREATE TABLE pairs (name VARCHAR(100) PRIMARY KEY, n INT NOT NULL)");
    });
    after(async () => {
      if (!server) return;
      await stopCluster();
      await admin.close(prompt);
      await server.stop();
    });

    /** A term of an election of its own. */
    async function newTerm(t) {
      const election = `e${++elections}`;
      const cluster = useCluster(election);
      t.after(() => cluster.stop());
      const term = await cluster.waitUntilLeader({ timeout: PATIENCE });
      return { election, term };
    }

    /** As the next leader does it. */
    const takeOver = (election) => sql(database.takeOver(election));

    async function untilNothingIsOpen() {
      /** @type {any[]} */
      let open = [];
      await until(
        async () => {
          open = await sql(database.open);
          return open.length === 0;
        },
        () => `nothing is open: ${JSON.stringify(open)}`,
        // Whoever asks MariaDB for its transactions more often than every 100 ms is told the same again and again.
        150,
      );
    }

    const count = async (what) => {
      const rows = await sql(`SELECT what FROM done WHERE what = '${what}'`);
      return rows.length;
    };

    /** A pool whose connections meet a fate. */
    async function behind(t, client, what, fate, options = {}) {
      const interceptor = await Interceptor.before(server.port, what, fate);
      const pool = client.pool(server.urlAt(interceptor.port), 1, options);
      t.after(async () => {
        await client.close(pool);
        await interceptor.close();
      });
      return pool;
    }

    for (const client of database.clients) {
      const run = (title, body, options = {}) =>
        test(`${client.name}: ${title}`, options, async (t) => {
          if (!server) return t.skip("no server");
          // One connection: what is not given back is missed.
          const pool = client.pool(server.url, 1);
          t.after(() => client.close(pool));
          const { election, term } = await newTerm(t);
          const insert = (tx, what) => client.rows(tx, `INSERT INTO done VALUES ('${what}')`);
          await body({ t, pool, election, term, insert, what: election, rows: client.rows });
        });

      for (const hold of [false, true]) {
        const how = hold ? "with hold" : "without hold";

        run(
          `${how}, what the function wrote is committed, and its connection is as before`,
          async ({ pool, term, insert, what, rows }) => {
            const settings = async () => [
              (await rows(pool, database.settings))[0],
              (await rows(pool, database.connectionId))[0],
            ];
            const before = await settings();
            const value = await term.transaction(
              pool,
              async (tx) => {
                await insert(tx, what);
                return 42;
              },
              { hold, timeout: PATIENCE },
            );
            assert.equal(value, 42);
            assert.equal(await count(what), 1);
            assert.deepEqual(await settings(), before);
            const tx = await term.transaction(pool, (tx) => ({ tx }), { hold });
            const late = await failure(client.rows(tx.tx, "SELECT 1"));
            assert.ok(late instanceof Error);
            assert.deepEqual(await settings(), before);
          },
        );

        run(
          `${how}, an error of the function passes through, and nothing is committed`,
          async ({ pool, term, insert, what, rows }) => {
            const settings = async () => [
              (await rows(pool, database.settings))[0],
              (await rows(pool, database.connectionId))[0],
            ];
            const before = await settings();
            const own = new Error("of its own");
            const write = async (tx) => {
              await insert(tx, what);
              throw own;
            };
            assert.equal(await failure(term.transaction(pool, write, { hold })), own);
            assert.equal(await count(what), 0);
            assert.deepEqual(await settings(), before);
          },
        );

        run(
          `${how}, a term that the database has given to another runs nothing`,
          async ({ pool, election, term }) => {
            await takeOver(election);
            let hasRun = false;
            const error = await failure(
              term.transaction(
                pool,
                () => {
                  hasRun = true;
                },
                { hold },
              ),
            );
            assert.ok(error instanceof LeadershipLostError, String(error));
            assert.equal(error.reason, "taken");
            assert.equal(error.token, term.token);
            assert.equal(hasRun, false);
          },
        );

        run(
          `${how}, the end of the term rolls back at once, also what goes on`,
          async ({ pool, election, term, insert, what, rows }) => {
            const cluster = useCluster(election);
            /** @type {any} */
            let late;
            const written = Promise.withResolvers?.() ?? withResolvers();
            const done = term.transaction(
              pool,
              async (tx) => {
                await insert(tx, what);
                written.resolve();
                await rows(tx, database.sleep).catch(() => {});
                // It has not noticed.
                late = await failure(insert(tx, what));
              },
              { hold, timeout: 4 * PATIENCE },
            );
            await written.promise;
            const lost = failure(done);
            await cluster.stepDown({ pause: 0 });
            const error = await lost;
            assert.equal(error, term.signal.reason);
            assert.equal(error.reason, "steppedDown");
            // Its only connection is free, or another one has taken its place.
            await rows(pool, "SELECT 1");
            await until(() => late, "the function goes on");
            await untilNothingIsOpen();
            assert.ok(late instanceof Error, String(late));
            assert.equal(await count(what), 0);
            // And as usable as before.
            const next = await cluster.waitUntilLeader({ timeout: PATIENCE });
            await next.transaction(pool, (tx) => insert(tx, what), { hold });
            assert.equal(await count(what), 1);
          },
        );

        run(
          `${how}, what takes longer than its timeout is rolled back`,
          async ({ pool, term, insert, what, rows }) => {
            const error = await failure(
              term.transaction(
                pool,
                async (tx) => {
                  await insert(tx, what);
                  await rows(tx, database.sleep);
                },
                { hold, timeout: 400 },
              ),
            );
            assert.equal(error.code, "WHENLEADER_TIMEOUT", String(error));
            assert.match(error.message, /400 ms/);
            await rows(pool, "SELECT 1");
            await untilNothingIsOpen();
            assert.equal(await count(what), 0);
            assert.ok(term.isCurrent());
          },
        );
      }

      run(
        "without hold, what was overtaken while it was open is rolled back",
        async ({ pool, election, term, insert, what }) => {
          const error = await failure(
            term.transaction(pool, async (tx) => {
              await insert(tx, what);
              // It waits for nobody.
              await takeOver(election);
            }),
          );
          assert.ok(error instanceof LeadershipLostError, String(error));
          assert.equal(error.reason, "taken");
          assert.equal(await count(what), 0);
        },
      );

      run(
        "with hold, a takeover waits, renewals pass, and both commit in that order",
        async ({ pool, election, term, insert, what }) => {
          /** @type {any} */
          let taken;
          let isTaken = false;
          await term.transaction(
            pool,
            async (tx) => {
              await insert(tx, what);
              taken = takeOver(election).then(() => {
                isTaken = true;
              });
              // A renewal of the database's own would wait here for the one that waits: MySQL locks the row first.
              await sleep(name === "postgres" ? LEASE + RENEW : RENEW);
              assert.equal(isTaken, false);
            },
            { hold: true, timeout: PATIENCE },
          );
          await taken;
          assert.equal(await count(what), 1);
        },
      );

      run(
        "with hold, renewals pass for as long as nobody wants to take over",
        async ({ pool, term, insert, what }) => {
          await term.transaction(
            pool,
            async (tx) => {
              await insert(tx, what);
              await sleep(1.5 * LEASE);
              assert.ok(term.isCurrent());
              await insert(tx, what);
            },
            { hold: true, timeout: PATIENCE },
          );
          assert.equal(await count(what), 2);
        },
      );

      run("several transactions of one term go on at once", async ({ term, insert, what, t }) => {
        const pool = client.pool(server.url, 4);
        t.after(() => client.close(pool));
        const all = Array.from({ length: 12 }, (_, i) =>
          term.transaction(pool, (tx) => insert(tx, what), { hold: i % 2 === 0 }),
        );
        await Promise.all(all);
        assert.equal(await count(what), 12);
      });

      run(
        "a savepoint of the function's own may fail alone",
        async ({ pool, term, insert, what, rows }) => {
          await term.transaction(
            pool,
            async (tx) => {
              await insert(tx, what);
              const nested =
                nestedIn(tx) ??
                (async (fn) => {
                  await rows(tx, "SAVEPOINT mine");
                  await fn(tx).catch(() => {});
                  await rows(tx, "ROLLBACK TO SAVEPOINT mine");
                });
              await nested(async (inner) => {
                await insert(inner, what);
                await rows(inner, "SELECT nothing_of_the_kind FROM done");
              }).catch(() => {});
              await insert(tx, `${what} after`);
            },
            { hold: true },
          );
          assert.equal(await count(what), 1);
          assert.equal(await count(`${what} after`), 1);
        },
      );

      for (const step of ["COMMIT", "ROLLBACK"]) {
        run(
          `when no answer to ${step} comes, the transaction does not wait for longer than a lease`,
          async ({ t, term, insert, what }) => {
            const pool = await behind(t, client, new RegExp(`\\b${step}\\b`, "i"), "swallow");
            const own = new Error("of its own");
            const begun = performance.now();
            const error = await failure(
              term.transaction(pool, async (tx) => {
                await insert(tx, what);
                if (step === "ROLLBACK") throw own;
              }),
            );
            assert.ok(performance.now() - begun < LEASE + PATIENCE / 2);
            if (step === "ROLLBACK") assert.equal(error, own);
            else assert.equal(error.reason, "commit-unknown");
            assert.ok(term.isCurrent());
            await untilNothingIsOpen();
            assert.equal(await count(what), step === "COMMIT" ? 1 : 0);
          },
        );
      }

      for (const isolationLevel of ["read committed", "repeatable read", "serializable"]) {
        run(
          `a transaction may be ${isolationLevel}, and the next one is as usual`,
          async ({ pool, election, term, insert, what, rows }) => {
            const level = async (tx) => {
              await insert(tx, what);
              await sleep(150);
              return (await rows(tx, database.level))[0].level;
            };
            const usual = await term.transaction(pool, level);
            const options = /** @type {any} */ ({ isolationLevel, hold: true });
            assert.equal(await term.transaction(pool, level, options), isolationLevel);
            assert.equal(await term.transaction(pool, level), usual);
            const taken = term.transaction(
              pool,
              async (tx) => {
                await insert(tx, what);
                await takeOver(election);
              },
              /** @type {any} */ ({ isolationLevel }),
            );
            assert.equal((await failure(taken)).reason, "taken");
            assert.equal(await count(what), 3);
          },
        );
      }

      run(
        "a conflict with somebody else is told as that, as long as the term lasts",
        async ({ t, pool, term, election, insert, what, rows }) => {
          const rivals = admin.pool(server.url, 1);
          t.after(() => admin.close(rivals));
          /** @type {any} */
          let rival;
          // Afterwards the library's next statement meets it.
          const clash = async (tx) => {
            rival = await admin.alone(rivals);
            await insert(tx, what);
            if (database.lockLease) {
              await admin.rows(rival, "START TRANSACTION");
              await admin.rows(rival, database.lockLease(election));
            } else {
              await rows(tx, `SELECT * FROM done WHERE what = '${what} rival'`);
              await admin.rows(rival, "BEGIN ISOLATION LEVEL SERIALIZABLE");
              await admin.rows(rival, `SELECT * FROM done WHERE what = '${what}'`);
              await admin.rows(rival, `INSERT INTO done VALUES ('${what} rival')`);
              await admin.rows(rival, "COMMIT");
            }
          };
          const isConflict = (error) => error.code === "40001" || error.errno === 1205;
          const options = /** @type {any} */ ({ isolationLevel: "serializable" });
          const error = await failure(term.transaction(pool, clash, options));
          assert.ok(isConflict(error), String(error));
          await admin.rows(rival, "ROLLBACK");
          rival.release();
          /** @type {any} */
          let verified;
          await client
            .own(pool, async (tx) => {
              if (!database.lockLease)
                await rows(tx, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE");
              await clash(tx);
              verified = await failure(term.verify(tx, { hold: true }));
            })
            .catch(() => {});
          assert.ok(isConflict(verified), String(verified));
          await admin.rows(rival, "ROLLBACK");
          rival.release();
          assert.ok(term.isCurrent());
          // Also where the function minds nothing.
          assert.equal(await count(what), 0);
          await term.transaction(pool, (tx) => insert(tx, what));
          assert.equal(await count(what), 1);
        },
      );

      run(
        "each way to ask is closed when the transaction is over, however far it was prepared",
        async ({ pool, term, what, rows }) => {
          const dir = newFolder();
          const text = `INSERT INTO done VALUES ('${what}')`;
          await writeFile(join(dir, "late.sql"), text);
          /** @type {any} */
          let ways;
          const [{ id }] = await rows(pool, database.connectionId);
          await term.transaction(pool, async (tx) => {
            ways = await client.ways(tx, text, join(dir, "late.sql"));
          });
          // The only connection is somebody else's by now.
          assert.equal((await rows(pool, database.connectionId))[0].id, id);
          for (const [way, ask] of Object.entries(ways)) {
            const error = await failure((async () => ask())());
            assert.ok(error instanceof Error, way);
            assert.match(error.message, /has returned|reading 'query'|already complete/, way);
          }
          await term.transaction(pool, () => {});
          assert.equal(await count(what), 0);
          assert.equal((await rows(pool, database.connectionId))[0].id, id);
        },
      );

      run(
        "each way to end the transaction is refused, and it goes on",
        async ({ pool, term, insert, what, rows }) => {
          /** @type {string[]} */
          let ways = [];
          const [{ id }] = await rows(pool, database.connectionId);
          await term.transaction(pool, async (tx) => {
            await insert(tx, what);
            ways = Object.keys(client.ends(tx));
          });
          assert.ok(ways.length > 2);
          for (const way of ways) {
            const error = await failure(
              term.transaction(pool, async (tx) => {
                await insert(tx, `${what} more`);
                await client.ends(tx)[way]();
              }),
            );
            assert.ok(error instanceof TypeError, `${way}: ${error}`);
            assert.match(error.message, /return from the function/, way);
          }
          assert.equal(await count(what), 1);
          assert.equal(await count(`${what} more`), 0);
          assert.equal((await rows(pool, database.connectionId))[0].id, id);
        },
      );

      run(
        "a part of the transaction that its function does not wait for rolls all of it back, and disturbs nobody",
        async ({ pool, term, insert, what, rows }) => {
          for (const hold of [false, true]) {
            const over = Promise.withResolvers?.() ?? withResolvers();
            /** @type {any} */
            let part;
            let isNested = false;
            const outer = term.transaction(
              pool,
              async (tx) => {
                const nested = nestedIn(tx);
                isNested = nested !== undefined;
                const begun = Promise.withResolvers?.() ?? withResolvers();
                part = failure(
                  (nested ?? ((fn) => fn(tx)))(async (inner) => {
                    await insert(inner, what);
                    begun.resolve();
                    await over.promise;
                    throw new Error("too late");
                  }),
                );
                await begun.promise;
              },
              { hold },
            );
            const settled = await outer.then(
              () => undefined,
              (error) => error,
            );
            if (isNested) {
              assert.match(String(settled), /before a savepoint .* wait for them/);
            } else {
              // Of what the function asks by itself nobody knows whether it is done.
              assert.equal(settled, undefined);
              await sql(`DELETE FROM done WHERE what = '${what}'`);
            }
            await client.own(pool, async (tx) => {
              over.resolve();
              await part;
              await rows(tx, "SELECT 1");
              await insert(tx, what);
            });
            assert.equal(await count(what), 1);
            await sql(`DELETE FROM done WHERE what = '${what}'`);
          }
        },
      );

      run(
        "a lease that was deleted meanwhile is a term that is over",
        async ({ pool, election, term, insert, what }) => {
          const error = await failure(
            term.transaction(pool, async (tx) => {
              await insert(tx, what);
              await sql(`DELETE FROM whenleader_leases WHERE election = '${election}'`);
            }),
          );
          assert.ok(error instanceof LeadershipLostError, String(error));
          // MySQL and MariaDB do not tell a row that is gone from one that somebody has locked.
          const reasons = name === "postgres" ? ["released"] : ["released", "taken"];
          assert.ok(reasons.includes(error.reason), error.reason);
          assert.equal(await count(what), 0);
        },
      );

      run(
        "several queries that the function returns in an array are waited for",
        async ({ pool, term, insert, what }) => {
          const made = await term.transaction(pool, (tx) => [insert(tx, what), insert(tx, what)]);
          assert.equal(made.length, 2);
          assert.equal(await count(what), 2);
        },
      );

      run(
        "a text that plainly ends the transaction is refused, and nothing is sent",
        async ({ pool, term, insert, what, rows }) => {
          for (const text of [
            ...["COMMIT", "rollback;", "/* now */ Commit", "-- now\nROLLBACK WORK", "BEGIN"],
            ...["START TRANSACTION", "end", "SET autocommit = 1"],
          ]) {
            const refused = await failure(
              term.transaction(pool, async (tx) => {
                await insert(tx, what);
                await rows(tx, text);
              }),
            );
            assert.ok(refused instanceof TypeError, `${text}: ${refused}`);
            assert.match(refused.message, /is refused: .* return from the function/);
            // Also for a function that minds nothing: it is in its transaction still.
            await term.transaction(pool, async (tx) => {
              await insert(tx, `${what} ${text.length}`);
              await rows(tx, text).catch(() => {});
              await rows(tx, "SAVEPOINT mine");
              await rows(tx, "ROLLBACK TO SAVEPOINT mine");
            });
          }
          assert.equal(await count(what), 0);
        },
      );

      run(
        "a function that ends the transaction by itself is told so, and what becomes of the rest",
        async ({ pool, term, insert, what, rows }) => {
          const error = await failure(
            term.transaction(pool, async (tx) => {
              await insert(tx, what);
              await rows(tx, database.ends(what));
              await insert(tx, `${what} after`);
            }),
          );
          assert.equal(error.code, "WHENLEADER_TRANSACTION", String(error));
          assert.equal(error.reason, "ended-early");
          assert.equal(await count(what), 1);
          const isRolledBack = (await count(`${what} after`)) === 0;
          assert.equal(isRolledBack, database.rollsBackTheRest);
          assert.match(
            error.message,
            isRolledBack ? /is rolled back/ : /so may be what came after/,
          );
          assert.equal((await rows(pool, "SELECT 1")).length, 1);
          await untilNothingIsOpen();
        },
      );

      if (database.deadlock) {
        run(
          "a deadlock that the function passes over ends it, and nothing is committed",
          async ({ pool, term, insert, what, rows }) => {
            await sql(`INSERT INTO pairs VALUES ('${what} 1', 0), ('${what} 2', 0)`);
            const update = (tx, i) =>
              rows(tx, `UPDATE pairs SET n = n + 1 WHERE name = '${what} ${i}'`);
            for (const goesOn of [true, false]) {
              const other = admin.pool(server.url, 1);
              const rival = await admin.alone(other);
              /** @type {any} */
              let swallowed;
              /** @type {any} */
              let later;
              const error = await failure(
                term.transaction(
                  pool,
                  async (tx) => {
                    await insert(tx, what);
                    await update(tx, 1);
                    await admin.rows(rival, "START TRANSACTION");
                    // Of two the server rolls back the one that has written less.
                    await admin.rows(
                      rival,
                      `INSERT INTO done SELECT '${what} rival' FROM information_schema.COLUMNS LIMIT 100`,
                    );
                    await admin.rows(rival, `UPDATE pairs SET n = n + 1 WHERE name = '${what} 2'`);
                    const waiting = admin.rows(
                      rival,
                      `UPDATE pairs SET n = n + 1 WHERE name = '${what} 1'`,
                    );
                    await sleep(100);
                    swallowed = await failure(update(tx, 2));
                    if (goesOn) later = await failure(insert(tx, what));
                    await waiting;
                  },
                  { timeout: PATIENCE },
                ),
              );
              await admin.rows(rival, "ROLLBACK");
              rival.release();
              await admin.close(other);
              assert.equal(swallowed.errno, 1213, String(swallowed));
              if (goesOn) assert.equal(later.errno, 1213, String(later));
              assert.equal(error.errno, 1213, String(error));
              assert.equal(await count(what), 0);
            }
          },
        );

        run(
          "what is not caught by its error is rolled back as well: a statement that rolls back by itself",
          async ({ pool, term, insert, what, rows }) => {
            // A stream tells its errors to nobody but who reads it; this is the same for a server.
            const error = await failure(
              term.transaction(pool, async (tx) => {
                await insert(tx, what);
                await rows(tx, "/*! ROLLBACK */");
                await insert(tx, what);
              }),
            );
            assert.equal(error.reason, "ended-early");
            assert.equal(await count(what), 0);
          },
        );
      }

      run(
        "when the answer to COMMIT is lost, nobody is told that it failed",
        async ({ term, insert, what, t }) => {
          const pool = await behind(t, client, /\bcommit\b/i, "break");
          const error = await failure(term.transaction(pool, (tx) => insert(tx, what)));
          assert.equal(error.code, "WHENLEADER_TRANSACTION", String(error));
          assert.equal(error.reason, "commit-unknown");
          assert.match(error.message, /nobody knows/);
          assert.ok(error.cause instanceof Error);
          // Its pool goes on.
          assert.equal((await client.rows(pool, "SELECT 1")).length, 1);
          // Here it was.
          await until(async () => (await count(what)) === 1, "it is committed");
          await untilNothingIsOpen();
        },
      );

      // The other clients wait for as long as it takes.
      if (client.impatient) {
        for (const [step, what] of Object.entries({
          BEGIN: /\bbegin\b/i,
          "the limits": /set_config/,
          "the guard": /KEY SHARE/,
          COMMIT: /\bcommit\b/i,
          ROLLBACK: /\brollback\b/i,
        })) {
          run(
            `when the client does not wait for ${step}, the pool does not get that connection back`,
            async ({ t, term, insert, what: row }) => {
              const pool = await behind(t, client, what, 600, client.impatient);
              const own = new Error("of its own");
              const error = await failure(
                term.transaction(
                  pool,
                  async (tx) => {
                    await insert(tx, row);
                    if (step === "ROLLBACK") throw own;
                  },
                  { hold: true, timeout: PATIENCE },
                ),
              );
              if (step === "ROLLBACK") assert.equal(error, own);
              else if (step === "COMMIT") assert.equal(error.reason, "commit-unknown");
              else assert.match(error.message, /timeout/);
              // Whatever the pool gives next is outside of every transaction.
              await insert(pool, `${row} next`);
              assert.equal(await count(`${row} next`), 1);
              await untilNothingIsOpen();
              assert.equal(await count(`${row} next`), 1);
              assert.equal(await count(row), step === "COMMIT" ? 1 : 0);
            },
          );
        }
      }

      run(
        "a connection that breaks ends the transaction at once, also for a function that waits for something else",
        async ({ pool, term, insert, what, rows }) => {
          const error = await failure(
            term.transaction(pool, async (tx) => {
              await insert(tx, what);
              const [{ id }] = await rows(tx, database.connectionId);
              await sql(database.kill(id));
              await new Promise(() => {});
            }),
          );
          assert.ok(error instanceof Error);
          assert.ok(!error.code?.startsWith("WHENLEADER_"), String(error));
          assert.equal(await count(what), 0);
          assert.equal((await rows(pool, "SELECT 1")).length, 1);
        },
      );

      run(
        "verify() passes within a transaction of a term that lasts",
        async ({ pool, term, insert, what }) => {
          for (const hold of [false, true]) {
            await client.own(pool, async (tx) => {
              await term.verify(tx, { hold });
              await insert(tx, what);
              await term.verify(tx, { hold: true });
            });
          }
          assert.equal(await count(what), 2);
        },
      );

      run(
        "verify() refuses a transaction of a term that is over, and nothing of it is committed",
        async ({ pool, election, term, insert, what, rows }) => {
          for (const hold of [false, true]) {
            const error = await failure(
              client.own(pool, async (tx) => {
                await insert(tx, what);
                await takeOver(election);
                await term.verify(tx, { hold });
              }),
            );
            assert.ok(error instanceof LeadershipLostError, String(error));
            assert.equal(error.reason, "taken");
            assert.equal(await count(what), 0);
            assert.equal((await rows(pool, "SELECT 1")).length, 1);
          }
        },
      );

      run(
        "in SERIALIZABLE, renewals pass as well, and what was overtaken is rolled back",
        async ({ pool, election, term, insert, what, rows }) => {
          await rows(pool, database.serializable);
          for (const hold of [false, true]) {
            await term.transaction(
              pool,
              async (tx) => {
                await insert(tx, what);
                await sleep(LEASE);
              },
              { hold, timeout: PATIENCE },
            );
            await client.own(pool, async (tx) => {
              await term.verify(tx, { hold });
              await insert(tx, what);
              await sleep(LEASE);
              await term.verify(tx, { hold: true });
            });
          }
          assert.equal(await count(what), 4);
          assert.ok(term.isCurrent());
          const error = await failure(
            term.transaction(pool, async (tx) => {
              await insert(tx, what);
              await takeOver(election);
            }),
          );
          assert.ok(error instanceof LeadershipLostError, String(error));
          assert.equal(await count(what), 4);
        },
      );

      run(
        "the server's limits are set for the transaction only, and none that is shorter is touched",
        async ({ pool, term, rows }) => {
          const { limits } = database;
          const inside = (options) =>
            term.transaction(pool, async (tx) => (await rows(tx, limits.ask))[0].idle, options);
          const usual = (await rows(pool, limits.ask))[0].idle;
          assert.equal(await inside({}), usual);
          assert.equal(await inside({ hold: true, timeout: 20_000 }), limits.of20s);
          assert.equal(await inside({ timeout: 20_000 }), limits.of20s);
          assert.equal((await rows(pool, limits.ask))[0].idle, usual);
          await rows(pool, limits.set7s);
          const own = (await rows(pool, limits.ask))[0].idle;
          assert.equal(await inside({ hold: true, timeout: 20_000 }), own);
          assert.equal((await rows(pool, limits.ask))[0].idle, own);
        },
      );

      run("a user who may not lock the lease is told what to allow", async ({ term, t }) => {
        const user = `u${++elections}`;
        for (const text of database.stranger(user)) await sql(text);
        const url = new URL(server.url);
        Object.assign(url, { username: user, password: "tests" });
        const pool = client.pool(url.href, 1);
        t.after(() => client.close(pool));
        const error = await failure(term.transaction(pool, () => {}, { hold: true }));
        assert.equal(error.code, "WHENLEADER_TRANSACTION", String(error));
        assert.equal(error.reason, "refused");
        assert.match(error.message, /GRANT SELECT/);
        assert.ok(error.cause instanceof Error);
      });

      // What knex takes is always a transaction.
      if (client.alone) {
        run("verify() outside of a transaction is told so", async ({ pool, term }) => {
          const alone = await client.alone(pool);
          try {
            for (const hold of [false, true]) {
              const error = await failure(term.verify(alone, { hold }));
              assert.equal(error.code, "WHENLEADER_TRANSACTION", String(error));
              assert.equal(error.reason, "no-transaction");
            }
          } finally {
            alone.release();
          }
        });
      }

      run("a process that is alone runs an ordinary transaction", async ({ t, what }) => {
        const program = onItsOwn(t, client, server.url, what, {}, database.ends(`${what}_alone`));
        await program.said("end");
        assert.deepEqual(program.lines, [
          "value 42",
          "verified",
          "of its own",
          // An error in PostgreSQL ends all of it, whoever minds; in the others it ends its statement.
          `after an error ${name === "postgres" ? "25P02" : "undefined"}`,
          "after a commit true",
          "lost stopped",
          "end",
        ]);
        assert.equal(await count(what), name === "postgres" ? 1 : 2);
      });

      run("verify() takes no pool, and transaction() no connection", async ({ pool, term }) => {
        const verified = await failure(term.verify(pool));
        assert.ok(verified instanceof TypeError, String(verified));
        assert.match(verified.message, /not the pool/);
        await client.own(pool, async (tx) => {
          const refused = await failure(term.transaction(tx, () => {}));
          assert.ok(refused instanceof TypeError, String(refused));
          assert.match(refused.message, /needs the pool/);
        });
      });
    }

    test(
      "a process that is frozen in a transaction commits nothing after the next leader",
      posix,
      async (t) => {
        if (!server) return t.skip("no server");
        for (const client of database.clients) {
          for (const hold of [false, true]) {
            const election = `e${++elections}`;
            const holder = inAnotherProcess(t, client, server.url, election, hold);
            await holder.said("inserted");
            holder.kill("SIGSTOP");
            const next = await useCluster(election).waitUntilLeader({ timeout: PATIENCE });
            const pool = client.pool(server.url, 1);
            await next.transaction(pool, (tx) =>
              client.rows(tx, `INSERT INTO done VALUES ('${election} next')`),
            );
            await client.close(pool);
            holder.kill("SIGCONT");
            holder.tell("go on");
            await holder.said("rejected");
            const [, code, reason] = holder.lines
              .find((line) => line.startsWith("rejected"))
              .split(" ");
            assert.equal(code, "WHENLEADER_LOST", holder.stdout);
            assert.match(reason, /^(expired|taken|unreachable)$/);
            assert.equal(await count(election), 0);
            assert.equal(await count(`${election} next`), 1);
            holder.kill("SIGKILL");
          }
        }
      },
    );

    const overOwnPool = database.clients.find(({ name }) => name.startsWith("knex"));
    test(`${overOwnPool.name}: a pool of the application's own gets its connection back also after knex.destroy()`, async (t) => {
      if (!server) return t.skip("no server");
      const [own] = database.clients;
      const { election, term } = await newTerm(t);
      const connections = own.pool(server.url, 1);
      t.after(() => own.close(connections));
      const over = () => overOwnPool.over(connections);

      const first = over();
      await term.transaction(first, async (tx) => {
        await overOwnPool.rows(tx, `INSERT INTO done VALUES ('${election}')`);
        await first.destroy();
      });
      assert.equal(await count(election), 1, "and what was committed is told so");
      await own.rows(connections, "SELECT 1");

      const second = over();
      const ended = failure(
        term.transaction(second, async (tx) => {
          useCluster(election).stepDown();
          await overOwnPool.rows(tx, database.sleep);
        }),
      );
      assert.equal((await ended).code, "WHENLEADER_LOST");
      await second.destroy();
      await own.rows(connections, "SELECT 1");
      await untilNothingIsOpen();
    });

    if (name !== "postgres") {
      for (const client of database.clients) {
        test(`${client.name}: a session without autocommit keeps no transaction open, and may have any isolation`, async (t) => {
          if (!server) return t.skip("no server");
          const pool = client.pool(server.url, 1);
          t.after(() => client.close(pool));
          const { election, term } = await newTerm(t);
          await client.rows(pool, "SET SESSION autocommit = 0");
          for (const isolationLevel of [undefined, "read committed", "serializable"]) {
            await term.transaction(
              pool,
              (tx) => client.rows(tx, `INSERT INTO done VALUES ('${election}')`),
              /** @type {any} */ ({ isolationLevel }),
            );
          }
          assert.equal(await count(election), 3);
          await untilNothingIsOpen();
          await takeOver(election);
          const taken = await failure(term.transaction(pool, () => assert.fail("it is called")));
          assert.equal(taken.reason, "taken");
          await untilNothingIsOpen();
          const [{ own }] = await client.rows(pool, "SELECT @@SESSION.autocommit AS own");
          assert.equal(own, 0);
        });
      }
    }

    if (name === "postgres") {
      test("postgres: a cursor that is left in the middle ends with the function", async (t) => {
        if (!server) return t.skip("no server");
        const { election, term } = await newTerm(t);
        const client = database.clients.find((one) => one.name === "postgres");
        const pool = client.pool(server.url, 1);
        t.after(() => client.close(pool));
        for (const read of [
          async (cursor) => void (await cursor(1)[Symbol.asyncIterator]().next()),
          async (cursor) => void cursor(1)[Symbol.asyncIterator]().next(),
          (cursor) => new Promise((done) => cursor(1, () => new Promise(done)).catch(() => {})),
          (cursor) => cursor(1, () => new Promise(() => {})).catch(() => {}),
        ]) {
          await term.transaction(pool, async (tx) => {
            await client.rows(tx, `INSERT INTO done VALUES ('${election}')`);
            const query = tx.unsafe("SELECT * FROM generate_series(1, 5)");
            await Promise.race([read(query.cursor.bind(query)), sleep(100)]);
          });
        }
        assert.equal(await count(election), 4);
      });

      test("postgres: a cursor that was read to its end by its iterator holds up no rollback", async (t) => {
        if (!server) return t.skip("no server");
        const client = database.clients.find((one) => one.name === "postgres");
        const pool = client.pool(server.url, 1);
        t.after(() => client.close(pool));
        const { election, term } = await newTerm(t);
        let read = 0;
        const failed = failure(
          term.transaction(pool, async (tx) => {
            for await (const rows of tx`SELECT * FROM generate_series(1, 5)`.cursor(2))
              read += rows.length;
            // Not a statement that anybody would have to cancel.
            await new Promise(() => {});
          }),
        );
        await until(() => read === 5, "it is read");
        useCluster(election).stepDown();
        assert.equal((await failed).code, "WHENLEADER_LOST");
        const began = performance.now();
        await pool`SELECT 1`;
        const took = performance.now() - began;
        assert.ok(took < CANCEL_TIME / 2, `the connection was back after ${took} ms`);
      });

      test("postgres: COPY ends with the term, read or not, and its connection is there for others", async (t) => {
        if (!server) return t.skip("no server");
        const client = database.clients.find((one) => one.name === "postgres");
        const much = "SELECT repeat('x', 1000) FROM generate_series(1, 10000000)";
        const ways = {
          "read to the end": async (tx) => {
            const stream = await tx.unsafe("COPY (SELECT 1) TO STDOUT").readable();
            for await (const _ of stream);
          },
          "not read": async (tx) => void (await tx.unsafe(`COPY (${much}) TO STDOUT`).readable()),
          read: async (tx) => {
            const stream = await tx.unsafe(`COPY (${much}) TO STDOUT`).readable();
            (async () => {
              for await (const _ of stream);
            })().catch(() => {});
          },
          "ceased to read": async (tx) => {
            const stream = await tx.unsafe(`COPY (${much}) TO STDOUT`).readable();
            for await (const _ of stream) break;
          },
          "not written": async (tx) => void (await tx.unsafe("COPY done FROM STDIN").writable()),
          written: async (tx) => {
            const stream = await tx.unsafe("COPY done FROM STDIN").writable();
            stream.end("x\n");
            await once(stream, "finish");
          },
        };
        for (const [way, copy] of Object.entries(ways)) {
          const pool = client.pool(server.url, 1);
          const { election, term } = await newTerm(t);
          const begun = withResolvers();
          const failed = failure(
            term.transaction(pool, async (tx) => {
              await client.rows(tx, `INSERT INTO done VALUES ('${election}')`);
              await copy(tx);
              begun.resolve();
              await new Promise(() => {});
            }),
          );
          await begun.promise;
          useCluster(election).stepDown();
          assert.equal((await failed).code, "WHENLEADER_LOST", way);
          const began = performance.now();
          await pool`SELECT 1`;
          const took = performance.now() - began;
          assert.ok(took < CANCEL_TIME / 2, `${way}: the connection was back after ${took} ms`);
          assert.equal(await count(election), 0);
          await client.close(pool);
        }
        await untilNothingIsOpen();
      });

      test("verify() with hold has its limit before it has the lock", async (t) => {
        if (!server) return t.skip("no server");
        const { term } = await newTerm(t);
        const alone = await admin.alone(prompt);
        const asked = [];
        const spied = new Proxy(alone, {
          get: (_, property) => {
            const value = Reflect.get(alone, property, alone);
            if (typeof value !== "function") return value;
            return (...values) => {
              if (property === "query") asked.push(values[0].text ?? values[0]);
              return value.apply(alone, values);
            };
          },
        });
        await alone.query("BEGIN");
        await term.verify(spied, { hold: true });
        await alone.query("COMMIT");
        alone.release();
        const limit = asked.findIndex((text) => text.includes("idle_in_transaction"));
        const lock = asked.findIndex((text) => text.includes("FOR KEY SHARE"));
        assert.ok(limit >= 0 && limit < lock, asked.join("\n"));
      });

      test("behind a pooler in transaction mode it is the same", async (t) => {
        if (!server || isMissing("pgbouncer", "fencing behind a pooler"))
          return t.skip("no server");
        const { url } = await server.ask("pgbouncer");
        for (const client of database.clients) {
          for (const hold of [false, true]) {
            const what = `${client.name} hold ${hold}`;
            const { election, term } = await newTerm(t);
            const pool = client.pool(url, 2);
            t.after(() => client.close(pool));
            const [before] = await client.rows(pool, database.settings);
            const insert = (tx) => client.rows(tx, `INSERT INTO done VALUES ('${what}')`);

            await term.transaction(pool, insert, { hold, timeout: PATIENCE });
            await client.own(pool, async (tx) => {
              await term.verify(tx, { hold });
              await insert(tx);
            });
            assert.equal(await count(what), 2, what);
            assert.deepEqual(await client.rows(pool, database.settings), [before], what);

            const written = Promise.withResolvers?.() ?? withResolvers();
            const open = term.transaction(
              pool,
              async (tx) => {
                await insert(tx);
                written.resolve();
                await client.rows(tx, database.sleep);
              },
              { hold, timeout: 4 * PATIENCE },
            );
            await written.promise;
            const lost = failure(open);
            await useCluster(election).stepDown({ pause: 0 });
            assert.equal((await lost).reason, "steppedDown", what);
            await untilNothingIsOpen();

            const next = await useCluster(election).waitUntilLeader({ timeout: PATIENCE });
            await takeOver(election);
            const taken = await failure(next.transaction(pool, insert, { hold }));
            assert.ok(taken instanceof LeadershipLostError, `${what}: ${taken}`);
            assert.equal(await count(what), 2, what);
            assert.deepEqual(await client.rows(pool, database.settings), [before], what);
          }
        }
      });
    }

    test("a client of another database is refused, with the place of the lease", async (t) => {
      if (!server) return t.skip("no server");
      const { term } = await newTerm(t);
      await sql("CREATE DATABASE elsewhere");
      const url = new URL(server.url);
      url.pathname = "/elsewhere";
      for (const client of database.clients) {
        // MySQL's databases are all within reach of one connection: there only another server is another one.
        if (name !== "postgres") continue;
        const pool = client.pool(url.href, 1);
        t.after(() => client.close(pool));
        for (const hold of [false, true]) {
          const error = await failure(term.transaction(pool, () => {}, { hold }));
          assert.equal(error.code, "WHENLEADER_TRANSACTION", String(error));
          assert.equal(error.reason, "other-database");
          assert.match(error.message, /whenleader_leases.* on postgres:\/\/127/);
          assert.ok(!error.message.includes(server.password), error.message);
        }
      }
      const other = Object.values(DATABASES).find((one) => one !== database);
      for (const client of other.clients) {
        const pool = client.pool(server.url, 1);
        const error = await failure(term.transaction(pool, () => {}));
        assert.equal(error.reason, "other-database", String(error));
        await client.close(pool);
      }
    });

    test("a lease on a store without transactions is told, with what to do", async (t) => {
      if (!server) return t.skip("no server");
      for (const client of database.clients) {
        const env = { WHENLEADER_CONFIG: JSON.stringify({ cluster: { type: "StoreCluster" } }) };
        const program = onItsOwn(t, client, server.url, "nothing", env);
        await program.said("end");
        assert.match(
          program.stdout,
          /WHENLEADER_TRANSACTION no-transactions .* is on the embedded store in .*term\.token/,
        );
        assert.equal(await count("nothing"), 0);
      }
    });

    test("wrong arguments are TypeErrors that say what is right", async (t) => {
      if (!server) return t.skip("no server");
      const { term } = await newTerm(t);
      for (const pool of [undefined, null, {}, "postgres://x", class Pool {}, { query() {} }]) {
        const error = await failure(term.transaction(/** @type {any} */ (pool), () => {}));
        assert.ok(error instanceof TypeError, String(error));
        for (const known of ["pg", "postgres", "mysql2", "knex"])
          assert.ok(error.message.includes(known), error.message);
        assert.ok((await failure(term.verify(/** @type {any} */ (pool)))) instanceof TypeError);
      }
      for (const [options, words] of [
        [{ hold: 1 }, /^term\.transaction\(\): options\.hold must be true or false/],
        [{ timeout: 0 }, /^term\.transaction\(\): options\.timeout must be/],
        [{ timeout: "5s" }, /options\.timeout must be/],
        [{ timeout: Number.NaN }, /options\.timeout must be/],
        [{ isolationLevel: "snapshot" }, /options\.isolationLevel must be .* or "serializable"/],
        [{ isolationLevel: "serializable; DROP TABLE done" }, /options\.isolationLevel must be/],
        [{ holds: true }, /no holds/],
        [null, /must be an object/],
      ]) {
        const error = await failure(
          term.transaction(prompt, () => {}, /** @type {any} */ (options)),
        );
        assert.ok(error instanceof TypeError, String(error));
        assert.match(error.message, /** @type {RegExp} */ (words));
      }
      assert.ok(
        (await failure(term.transaction(prompt, /** @type {any} */ (7)))) instanceof TypeError,
      );
      const client = await admin.alone(prompt);
      for (const [options, words] of [
        [{ hold: 1 }, /^term\.verify\(\): options\.hold must be true or false/],
        [{ isolationLevel: "serializable" }, /^term\.verify\(\) has the options hold and timeout/],
      ]) {
        const error = await failure(term.verify(client, /** @type {any} */ (options)));
        assert.match(error.message, /** @type {RegExp} */ (words));
      }
      client.release();
    });
  });
}

test("a compiler knows what the function gets from each client", () => {
  const tsc = `${ROOT}/node_modules/typescript/bin/tsc`;
  const { stdout } = spawnSync(process.execPath, [tsc, "-p", `${ROOT}/__test__/types`]);
  assert.equal(String(stdout), "");
});

/** @param {any} tx */
function nestedIn(tx) {
  if (typeof tx.savepoint === "function") return (fn) => tx.savepoint(fn);
  if (typeof tx.isTransaction === "boolean") return (fn) => tx.transaction(fn);
}

function withResolvers() {
  /** @type {any} */
  const all = {};
  all.promise = new Promise((resolve, reject) => Object.assign(all, { resolve, reject }));
  return all;
}

/** A leader of its own, which tries what there is. */
function onItsOwn(t, client, url, what, env, ends = "") {
  const code = `
    import { DATABASES } from ${JSON.stringify(`${ROOT}/__test__/support/sql-clients.mjs`)};
    import { stopCluster, useCluster } from "whenleader";
    const client = Object.values(DATABASES).flatMap(({ clients }) => clients)
      .find(({ name }) => name === ${JSON.stringify(client.name)});
    const pool = client.pool(${JSON.stringify(url)}, 1);
    const term = await useCluster().waitUntilLeader();
    const insert = (tx) => client.rows(tx, "INSERT INTO done VALUES ('${what}')");
    try {
      const value = await term.transaction(pool, async (tx) => (await insert(tx), 42), { hold: true });
      console.log("value", value);
      await client.own(pool, (tx) => term.verify(tx, { hold: true }));
      console.log("verified");
      const own = term.transaction(pool, async (tx) => {
        await insert(tx);
        throw new Error("of its own");
      });
      await own.catch((error) => console.log(error.message));
      const passesOver = term.transaction(pool, async (tx) => {
        await insert(tx);
        await client.rows(tx, "SELECT nothing_of_the_kind FROM done").catch(() => {});
      });
      const code = await passesOver.then(() => undefined, ({ code }) => code);
      console.log("after an error", code === "42703" ? "25P02" : code);
      const ends = term.transaction(pool, (tx) => client.rows(tx, ${JSON.stringify(ends)}));
      console.log("after a commit", (await ends.catch(({ reason }) => reason)) === "ended-early");
      let begun;
      const hasBegun = new Promise((done) => (begun = done));
      const stopped = term.transaction(pool, async (tx) => {
        await insert(tx);
        begun();
        await new Promise(() => {});
      });
      const lost = stopped.catch((error) => console.log("lost", error.reason));
      await hasBegun;
      await stopCluster();
      await lost;
    } catch (error) {
      console.log(error.code, error.reason, error.message);
    }
    await client.close(pool);
    console.log("end");
    process.exit();
  `;
  const program = new Program(code, { type: "module", env });
  t.after(() => program.kill("SIGKILL"));
  return program;
}

/** A leader that begins a transaction, and waits within it for a word. */
function inAnotherProcess(t, client, url, election, hold) {
  const code = `
    import { createInterface } from "node:readline";
    import { DATABASES } from ${JSON.stringify(`${ROOT}/__test__/support/sql-clients.mjs`)};
    import { startCluster, useCluster } from "whenleader";
    const client = Object.values(DATABASES).flatMap(({ clients }) => clients)
      .find(({ name }) => name === ${JSON.stringify(client.name)});
    const word = new Promise((done) => createInterface({ input: process.stdin }).once("line", done));
    await startCluster(${JSON.stringify({ type: "StoreCluster", store: url, ...TIMING })});
    const term = await useCluster(${JSON.stringify(election)}).waitUntilLeader();
    const pool = client.pool(${JSON.stringify(url)}, 1);
    try {
      await term.transaction(pool, async (tx) => {
        await client.rows(tx, "INSERT INTO done VALUES ('${election}')");
        console.log("inserted");
        await word;
      }, { hold: ${hold} });
      console.log("committed");
    } catch (error) {
      console.log("rejected", error.code, error.reason, error.message);
    }
  `;
  const program = new Program(code, { type: "module" });
  t.after(() => program.kill("SIGKILL"));
  return program;
}
