// What a transaction can fail with beside what the client says, and what an error of the database means for the lease.

const { ElectionError, LeadershipLostError } = require("../errors.js");
const { after } = require("../timer.js");
const { onAbort } = require("../signal.js");
const { ENDED_EARLY, databaseOf } = require("./sql.js");

/** @typedef {import("../../index.js").Term} Term */
/** @typedef {import("../native-types").Guard} Guard */

/** How long news are waited for that are under way. */
const NEWS = 250;
/** Of the words of a guard: what ended a term. */
const REASONS = new Set(["expired", "released", "taken"]);

/** A client refuses by itself to commit: what was thrown instead of an answer. */
class Uncommitted {
  /** @param {unknown} reason */
  constructor(reason) {
    this.reason = reason;
  }
}

function unfinished() {
  return new Error(
    "the function of term.transaction() returned before a savepoint or a transaction within it had ended, so all of it " +
      "is rolled back: wait for them",
  );
}

/** @param {unknown} error */
function isConnectionLoss(error) {
  const { code, message } = Object(error);
  return (
    /^(08|57P0|25P0[34]|CONNECTION_|ECONN|EPIPE|ETIMEDOUT|PROTOCOL_CONNECTION_LOST)/.test(code) ||
    /Connection terminated|not queryable|in closed state/.test(message)
  );
}

function over() {
  return new Error(
    "the function of term.transaction() has returned, and its transaction is over: wait for all that it asks",
  );
}

/** @param {unknown} error */
function toError(error) {
  return error instanceof Error ? error : new Error(String(error));
}

/** @param {Term} term */
function refuseLost(term) {
  if (term.signal.aborted) throw term.signal.reason;
  if (!term.isCurrent()) throw guess(term);
}

/** Those whose reason is not known yet. @type {WeakSet<object>} */
const guesses = new WeakSet();

/**
 * The clock says that the term is over, and the news of it, which has the reason, is under way.
 *
 * @param {Term} term
 * @param {unknown} [cause]
 */
function guess(term, cause) {
  const error = lost(term, "expired", cause);
  if (!term.signal.aborted) guesses.add(error);
  return error;
}

/**
 * @param {Term} term
 * @param {unknown} error
 * @returns {Promise<unknown>}
 */
async function withNews(term, error) {
  if (!guesses.has(Object(error))) return error;
  if (!term.signal.aborted) {
    await new Promise((done) => {
      const noTimer = after(NEWS, () => done(undefined));
      const noNews = onAbort(term.signal, () => done(noTimer()));
      after(NEWS, noNews, { holds: false });
    });
  }
  return term.signal.aborted ? term.signal.reason : error;
}

/**
 * @param {Term} term
 * @param {import("../../index.js").LossReason} reason
 * @param {unknown} [cause]
 */
function lost(term, reason, cause) {
  if (term.signal.aborted) return term.signal.reason;
  const error = new LeadershipLostError(term.election, term.token, reason);
  if (cause !== undefined) error.cause = cause;
  return error;
}

/** @typedef {Guard & { statements: NonNullable<Guard["statements"]>, database: NonNullable<ReturnType<typeof databaseOf>> }} KnownGuard */

/**
 * @param {Term} term
 * @param {() => Guard | "alone" | null} guardOf
 * @param {string} dialect  of the client
 * @param {string} method
 * @returns {KnownGuard | undefined}  undefined: nobody else could lead
 */
function guardIn(term, guardOf, dialect, method) {
  const guard = guardOf();
  if (guard === "alone") return undefined;
  if (!guard) throw lost(term, "stopped");
  const { store, statements } = guard;
  const database = statements && databaseOf(statements.dialect);
  if (!statements || !database) {
    throw new ElectionError(
      "WHENLEADER_TRANSACTION",
      `term.${method}() needs the lease in PostgreSQL, MySQL or MariaDB; that of the election "${term.election}" is on ` +
        `${store}. Pass term.token along with what you write, and let the receiver refuse an older one: see docs/fencing.md`,
      { election: term.election, reason: "no-transactions", fatal: true },
    );
  }
  if (statements.dialect !== dialect) throw otherDatabase(term, guard, method);
  return { ...guard, statements, database };
}

/**
 * @param {Term} term
 * @param {Guard} guard
 * @param {string} method
 * @param {unknown} [cause]
 */
function otherDatabase(term, { store, statements }, method, cause) {
  return new ElectionError(
    "WHENLEADER_TRANSACTION",
    `term.${method}() was given a client of another database than that which holds the lease of the election ` +
      `"${term.election}": ${statements?.table} on ${store} does. Only a transaction in that very database can depend on ` +
      "it; for all others see docs/fencing.md",
    { election: term.election, reason: "other-database", fatal: true, cause },
  );
}

/**
 * @param {Term} term
 * @param {KnownGuard} guard
 * @param {string | undefined} word
 * @param {string} method
 * @param {boolean} [wasThere]  its row was seen before
 * @returns {Error | undefined}
 */
function troubleOf(term, guard, word, method, wasThere = false) {
  if (word === "current") return undefined;
  if (word !== undefined && REASONS.has(word)) {
    return lost(term, /** @type {import("../../index.js").LossReason} */ (word));
  }
  return wasThere ? lost(term, "released") : otherDatabase(term, guard, method);
}

/**
 * @param {KnownGuard} guard
 * @param {unknown} error
 */
function isConflict(guard, error) {
  return guard.database.meaning(Object(error)) === "conflict";
}

/**
 * @param {Term} term
 * @param {string | undefined} word  of the lease, outside of the transaction that met the conflict
 * @param {unknown} error  the conflict
 * @returns {unknown}
 */
function troubleAfter(term, word, error) {
  const isOver = word !== undefined && REASONS.has(word);
  return isOver
    ? lost(term, /** @type {import("../../index.js").LossReason} */ (word), error)
    : error;
}

/**
 * @param {Term} term
 * @param {string} dialect
 */
function endedEarly(term, dialect) {
  return new ElectionError(
    "WHENLEADER_TRANSACTION",
    "the function of term.transaction() ended its transaction by itself, by COMMIT or ROLLBACK, or (in MySQL and " +
      "MariaDB) by a statement such as CREATE TABLE, or it went on after an error that had: what was committed so was " +
      `not guarded; ${databaseOf(dialect)?.afterEnd}. Leave the end to the library`,
    { election: term.election, reason: ENDED_EARLY },
  );
}

/**
 * @param {Term} term
 * @param {KnownGuard} guard
 * @param {unknown} error  of a statement of the library's own
 * @param {string} method
 * @returns {unknown}
 */
function meaningOf(term, guard, error, method) {
  if (!term.isCurrent()) return guess(term, error);
  const { statements, database, store } = guard;
  const meaning = database.meaning(Object(error));
  if (meaning === undefined || meaning === "conflict") return error;
  if (meaning === "taken") return lost(term, "taken", error);
  if (meaning === "other-database") return otherDatabase(term, guard, method, error);
  const { election } = term;
  const cures = {
    refused: `this client's user may not lock the lease: ${database.rights(statements.table)}`,
    "read-only": `this client is connected to a server, or in a session, that takes no writes: use one that writes to ${store}`,
    "bad-table": `${statements.table} on ${store} is not as an election makes it: see docs/stores.md`,
  };
  return new ElectionError(
    "WHENLEADER_TRANSACTION",
    `term.${method}() cannot ask for the lease of the election "${election}": ${Object(error).message}. ${cures[meaning]}`,
    { election, reason: meaning, fatal: true, cause: error },
  );
}

/**
 * @param {Term} term
 * @param {unknown} cause
 */
function commitUnknown(term, cause) {
  return new ElectionError(
    "WHENLEADER_TRANSACTION",
    `nobody knows whether the transaction of the election "${term.election}" (term ${term.token}) was ` +
      "committed: the answer to COMMIT did not come. If it was, it was before any later term. Look in the database " +
      "before you do it again, or make it safe to do twice",
    { election: term.election, reason: "commit-unknown", cause },
  );
}

/** @param {Term} term */
function noTransaction(term) {
  return new ElectionError(
    "WHENLEADER_TRANSACTION",
    "term.verify() was called outside of a transaction, where it proves nothing about the next statement: send " +
      "BEGIN on this client first, or let term.transaction() do it",
    { election: term.election, reason: "no-transaction" },
  );
}

module.exports = {
  Uncommitted,
  commitUnknown,
  endedEarly,
  guardIn,
  guess,
  isConflict,
  isConnectionLoss,
  meaningOf,
  noTransaction,
  over,
  refuseLost,
  toError,
  troubleAfter,
  troubleOf,
  unfinished,
  withNews,
};
