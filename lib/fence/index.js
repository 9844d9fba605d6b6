// Transactions that a deposed leader cannot commit, in the database that holds the lease.
//
// The order is what makes them safe. Before the function runs, the database is asked whether the term still
// lasts; that only fails early. After it, as the last thing before COMMIT, the transaction locks what a takeover
// has to change, and looks again: from then until its end nobody takes over, so what it commits comes before
// everything that a later term does. With `hold` the lock is taken at the beginning as well.
//
// The client is never given back while the function may use it: when the term ends, or the time is over, the
// connection is destroyed, and what the function got is a gate that is closed from then on.

const { ElectionError, LeadershipLostError } = require("../errors.js");
const { after } = require("../timer.js");
const { KnexSession, askKnex, isKnex, isKnexTransaction, knexDialect } = require("./knex.js");
const {
  MysqlSession,
  askMysql,
  coreOf,
  isInTransaction,
  isMysqlConnection,
  isMysqlPool,
} = require("./mysql2.js");
const { Uncommitted } = require("./gate.js");
const { PgSession, askPg, isPgClient, isPgPool } = require("./pg.js");
const {
  PostgresSession,
  askPostgres,
  isPostgres,
  isPostgresTransaction,
} = require("./postgres.js");
const { ENDED_EARLY, databaseOf } = require("./sql.js");

/** @typedef {import("../../index.js").Term} Term */
/** @typedef {import("../native-types").Guard} Guard */
/** @typedef {import("./sql.js").Ask} Ask */
/** @typedef {import("./sql.js").Rules} Rules */

/**
 * One transaction of one client. What fails here fails with the client's own errors.
 *
 * @typedef {object} Session
 * @property {string} dialect
 * @property {() => Promise<void>} acquire
 * @property {() => Promise<void>} begin
 * @property {unknown} tx  what the application's function gets
 * @property {{ error: unknown } | null} failed  the error of a statement of the function, who may have passed over it,
 *   where that ends the transaction without everybody's knowing
 * @property {Ask} ask
 * @property {Ask} [askAfter]  the same after the end of it, where its connection is somebody else's by then
 * @property {(reason: unknown) => void} close  of tx
 * @property {() => Promise<unknown>} commit
 * @property {() => Promise<unknown>} rollback
 * @property {() => void} release  to its pool
 * @property {(reason: Error) => void} destroy  the server rolls back, and nobody gets the connection; also while it
 *   is not known whether there is one
 */

/**
 * What one of term.transaction() needs to know.
 *
 * @typedef {object} Watch
 * @property {(error: unknown) => void} onBroken  the connection is lost while nothing is asked
 * @property {() => unknown} lost  why the term is over, if it is
 * @property {string | undefined} isolationLevel  of the transaction, in words of SQL
 */

/** @typedef {(watch: Watch) => Session} Open */

/** In a database of which nothing is known, for a term that nobody else could have. @type {Rules} */
const UNKNOWN = {
  before: async () => "current",
  begun: async () => "current",
  ending: async () => "current",
  after: async () => {},
};

const CLIENTS = "pg, postgres, mysql2 (with callbacks or promises) and knex";
/** How much later a server ends a transaction than its client does, if that lives: of two, the client tells why. */
const GRACE = 250;
/** How long news are waited for that are under way. */
const NEWS = 250;
/** What the end of a transaction may take where there is no lease that says so. */
const LAST_LIMIT = 15_000;
/** Of the words of a guard: what ended a term. */
const REASONS = new Set(["expired", "released", "taken"]);

/**
 * @param {Term} term
 * @param {() => Guard | null | undefined} guardOf
 * @param {unknown} client
 * @param {{ hold?: boolean, timeout?: number }} [options]
 */
async function verify(term, guardOf, client, options) {
  const { hold, timeout } = checkOptions(options, "verify");
  const { dialect, ask, isInside } = clientOf(client);
  try {
    refuseLost(term);
    const guard = guardIn(term, guardOf, dialect, "verify");
    if (guard !== undefined)
      await verifyIn(term, guard, ask, isInside, termsOf(guard, hold, timeout));
  } catch (error) {
    if (error instanceof LeadershipLostError) {
      // Nothing of it shall be committed, whoever looks at the error.
      await databaseOf(dialect)
        ?.end(ask, `whenleader: ${error.message}`)
        .catch(() => {});
    }
    throw await withNews(term, error);
  }
}

/**
 * @param {Term} term
 * @param {KnownGuard} guard
 * @param {Ask} ask
 * @param {() => Promise<boolean>} isInside
 * @param {import("./sql.js").Terms} terms
 */
async function verifyIn(term, guard, ask, isInside, terms) {
  const { database, statements } = guard;
  const word = await database.verify(ask, terms).catch(async (error) => {
    if (isConflict(guard, error)) {
      const word = await database.afterConflict(ask, statements).catch(() => undefined);
      throw troubleAfter(term, word, error);
    }
    throw meaningOf(term, guard, error, "verify");
  });
  if (word === "no-transaction" || !(await isInside())) {
    throw new ElectionError(
      "WHENLEADER_TRANSACTION",
      "term.verify() was called outside of a transaction, where it proves nothing about the next statement: send " +
        "BEGIN on this client first, or let term.transaction() do it",
      { election: term.election, reason: "no-transaction" },
    );
  }
  const trouble = troubleOf(term, guard, word, "verify");
  if (trouble !== undefined) throw trouble;
  refuseLost(term);
}

/**
 * @template T
 * @param {Term} term
 * @param {() => Guard | null | undefined} guardOf
 * @param {unknown} pool
 * @param {(tx: any) => T} fn
 * @param {{ hold?: boolean, timeout?: number, isolationLevel?: string }} [options]
 * @returns {Promise<Awaited<T>>}
 */
async function transaction(term, guardOf, pool, fn, options) {
  const { hold, timeout, isolationLevel } = checkOptions(options, "transaction");
  const { dialect, open } = poolOf(pool);
  if (typeof fn !== "function") {
    throw new TypeError(`term.transaction(pool, fn): fn must be a function, not ${shown(fn)}`);
  }
  try {
    refuseLost(term);
  } catch (error) {
    throw await withNews(term, error);
  }
  const guard = guardIn(term, guardOf, dialect, "transaction");
  const terms = guard && termsOf(guard, hold, timeout);
  const rules =
    guard && terms ? guard.database.rules(terms) : (databaseOf(dialect)?.alone() ?? UNKNOWN);
  const limit = terms ? terms.limit : timeout;
  const stop = new Stop(term, limit);
  const session = open({
    onBroken: (error) => stop.broke(error),
    lost: () => (term.isCurrent() ? undefined : guess(term)),
    isolationLevel,
  });
  try {
    return await new Guarded(term, guard, rules, session, stop).run(fn);
  } catch (error) {
    throw await withNews(term, error);
  } finally {
    stop.dispose();
  }
}

/** Who waits for a signal: one listener for all, however many transactions there are. @type {WeakMap<AbortSignal, Set<() => void>>} */
const waiting = new WeakMap();

/**
 * @param {AbortSignal} signal
 * @param {() => void} then
 * @returns {() => void}  takes it back
 */
function whenAborted(signal, then) {
  let all = waiting.get(signal);
  if (all === undefined) {
    const set = new Set();
    all = set;
    waiting.set(signal, set);
    const callAll = () => {
      for (const one of set) one();
    };
    signal.addEventListener("abort", callAll, { once: true });
  }
  all.add(then);
  return () => all.delete(then);
}

/** What ends a transaction from outside: its term, its time, or the loss of its connection. */
class Stop {
  /** @type {Promise<never>} */
  promise;
  /** @type {(reason: unknown) => void} */
  #reject = () => {};
  #term;
  #onAbort = () => this.#reject(this.#term.signal.reason);
  #noAbort = () => {};
  #noTimeout = () => {};
  #isLimited = false;

  /**
   * @param {Term} term
   * @param {number | undefined} limit
   */
  constructor(term, limit) {
    this.#term = term;
    this.promise = new Promise((_, reject) => {
      this.#reject = reject;
    });
    this.promise.catch(() => {});
    this.#noAbort = whenAborted(term.signal, this.#onAbort);
    if (limit !== undefined) {
      const cure = "Make it shorter, or give it more time: term.transaction(pool, fn, { timeout })";
      this.#limit(limit, `did not end within ${limit} ms: it is rolled back. ${cure}`);
    }
  }

  /**
   * @param {number} ms
   * @param {string} what
   */
  #limit(ms, what) {
    const { election, token } = this.#term;
    this.#isLimited = true;
    this.#noTimeout = after(ms, () => {
      // A process that did not run for so long finds its timers first.
      if (!this.#term.isCurrent()) return this.#reject(guess(this.#term));
      const told = `the transaction of the election "${election}" (term ${token}) ${what}`;
      this.#reject(new ElectionError("WHENLEADER_TIMEOUT", told, { election, reason: "timeout" }));
    });
  }

  /** The function has its time; the end of a transaction has a limit also where that has none. @param {number} limit */
  limitEnd(limit) {
    if (this.#isLimited) return;
    const cure = "Look for what is between this process and its database";
    this.#limit(limit, `was not ended by the database within ${limit} ms: it is given up. ${cure}`);
  }

  /** @param {unknown} error */
  broke(error) {
    // The process may have slept longer than its lease; the news of that comes later.
    this.#reject(this.#term.isCurrent() ? error : guess(this.#term, error));
  }

  /** A commit is under way, which the end of the term does not touch. */
  ignoreTerm() {
    this.#noAbort();
  }

  dispose() {
    this.ignoreTerm();
    this.#noTimeout();
  }
}

/** One call of term.transaction(). */
class Guarded {
  #term;
  #guard;
  #rules;
  #session;
  #stop;
  #isCommitting = false;
  #isOver = false;
  /** A statement of the library's own has no answer, by the will of the client: it may be carried out later. */
  #isUnsure = false;
  /** The error of such a statement that somebody was in the way of. @type {unknown} */
  #conflict;

  /**
   * @param {Term} term
   * @param {KnownGuard | undefined} guard
   * @param {Rules} rules
   * @param {Session} session
   * @param {Stop} stop
   */
  constructor(term, guard, rules, session, stop) {
    this.#term = term;
    this.#guard = guard;
    this.#rules = rules;
    this.#session = session;
    this.#stop = stop;
  }

  /**
   * @template T
   * @param {(tx: any) => T} fn
   * @returns {Promise<Awaited<T>>}
   */
  async run(fn) {
    const session = this.#session;
    await this.#acquire();
    let hasBegun = false;
    try {
      this.#check(await this.#step(this.#rules.before(this.#ask)));
      // Also if the answer does not come: then it may begin later.
      hasBegun = true;
      await this.#step(session.begin());
      this.#check(await this.#step(this.#rules.begun(this.#ask)));
      const value = await this.#until(call(fn, session.tx));
      // Until here: what comes is the library's alone.
      session.close(over());
      this.#stop.limitEnd(this.#lastLimit);
      await this.#end();
      refuseLost(this.#term);
      await this.#commit();
      await this.#giveBack();
      return value;
    } catch (error) {
      this.#isOver = true;
      session.close(error instanceof Interruption ? error.reason : error);
      if (this.#isCommitting) throw this.#afterCommit(error);
      if (error instanceof Interruption) {
        session.destroy(toError(error.reason));
        throw error.reason;
      }
      if (!this.#term.isCurrent()) {
        // A server does not wait for a process that did not run.
        const reason = isConnectionLoss(error) ? guess(this.#term, error) : error;
        session.destroy(toError(reason));
        throw reason;
      }
      if (this.#isUnsure) {
        session.destroy(toError(error));
        throw error;
      }
      throw await this.#rollback(hasBegun, error);
    }
  }

  #ask = async (/** @type {string} */ text) => {
    // What was under way when it was interrupted asks nothing more.
    if (this.#isOver) throw over();
    refuseLost(this.#term);
    return this.#session.ask(text);
  };

  async #acquire() {
    const acquired = this.#session.acquire();
    try {
      await this.#until(acquired);
    } catch (error) {
      if (!(error instanceof Interruption)) throw error;
      // The pool may still give a connection, which nobody needs any more.
      acquired.then(
        () => this.#session.destroy(toError(error.reason)),
        () => {},
      );
      throw error.reason;
    }
  }

  async #end() {
    try {
      this.#check(await this.#step(this.#rules.ending(this.#ask)));
    } catch (error) {
      const { failed } = this.#session;
      if (failed === null || error instanceof Interruption) throw error;
      if (error instanceof LeadershipLostError) throw error;
      // That came of it.
      throw failed.error;
    }
  }

  async #commit() {
    this.#isCommitting = true;
    // It holds the lock, so nobody leads yet; only its time can end it now.
    this.#stop.ignoreTerm();
    await this.#until(this.#session.commit());
  }

  /** @param {unknown} error  of a commit */
  #afterCommit(error) {
    if (error instanceof Uncommitted) {
      this.#session.destroy(toError(error.reason));
      return error.reason;
    }
    const cause = error instanceof Interruption ? error.reason : error;
    const database = databaseOf(this.#session.dialect);
    const isAnswer = !(error instanceof Interruption) && database?.isAnswer(Object(cause));
    this.#session.destroy(toError(cause));
    // It did not do it, and if it waited for too long, that is why.
    if (isAnswer) return this.#term.isCurrent() ? cause : guess(this.#term, cause);
    return new ElectionError(
      "WHENLEADER_TRANSACTION",
      `nobody knows whether the transaction of the election "${this.#term.election}" (term ${this.#term.token}) was ` +
        "committed: the answer to COMMIT did not come. If it was, it was before any later term. Look in the database " +
        "before you do it again, or make it safe to do twice",
      { election: this.#term.election, reason: "commit-unknown", cause },
    );
  }

  /** Also after a rollback. A connection that cannot be made what it was is given to nobody. */
  async #giveBack() {
    try {
      await this.#until(this.#rules.after((text) => this.#session.ask(text)));
    } catch (error) {
      this.#session.destroy(toError(error instanceof Interruption ? error.reason : error));
      return;
    }
    this.#session.release();
  }

  get #lastLimit() {
    return (this.#guard?.leaseDuration ?? LAST_LIMIT) + GRACE;
  }

  /**
   * @param {boolean} hasBegun
   * @param {unknown} error  why
   * @returns {Promise<unknown>}  why, as far as that is known afterwards
   */
  async #rollback(hasBegun, error) {
    this.#stop.limitEnd(this.#lastLimit);
    let reason = error;
    try {
      if (hasBegun) await this.#until(this.#session.rollback());
      if (this.#guard !== undefined && this.#conflict === error) {
        const { check } = this.#guard.statements;
        const { askAfter = (text) => this.#session.ask(text) } = this.#session;
        reason = troubleAfter(this.#term, await this.#until(askAfter(check)), error);
      }
    } catch (broken) {
      this.#session.destroy(toError(broken instanceof Interruption ? broken.reason : broken));
      return error;
    }
    await this.#giveBack();
    return reason;
  }

  /** @param {string | undefined} word */
  #check(word) {
    if (word === undefined) return;
    if (word === ENDED_EARLY) throw endedEarly(this.#term, this.#session.dialect);
    if (this.#guard === undefined) return;
    const trouble = troubleOf(this.#term, this.#guard, word, "transaction");
    if (trouble !== undefined) throw trouble;
  }

  /**
   * A statement of the library's own.
   *
   * @template T
   * @param {Promise<T>} answered
   */
  async #step(answered) {
    try {
      return await this.#until(answered);
    } catch (error) {
      if (error instanceof Interruption) throw error;
      this.#isUnsure = databaseOf(this.#session.dialect)?.isAnswer(Object(error)) === false;
      if (this.#guard === undefined) throw error;
      if (isConflict(this.#guard, error)) this.#conflict = error;
      throw meaningOf(this.#term, this.#guard, error, "transaction");
    }
  }

  /**
   * @template T
   * @param {Promise<T>} promise
   * @returns {Promise<T>}
   */
  #until(promise) {
    // What loses the race is over: nobody waits for it any more.
    promise.catch(() => {});
    return Promise.race([
      promise,
      this.#stop.promise.catch((reason) => {
        throw new Interruption(reason);
      }),
    ]);
  }
}

/** Something outside of the transaction ended it. */
class Interruption {
  /** @param {unknown} reason */
  constructor(reason) {
    this.reason = reason;
  }
}

/**
 * @template T
 * @param {(tx: any) => T} fn
 * @param {unknown} tx
 * @returns {Promise<Awaited<T>>}
 */
async function call(fn, tx) {
  return await fn(tx);
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

// ---- the term, and what the database says of it ----

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
      const noNews = whenAborted(term.signal, () => done(noTimer()));
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
 * @param {() => Guard | null | undefined} guardOf
 * @param {string} dialect  of the client
 * @param {string} method
 * @returns {KnownGuard | undefined}  undefined: nobody else could lead
 */
function guardIn(term, guardOf, dialect, method) {
  const guard = guardOf();
  if (guard === undefined) return undefined;
  if (guard === null) throw lost(term, "stopped");
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
 * @param {KnownGuard} guard
 * @param {boolean} hold
 * @param {number | undefined} timeout
 */
function termsOf({ statements, leaseDuration }, hold, timeout) {
  const limit = timeout ?? (hold ? leaseDuration : undefined);
  const serverLimit = limit === undefined ? undefined : limit + GRACE;
  return { statements, hold, limit, serverLimit, lastLimit: leaseDuration };
}

/**
 * @param {Term} term
 * @param {KnownGuard} guard
 * @param {string | undefined} word
 * @param {string} method
 * @returns {Error | undefined}
 */
function troubleOf(term, guard, word, method) {
  if (word === "current") return undefined;
  if (word !== undefined && REASONS.has(word)) {
    return lost(term, /** @type {import("../../index.js").LossReason} */ (word));
  }
  return otherDatabase(term, guard, method);
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

// ---- what the application gives ----

/** Of each method. @type {Record<"transaction" | "verify", string[]>} */
const OPTIONS = {
  transaction: ["hold", "timeout", "isolationLevel"],
  verify: ["hold", "timeout"],
};
/** As SQL has them: they become part of statements. */
const LEVELS = ["read committed", "repeatable read", "serializable"];

/**
 * @param {unknown} options
 * @param {"transaction" | "verify"} method
 * @returns {{ hold: boolean, timeout: number | undefined, isolationLevel: string | undefined }}
 */
function checkOptions(options = {}, method) {
  if (typeof options !== "object" || options === null) {
    throw new TypeError(`the options of term.${method}() must be an object, not ${shown(options)}`);
  }
  const known = OPTIONS[method];
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown !== undefined) {
    throw new TypeError(`term.${method}() has the options ${listed(known)}, and no ${unknown}`);
  }
  const {
    hold = false,
    timeout,
    isolationLevel,
  } = /** @type {Record<string, unknown>} */ (options);
  if (typeof hold !== "boolean") {
    throw new TypeError(`term.${method}(): options.hold must be true or false, not ${shown(hold)}`);
  }
  if (
    timeout !== undefined &&
    !(typeof timeout === "number" && timeout > 0 && timeout < Infinity)
  ) {
    throw new TypeError(
      `term.${method}(): options.timeout must be a number of milliseconds above 0, not ${shown(timeout)}`,
    );
  }
  if (isolationLevel !== undefined && !LEVELS.includes(/** @type {string} */ (isolationLevel))) {
    const levels = listed(
      LEVELS.map((level) => JSON.stringify(level)),
      "or",
    );
    throw new TypeError(
      `term.${method}(): options.isolationLevel must be ${levels}, not ${shown(isolationLevel)}`,
    );
  }
  return { hold, timeout, isolationLevel: /** @type {string | undefined} */ (isolationLevel) };
}

/** @param {string[]} words */
function listed(words, last = "and") {
  return `${words.slice(0, -1).join(", ")} ${last} ${words.at(-1)}`;
}

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

/** @param {unknown} value */
function shown(value) {
  if (typeof value === "function") return value.name ? `the function ${value.name}` : "a function";
  if (typeof value === "object" && value !== null) {
    return `an object (${value.constructor?.name ?? "without a class"})`;
  }
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}

module.exports = { transaction, verify };
