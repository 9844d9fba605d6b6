// A consumer of a topic of Kafka that keeps its offsets in the database, in the transaction in which its results are. Each
// partition is an election of its own, so the instances share them, and one of them consumes it at a time.
//
// No record is skipped, and none is applied twice, whatever dies: results and offset are committed together, and only
// by the leader of the partition. A group of Kafka's own cannot say that: it keeps its offsets elsewhere, and a member
// that was frozen goes on for a moment when it wakes up.
//
//   CREATE TABLE orders (part int, position bigint, content text, term bigint, PRIMARY KEY (part, position));
//   CREATE TABLE kafka_offsets (topic text, part int, next bigint, term bigint, PRIMARY KEY (topic, part));
//
// Where producers use transactions, those that were aborted are among the records, and are to be left out.
import { setTimeout as sleep } from "node:timers/promises";
import { Consumer } from "@platformatic/kafka";
import pg from "pg";
import { runWhenLeader } from "whenleader";

const { DATABASE_URL, KAFKA = "127.0.0.1:9092", TOPIC = "orders" } = process.env;
/** As many as the topic has. */
const PARTITIONS = Number(process.env.PARTITIONS ?? 3);
const leaseDuration = Number(process.env.LEASE_DURATION ?? 15_000);
/** The most that is read at a time. */
const BYTES = 1 << 16;
/** Marks batches that hold no records, but what the broker needs to know of transactions. */
const CONTROL = 0x20;

// Work that outlives its lease ends its process, so nothing may wait for longer. A term that is lost is over after 2/3 of
// the lease, and the process ends 250 ms (or 1 %) before the whole of it: 15000 - 10000 - 250 leaves 4750 ms. All that
// waits is given up when the term ends, but for a COMMIT that is under way, which takes as long as its transaction may: a
// quarter of the lease, 3750 ms. It fits in from a lease of 3 s on. A leader that stands still can lock something for that
// and 250 ms, from its last statement on: then the server ends its transaction.
const patience = Math.floor(leaseDuration / 4);
const pool = new pg.Pool({
  connectionString: DATABASE_URL,
  connectionTimeoutMillis: patience,
  query_timeout: patience,
});
pool.on("error", (error) => console.error(`an idle connection was lost: ${error.message}`));

for (let partition = 0; partition < PARTITIONS; partition++) {
  runWhenLeader(`${TOPIC}-${partition}`, (term) => consume(partition, term), { leaseDuration });
}

async function consume(partition, term) {
  // Of the client, only what is below groups is needed. A connection of its own, since the broker answers one after the
  // other what comes by the same one.
  const broker = new Consumer({
    clientId: "orders",
    groupId: "none",
    bootstrapBrokers: KAFKA.split(","),
    connectTimeout: patience,
    requestTimeout: patience,
    retries: 0,
  });
  try {
    await follow(broker, partition, term);
  } finally {
    // Nobody waits for its goodbye.
    Promise.resolve(broker.close(true)).catch(() => {});
  }
}

async function follow(broker, partition, term) {
  const log = logOf(partition, term);
  // Nobody else can commit an offset from now on, so it is asked for once a term.
  const first = (tx) => firstOffset(tx, partition);
  let offset = await term.transaction(pool, first, { timeout: patience });
  while (!term.signal.aborted) {
    let read;
    try {
      read = await whileLeading(term, readFrom(broker, partition, offset));
    } catch (error) {
      if (!isUnreachable(error)) throw error;
      // It is no quiet topic, and no reason to hand the partition to somebody who would not reach the broker either.
      log(`Kafka cannot be reached, and is tried again: ${error.message}`);
      broker.clearMetadata();
      await sleep(patience, undefined, { signal: term.signal });
      continue;
    }
    if (read.next === offset) {
      log(`is quiet at ${offset}`);
      continue;
    }
    log("consumes");
    const { records, next } = read;
    const applyAll = async (tx) => {
      for (const record of records) await apply(tx, partition, record, term);
      await tx.query(
        "UPDATE kafka_offsets SET next = $3, term = $4 WHERE topic = $1 AND part = $2",
        [TOPIC, partition, next, term.token],
      );
    };
    await term.transaction(pool, applyAll, { timeout: patience });
    offset = next;
  }
}

/** What is to be done with a record, by the connection `tx` alone. */
async function apply(tx, partition, { offset, value }, { token }) {
  await tx.query("INSERT INTO orders (part, position, content, term) VALUES ($1, $2, $3, $4)", [
    partition,
    offset,
    value,
    token,
  ]);
}

async function firstOffset(tx, partition) {
  await tx.query(
    "INSERT INTO kafka_offsets (topic, part, next, term) VALUES ($1, $2, 0, 0) ON CONFLICT DO NOTHING",
    [TOPIC, partition],
  );
  const { rows } = await tx.query("SELECT next FROM kafka_offsets WHERE topic = $1 AND part = $2", [
    TOPIC,
    partition,
  ]);
  return BigInt(rows[0].next);
}

/**
 * Nothing new after a while in which nothing came; an error if the broker does not answer, or has no such offset (any
 * more), which is for people to decide about.
 */
async function readFrom(broker, partition, fetchOffset) {
  const { topics } = await broker.metadata({ topics: [TOPIC] });
  const { id: topicId, partitions } = topics.get(TOPIC);
  const wanted = { partition, fetchOffset, currentLeaderEpoch: -1, lastFetchedEpoch: -1 };
  const { responses } = await broker.fetch({
    node: partitions[partition].leader,
    maxWaitTime: Math.floor(patience / 2),
    minBytes: 1,
    maxBytes: BYTES,
    topics: [{ topicId, partitions: [{ ...wanted, partitionMaxBytes: BYTES }] }],
  });
  const records = [];
  let next = fetchOffset;
  for (const batch of responses[0]?.partitions[0]?.records ?? []) {
    // Not the last record's: some may have been compacted away.
    next = batch.firstOffset + BigInt(batch.lastOffsetDelta) + 1n;
    if (batch.attributes & CONTROL) continue;
    for (const { offsetDelta, value } of batch.records) {
      const offset = batch.firstOffset + BigInt(offsetDelta);
      // A batch comes as it was written, also if it begins before the wanted offset.
      if (offset >= fetchOffset) records.push({ offset, value: value && String(value) });
    }
  }
  return { records, next };
}

/** The client's word for all that a network does. */
function isUnreachable({ code, errors = [] }) {
  return code === "PLT_KFK_NETWORK" || errors.some(isUnreachable);
}

/** Says only what is new. */
function logOf(partition, { token }) {
  console.log(`leads: ${TOPIC}-${partition}, term ${token}`);
  let last;
  return (text) => {
    const [what] = text.split(" ");
    if (what !== last) console.log(`${TOPIC}-${partition} ${text}`);
    last = what;
  };
}

/** For what takes no signal: when the term ends, nobody waits for its answer any more. */
function whileLeading({ signal }, asked) {
  return new Promise((resolve, reject) => {
    const giveUp = () => reject(signal.reason);
    signal.addEventListener("abort", giveUp);
    asked.then(resolve, reject).finally(() => signal.removeEventListener("abort", giveUp));
    if (signal.aborted) giveUp();
  });
}
