// mysql2: pools and connections with callbacks, and with promises.

const { Gate } = require("./gate.js");
const { pause } = require("./pause.js");
const { databaseOf } = require("./sql.js");

const ASKS = ["query", "execute", "prepare", "ping", "addCommand"];
/** Those that end the transaction: also by beginning another one, or with the connection or its state. */
const REFUSED = [
  ...["commit", "rollback", "beginTransaction", "release", "destroy", "end", "_realEnd", "close"],
  ...["changeUser", "reset", "createBinlogStream"],
];
const METHODS = { asks: ASKS, refused: REFUSED };
/** In the way of callbacks, where there is none. */
const throwing = (/** @type {unknown} */ reason) => {
  throw reason;
};

/** Of the state that a server tells with its answers: a transaction is open. */
const IN_TRANSACTION = 1;

/** How often a connection is killed, and the milliseconds between. */
const KILLS = 20;
const KILL_PAUSE = 10;
const LONGEST_KILL_PAUSE = 500;
const NO_SUCH_THREAD = 1094;

/** @param {any} value */
const isCallbackPool = (value) =>
  typeof value?.getConnection === "function" && typeof value.promise === "function";

/** @param {any} value */
const isPromisePool = (value) =>
  typeof value?.getConnection === "function" && isCallbackPool(value.pool);

/** @param {any} value */
const isMysqlPool = (value) => isCallbackPool(value) || isPromisePool(value);

/** @param {any} value */
const isCallbackConnection = (value) =>
  typeof value?.query === "function" &&
  typeof value.beginTransaction === "function" &&
  typeof value.promise === "function";

/** @param {any} value */
const isMysqlConnection = (value) =>
  isCallbackConnection(value) || isCallbackConnection(value?.connection);

/** That with callbacks. @param {any} connection */
const coreOf = (connection) =>
  isCallbackConnection(connection) ? connection : connection.connection;

/**
 * @param {any} core
 * @param {string} sql
 * @returns {Promise<any>}  rows, or what the server says of a statement without any
 */
function runMysql(core, sql) {
  // Whatever the application makes of rows; and nothing in it stands for a value.
  const options = { sql, values: [], rowsAsArray: true, nestTables: false, typeCast: true };
  return new Promise((resolve, reject) => {
    core.query(options, (/** @type {unknown} */ error, /** @type {unknown} */ result) =>
      error ? reject(error) : resolve(result),
    );
  });
}

/**
 * @param {any} core
 * @param {string} sql
 * @returns {Promise<string | undefined>}
 */
async function askMysql(core, sql) {
  const rows = await runMysql(core, sql);
  const value = Array.isArray(rows) ? Object.values(rows[0] ?? [])[0] : undefined;
  return value === undefined || value === null ? undefined : String(value);
}

/** Not to be asked before the first statement of a transaction. @param {any} core */
async function isInTransaction(core) {
  const { serverStatus } = await runMysql(core, "DO 0");
  return (serverStatus & IN_TRANSACTION) !== 0;
}

/** @typedef {import("./index.js").Session} Session */

/** @implements {Session} */
class MysqlSession {
  dialect = "mysql";
  #pool;
  #gate;
  #onBroken;
  #isolationLevel;
  /** As the pool gives it. @type {any} */
  #connection = null;

  /**
   * @param {any} pool
   * @param {import("./index.js").Watch} watch
   */
  constructor(pool, { onBroken, lost, isolationLevel }) {
    this.#isolationLevel = isolationLevel;
    this.#gate = new Gate(lost, databaseOf(this.dialect)?.verdict);
    this.#pool = pool;
    this.#onBroken = onBroken;
  }

  get #core() {
    return coreOf(this.#connection);
  }

  async acquire() {
    this.#connection = isCallbackPool(this.#pool)
      ? await connectionOf(this.#pool)
      : await this.#pool.getConnection();
    // Without a listener the loss of an idle connection would end the process.
    this.#core.on("error", this.#onBroken);
  }

  get tx() {
    return isCallbackConnection(this.#connection)
      ? guardedCore(this.#gate, this.#connection)
      : guardedPromises(this.#gate, this.#connection);
  }

  get failed() {
    return this.#gate.failed;
  }

  /** They are statements of the application's. */
  openParts = 0;

  /** @param {string} sql */
  ask(sql) {
    return askMysql(this.#core, sql);
  }

  async begin() {
    // Of the next one only.
    if (this.#isolationLevel)
      await this.ask(`SET TRANSACTION ISOLATION LEVEL ${this.#isolationLevel}`);
    await this.ask("START TRANSACTION");
  }

  /** @param {unknown} reason */
  close(reason) {
    this.#gate.close(reason);
  }

  async commit() {
    await this.ask("COMMIT");
  }

  async rollback() {
    await this.ask("ROLLBACK");
  }

  release() {
    this.#core.off("error", this.#onBroken);
    this.#connection.release();
  }

  /** @param {Error} reason */
  destroy(reason) {
    if (this.#connection === null) return;
    const pool = isCallbackPool(this.#pool) ? this.#pool : this.#pool.pool;
    destroyMysql(this.#core, reason, this.#onBroken, async (use) => {
      const another = await connectionOf(pool);
      await use(another).finally(() => another.release());
    });
  }
}

/**
 * With all that it gives to ask with, which is guarded as well.
 *
 * @param {Gate} gate
 * @param {any} core
 * @returns {any}
 */
function guardedCore(gate, core) {
  /** @type {Record<string, unknown>} */
  const own = {
    promise: (/** @type {any} */ implementation) =>
      guardedPromises(gate, core.promise(implementation)),
    prepare: (/** @type {any} */ options, /** @type {any} */ then) =>
      core.prepare(options, (/** @type {unknown} */ error, /** @type {any} */ statement) =>
        then?.(error, statement && guardedStatement(gate, statement)),
      ),
    unprepare: (/** @type {any} */ options) => {
      if (gate.closed) throw gate.reason;
      const statement = core.unprepare(options);
      return statement && guardedStatement(gate, statement);
    },
  };
  return gate.guard(core, { ...METHODS, own, refuse: throwing });
}

/**
 * @param {Gate} gate
 * @param {any} connection
 * @returns {any}
 */
function guardedPromises(gate, connection) {
  const core = guardedCore(gate, connection.connection);
  const own = {
    connection: core,
    unprepare: core.unprepare,
    prepare: async (/** @type {any[]} */ ...values) => {
      const statement = await connection.prepare(...values);
      return gate.guard(statement, {
        asks: ["execute"],
        own: {
          statement: guardedStatement(gate, statement.statement),
          close: async () => {
            if (!gate.closed) await statement.close();
          },
        },
      });
    },
  };
  return gate.guard(connection, { ...METHODS, own });
}

/**
 * @param {Gate} gate
 * @param {any} statement
 * @returns {any}
 */
function guardedStatement(gate, statement) {
  // The connection knows what was prepared by its text, and the next one who has it may use it again.
  const close = () => (gate.closed ? undefined : statement.close());
  const own = { close, _connection: undefined };
  return gate.guard(statement, { asks: ["execute"], own, refuse: throwing });
}

/**
 * @param {any} pool  with callbacks
 * @returns {Promise<any>}
 */
function connectionOf(pool) {
  return new Promise((resolve, reject) => {
    pool.getConnection((/** @type {unknown} */ error, /** @type {unknown} */ connection) =>
      error ? reject(error) : resolve(connection),
    );
  });
}

/**
 * The end of a connection ends no statement that runs: the server looks for it only between two of them. So it is
 * told on another connection, for which the pool has room now.
 *
 * @param {any} core
 * @param {Error} reason
 * @param {(error: unknown) => void} onBroken
 * @param {(use: (another: any) => Promise<unknown>) => Promise<void>} borrow
 */
function destroyMysql(core, reason, onBroken, borrow) {
  const { threadId, _command: running } = core;
  // It stays without listeners of ours, whatever comes.
  core.on("error", () => {});
  core.off("error", onBroken);
  core.destroy();
  // By itself the client would leave without an answer whoever waits for a statement.
  core.stream.destroy(new Error(`the transaction is over: ${reason.message}`, { cause: reason }));
  if (!running || !Number.isInteger(threadId)) return;
  borrow((another) => kill(another, threadId)).catch(() => {});
}

/**
 * Until it is gone: a statement that begins to wait at that very moment may miss it.
 *
 * @param {any} core  of another connection
 * @param {number} threadId
 */
async function kill(core, threadId) {
  for (let tries = 0; tries < KILLS; tries += 1) {
    const isGone = await runMysql(core, `KILL ${threadId}`).then(
      () => false,
      (error) => error.errno === NO_SUCH_THREAD,
    );
    if (isGone) return;
    await pause(Math.min(KILL_PAUSE * 2 ** tries, LONGEST_KILL_PAUSE));
  }
}

module.exports = {
  MysqlSession,
  askMysql,
  guardedCore,
  coreOf,
  destroyMysql,
  isInTransaction,
  isMysqlConnection,
  isMysqlPool,
};
