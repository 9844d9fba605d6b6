// The SQL clients of Node.js, made alike: how each opens a pool, and asks within a transaction.
import { createRequire } from "node:module";
import { connect, createServer } from "node:net";

const require = createRequire(import.meta.url);

/**
 * @typedef {object} SqlClient
 * @property {string} name
 * @property {(url: string, max?: number, options?: object) => any} pool
 * @property {object} [impatient]  options of a pool that waits for no answer for longer than 300 ms
 * @property {(tx: any, sql: string) => Promise<any[]>} rows  of a pool, a connection or a transaction
 * @property {(pool: any, fn: (tx: any) => Promise<any>) => Promise<any>} own  a transaction without the library
 * @property {(pool: any) => Promise<any>} [alone]  a connection without a transaction, where the client gives one
 * @property {(pool: any) => Promise<unknown>} close
 */

/** @param {(done: (error: any, value?: any) => void) => void} call */
const promised = (call) =>
  new Promise((resolve, reject) =>
    call((error, value) => (error ? reject(error) : resolve(value))),
  );

const connectionUrl = (url, max) => ({ uri: url, connectionLimit: max });

/** @type {SqlClient} */
const pg = {
  name: "pg",
  pool: (url, max = 4, options = {}) =>
    new (require("pg").Pool)({ connectionString: url, max, ...options }),
  impatient: { query_timeout: 300 },
  rows: async (tx, sql) => (await tx.query(sql)).rows,
  async own(pool, fn) {
    const client = await pool.connect();
    try {
      await client.query("BEGIN");
      const value = await fn(client);
      await client.query("COMMIT");
      return value;
    } catch (error) {
      await client.query("ROLLBACK");
      throw error;
    } finally {
      client.release();
    }
  },
  alone: (pool) => pool.connect(),
  close: (pool) => pool.end(),
};

/** @type {SqlClient} */
const postgres = {
  name: "postgres",
  pool: (url, max = 4) => require("postgres")(url, { max, onnotice() {} }),
  rows: async (tx, sql) => [...(await tx.unsafe(sql))],
  own: (pool, fn) => pool.begin(fn),
  alone: (pool) => pool.reserve(),
  close: (pool) => pool.end({ timeout: 5 }),
};

/** @returns {SqlClient} */
const knex = (client) => ({
  name: `knex with ${client}`,
  pool: (url, max = 4, options = {}) =>
    require("knex")({
      client,
      connection: { ...(client === "pg" ? { connectionString: url } : { uri: url }), ...options },
      pool: { min: 0, max },
      // It tells of connections that were destroyed.
      log: { warn() {} },
    }),
  ...(client === "pg" && { impatient: { query_timeout: 300 } }),
  rows: async (tx, sql) => {
    const answer = await tx.raw(sql);
    return client === "pg" ? answer.rows : answer[0];
  },
  own: (pool, fn) => pool.transaction(fn),
  close: (pool) => pool.destroy(),
});

/** @type {SqlClient} */
const callbacks = {
  name: "mysql2 with callbacks",
  pool: (url, max = 4) => require("mysql2").createPool(connectionUrl(url, max)),
  rows: (tx, sql) => promised((done) => tx.query(sql, done)),
  async own(pool, fn) {
    const connection = await promised((done) => pool.getConnection(done));
    try {
      await promised((done) => connection.beginTransaction(done));
      const value = await fn(connection);
      await promised((done) => connection.commit(done));
      return value;
    } catch (error) {
      await promised((done) => connection.rollback(done));
      throw error;
    } finally {
      connection.release();
    }
  },
  alone: (pool) => promised((done) => pool.getConnection(done)),
  close: (pool) => promised((done) => pool.end(done)),
};

/** @type {SqlClient} */
const promises = {
  name: "mysql2 with promises",
  pool: (url, max = 4) => require("mysql2/promise").createPool(connectionUrl(url, max)),
  rows: async (tx, sql) => (await tx.query(sql))[0],
  own: async (pool, fn) => {
    const connection = await pool.getConnection();
    try {
      await connection.beginTransaction();
      const value = await fn(connection);
      await connection.commit();
      return value;
    } catch (error) {
      await connection.rollback();
      throw error;
    } finally {
      connection.release();
    }
  },
  alone: (pool) => pool.getConnection(),
  close: (pool) => pool.end(),
};

/**
 * What differs between databases, as far as tests need it.
 *
 * @typedef {object} Database
 * @property {string} kind  of tools/servers
 * @property {SqlClient[]} clients
 * @property {string} sleep  a statement that takes a minute
 * @property {string} settings  one row: what a connection that is clean says of itself
 * @property {(name: string) => string} ends  a statement that commits, and does not plainly say so
 * @property {boolean} rollsBackTheRest  what comes after such a one
 * @property {boolean} [deadlock]  after one the server goes on outside of the transaction
 * @property {string} open  a row for each transaction of others that is open
 * @property {string} connectionId  one row
 * @property {(id: number) => string} kill  a statement that ends a connection
 * @property {string} serializable  a statement: all transactions of the session are
 * @property {{ ask: string, of20s: unknown, set7s: string }} limits  how long the server waits for a client
 * @property {(user: string) => string[]} stranger  statements that make a user without a right
 * @property {(election: string) => string} takeOver  a statement
 */

/** @type {Record<string, Database>} */
export const DATABASES = {
  postgres: {
    kind: "postgres",
    clients: [pg, postgres, knex("pg")],
    sleep: "SELECT pg_sleep(60)",
    ends: () => "SELECT 1; COMMIT",
    rollsBackTheRest: false,
    settings:
      "SELECT current_setting('idle_in_transaction_session_timeout') AS idle, " +
      "current_setting('statement_timeout') AS statement, " +
      "(now() = statement_timestamp())::text AS outside",
    open:
      "SELECT pid, state, query FROM pg_stat_activity " +
      "WHERE pid <> pg_backend_pid() AND xact_start IS NOT NULL AND backend_type = 'client backend' " +
      "AND application_name <> 'whenleader'",
    connectionId: "SELECT pg_backend_pid() AS id",
    kill: (id) => `SELECT pg_terminate_backend(${id})`,
    serializable: "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    limits: {
      ask: "SELECT current_setting('idle_in_transaction_session_timeout') AS idle",
      of20s: "20250ms",
      set7s: "SET idle_in_transaction_session_timeout = '7s'",
    },
    stranger: (user) => [
      `CREATE ROLE ${user} LOGIN PASSWORD 'tests'`,
      `GRANT SELECT ON whenleader_leases TO ${user}`,
    ],
    // It waits, which the library's own does not.
    takeOver: (election) =>
      `WITH free AS (SELECT election FROM whenleader_leases WHERE election = '${election}' FOR UPDATE) ` +
      "UPDATE whenleader_leases AS l SET token = token + 1, nonce = 1 FROM free WHERE l.election = free.election",
  },
  mariadb: {
    kind: "mariadb",
    clients: [callbacks, promises, knex("mysql2")],
    sleep: "SELECT SLEEP(60)",
    ends: (name) => `CREATE TABLE made_by_${name} (i INT)`,
    rollsBackTheRest: true,
    deadlock: true,
    settings:
      "SELECT @@SESSION.wait_timeout AS idle, @@SESSION.innodb_lock_wait_timeout AS locks, " +
      "@@SESSION.max_statement_time AS statement, @@SESSION.autocommit AS autocommit, @@in_transaction AS inside",
    open: "SELECT trx_mysql_thread_id AS id, trx_state AS state, trx_query AS query FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id <> CONNECTION_ID()",
    connectionId: "SELECT CONNECTION_ID() AS id",
    kill: (id) => `KILL ${id}`,
    serializable: "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    limits: {
      ask: "SELECT @@SESSION.wait_timeout AS idle",
      of20s: 21,
      set7s: "SET SESSION wait_timeout = 7",
    },
    stranger: (user) => [
      `CREATE USER ${user}@'127.0.0.1' IDENTIFIED BY 'tests'`,
      `GRANT SELECT ON tests.done TO ${user}@'127.0.0.1'`,
    ],
    takeOver: (election) =>
      `UPDATE whenleader_leases SET token = token + 1, nonce = 1 WHERE election = '${election}'`,
  },
};

/**
 * Passes everything on, until a client sends something that is looked for. Then, for that connection:
 *
 * - "break": what it asked goes on, and instead of the answer the connection breaks
 * - "swallow": what it asked goes on, and no answer comes any more
 * - a number: it goes on so many milliseconds later
 */
export class Interceptor {
  #server;
  #sockets = new Set();

  /**
   * @param {number} port
   * @param {RegExp} what  in the bytes that clients send
   * @param {"break" | "swallow" | number} fate
   */
  static async before(port, what, fate) {
    const interceptor = new Interceptor();
    interceptor.#server = createServer((client) => {
      const server = connect(port, "127.0.0.1");
      let isMet = false;
      let sent = Promise.resolve();
      for (const socket of [client, server]) {
        interceptor.#sockets.add(socket);
        socket.on("error", () => {});
        socket.on("close", () => {
          client.destroy();
          server.destroy();
        });
      }
      client.on("data", (bytes) => {
        const meets = what.test(bytes.toString("latin1"));
        isMet ||= meets;
        const isLate = meets && typeof fate === "number";
        sent = sent
          .then(() => (isLate ? new Promise((done) => setTimeout(done, fate)) : undefined))
          .then(() => {
            server.write(bytes);
          });
      });
      server.on("data", (bytes) => {
        if (isMet && fate === "break") client.destroy();
        else if (!isMet || fate !== "swallow") client.write(bytes);
      });
    });
    await new Promise((resolve) =>
      interceptor.#server.listen(0, "127.0.0.1", () => resolve(undefined)),
    );
    return interceptor;
  }

  get port() {
    return this.#server.address().port;
  }

  async close() {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
