// node-postgres: a Pool, and the clients that it gives out.

const { connect } = require("node:net");
const { CANCEL_PAUSE, CANCEL_TIME } = require("./cancel.js");
const { Gate } = require("./gate.js");
const { pause } = require("./pause.js");

/** The number of a request to cancel, in PostgreSQL's protocol. */
const CANCEL = 80_877_102;

/** @param {any} value */
const isPgPool = (value) =>
  typeof value?.connect === "function" &&
  typeof value.query === "function" &&
  typeof value.totalCount === "number" &&
  typeof value.idleCount === "number";

/** @param {any} value */
const isPgClient = (value) =>
  typeof value?.query === "function" && typeof value.getTypeParser === "function";

/**
 * In the protocol of one message, in which a statement has one moment.
 *
 * @param {any} client
 * @param {string} text
 * @returns {Promise<string | undefined>}
 */
async function askPg(client, text) {
  const { rows } = await client.query({ text, rowMode: "array" });
  return rows[0]?.[0];
}

/** @typedef {import("./index.js").Session} Session */

/** @implements {Session} */
class PgSession {
  dialect = "postgres";
  #pool;
  #gate;
  #onBroken;
  #begin;
  /** @type {any} */
  #client = null;

  /**
   * @param {any} pool
   * @param {import("./index.js").Watch} watch
   */
  constructor(pool, { onBroken, lost, isolationLevel }) {
    this.#gate = new Gate(lost);
    this.#begin = isolationLevel ? `BEGIN ISOLATION LEVEL ${isolationLevel}` : "BEGIN";
    this.#pool = pool;
    this.#onBroken = onBroken;
  }

  async acquire() {
    this.#client = await this.#pool.connect();
    // Without a listener the loss of an idle connection would end the process.
    this.#client.on("error", this.#onBroken);
  }

  get tx() {
    return guardedPg(this.#gate, this.#client);
  }

  get failed() {
    return this.#gate.failed;
  }

  /** They are statements of the application's. */
  openParts = 0;

  /** @param {string} text */
  ask(text) {
    return askPg(this.#client, text);
  }

  async begin() {
    await this.#client.query(this.#begin);
  }

  /** @param {unknown} reason */
  close(reason) {
    this.#gate.close(reason);
  }

  async commit() {
    await this.#client.query("COMMIT");
  }

  async rollback() {
    await this.#client.query("ROLLBACK");
  }

  release() {
    this.#client.off("error", this.#onBroken);
    this.#client.release();
  }

  /** @param {Error} reason */
  destroy(reason) {
    const client = this.#client;
    if (client === null) return;
    // It stays without listeners of ours, whatever comes.
    client.on("error", () => {});
    client.off("error", this.#onBroken);
    endPg(client, client.query.bind(client), () => client.release(reason));
  }
}

/**
 * @param {Gate} gate
 * @param {any} client
 * @returns {any}
 */
function guardedPg(gate, client) {
  // Below it is the protocol, which knows nothing of a gate.
  const own = { connection: undefined };
  return gate.guard(client, { asks: ["query"], refused: ["release", "end"], own });
}

/**
 * Whether it waits for an answer. Newer versions warn of the older name.
 *
 * @param {any} client
 */
function isAsking(client) {
  return Boolean("_activeQuery" in client ? client._activeQuery : client.activeQuery);
}

/**
 * Rolls back, then closes, and never throws: nobody waits for it, and by then the pool itself may have gone.
 *
 * @param {any} client
 * @param {(text: string) => Promise<unknown>} query  of that client
 * @param {() => void} close
 */
function endPg(client, query, close) {
  rollBackAnyway(client, query)
    .catch(() => {})
    .then(close)
    .catch(() => {});
}

/**
 * The end of a connection would end no statement that runs: the server looks for it only between two of them. So that
 * is cancelled, again and again: it may have been on its way when it was cancelled. So is whatever keeps the rollback
 * waiting.
 *
 * @param {any} client
 * @param {(text: string) => Promise<unknown>} query
 */
async function rollBackAnyway(client, query) {
  const isBusy = isAsking(client);
  let isOver = false;
  const over = query("ROLLBACK").then(
    () => {
      isOver = true;
    },
    // Such as one that is closed already.
    () => {
      isOver = true;
    },
  );
  for (let tries = 0; tries < CANCEL_TIME / CANCEL_PAUSE && !isOver; tries += 1) {
    if (isBusy || tries > 0) cancelPg(client);
    await Promise.race([over, pause(CANCEL_PAUSE)]);
  }
}

/** @param {any} client */
function cancelPg(client) {
  const { host, port, processID, secretKey } = client;
  if (!Number.isInteger(processID) || !Number.isInteger(secretKey)) return;
  const socket = String(host).startsWith("/")
    ? connect(`${host}/.s.PGSQL.${port}`)
    : connect(port, host);
  const message = Buffer.alloc(16);
  message.writeInt32BE(16, 0);
  message.writeInt32BE(CANCEL, 4);
  message.writeInt32BE(processID, 8);
  message.writeInt32BE(secretKey, 12);
  socket.unref();
  // What cannot be cancelled ends with the limits that the transaction has on the server.
  socket.on("error", () => {});
  socket.setTimeout(CANCEL_TIME, () => socket.destroy());
  // The server closes it. Some poolers forget what is asked by somebody who has gone.
  socket.write(message);
}

module.exports = { PgSession, askPg, endPg, guardedPg, isPgClient, isPgPool };
