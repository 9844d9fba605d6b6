// What a function gets from each client, as a compiler sees it. Never run: __test__/fencing.test.mjs compiles it.
import knexFactory, { type Knex } from "knex";
import mysql from "mysql2";
import mysqlPromises from "mysql2/promise";
import pg from "pg";
import postgres from "postgres";
import type { Term } from "../../index.js";

export async function clients(term: Term) {
  const counted: number = await term.transaction(
    new pg.Pool(),
    async (tx) => {
      const client: pg.PoolClient = tx;
      // @ts-expect-error
      tx.nothing();
      return (await client.query("SELECT 1")).rowCount ?? 0;
    },
    { hold: true, timeout: 5_000, isolationLevel: "serializable" },
  );
  const said: string = await term.transaction(postgres(""), async (sql) => {
    await sql.savepoint(async (inner) => inner`SELECT 1`);
    // @ts-expect-error
    sql.nothing();
    return "said";
  });
  await term.transaction(mysqlPromises.createPool(""), async (tx) => {
    const connection: mysqlPromises.PoolConnection = tx;
    // @ts-expect-error
    tx.nothing();
    await connection.query("SELECT 1");
  });
  await term.transaction(mysql.createPool(""), (tx) => {
    const connection: mysql.PoolConnection = tx;
    // @ts-expect-error
    tx.nothing();
    connection.query("SELECT 1", () => {});
  });
  await term.transaction(knexFactory({}), async (trx) => {
    const transaction: Knex.Transaction = trx;
    // @ts-expect-error
    trx.nothing();
    await transaction("jobs").insert({ id: 1 });
  });
  await term.verify(await new pg.Pool().connect(), { hold: true });
  // @ts-expect-error
  await term.verify(await new pg.Pool().connect(), { isolationLevel: "serializable" });
  // @ts-expect-error
  await term.transaction(new pg.Pool(), () => {}, { isolationLevel: "snapshot" });
  // @ts-expect-error
  await term.transaction(5, () => {});
  // @ts-expect-error
  await term.transaction(new pg.Pool(), () => {}, { holds: true });
  return [counted, said];
}
