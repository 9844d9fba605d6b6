// The examples of runWhenLeader(): several real processes of each, on real servers. The leader is killed, told to end
// and frozen in the middle of its work, and what the servers have at the end must be what the example promises.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import { Instances, until } from "./support/instances.mjs";
import { isMissing, Server } from "./support/servers.mjs";

const ROUNDS = Number(process.env.WHENLEADER_EXAMPLE_ROUNDS ?? 4);
const LEASE = 1_500;
/** For a test. What is left running then is ended by it. */
const TIMEOUT = 240_000;

const examples = new URL("../examples/", import.meta.url);

test("every example of runWhenLeader() is run here and told of in their README", () => {
  const files = readdirSync(new URL("run/", examples)).filter((name) => name.endsWith(".mjs"));
  const readme = readFileSync(new URL("README.md", examples), "utf8");
  const own = readFileSync(new URL(import.meta.url), "utf8");
  for (const name of files) {
    assert.ok(readme.includes(`run/${name}`), `README.md does not tell of run/${name}`);
    assert.ok(own.includes(`"${name}"`), `${name} is not run here`);
  }
});

/** What an instance is told of its store. */
const environment = (store) => ({
  // These programs do nothing but lead or wait for it.
  WHENLEADER_CONFIG: JSON.stringify({ cluster: { type: "StoreCluster", store, keepAlive: true } }),
  LEASE_DURATION: String(LEASE),
});

/** Some time of its own for whoever leads, so that it is met anywhere in its work. */
const aWhile = () => sleep(50 + Math.random() * 300);

const postgres = !isMissing("postgres", "examples of runWhenLeader() on PostgreSQL");

describe("on PostgreSQL", { concurrency: false }, () => {
  /** @type {any} */
  let server;
  let databases = 0;
  before(async () => {
    if (postgres) server = await Server.start("postgres");
  });
  after(() => server?.stop());

  /** A database of its own for each test, and what the instances are told of it. */
  async function database(t) {
    const name = `example${++databases}`;
    const admin = new pg.Client({ connectionString: server.url });
    await admin.connect();
    await admin.query(`CREATE DATABASE ${name}`);
    await admin.end();
    const url = server.url.replace(/\/postgres$/, `/${name}`);
    const pool = new pg.Pool({ connectionString: url });
    pool.on("error", () => {});
    t.after(() => pool.end());
    const env = {
      DATABASE_URL: url,
      // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the library that replaces it.
      ...environment("${DATABASE_URL}"),
    };
    const rows = async (text, values) => (await pool.query(text, values)).rows;
    return { url, env, rows };
  }

  test("outbox: no record is lost, none is marked by a deposed leader, and at most the batch in flight is sent twice", {
    timeout: TIMEOUT,
  }, async (t) => {
    if (!postgres) return;
    const BATCH = 20;
    const { env, rows } = await database(t);
    const receiver = await Receiver.start(t);
    const instances = new Instances(t, "outbox.mjs", { ...env, RECEIVER_URL: receiver.url });
    for (let i = 0; i < 3; i++) instances.start();
    await instances.leader();
    await until(() => rows("SELECT 1 FROM outbox").catch(() => false), "the table is there");

    let written = 0;
    let isOver = false;
    const writing = (async () => {
      while (!isOver) {
        await rows(
          "INSERT INTO outbox (message) SELECT gen_random_uuid() FROM generate_series(1, 5)",
        );
        written += 5;
        await sleep(10);
      }
    })();
    const leaderMarked = async () => {
      const { term } = await instances.leader();
      return (await rows("SELECT 1 FROM outbox WHERE sent_in = $1 LIMIT 1", [term])).length > 0;
    };
    const inTheMiddle = async () => {
      await until(leaderMarked, () => `the leader marks records. ${instances.story()}`);
      await aWhile();
    };
    for (let round = 0; round < ROUNDS; round++) {
      await inTheMiddle();
      await instances.killLeader();
      await inTheMiddle();
      await instances.stopLeader();
      await inTheMiddle();
      const { leader } = await instances.freezeLeader(aWhile);
      // Its work had no time to end in: it is ended with the process. Else it follows.
      await Promise.race([leader.ended, sleep(LEASE)]);
      if (leader.end) instances.start();
    }
    isOver = true;
    await writing;
    const waiting = "SELECT count(*)::int AS n FROM outbox WHERE sent_in IS NULL";
    await until(async () => (await rows(waiting))[0].n === 0, "everything is sent");
    await instances.killAll();

    const outbox = await rows("SELECT id, message, sent_in FROM outbox ORDER BY id");
    assert.equal(outbox.length, written);
    const { accepted } = receiver;
    const first = new Map();
    const again = new Map();
    for (const { id, token, message } of accepted) {
      if (!first.has(id)) first.set(id, { token, message });
      else again.set(token, [...(again.get(token) ?? []), id]);
    }
    assert.deepEqual(
      [...first].map(([id, { message }]) => ({ id, message })),
      outbox.map(({ id, message }) => ({ id, message })),
      "each is sent, in the order of the outbox",
    );
    for (const [token, ids] of again) {
      assert.ok(ids.length <= BATCH, `term ${token} sends ${ids.length} records again`);
      assert.equal(new Set(ids).size, ids.length, `term ${token} sends one twice`);
    }
    let marked = 0;
    const sent = new Set(accepted.map(({ id, token }) => `${id} in ${token}`));
    for (const { id, ...record } of outbox) {
      const sent_in = Number(record.sent_in);
      assert.ok(sent_in >= marked, `term ${sent_in} marks ${id} after term ${marked} has begun`);
      assert.ok(sent.has(`${id} in ${sent_in}`), `${id} is marked, and not sent, in ${sent_in}`);
      marked = sent_in;
    }
    const terms = new Set(outbox.map(({ sent_in }) => sent_in));
    assert.ok(terms.size >= 3 * ROUNDS, `${terms.size} terms`);
    const resent = [...again.values()].flat().length;
    t.diagnostic(`${written} records in ${terms.size} terms, ${resent} sent twice`);
    t.diagnostic(`${receiver.refused} refused by the receiver`);
  });
});

/** Takes what an outbox sends, and refuses a term after it has heard from a later one. */
class Receiver {
  /** @type {{ id: string, token: number, message: string }[]} */
  accepted = [];
  refused = 0;
  #lastToken = 0;

  static async start(t) {
    const receiver = new Receiver();
    const server = createServer(async (request, response) => {
      let message = "";
      try {
        for await (const part of request.setEncoding("utf8")) message += part;
      } catch {
        return; // Its sender died in the middle.
      }
      const token = Number(request.headers["fencing-token"]);
      if (token < receiver.#lastToken) {
        receiver.refused += 1;
        response.writeHead(409).end();
        return;
      }
      receiver.#lastToken = token;
      receiver.accepted.push({ id: String(request.headers["idempotency-key"]), token, message });
      response.end();
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    t.after(() => {
      server.closeAllConnections();
      server.close();
    });
    const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
    return Object.assign(receiver, { url: `http://127.0.0.1:${port}/` });
  }
}
