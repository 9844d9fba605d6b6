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
const { onAbort } = require("../signal.js");
const { after } = require("../timer.js");
const { clientOf, poolOf } = require("./clients.js");
const {
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
} = require("./errors.js");
const { checkOptions, shown } = require("./options.js");
const { ENDED_EARLY, databaseOf } = require("./sql.js");

/** @typedef {import("../../index.js").Term} Term */
/** @typedef {import("../native-types").Guard} Guard */
/** @typedef {import("./errors.js").KnownGuard} KnownGuard */
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
 * @property {number} openParts  savepoints and transactions within it that have not ended, as far as the client knows any
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

/** How much later a server ends a transaction than its client does, if that lives: of two, the client tells why. */
const GRACE = 250;
/** What the end of a transaction may take where there is no lease that says so. */
const LAST_LIMIT = 15_000;

/**
 * @param {Term} term
 * @param {() => Guard | "alone" | null} guardOf
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
    throw noTransaction(term);
  }
  const trouble = troubleOf(term, guard, word, "verify");
  if (trouble !== undefined) throw trouble;
  refuseLost(term);
}

/**
 * @template T
 * @param {Term} term
 * @param {() => Guard | "alone" | null} guardOf
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
    this.#noAbort = onAbort(term.signal, this.#onAbort);
    if (limit !== undefined) {
      const cure = "Make it shorter, or give it more time: term.transaction(pool, fn, { timeout })";
      this.#limit(limit, `did not end within ${limit} ms. ${cure}`);
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
  /** The database has had the row of the election in this transaction. */
  #wasThere = false;
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
      this.#wasThere = true;
      const value = await this.#until(call(fn, session.tx));
      // What it does from here on could be committed by half.
      if (session.openParts > 0) throw unfinished();
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
        this.#destroy(toError(error.reason));
        throw error.reason;
      }
      if (!this.#term.isCurrent()) {
        // A server does not wait for a process that did not run.
        const reason = isConnectionLoss(error) ? guess(this.#term, error) : error;
        this.#destroy(toError(reason));
        throw reason;
      }
      if (this.#isUnsure) {
        this.#destroy(toError(error));
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
        () => this.#destroy(toError(error.reason)),
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
      this.#destroy(toError(error.reason));
      return error.reason;
    }
    const cause = error instanceof Interruption ? error.reason : error;
    const database = databaseOf(this.#session.dialect);
    const isAnswer = !(error instanceof Interruption) && database?.isAnswer(Object(cause));
    this.#destroy(toError(cause));
    // It did not do it, and if it waited for too long, that is why.
    if (isAnswer) return this.#term.isCurrent() ? cause : guess(this.#term, cause);
    return commitUnknown(this.#term, cause);
  }

  /** Also after a rollback. A connection that cannot be made what it was is given to nobody. */
  async #giveBack() {
    try {
      await this.#until(this.#rules.after((text) => this.#session.ask(text)));
      this.#session.release();
    } catch (error) {
      this.#destroy(toError(error instanceof Interruption ? error.reason : error));
    }
  }

  /** What is known of the transaction stays true, also if its pool has gone meanwhile. @param {Error} reason */
  #destroy(reason) {
    try {
      this.#session.destroy(reason);
    } catch {
      // There is nobody left to give it to.
    }
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
      this.#destroy(toError(broken instanceof Interruption ? broken.reason : broken));
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
    const trouble = troubleOf(this.#term, this.#guard, word, "transaction", this.#wasThere);
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
  const value = await fn(tx);
  // As `postgres` does it for its queries, which are sent when somebody waits for them.
  return /** @type {any} */ (Array.isArray(value) ? await Promise.all(value) : value);
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

module.exports = { transaction, verify };
