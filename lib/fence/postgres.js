// postgres (porsager's): the client that begins transactions by itself, and has no connections to be had.

const { readFile } = require("node:fs/promises");
const { CANCEL_PAUSE, CANCEL_TIME } = require("./cancel.js");
const { Uncommitted } = require("./errors.js");
const { Gate, refuses } = require("./gate.js");
const { pause } = require("./pause.js");

/** What a server said while the process slept has been read after so long. */
const NEWS_PAUSE = 20;

/** @param {any} value */
const isPostgres = (value) =>
  typeof value === "function" &&
  typeof value.unsafe === "function" &&
  typeof value.begin === "function";

/** Of a transaction, or a connection that was reserved. @param {any} value */
const isPostgresTransaction = (value) =>
  typeof value === "function" &&
  typeof value.unsafe === "function" &&
  (typeof value.savepoint === "function" || typeof value.release === "function");

/**
 * As it came from the server, whatever the application makes of rows.
 *
 * @param {any} sql
 * @param {string} text
 * @returns {Promise<string | undefined>}
 */
async function askPostgres(sql, text) {
  const rows = await sql.unsafe(text).raw();
  return rows[0]?.[0]?.toString();
}

/** @typedef {import("./index.js").Session} Session */

/** @implements {Session} */
class PostgresSession {
  dialect = "postgres";
  #sql;
  #onBroken;
  #gate;
  /** What the client may be told of the transaction. @type {string[]} */
  #mode;
  /** Statements of the application that may run. @type {Set<Statement>} */
  #running = new Set();
  /** @type {any} */
  #tx = null;
  /** Of the function that the client runs, and ends the transaction after. @type {{ resolve: () => void, reject: (reason: unknown) => void } | null} */
  #end = null;
  /** @type {Promise<void>} */
  #ended = Promise.resolve();
  #isEnding = false;
  /** Told to a cursor that somebody may be in the middle of: it would keep the connection. */
  #endCursors = () => {};
  #closed;
  /** The client has no connection for it any more. */
  #isOver = false;

  /**
   * @param {any} sql
   * @param {import("./index.js").Watch} watch
   */
  constructor(sql, { onBroken, lost, isolationLevel }) {
    this.#gate = new Gate(lost);
    this.#mode = isolationLevel ? [`ISOLATION LEVEL ${isolationLevel}`] : [];
    this.#sql = sql;
    this.#onBroken = onBroken;
    this.#closed = new Promise((done) => {
      this.#endCursors = () => done(sql.CLOSE);
    });
  }

  /** Begins it as well. */
  acquire() {
    /** @type {Promise<void>} */
    const begun = new Promise((resolve, reject) => {
      const run = (/** @type {any} */ tx) => {
        this.#tx = tx;
        return new Promise((end, fail) => {
          this.#end = { resolve: () => end(undefined), reject: fail };
          resolve();
        });
      };
      this.#ended = this.#sql.begin(...this.#mode, run);
      this.#ended.catch((error) => {
        reject(error);
        this.#isOver = true;
        if (!this.#isEnding) this.#onBroken(error);
      });
    });
    return begun;
  }

  async begin() {}

  get tx() {
    return this.#guarded(this.#tx, (error) => {
      this.#gate.failed ??= { error };
    });
  }

  get failed() {
    return this.#gate.failed;
  }

  get openParts() {
    return this.#gate.parts;
  }

  /** @param {string} text */
  ask(text) {
    return askPostgres(this.#tx, text);
  }

  askAfter = (/** @type {string} */ text) => askPostgres(this.#sql, text);

  /** @param {unknown} reason */
  close(reason) {
    this.#gate.close(reason);
    this.#endCursors();
  }

  async commit() {
    // The client would refuse it, with that error.
    if (this.failed !== null) {
      await this.rollback();
      throw new Uncommitted(this.failed.error);
    }
    this.#isEnding = true;
    this.#end?.resolve();
    await this.#ended;
  }

  async rollback() {
    this.#isEnding = true;
    await pause(0);
    const rolledBack = new Error("the transaction is rolled back");
    if (!this.#isOver) this.#end?.reject(rolledBack);
    await this.#ended.catch((error) => {
      if (error !== rolledBack) throw error;
    });
  }

  release() {}

  /**
   * The client closes no single connection. It sends a rollback behind the statement that runs, which is therefore
   * cancelled; the connection is free for others after both, and the function finds its gate closed.
   *
   * @param {Error} reason
   */
  destroy(reason) {
    this.#isEnding = true;
    this.#ended.catch(() => {});
    this.#cancelAll(reason).finally(() => {
      // On a connection that is closed the client's rollback would end the process, by an error that nobody can catch, or
      // fail the transaction that comes next.
      if (!this.#isOver) this.#end?.reject(reason);
    });
  }

  /** Again and again: a statement may have been on its way when it was cancelled. @param {Error} reason */
  async #cancelAll(reason) {
    // Perhaps the server has closed the connection.
    await pause(NEWS_PAUSE);
    const until = performance.now() + CANCEL_TIME;
    while (this.#running.size > 0 && performance.now() < until) {
      const running = [...this.#running].filter((statement) => statement.isActive);
      const sent = running.map((statement) => statement.cancel(reason));
      // To the end: a cancellation that comes late would meet the rollback.
      await Promise.race([Promise.allSettled(sent), pause(until - performance.now())]);
      if (this.#running.size > 0) await pause(CANCEL_PAUSE);
    }
  }

  /**
   * @param {any} tx
   * @param {(error: unknown) => void} [onFailure]  of a savepoint, which may fail alone: none
   */
  #guarded(tx, onFailure = () => {}) {
    const query = (/** @type {any} */ made) => this.#query(made, onFailure);
    const savepoint = (/** @type {any[]} */ ...values) =>
      this.#gate.part(this.#savepoint(tx, values));
    /** @type {Record<string, any>} */
    const own = {
      unsafe: (/** @type {any[]} */ ...values) => query(tx.unsafe(...values)),
      file: (/** @type {any[]} */ ...values) => {
        const { made, complete } = fileIn(tx, values);
        return this.#query(made, onFailure, complete);
      },
      // The client's own asks on another connection, at once.
      notify: async (/** @type {string} */ channel, /** @type {unknown} */ payload) =>
        await query(tx`SELECT pg_catalog.pg_notify(${channel}, ${String(payload)})`),
      savepoint: (/** @type {any[]} */ ...values) =>
        Array.isArray(values[0]?.raw)
          ? savepoint((/** @type {any} */ inner) => inner(...values))
          : savepoint(...values),
      // It would go on after the term, with its locks.
      prepare: refuses,
    };
    return new Proxy(tx, {
      apply: (_, __, values) => query(tx(...values)),
      get: (_, name) =>
        typeof name === "string" && name in own && name in tx ? own[name] : Reflect.get(tx, name),
    });
  }

  /**
   * Once the transaction is over the client hears nothing more of one that is within: it would send its end, on a
   * connection that somebody else may have.
   *
   * @param {any} tx
   * @param {any[]} values  as the client takes them
   */
  async #savepoint(tx, values) {
    if (this.#gate.closed) throw this.#gate.reason;
    const fn = values.at(-1);
    return new Promise((resolve, reject) => {
      const run = (/** @type {any} */ inner) =>
        new Promise((done, fail) => {
          callAll(fn, this.#guarded(inner)).then(
            (value) => (this.#gate.closed ? reject(this.#gate.reason) : done(value)),
            (error) => (this.#gate.closed ? reject(error) : fail(error)),
          );
        });
      tx.savepoint(...values.slice(0, -1), typeof fn === "function" ? run : fn).then(
        resolve,
        reject,
      );
    });
  }

  /**
   * What was made before the end and is sent after it is refused as well.
   *
   * @param {any} query
   * @param {(error: unknown) => void} onFailure
   * @param {(query: any) => Promise<void>} [complete]  what is still to be done before it is sent
   */
  #query(query, onFailure, complete) {
    // Also called so: what is a part of another statement.
    if (typeof query?.handler !== "function") return query;
    const send = query.handler;
    /** @type {((part: unknown) => unknown) | undefined} */
    let onPart;
    Object.defineProperty(query, "cursorFn", {
      get: () => onPart,
      set: (/** @type {(part: unknown) => unknown} */ fn) => {
        onPart = (part) => Promise.race([fn(part), this.#closed]);
      },
    });
    const sendOpen = (/** @type {any} */ sent) => {
      const objection = this.#gate.objection(sent.strings?.[0]);
      if (objection !== undefined) return sent.reject(objection);
      const statement = new Statement(sent, onFailure, () => this.#running.delete(statement));
      this.#running.add(statement);
      send(sent);
    };
    query.handler =
      complete === undefined
        ? sendOpen
        : (/** @type {any} */ sent) => complete(sent).then(() => sendOpen(sent), sent.reject);
    return query;
  }
}

/** A statement that was sent, until the server has answered to the whole of it. */
class Statement {
  #query;
  #isActive = false;
  /** Of a COPY, which the client takes for answered when its data begin to flow. @type {any} */
  #stream = null;
  #isStreaming;

  /**
   * @param {any} query
   * @param {(error: unknown) => void} onFailure
   * @param {() => void} onOver
   */
  constructor(query, onFailure, onOver) {
    this.#query = query;
    this.#isStreaming = Boolean(query.streaming);
    // Whoever reads a cursor by its iterator takes the place of the promise; all that is left to see is this.
    Object.defineProperty(query, "active", {
      get: () => this.#isActive,
      set: (isActive) => {
        if (!isActive && this.#isActive && this.#isStreaming) {
          this.#isStreaming = false; // Not for its end yet.
          return;
        }
        this.#isActive = isActive;
        if (!isActive) onOver();
      },
    });
    Promise.prototype.then.call(
      query,
      (value) => {
        if (typeof value?.pipe === "function") this.#stream = value;
        else onOver();
      },
      (error) => {
        onOver();
        onFailure(error);
      },
    );
  }

  get isActive() {
    return this.#isActive;
  }

  /** @param {Error} reason */
  cancel(reason) {
    const stream = this.#stream;
    if (stream !== null) {
      // Somebody who has ceased to read it would keep the client from reading on.
      stream.push = () => true;
      stream._read?.();
      stream.on("error", () => {});
      stream.destroy(reason);
    }
    return this.#query.canceller?.(this.#query);
  }
}

/**
 * @param {any} fn
 * @param {any} tx
 */
async function callAll(fn, tx) {
  const value = fn(tx);
  return Array.isArray(value) ? Promise.all(value) : value;
}

/**
 * The client's own sends what it has read without another look at the gate.
 *
 * @param {any} tx
 * @param {any[]} values  as the client takes them
 */
function fileIn(tx, [path, args = [], options = {}]) {
  const [values, how] = Array.isArray(args) ? [args, options] : [[], args];
  const complete = async (/** @type {any} */ query) => {
    query.strings = [await readFile(path, "utf8")];
  };
  const made = tx.unsafe("", values, { simple: values.length === 0, ...how });
  return { made, complete };
}

module.exports = { PostgresSession, askPostgres, isPostgres, isPostgresTransaction };
