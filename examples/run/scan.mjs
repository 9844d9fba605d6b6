// A scan over a large table that goes on where it stopped, whoever goes on. How far it is, is written in the transaction
// in which its results are: so what is in the database is always the results of the rows up to the cursor, of each
// once. After a crash the batch that was in flight is read and computed once more, and nothing else.
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import { runWhenLeader } from "whenleader";

const { DATABASE_URL } = process.env;
const leaseDuration = Number(process.env.LEASE_DURATION ?? 15_000);
const BATCH = 100;
/** How long it waits for more at the end of the table. */
const POLL = 1_000;

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

runWhenLeader("scores", scan, { leaseDuration });

async function scan(term) {
  console.log(`leads: term ${term.token}`);
  const create = `
    CREATE TABLE IF NOT EXISTS scores (customer bigint PRIMARY KEY, score int NOT NULL);
    CREATE TABLE IF NOT EXISTS scan_cursors (scan text PRIMARY KEY, last_id bigint NOT NULL, term bigint NOT NULL);
    INSERT INTO scan_cursors VALUES ('scores', 0, 0) ON CONFLICT DO NOTHING`;
  await term.transaction(pool, (tx) => tx.query(create), { timeout: patience });
  for (;;) {
    const count = await term.transaction(pool, (tx) => nextBatch(tx, term), { timeout: patience });
    if (count === 0) await sleep(POLL, undefined, { signal: term.signal });
  }
}

/** Everything by the one connection `tx`. Returns how many rows there were. */
async function nextBatch(tx, { token }) {
  const [cursor] = (await tx.query("SELECT last_id FROM scan_cursors WHERE scan = 'scores'")).rows;
  // By key, and not by OFFSET: that would read everything before it again, and skip what moved.
  const { rows } = await tx.query(
    "SELECT id, name FROM customers WHERE id > $1 ORDER BY id LIMIT $2",
    [cursor.last_id, BATCH],
  );
  if (rows.length === 0) return 0;
  const last = rows.at(-1).id;
  console.log(`computes ${rows[0].id} to ${last}`);
  await tx.query("INSERT INTO scores SELECT * FROM unnest($1::bigint[], $2::int[])", [
    rows.map(({ id }) => id),
    rows.map(score),
  ]);
  await tx.query("UPDATE scan_cursors SET last_id = $1, term = $2 WHERE scan = 'scores'", [
    last,
    token,
  ]);
  return rows.length;
}

/** Stands for what takes its time. */
function score({ name }) {
  return name.length;
}
