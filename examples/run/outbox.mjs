// The relay of an outbox in PostgreSQL. An application writes what it has to tell into the table `outbox`, in the
// transaction in which it changes its own data; the relay, which runs once for all instances, sends it on.
//
// What holds, whatever dies or hangs:
// - no record is lost: it is marked as sent only after the receiver took it;
// - no deposed leader marks anything: term.transaction() is refused once the term is over;
// - whoever takes over may send the batch again that was in flight. A receiver that remembers ids drops those, and one
//   that remembers the largest token refuses a leader that was frozen, and woke up after its term.
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import { runWhenLeader } from "whenleader";

const { DATABASE_URL, RECEIVER_URL } = process.env;
const leaseDuration = Number(process.env.LEASE_DURATION ?? 15_000);
/** What is sent before it is marked: the most that is ever sent twice. */
const BATCH = 20;
/** How long an empty outbox is left alone. */
const POLL = 200;

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
// Without a listener, the loss of an idle connection would end the process.
pool.on("error", (error) => console.error(`an idle connection was lost: ${error.message}`));

runWhenLeader("outbox-relay", relay, { leaseDuration });

async function relay(term) {
  console.log(`leads: term ${term.token}`);
  // Here nobody else creates it at the same time, which CREATE TABLE IF NOT EXISTS does not take well.
  const create = `
    CREATE TABLE IF NOT EXISTS outbox (
      id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
      message text NOT NULL,
      sent_in bigint
    );
    CREATE INDEX IF NOT EXISTS outbox_waiting ON outbox (id) WHERE sent_in IS NULL`;
  await term.transaction(pool, (tx) => tx.query(create), { timeout: patience });
  for (;;) {
    // Not "what is behind the last one sent": of two transactions, the one with the larger id may commit first.
    const waiting = "SELECT id, message FROM outbox WHERE sent_in IS NULL ORDER BY id LIMIT $1";
    const { rows } = await whileLeading(term, pool.query(waiting, [BATCH]));
    // Outside of a transaction: it would stay open as long as the receiver wants.
    for (const record of rows) await send(record, term);
    if (rows.length > 0) await mark(rows, term);
    else await sleep(POLL, undefined, { signal: term.signal });
  }
}

/** Throws when the term ends: what is under way is given up. Whatever else it throws lets another instance try. */
async function send({ id, message }, { token, signal }) {
  // AbortSignal.any() is there from Node.js 20.3 on.
  const answer = await fetch(RECEIVER_URL, {
    method: "POST",
    headers: { "idempotency-key": id, "x-fencing-token": String(token) },
    body: message,
    signal: AbortSignal.any([signal, AbortSignal.timeout(leaseDuration)]),
  });
  await answer.arrayBuffer();
  if (!answer.ok) throw new Error(`the receiver refused record ${id}: status ${answer.status}`);
}

async function mark(records, term) {
  const ids = records.map(({ id }) => id);
  const update = "UPDATE outbox SET sent_in = $1 WHERE id = ANY($2)";
  // If the term is over by now, this fails, and the next leader sends these records again.
  await term.transaction(pool, (tx) => tx.query(update, [term.token, ids]), { timeout: patience });
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
