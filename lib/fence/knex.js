// knex, over pg or mysql2. Its transaction runs on a connection that is taken out of its pool here, so that what
// guards it is said on that very connection.

const { askMysql, destroyMysql, guardedCore } = require("./mysql2.js");
const { askPg, endPg, guardedPg } = require("./pg.js");
const { Gate, refuses } = require("./gate.js");
const { databaseOf } = require("./sql.js");

/** @param {any} value */
const isKnex = (value) =>
  typeof value === "function" &&
  typeof value.raw === "function" &&
  typeof value.transaction === "function" &&
  typeof value.client?.acquireConnection === "function";

/** @param {any} value */
const isKnexTransaction = (value) => isKnex(value) && value.isTransaction === true;

/**
 * @param {any} knex
 * @returns {string}  also what no guard is for
 */
function knexDialect(knex) {
  const { dialect } = knex.client;
  return dialect === "postgresql" ? "postgres" : String(dialect);
}

/**
 * @param {string} dialect
 * @param {any} connection
 * @param {string} text
 */
function askKnex(dialect, connection, text) {
  return dialect === "mysql" ? askMysql(connection, text) : askPg(connection, text);
}

/** @typedef {import("./index.js").Session} Session */

/** @implements {Session} */
class KnexSession {
  dialect;
  #knex;
  #onBroken;
  #isolationLevel;
  /** It is `knex.destroy()` that forgets a pool of the application's own, whoever still has a connection of it. @type {any} */
  #pool = null;
  /** @type {any} */
  #connection = null;
  /** @type {any} */
  #trx = null;
  /** knex' own functions, which the application's function gets to see as refused. */
  #ending = { commit: () => {}, rollback: () => {} };
  /** @type {{ resolve: () => void, reject: (reason: unknown) => void } | null} */
  #end = null;
  /** @type {Promise<void>} */
  #ended = Promise.resolve();
  #gate;

  /**
   * @param {any} knex
   * @param {import("./index.js").Watch} watch
   */
  constructor(knex, { onBroken, lost, isolationLevel }) {
    this.#isolationLevel = isolationLevel;
    this.#knex = knex;
    this.#onBroken = onBroken;
    this.dialect = knexDialect(knex);
    this.#gate = new Gate(lost, databaseOf(this.dialect)?.verdict);
  }

  async acquire() {
    const { client } = this.#knex;
    this.#pool = client.pool;
    this.#connection = await client.acquireConnection();
    this.#connection.on?.("error", this.#onBroken);
  }

  async begin() {
    const options = { connection: this.#connection, isolationLevel: this.#isolationLevel };
    /** @type {Promise<void>} */
    const begun = new Promise((resolve, reject) => {
      const run = (/** @type {any} */ trx) => {
        // It goes on when BEGIN has failed, as if that had ended it.
        if (trx.isCompleted()) return;
        this.#take(trx);
        return new Promise((end, fail) => {
          this.#end = { resolve: () => end(undefined), reject: fail };
          resolve();
        });
      };
      this.#ended = this.#knex.transaction(run, options);
      this.#ended.catch(reject);
    });
    await begun;
  }

  get tx() {
    return this.#trx;
  }

  get failed() {
    return this.#gate.failed;
  }

  get openParts() {
    return this.#gate.parts;
  }

  /** @param {string} text */
  ask(text) {
    return askKnex(this.dialect, this.#connection, text);
  }

  /** @param {unknown} reason */
  close(reason) {
    this.#gate.close(reason);
  }

  async commit() {
    this.#giveBack();
    this.#end?.resolve();
    this.#end = null;
    await this.#ended;
  }

  async rollback() {
    this.#giveBack();
    const rolledBack = new Error("the transaction is rolled back");
    this.#end?.reject(rolledBack);
    this.#end = null;
    await Promise.resolve(this.#ended).catch((error) => {
      if (error !== rolledBack) throw error;
    });
  }

  release() {
    this.#connection.off?.("error", this.#onBroken);
    this.#toPool();
  }

  #toPool() {
    const { client } = this.#knex;
    if (client.pool === undefined) this.#pool?.release(this.#connection);
    else client.releaseConnection(this.#connection);
  }

  /** @param {Error} reason */
  destroy(reason) {
    const connection = this.#connection;
    if (connection === null) return;
    const { client } = this.#knex;
    const giveBack = () => {
      this.#toPool();
      // knex itself has to hear that it is over.
      this.rollback().catch(() => {});
    };
    if (this.dialect === "mysql") {
      destroyMysql(connection, reason, this.#onBroken, async (use) => {
        const another = await client.acquireConnection();
        await use(another).finally(() => client.releaseConnection(another));
      });
      giveBack();
    } else if (this.dialect === "postgres") {
      const query = connection.query.bind(connection);
      // Also of transactions within this one.
      connection.query = (/** @type {any[]} */ ...values) =>
        process.nextTick(/** @type {() => void} */ (values.at(-1)), reason);
      connection.on("error", () => {});
      connection.off("error", this.#onBroken);
      endPg(connection, query, () => {
        // knex' word for one that its pool must not give out again; it sees by itself that one of mysql2 is closed.
        connection.__knex__disposed = reason;
        connection.end(() => {});
        giveBack();
      });
    } else {
      giveBack();
    }
  }

  /** @param {any} trx */
  #take(trx) {
    this.#trx = trx;
    const { commit, rollback } = trx;
    this.#ending = { commit, rollback };
    Object.assign(trx, { commit: refuses, rollback: refuses });
    const { context } = trx;
    const { transaction } = context;
    context.transaction = (/** @type {any[]} */ ...values) => {
      const within = transaction.apply(context, values);
      return typeof values[0] === "function" ? this.#gate.part(within) : within;
    };
    const { client } = trx;
    const { query, stream } = client;
    const connection = this.#guarded();
    // Who asks for it: transactions within this one, and what knows the client itself.
    client.acquireConnection = async () => connection;
    client.query = async (/** @type {any} */ _, /** @type {any} */ statement) => {
      // What knex itself ends it with.
      const isKnexOwn = this.#end === null && typeof statement === "string";
      const objection = isKnexOwn ? undefined : this.#gate.objection(textOf(statement));
      if (objection !== undefined) throw objection;
      return this.#gate.noted(query.call(client, this.#connection, statement));
    };
    client.stream = async (/** @type {any[]} */ ...[, statement, reader, options]) => {
      const objection = this.#gate.objection(textOf(statement));
      if (objection !== undefined) {
        // It hears of nothing but what a connection says, in this very way.
        reader.emit("error", objection);
        throw objection;
      }
      return this.#gate.noted(stream.call(client, this.#connection, statement, reader, options));
    };
  }

  #guarded() {
    if (this.dialect === "mysql") return guardedCore(this.#gate, this.#connection);
    if (this.dialect === "postgres") return guardedPg(this.#gate, this.#connection);
    return this.#connection;
  }

  #giveBack() {
    if (this.#trx !== null) Object.assign(this.#trx, this.#ending);
  }
}

/** @param {any} statement */
function textOf(statement) {
  return typeof statement === "string" ? statement : statement?.sql;
}

module.exports = { KnexSession, askKnex, isKnex, isKnexTransaction, knexDialect };
