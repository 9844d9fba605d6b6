// One instance of the rivalry in __test__/fenced-rivalry.test.mjs: as long as it leads, it appends rows, each in a
// transaction with pauses inside. It tells what became of each, and decides nothing: also after a refusal it goes on
// until its signal aborts, which must not be kept from that.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { runWhenLeader } from "../../index.js";
import { DATABASES } from "./sql-clients.mjs";

const { database, client: name, url, guard, times } = JSON.parse(process.argv[2]);
const client = DATABASES[database].clients.find((one) => one.name === name);
const pool = client.pool(url, 2);
// A server ends the connections of those that stand still.
pool.on?.("error", () => {});

async function append(tx, id, token) {
  await sleep(Math.random() * 40);
  // From here to the end of the transaction the counter is locked: the numbers are in the order of the commits.
  await client.rows(tx, "UPDATE counter SET n = n + 1");
  await client.rows(
    tx,
    `INSERT INTO appended (n, id, token) SELECT n, '${id}', ${token} FROM counter`,
  );
  await sleep(Math.random() * 10);
}

runWhenLeader(
  "appender",
  async (term) => {
    const { token } = term;
    process.send({ token, event: "leads" });
    while (!term.signal.aborted) {
      const id = randomUUID();
      const work = (tx) => append(tx, id, token);
      try {
        if (guard) await term.transaction(pool, work, guard);
        else await client.own(pool, work);
        process.send({ token, event: "committed", id });
      } catch (error) {
        const { name, code, reason, message } = error;
        process.send({ token, event: "refused", id, name, code, reason, message });
      }
    }
  },
  // Ended with its process, it would prove nothing about its transaction.
  { ...times, onOverrun: "warn" },
);
process.on("disconnect", () => process.exit());
