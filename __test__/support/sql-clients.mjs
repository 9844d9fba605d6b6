// The SQL clients of Node.js, made alike: how each opens a pool, and asks within a transaction.
import { createRequire } from "node:module";
import { connect, createServer } from "node:net";

/** The versions of them that are to be tried, where those of this package are not: a file beside their node_modules. */
const require = createRequire(process.env.WHENLEADER_SQL_CLIENTS || import.meta.url);

/**
 * @typedef {object} SqlClient
 * @property {string} name
 * @property {(url: string, max?: number, options?: object) => any} pool
 * @property {object} [impatient]  options of a pool that waits for no answer for longer than 300 ms
 * @property {(tx: any, sql: string) => Promise<any[]>} rows  of a pool, a connection or a transaction
 * @property {(pool: any, fn: (tx: any) => Promise<any>) => Promise<any>} own  a transaction without the library
 * @property {(pool: any) => Promise<unknown>} close
 * @property {(pool: any) => Promise<any>} [alone]  a connection without a transaction, where the client gives one
 * @property {(tx: any, sql: string, file: string) => Promise<Record<string, () => unknown>>} ways  each of the ways to
 *   ask, prepared as far as it goes within the transaction; a file has the statement in it
 * @property {(tx: any) => Record<string, () => unknown>} ends  each of the ways to end it
 */

/** @param {(done: (error: any, value?: any) => void) => void} call */
const promised = (call) =>
  new Promise((resolve, reject) =>
    call((error, value) => (error ? reject(error) : resolve(value))),
  );

/** Of what mysql2 gives without a callback. */
const emitted = (command) =>
  new Promise((resolve, reject) => {
    command.on("error", reject);
    command.on("end", resolve);
  });

const streamed = async (stream) => {
  for await (const _ of stream);
};

/** What a block with `using` would do at its end. */
const disposed = async (tx) => {
  for (const symbol of [Symbol.asyncDispose, Symbol.dispose]) await tx[symbol]?.();
  throw new TypeError("return from the function: there is nothing to dispose of");
};

/** What a client does not have, nobody can call. */
const refused = (method) => {
  if (method === undefined)
    throw new TypeError("return from the function: there is no such method");
};

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
  async ways(tx, sql) {
    const { Query } = require("pg");
    return {
      query: () => tx.query(sql),
      "query with values": () => tx.query(`${sql} -- $1`, []),
      "query with a callback": () => promised((done) => tx.query(sql, done)),
      "query of an object": () => tx.query({ text: sql, name: "by-name" }),
      "query that is submitted": () => promised((done) => tx.query(new Query(sql, done))),
      connection: () => tx.connection.query(sql),
    };
  },
  ends: (tx) => ({
    release: () => tx.release(),
    end: () => tx.end(),
    query: () => tx.query({ text: "COMMIT" }),
    "with using": () => disposed(tx),
  }),
  close: (pool) => pool.end(),
};

/** @type {SqlClient} */
const postgres = {
  name: "postgres",
  pool: (url, max = 4) => require("postgres")(url, { max, onnotice() {} }),
  rows: async (tx, sql) => [...(await tx.unsafe(sql))],
  own: (pool, fn) => pool.begin(fn),
  alone: (pool) => pool.reserve(),
  async ways(tx, sql, file) {
    const words = Object.assign([sql], { raw: [sql] });
    let late;
    await tx.savepoint((inner) => {
      late = inner;
    });
    return {
      "a template": () => tx(words),
      unsafe: () => tx.unsafe(sql),
      "unsafe with values": () => tx.unsafe(sql, [], { prepare: true }),
      file: () => tx.file(file),
      // Older versions have none.
      ...(tx.notify && { notify: () => tx.notify("somebody", "something") }),
      "a cursor": () => tx.unsafe(sql).cursor(1, () => {}),
      "an iterator": () => tx.unsafe(sql).cursor(1)[Symbol.asyncIterator]().next(),
      forEach: () => tx.unsafe(sql).forEach(() => {}),
      raw: () => tx.unsafe(sql).raw(),
      values: () => tx.unsafe(sql).values(),
      describe: () => tx.unsafe(sql).describe(),
      execute: () => tx.unsafe(sql).execute(),
      simple: () => tx.unsafe(sql).simple(),
      savepoint: () => tx.savepoint((inner) => inner.unsafe(sql)),
      "savepoint of a template": () => tx.savepoint(words),
      "within a savepoint": () => late.unsafe(sql),
      "a savepoint within one": () => late.savepoint((inner) => inner.unsafe(sql)),
    };
  },
  ends: (tx) => ({
    ...(tx.prepare && { prepare: () => tx.prepare("later") }),
    unsafe: () => tx.unsafe("COMMIT"),
    "a template": () => tx`COMMIT`,
    "within a savepoint": () => tx.savepoint((inner) => inner`COMMIT`),
  }),
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
  over: (connectionPool) => require("knex")({ client, connectionPool, log: { warn() {} } }),
  ...(client === "pg" && { impatient: { query_timeout: 300 } }),
  rows: async (tx, sql) => {
    const answer = await tx.raw(sql);
    return client === "pg" ? answer.rows : answer[0];
  },
  own: (pool, fn) => pool.transaction(fn),
  async ways(tx, sql) {
    const raw = await tx.client.acquireConnection();
    let inner;
    let nested;
    await tx.transaction(async (within) => {
      nested = within;
      await within.transaction(async (withinThat) => {
        inner = withinThat;
      });
    });
    return {
      raw: () => tx.raw(sql),
      "a builder": () => tx("done").insert({ what: /'(.*)'/.exec(sql)[1] }),
      ...(client === "mysql2" && { stream: () => streamed(tx.raw(sql).stream()) }),
      connection: () => promised((done) => raw.query(sql, done)),
      "a transaction within": () => tx.transaction((within) => within.raw(sql)),
      "within a transaction": () => nested.raw(sql),
      "within one of that": () => inner.raw(sql),
      "its connection": async () => {
        const connection = await inner.client.acquireConnection();
        await promised((done) => connection.query(sql, done));
      },
    };
  },
  ends: (tx) => ({
    commit: () => tx.commit(),
    rollback: () => tx.rollback(),
    raw: () => tx.raw("COMMIT"),
    "within a transaction": () => tx.transaction((inner) => inner.raw("COMMIT")),
    connection: async () => {
      const raw = await tx.client.acquireConnection();
      await promised((done) => raw.query("COMMIT", done));
    },
  }),
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
  ways: async (tx, sql) => {
    const statement = await promised((done) => tx.prepare(sql, done));
    return {
      query: () => promised((done) => tx.query(sql, done)),
      "query of an object": () => promised((done) => tx.query({ sql, values: [] }, done)),
      "query without a callback": () => emitted(tx.query(sql)),
      stream: () => streamed(tx.query(sql).stream()),
      execute: () => promised((done) => tx.execute(sql, done)),
      "execute with values": () => promised((done) => tx.execute(sql, [], done)),
      prepare: () => promised((done) => tx.prepare(sql, done)),
      "a statement": () => promised((done) => statement.execute([], done)),
      ping: () => promised((done) => tx.ping(done)),
      addCommand: () => emitted(tx.addCommand({ sql })),
      unprepare: async () => {
        const unprepared = tx.unprepare(sql);
        if (unprepared) await promised((done) => unprepared.execute([], done));
      },
      ...(await promises.ways(tx.promise(), sql, "of promise()")),
    };
  },
  ends: (tx) => ({
    ...promises.ends(tx),
    ...Object.fromEntries(
      Object.entries(promises.ends(tx.promise())).map(([way, end]) => [`${way} of promise()`, end]),
    ),
  }),
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
  async ways(tx, sql, of = "") {
    const statement = await tx.prepare(sql);
    const ways = {
      query: () => tx.query(sql),
      execute: () => tx.execute(sql),
      prepare: () => tx.prepare(sql),
      "a statement": () => statement.execute([]),
      "the statement of a statement": () =>
        promised((done) => statement.statement.execute([], done)),
      ping: () => tx.ping(),
      connection: () => promised((done) => tx.connection.query(sql, done)),
      "the connection's promises": () => tx.connection.promise().query(sql),
    };
    return Object.fromEntries(Object.entries(ways).map(([way, ask]) => [`${way} ${of}`, ask]));
  },
  ends: (tx) => ({
    ...Object.fromEntries(
      [
        ...["commit", "rollback", "beginTransaction", "release", "destroy", "end", "close"],
        ...["changeUser", "reset"],
      ].map((method) => [method, async () => tx[method]?.(() => {}) ?? refused(tx[method])]),
    ),
    query: async () => {
      const answer = tx.query("COMMIT", ...(tx.promise ? [undefined] : []));
      await (answer.then ? answer : emitted(answer));
    },
    ...(tx.connection && { connection: async () => tx.connection.commit() }),
    "with using": () => disposed(tx),
  }),
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
 * @property {string} level  one row: the isolation of the transaction, which has written
 * @property {(election: string) => string} [lockLease]  a statement after which nobody else locks the lease
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
    level: "SELECT current_setting('transaction_isolation') AS level",
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
    level:
      "SELECT LOWER(trx_isolation_level) AS level FROM information_schema.INNODB_TRX " +
      "WHERE trx_mysql_thread_id = CONNECTION_ID()",
    lockLease: (election) =>
      `SELECT token FROM whenleader_leases FORCE INDEX (term) WHERE election = '${election}' FOR UPDATE`,
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

// What MySQL shares with MariaDB, as far as is known without one: nobody has run it here.
DATABASES.mysql = {
  ...DATABASES.mariadb,
  kind: "mysql",
  settings:
    "SELECT @@SESSION.wait_timeout AS idle, @@SESSION.innodb_lock_wait_timeout AS locks, " +
    "@@SESSION.autocommit AS autocommit",
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
