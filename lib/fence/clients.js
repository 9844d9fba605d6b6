// What the application gives: which client it is, by its shape.

const { KnexSession, askKnex, isKnex, isKnexTransaction, knexDialect } = require("./knex.js");
const {
  MysqlSession,
  askMysql,
  coreOf,
  isInTransaction,
  isMysqlConnection,
  isMysqlPool,
} = require("./mysql2.js");
const { shown } = require("./options.js");
const { PgSession, askPg, isPgClient, isPgPool } = require("./pg.js");
const {
  PostgresSession,
  askPostgres,
  isPostgres,
  isPostgresTransaction,
} = require("./postgres.js");

/** @typedef {import("./index.js").Open} Open */
/** @typedef {import("./sql.js").Ask} Ask */

const CLIENTS = "pg, postgres, mysql2 (with callbacks or promises) and knex";

/**
 * @param {unknown} pool
 * @returns {{ dialect: string, open: Open }}
 */
function poolOf(pool) {
  if (isKnex(pool) && !isKnexTransaction(pool)) {
    return { dialect: knexDialect(pool), open: (watch) => new KnexSession(pool, watch) };
  }
  if (isPostgres(pool)) {
    return { dialect: "postgres", open: (watch) => new PostgresSession(pool, watch) };
  }
  if (isPgPool(pool)) {
    return { dialect: "postgres", open: (watch) => new PgSession(pool, watch) };
  }
  if (isMysqlPool(pool)) {
    return { dialect: "mysql", open: (watch) => new MysqlSession(pool, watch) };
  }
  const isOne =
    isKnexTransaction(pool) ||
    isPostgresTransaction(pool) ||
    isPgClient(pool) ||
    isMysqlConnection(pool);
  throw new TypeError(
    isOne
      ? "term.transaction(pool, fn) needs the pool, and takes a connection out of it: this is a single connection, " +
          "or a transaction. Within a transaction of your own call term.verify(client), first and last"
      : `term.transaction(pool, fn) takes a pool of ${CLIENTS}, not ${shown(pool)}`,
  );
}

/**
 * @param {any} client
 * @returns {{ dialect: string, ask: Ask, isInside: () => Promise<boolean> }}
 */
function clientOf(client) {
  const isInside = async () => true;
  if (isKnexTransaction(client)) {
    const dialect = knexDialect(client);
    const ask = async (/** @type {string} */ text) =>
      askKnex(dialect, await client.client.acquireConnection(), text);
    return { dialect, ask, isInside };
  }
  if (isPostgresTransaction(client)) {
    return { dialect: "postgres", ask: (text) => askPostgres(client, text), isInside };
  }
  if (isPgClient(client)) {
    return { dialect: "postgres", ask: (text) => askPg(client, text), isInside };
  }
  if (isMysqlConnection(client)) {
    const core = coreOf(client);
    return {
      dialect: "mysql",
      ask: (text) => askMysql(core, text),
      isInside: () => isInTransaction(core),
    };
  }
  const isMany = isKnex(client) || isPostgres(client) || isPgPool(client) || isMysqlPool(client);
  throw new TypeError(
    isMany
      ? "term.verify(client) needs the one connection whose transaction is open, not the pool: each query of a pool may " +
          "go to another one. term.transaction(pool, fn) takes the pool"
      : `term.verify(client) takes a connection or a transaction of ${CLIENTS}, not ${shown(client)}`,
  );
}

module.exports = { clientOf, poolOf };
