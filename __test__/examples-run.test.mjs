// The examples of runWhenLeader(): several real processes of each, on real servers. The leader is killed, told to end
// and frozen in the middle of its work, and what the servers have at the end must be what the example promises.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { createServer as createHttpServer } from "node:http";
import { createServer } from "node:net";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Admin, Producer } from "@platformatic/kafka";
import pg from "pg";
import { Instances, until } from "./support/instances.mjs";
import { TcpProxy } from "./support/proxy.mjs";
import { isMissing, Server } from "./support/servers.mjs";
import { newFolder } from "./support/temp.js";

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

const kafkaClient = ({ url }) => ({ clientId: "test", bootstrapBrokers: [url], retries: 0 });

/** With the topic of the example. */
async function startKafka(t, partitions) {
  const kafka = await Server.start("kafka");
  t.after(() => kafka.stop());
  const admin = new Admin(kafkaClient(kafka));
  await admin.createTopics({ topics: ["orders"], partitions, replicas: 1 });
  await admin.close();
  return kafka;
}

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

  test("scan: each row has one result, whoever dies, and at most the batch in flight is computed again", {
    timeout: TIMEOUT,
  }, async (t) => {
    if (!postgres) return;
    const { env, rows } = await database(t);
    // More than it gets to.
    const count = 600_000;
    await rows("CREATE UNLOGGED TABLE customers (id bigint PRIMARY KEY, name text NOT NULL)");
    // With gaps, as tables have them.
    await rows(
      "INSERT INTO customers SELECT 3 * n, repeat('x', (n % 50)::int) FROM generate_series(1, $1::bigint) n",
      [count],
    );
    const instances = new Instances(t, "scan.mjs", env);
    for (let i = 0; i < 3; i++) instances.start();
    let faults = 0;
    const cursor = async () => {
      const [row] = await rows("SELECT last_id, term FROM scan_cursors").catch(() => []);
      return { last: Number(row?.last_id ?? 0), term: Number(row?.term ?? 0) };
    };
    const inTheMiddle = async () => {
      await until(
        async () => (await cursor()).term === (await instances.leader()).term,
        () => `the leader scans. ${instances.story()}`,
      );
      await sleep(Math.random() * 50);
      faults += 1;
    };
    for (let round = 0; round < ROUNDS; round++) {
      await inTheMiddle();
      await instances.killLeader();
      await inTheMiddle();
      await instances.stopLeader();
      await inTheMiddle();
      const { leader } = await instances.freezeLeader();
      await Promise.race([leader.ended, sleep(LEASE)]);
      if (leader.end) instances.start();
    }
    await inTheMiddle();
    await instances.killAll();
    const end = (await cursor()).last;
    assert.ok(end < 3 * count, "it was never without work");

    const [{ results, wrong }] = await rows(
      `SELECT count(score)::int AS results, count(*) FILTER (WHERE length(name) IS DISTINCT FROM score)::int AS wrong
      FROM (SELECT * FROM customers WHERE id <= $1) c FULL JOIN scores ON customer = id`,
      [end],
    );
    assert.deepEqual({ results, wrong }, { results: end / 3, wrong: 0 });
    const batches = instances.all.flatMap(({ lines }) =>
      lines.filter((line) => line.startsWith("computes ")),
    );
    // The last leader may have been killed before it committed the last one.
    const different = new Set(batches).size;
    assert.ok([end / 300, end / 300 + 1].includes(different), "no batch overlaps with another one");
    const again = batches.length - different;
    assert.ok(again <= faults, `${again} batches were computed again after ${faults} faults`);
    t.diagnostic(`${batches.length} batches, ${again} of them again, ${faults} faults`);
  });

  test("kafka: no record is skipped and none is applied twice, and a quiet topic is not taken for a lost broker", {
    timeout: TIMEOUT,
  }, async (t) => {
    if (!postgres || isMissing("kafka", "the consumer of Kafka")) return;
    const PARTITIONS = 3;
    const { env, rows } = await database(t);
    // Without a key: two would be a failure of the consumer, which is to be seen at the end.
    await rows("CREATE TABLE orders (part int, position bigint, content text, term bigint)");
    await rows(
      "CREATE TABLE kafka_offsets (topic text, part int, next bigint, term bigint, PRIMARY KEY (topic, part))",
    );
    const kafka = await startKafka(t, PARTITIONS);
    const producer = new Producer(kafkaClient(kafka));
    t.after(() => producer.close(true));
    const produced = Array.from({ length: PARTITIONS }, () => 0);
    let isOver = false;
    const produce = async () => {
      while (!isOver) {
        const messages = produced.map((count, partition) => ({
          topic: "orders",
          partition,
          value: Buffer.from(`order ${count}`),
        }));
        await producer.send({ messages, acks: -1 });
        for (const partition of produced.keys()) produced[partition] += 1;
        await sleep(15);
      }
    };

    const instances = new Instances(t, "kafka.mjs", { ...env, KAFKA: kafka.url });
    for (let i = 0; i < 3; i++) instances.start();
    const leads = (instance, term) =>
      instance.lines.some((line) => line.startsWith("leads:") && line.endsWith(`term ${term}`));
    /** Who has committed something for the partition last, if that is still alive. */
    const consumer = async (partition) => {
      const [found] = await rows("SELECT term FROM kafka_offsets WHERE part = $1", [partition]);
      return instances.running.find((instance) => leads(instance, found?.term));
    };
    /** It gets on with each partition. */
    const inTheMiddle = async () => {
      const before = [...produced];
      for (const partition of produced.keys()) {
        const isOn = async () => {
          const [found] = await rows("SELECT next FROM kafka_offsets WHERE part = $1", [partition]);
          return Number(found?.next ?? 0) > before[partition];
        };
        await until(isOn, () => `partition ${partition} goes on. ${instances.story()}`);
      }
      await aWhile();
    };
    const producing = produce();
    let faults = 0;
    for (let round = 0; round < ROUNDS / 2; round++) {
      for (const [i, signal] of ["SIGKILL", "SIGTERM", "SIGSTOP"].entries()) {
        await inTheMiddle();
        const victim = await until(() => consumer((round + i) % PARTITIONS), "somebody consumes");
        victim.signal(signal);
        faults += 1;
        if (signal === "SIGSTOP") {
          await sleep(LEASE);
          await inTheMiddle();
          victim.signal("SIGCONT");
          await Promise.race([victim.ended, sleep(LEASE)]);
        } else {
          await victim.ended;
        }
        if (victim.end) instances.start();
      }
    }
    await inTheMiddle();
    isOver = true;
    await producing;

    // A quiet topic, and then a broker that is away: neither of them ends a term.
    const last = () => instances.running.map(({ lines }) => lines.length);
    const said = (from, what) =>
      instances.running
        .flatMap(({ lines }, i) => lines.slice(from[i]))
        .filter((line) => what.test(line));
    for (const partition of produced.keys()) {
      const quiet = new RegExp(`^orders-${partition} is quiet at ${produced[partition]}$`);
      await until(
        () => said([], quiet).length > 0,
        () => `${quiet}. ${instances.story()}`,
      );
    }
    let from = last();
    await kafka.kill();
    await until(() => said(from, /cannot be reached/).length === PARTITIONS, "the loss is told of");
    assert.deepEqual(said(from, /is quiet/), []);
    from = last();
    await kafka.restart();
    await until(() => said(from, /is quiet/).length === PARTITIONS, "the topic is quiet again");
    assert.deepEqual(said(from, /leads/), []);
    await instances.killAll();

    for (const [partition, count] of produced.entries()) {
      const applied = await rows(
        "SELECT position, content, term FROM orders WHERE part = $1 ORDER BY position, term",
        [partition],
      );
      const order = Array.from({ length: count }, (_, i) => `${i}: order ${i}`);
      assert.deepEqual(
        applied.map(({ position, content }) => `${position}: ${content}`),
        order,
      );
      const terms = applied.map(({ term }) => Number(term));
      assert.deepEqual(
        terms,
        terms.toSorted((a, b) => a - b),
        "none is applied by a deposed leader",
      );
    }
    const total = produced.reduce((sum, count) => sum + count);
    t.diagnostic(`${total} records of ${PARTITIONS} partitions, ${faults} faults`);
  });

  /** What the tests above give each example beside its database, and what it has said in the middle of its work. */
  const TABLES = `
    CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL);
    INSERT INTO customers SELECT n, 'x' FROM generate_series(1, 100000) n;
    CREATE TABLE orders (part int, position bigint, content text, term bigint);
    CREATE TABLE kafka_offsets (topic text, part int, next bigint, term bigint, PRIMARY KEY (topic, part))`;
  const hasKafka = postgres && !isMissing("kafka", "the consumer of Kafka");

  /** An example whose database can fall silent while the store of its lease goes on. */
  async function silenceable(t, example, lease, more = {}) {
    const { url, env, rows } = await database(t);
    await rows(TABLES);
    const receiver = await Receiver.start(t);
    const proxy = await TcpProxy.to(server.port);
    t.after(() => proxy.close());
    const instances = new Instances(t, example, {
      ...env,
      ...environment(url),
      DATABASE_URL: url.replace(`:${server.port}/`, `:${proxy.port}/`),
      RECEIVER_URL: receiver.url,
      PARTITIONS: "1",
      ...more,
      LEASE_DURATION: String(lease),
    });
    return { instances, proxy, rows, url };
  }

  /** Nobody gets at the table until the function it resolves with is called: when somebody waits for it. */
  async function lock(t, table, url) {
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    const unlock = () => client.end();
    t.after(unlock);
    const found = async (text) => (await client.query(text, [table])).rows.length > 0;
    const isThere = "SELECT 1 WHERE to_regclass($1) IS NOT NULL";
    await until(() => found(isThere), `${table} is there`);
    await client.query(`BEGIN; LOCK TABLE ${table}`);
    const isWanted = "SELECT 1 FROM pg_locks WHERE relation = to_regclass($1) AND NOT granted";
    await until(() => found(isWanted), `somebody waits for ${table}`);
    return unlock;
  }

  /** What shows that the work is past its beginnings. */
  const AT_WORK = { "outbox.mjs": /^leads/, "scan.mjs": /^computes/, "kafka.mjs": /is quiet/ };
  /** What it needs of its database all the time. */
  const USED = { "outbox.mjs": "outbox", "scan.mjs": "scores" };

  test("work does not wait for answers when its term ends: neither at its beginning nor later, neither the database's nor the broker's", {
    timeout: TIMEOUT,
  }, async (t) => {
    if (!postgres) return;
    /** Whose quarter is what the examples wait for otherwise. */
    const LONG = 60_000;
    const kafka = hasKafka ? await startKafka(t, 1) : undefined;
    const ends = async (instance, when) => {
      const told = performance.now();
      instance.signal("SIGTERM");
      assert.deepEqual(await instance.ended, { code: null, signal: "SIGTERM" }, instance.story());
      const took = performance.now() - told;
      assert.ok(took < LONG / 8, `${when}: it took ${took} ms. ${instance.story()}`);
    };
    for (const example of kafka ? Object.keys(AT_WORK) : ["outbox.mjs", "scan.mjs"]) {
      const more = kafka ? { KAFKA: kafka.url } : {};
      const { instances, proxy, url } = await silenceable(t, example, LONG, more);
      proxy.freeze();
      const early = instances.start();
      await early.says(/^leads/);
      await sleep(200); // It waits by now.
      await ends(early, `${example} at its beginning`);

      proxy.open();
      const late = instances.start();
      await late.says(AT_WORK[example]);
      // In a statement: a COMMIT that is under way is waited for.
      const table = USED[example];
      const unlock = table && (await lock(t, table, url));
      proxy.freeze();
      await ends(late, `${example} in the middle`);
      await unlock?.();

      if (example === "kafka.mjs") {
        proxy.open();
        const third = instances.start();
        await third.says(AT_WORK[example]);
        await kafka.freeze();
        await ends(third, "kafka.mjs with a broker that is silent");
        await kafka.thaw();
        const fourth = instances.start();
        await fourth.says(/^leads/);
        await kafka.freeze();
        await sleep(200);
        await ends(fourth, "kafka.mjs that has heard nothing of its broker");
        await kafka.thaw();
      }
    }
  });

  test("work whose servers fall silent ends with its term, and not with its process", {
    timeout: TIMEOUT,
  }, async (t) => {
    if (!postgres) return;
    /** Room for a COMMIT that gets no answer, as the examples say. */
    const ENOUGH = 6_000;
    const kafka = hasKafka ? await startKafka(t, 1) : undefined;
    const all = [];
    for (const example of kafka ? Object.keys(AT_WORK) : ["outbox.mjs", "scan.mjs"]) {
      const more = kafka ? { KAFKA: kafka.url } : {};
      const { instances } = await silenceable(t, example, ENOUGH, more);
      const instance = instances.start();
      await instance.says(AT_WORK[example]);
      all.push(instance);
    }
    const terms = ({ lines }) => lines.filter((line) => line.startsWith("leads")).length;
    const before = all.map(terms);
    await Promise.all([server.freeze(), kafka?.freeze()]);
    await sleep(1.2 * ENOUGH);
    await Promise.all([server.thaw(), kafka?.thaw()]);
    for (const [i, instance] of all.entries()) {
      await until(
        () => instance.end || terms(instance) > before[i],
        () => `it leads again. ${instance.story()}`,
      );
      assert.equal(instance.end, undefined, instance.story());
    }
  });

  test("session: the upstream never has two, and one ends before the lease of its leader does", {
    timeout: TIMEOUT,
  }, async (t) => {
    if (!postgres) return;
    const { env } = await database(t);
    const upstream = await Upstream.start(t);
    const instances = new Instances(t, "session.mjs", { ...env, UPSTREAM: upstream.address });
    for (let i = 0; i < 3; i++) instances.start();
    const inTheMiddle = async () => {
      const heard = upstream.next;
      await until(
        async () => upstream.session?.token === (await instances.leader()).term,
        () => `the leader has the session. ${instances.story()}`,
      );
      await until(() => upstream.next > heard, "the session goes on");
      await aWhile();
    };
    for (let round = 0; round < ROUNDS; round++) {
      await inTheMiddle();
      await instances.killLeader();
      await inTheMiddle();
      const before = upstream.goodbyes;
      await instances.stopLeader();
      assert.equal(upstream.goodbyes, before + 1, "a leader that is told to end says goodbye");
    }

    // Nobody can renew: the last renewal was sent before this moment.
    await inTheMiddle();
    const { session } = upstream;
    const leader = await instances.leader();
    const frozen = performance.now();
    await server.freeze();
    await session.closed;
    const took = performance.now() - frozen;
    await server.thaw();
    assert.ok(took < LEASE, `the session ended ${took} ms after the store`);
    assert.equal(leader.end, undefined, `by its signal, and not with the process`);
    await inTheMiddle();
    assert.deepEqual(upstream.problems, []);

    // Nobody but the upstream can end the session of a process that stands still.
    upstream.replaces = true;
    await instances.freezeLeader(async () => {
      await until(() => upstream.replaced === 1, "the upstream ends the old session");
    });
    await inTheMiddle();
    await instances.killAll();
    assert.deepEqual(upstream.problems, []);
    t.diagnostic(`${upstream.next} events in ${upstream.sessions} sessions`);
    t.diagnostic(`without a store, the session ended after ${Math.round(took)} of ${LEASE} ms`);
  });
});

/** Of the embedded store, whose followers see a dead process at once. */
const embedded = () => environment(`file:${newFolder()}`);

test("job: runs on the leader only, and one that is under way when the term ends is given up", {
  timeout: TIMEOUT,
}, async (t) => {
  const every = 150;
  const place = await Workplace.start(t);
  const env = { ...embedded(), JOB_URL: place.url, JOB_EVERY: String(every) };
  const instances = new Instances(t, "job.mjs", env);
  for (let i = 0; i < 3; i++) instances.start();
  const inTheMiddle = async () => {
    const { term } = await instances.leader();
    await until(
      () => place.running?.token === term,
      () => `a job runs. ${instances.story()}`,
    );
    return place.running;
  };
  place.takes = LEASE;
  for (let round = 0; round < ROUNDS; round++) {
    let job = await inTheMiddle();
    await instances.killLeader();
    assert.equal(await job.ended, "given up");
    job = await inTheMiddle();
    await instances.stopLeader();
    assert.equal(await job.ended, "given up");
  }
  // Without a fault they come to their end, and also the failure of one ends nothing.
  const { term } = await instances.leader();
  place.takes = 20;
  place.fails = 1;
  const [done, failed] = [place.done, place.failed];
  await until(() => place.failed > failed && place.done > done + 5, "jobs run");
  assert.equal((await instances.leader()).term, term);
  assert.deepEqual(place.problems, []);

  // Nobody but the one who does the job can know that whoever ordered it stands still.
  place.takes = 2 * LEASE;
  place.replaces = true;
  const { leader: woken } = await instances.freezeLeader(inTheMiddle);
  const last = await inTheMiddle();
  await Promise.race([woken.ended, sleep(LEASE)]);
  assert.ok(place.largest >= last.token);
  await instances.killAll();
  assert.deepEqual(place.problems, []);
  t.diagnostic(`${place.done} jobs, ${place.givenUp} given up`);
});

test("returns: work ends by its signal, done, failed, or with an error of its own, and what is worth a log is in it", {
  timeout: TIMEOUT,
}, async (t) => {
  const instances = new Instances(t, "returns.mjs", embedded());
  const first = instances.start();
  const told = (election, what) =>
    instances.all.flatMap((instance) =>
      instance.lines
        .map((line) => /^(\S+) (\d+): (.*)$/.exec(line))
        .filter((found) => found?.[1] === election && what.test(found[3]))
        .map((found) => ({ instance, token: Number(found[2]) })),
    );
  const errors = (how) => instances.all.flatMap(({ errors }) => errors.match(how) ?? []).length;
  const isTold = (election, what, times = 1) =>
    until(
      () => told(election, what).length >= times,
      () => `${election}: ${what}, ${times} times. ${instances.story()}`,
    );

  // The first one leads everything, before there is another one.
  for (const election of ["follows", "retries", "flushes"]) await isTold(election, /^begins$/);
  const second = instances.start();
  await isTold("is-done", /^is done$/, 3);
  await isTold("fails", /^begins$/, 3);
  await isTold("is-done-here", /^is done here$/, 2);
  await isTold("retries", /^call 9 failed, and is tried again/);
  await isTold("retries", /^call 10 went well/);
  // Each is a term of its own.
  for (const [election, what] of /** @type {[string, RegExp][]} */ ([
    ["is-done", /^is done$/],
    ["fails", /^begins$/],
  ])) {
    const tokens = told(election, what).map(({ token }) => token);
    assert.equal(new Set(tokens).size, tokens.length, `${election}: ${tokens}`);
  }
  assert.equal(new Set(told("is-done-here", /./).map(({ instance }) => instance)).size, 2);
  // Tried again in place: one term all the time.
  assert.equal(told("retries", /^begins$/).length, 1);
  assert.ok(errors(/this work is bound to fail/g) >= 2);
  assert.equal(
    errors(/upstream is overloaded/g),
    0,
    "what is tried again is the work's own affair",
  );

  // The first one is told to end, and then the second one is killed.
  first.signal("SIGTERM");
  assert.deepEqual(await first.ended, { code: null, signal: "SIGTERM" }, first.story());
  await isTold("follows", /^begins$/, 2);
  await isTold("flushes", /^begins$/, 2);
  const flushed = /the work failed while its term ended.*the buffer could not be written/gs;
  assert.equal(errors(flushed), 1, instances.story());
  assert.equal(told("follows", /^ends: stopped$/).length, 1, first.story());
  const third = instances.start();
  second.signal("SIGKILL");
  await isTold("follows", /^begins$/, 3);
  await isTold("flushes", /^begins$/, 3);
  third.signal("SIGTERM");
  assert.deepEqual(await third.ended, { code: null, signal: "SIGTERM" }, third.story());
  assert.equal(errors(flushed), 2, instances.story());
  assert.equal(told("follows", /^ends: stopped$/).length, 2, third.story());
  // Whoever ended by the signal is not in the log.
  for (const { errors } of instances.all) assert.doesNotMatch(errors, /follow|AbortError/);
});

/** Takes what an outbox sends, and refuses a term after it has heard from a later one. */
class Receiver {
  /** @type {{ id: string, token: number, message: string }[]} */
  accepted = [];
  refused = 0;
  #lastToken = 0;

  static async start(t) {
    const receiver = new Receiver();
    const server = createHttpServer(async (request, response) => {
      let message = "";
      try {
        for await (const part of request.setEncoding("utf8")) message += part;
      } catch {
        return; // Its sender died in the middle.
      }
      const token = Number(request.headers["x-fencing-token"]);
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

/** Allows one session at a time, and takes note of each who comes while it has one. */
class Upstream {
  /** @type {{ token: number, closed: Promise<void> } | undefined} */
  session;
  /** Each event is sent until it is confirmed. */
  next = 1;
  sessions = 0;
  goodbyes = 0;
  /** Whether one with a larger token takes the place of an older one. */
  replaces = false;
  replaced = 0;
  /** @type {string[]} */
  problems = [];
  /** @type {Set<import("node:net").Socket>} */
  #sockets = new Set();

  static async start(t) {
    const upstream = new Upstream();
    const server = createServer((socket) => upstream.#accept(socket));
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    t.after(() => {
      for (const socket of upstream.#sockets) socket.destroy();
      server.close();
    });
    const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
    return Object.assign(upstream, { address: `127.0.0.1:${port}` });
  }

  /** @param {import("node:net").Socket} socket */
  #accept(socket) {
    this.#sockets.add(socket);
    let session;
    let timer;
    const closed = new Promise((resolve) => {
      socket.on("close", () => {
        clearInterval(timer);
        this.#sockets.delete(socket);
        if (this.session === session) this.session = undefined;
        resolve();
      });
    });
    socket.on("error", () => {});
    const hear = (line) => {
      const [word, value] = line.split(" ");
      if (word === "HELLO") {
        const token = Number(value);
        const old = this.session;
        if (old && this.replaces && token > old.token) {
          this.replaced += 1;
          old.socket.destroy();
        } else if (old) {
          this.problems.push(`${token} comes while ${old.token} is here`);
          socket.destroy();
          return;
        }
        session = { token, closed, socket };
        this.session = session;
        this.sessions += 1;
        timer = setInterval(() => socket.write(`EVENT ${this.next}\n`), 10);
      } else if (word === "DONE") {
        if (this.session !== session)
          this.problems.push(`${session?.token} goes on without a session`);
        else if (Number(value) === this.next) this.next += 1;
      } else if (word === "BYE") {
        this.goodbyes += 1;
      }
    };
    let rest = "";
    socket.setEncoding("utf8").on("data", (text) => {
      const lines = (rest + text).split("\n");
      rest = lines.pop();
      for (const line of lines) hear(line);
    });
  }
}

/** Where jobs are done, which take their time; it sees which of them are given up by whoever ordered them. */
class Workplace {
  /** @type {{ token: number, ended: Promise<string> } | undefined} */
  running;
  done = 0;
  failed = 0;
  givenUp = 0;
  largest = 0;
  /** Milliseconds. */
  takes = 20;
  /** As many of the next ones fail. */
  fails = 0;
  /** Whether an order of a larger token ends one of an older one. */
  replaces = false;
  /** @type {string[]} */
  problems = [];

  static async start(t) {
    const place = new Workplace();
    const server = createHttpServer((request, response) => place.#order(request, response));
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    t.after(() => {
      server.closeAllConnections();
      server.close();
    });
    const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
    return Object.assign(place, { url: `http://127.0.0.1:${port}/` });
  }

  #order(request, response) {
    const token = Number(request.headers["x-fencing-token"]);
    const old = this.running;
    if (token < this.largest) {
      if (!this.replaces) this.problems.push(`${token} comes after ${this.largest}`);
      response.writeHead(409).end();
      return;
    }
    this.largest = token;
    if (old && !this.replaces) this.problems.push(`${token} comes while one of ${old.token} runs`);
    const job = { token, ended: Promise.resolve("") };
    job.ended = new Promise((resolve) => {
      const end = (how) => {
        clearTimeout(timer);
        if (this.running === job) this.running = undefined;
        resolve(how);
      };
      const timer = setTimeout(() => {
        if (this.fails > 0) {
          this.fails -= 1;
          this.failed += 1;
          response.writeHead(500);
        } else {
          this.done += 1;
        }
        // Before it is told, for the next one may come at once.
        end("done");
        response.end();
      }, this.takes);
      response.on("close", () => {
        if (this.running === job || !response.writableFinished) this.givenUp += 1;
        end("given up");
      });
    });
    this.running = job;
  }
}
