// Two real processes take the lead from each other, each frozen in the middle of its transactions for longer than its
// lease. What a guard promises is then in the table, in the order in which it was committed: nothing of an older
// term after anything of a newer one. The same without a guard fails in a few rounds, so the test can.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { until } from "./support/instances.mjs";
import { isMissing, Server } from "./support/servers.mjs";
import { DATABASES } from "./support/sql-clients.mjs";

const ROUNDS = Number(process.env.WHENLEADER_FENCED_ROUNDS ?? (process.env.CI ? 200 : 40));
/** Of the run without a guard, which ends as soon as it has failed. */
const ROUNDS_TO_FAIL = 40;
/** As short as leases get, so that a round is: it begins when the last one has expired. */
const TIMES = { leaseDuration: 500, renewInterval: 60, leadLimit: 220 };
/** What a frozen leader may keep others from leading for is a lease, and a second on MariaDB; the rest is for busy machines. */
const LONGEST_WAIT = 10_000;
const TIMEOUT = 600_000;
const PATIENCE = 20_000;

const program = fileURLToPath(new URL("support/appender.mjs", import.meta.url));

/** Which client writes, and what part of the rounds is played there. */
const PLAYED = {
  postgres: { client: "pg", share: 1 },
  // Its limits are in whole seconds, which is what a round takes there at least where a freeze is held against them.
  mariadb: { client: "mysql2 with promises", share: 1 / 4 },
};

class Appender {
  /** Its last term. */
  token = 0;
  frozen = false;
  /** What became of each transaction. @type {any[]} */
  told = [];

  constructor(settings, store) {
    const cluster = { type: "StoreCluster", store, keepAlive: true };
    const env = {
      ...process.env,
      WHENLEADER_CONFIG: JSON.stringify({ cluster }),
      WHENLEADER_LOG: "silent",
    };
    this.child = fork(program, [JSON.stringify(settings)], { env, stdio: "inherit" });
    this.ended = new Promise((done) => this.child.on("close", done));
    this.child.on("close", (code, signal) => {
      this.end = `it ended: ${signal ?? code}`;
    });
    this.child.on("message", (/** @type {any} */ message) => {
      if (message.event === "leads") this.token = message.token;
      else this.told.push(message);
    });
  }

  commits(token) {
    return this.told.filter((one) => one.event === "committed" && one.token === token).length;
  }

  freeze() {
    this.frozen = true;
    this.child.kill("SIGSTOP");
  }

  thaw() {
    this.frozen = false;
    this.child.kill("SIGCONT");
  }

  async kill() {
    this.thaw();
    this.child.kill("SIGKILL");
    await this.ended;
  }
}

/** What was committed by an older term after something of a newer one. */
function late(rows) {
  let newest = 0;
  return rows.filter(({ token }) => {
    newest = Math.max(newest, Number(token));
    return Number(token) < newest;
  });
}

for (const [database, { client: name, share }] of Object.entries(PLAYED)) {
  const { kind, clients } = DATABASES[database];
  const client = clients.find((one) => one.name === name);

  describe(`fenced rivalry on ${database}`, { concurrency: false }, () => {
    /** @type {any} */
    let server;
    /** @type {any} */
    let pool;
    before(async () => {
      if (isMissing(kind, `fenced rivalry on ${database}`)) return;
      server = await Server.start(kind);
      pool = client.pool(server.url, 2);
    });
    after(async () => {
      if (!server) return;
      await client.close(pool);
      await server.stop();
    });
    const sql = (text) => client.rows(pool, text);
    const appended = () => sql("SELECT n, id, token FROM appended ORDER BY n");

    /**
     * @param {import("node:test").TestContext} t
     * @param {{ hold: boolean, timeout?: number } | undefined} guard
     * @param {number} rounds
     * @param {() => Promise<boolean>} isEnough
     */
    async function play(t, guard, rounds, isEnough = async () => false) {
      await sql("DROP TABLE IF EXISTS counter, appended");
      await sql("CREATE TABLE counter (n BIGINT NOT NULL)");
      await sql("INSERT INTO counter VALUES (0)");
      await sql(
        "CREATE TABLE appended (n BIGINT NOT NULL, id VARCHAR(36) NOT NULL, token BIGINT NOT NULL)",
      );
      const settings = { database, client: name, url: server.url, guard, times: TIMES };
      const pair = [new Appender(settings, server.url), new Appender(settings, server.url)];
      t.after(() => Promise.all(pair.map((one) => one.kill())));
      /** Who leads, with so many commits of this very term. */
      const leader = async (commits, not, patience = PATIENCE) =>
        until(
          () => {
            for (const { end } of pair) assert.equal(end, undefined);
            const newest = Math.max(...pair.map(({ token }) => token));
            return pair.find(
              (one) =>
                one !== not &&
                !one.frozen &&
                one.token === newest &&
                one.commits(newest) >= commits,
            );
          },
          () =>
            `somebody leads and commits: ${JSON.stringify(pair.map(({ token, told }) => [token, told.slice(-3)]))}`,
          patience,
        );
      let round = 0;
      const begun = performance.now();
      let longest = 0;
      for (; round < rounds && !(await isEnough()); round++) {
        const old = await leader(1, undefined);
        await sleep(Math.random() * 60);
        const frozen = performance.now();
        old.freeze();
        await leader(0, old);
        longest = Math.max(longest, performance.now() - frozen);
        // It commits, if it is not kept from that by what the frozen one has locked.
        await leader(2, old, 150).catch(() => {});
        old.thaw();
        await sleep(Math.random() * 60);
      }
      const took = (performance.now() - begun) / Math.max(round, 1);
      await Promise.all(pair.map((one) => one.kill()));
      t.diagnostic(
        `${round} rounds of ${Math.round(took)} ms; the longest wait for a leader was ${Math.round(longest)} ms`,
      );
      return { longest, told: pair.flatMap(({ told }) => told) };
    }

    /** @param {{ hold: boolean, timeout?: number }} guard */
    const guarded = (guard, rounds) => async (t) => {
      if (!server) return;
      const { longest, told } = await play(t, guard, Math.ceil(rounds * share));
      const rows = await appended();
      assert.deepEqual(late(rows), []);
      // And what each was told is so.
      const ids = new Set(rows.map(({ id }) => id));
      assert.equal(ids.size, rows.length);
      const has = (event, isThere) =>
        told.filter((one) => one.event === event && ids.has(one.id) !== isThere);
      assert.deepEqual(has("committed", true), []);
      const wrong = has("refused", false).filter(({ reason }) => reason !== "commit-unknown");
      assert.deepEqual(wrong, [], "what was refused is not there");
      const terms = new Set(rows.map(({ token }) => String(token)));
      assert.ok(terms.size >= (rounds * share) / 2, `${terms.size} terms`);
      // Whoever freezes between the lock and the end of COMMIT bars the takeover until the server ends that.
      assert.ok(longest < LONGEST_WAIT, `nobody led for ${longest} ms`);
      const refused = told.filter(({ event }) => event === "refused");
      assert.ok(refused.length > 0, "freezes hit transactions");
      const how = new Map();
      for (const { name, code, reason } of refused) {
        const what = [name, code, reason].filter(Boolean).join(" ");
        how.set(what, (how.get(what) ?? 0) + 1);
      }
      t.diagnostic(
        `${rows.length} rows in ${terms.size} terms; refused: ${JSON.stringify([...how])}`,
      );
    };

    test("without a guard, a leader that was frozen commits after its successor", {
      timeout: TIMEOUT,
    }, async (t) => {
      if (!server) return;
      await play(t, undefined, ROUNDS_TO_FAIL, async () => late(await appended()).length > 0);
      assert.ok(late(await appended()).length > 0, "the test would not find what it looks for");
    });

    test(
      "with a guard, nothing of an older term is committed after anything of a newer one",
      { timeout: TIMEOUT },
      guarded({ hold: false }, ROUNDS),
    );

    // A freeze holds the takeover off as long as the transaction is open, and nobody leads then. The server ends that
    // after `timeout`, and 250 ms of grace: each round waits for the next leader while the old one stands still.
    test(
      "with a guard that holds, the server ends the transaction of a frozen leader, and nothing of it is committed",
      { timeout: TIMEOUT },
      guarded({ hold: true, timeout: 250 }, ROUNDS / 2),
    );
  });
}
