// What each kind of database is told beside the guard's statements, and what its errors mean.

/** @typedef {import("../native-types").GuardStatements} Statements */
/** @typedef {(text: string) => Promise<string | undefined>} Ask */

/**
 * What an error of the database means for a guard: a reason of an ElectionError; that somebody has taken over; or that
 * somebody else was in the way, who may have done that or not. undefined: nothing in particular.
 *
 * @typedef {"taken" | "conflict" | "other-database" | "refused" | "read-only" | "bad-table" | undefined} Meaning
 */

/**
 * @typedef {object} Terms
 * @property {Statements} statements
 * @property {boolean} hold
 * @property {number | undefined} serverLimit  milliseconds that any step of it may take
 * @property {number} lastLimit  milliseconds that a frozen process may bar a takeover for, at the very end
 */

/**
 * @typedef {object} Rules
 * @property {(ask: Ask) => Promise<string | undefined>} before  before it begins: a word, if it knows one by now
 * @property {(ask: Ask) => Promise<string | undefined>} begun  its first statements: a word
 * @property {(ask: Ask) => Promise<string | undefined>} ending  its last ones: a word
 * @property {(ask: Ask) => Promise<void>} after  the connection becomes what it was
 */

/**
 * What an error of a statement does to the transaction: it is over, or may be. undefined: what everybody knows.
 *
 * @typedef {"over" | "perhaps" | undefined} Verdict
 */

const ENDED_EARLY = "ended-early";

/** Blanks and comments; what MySQL reads of a comment is none. */
const NOTHING = /[\s;]+|--[^\n]*|#[^\n]*|\/\*(?!M?!)[\s\S]*?\*\//y;
/** A savepoint is the function's own, and so is a compound statement. */
const END =
  /(?:COMMIT|END|ABORT|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b)|BEGIN(?!\s+NOT\b)|(?:START|PREPARE)\s+TRANSACTION|SET\s+(?:(?:SESSION|LOCAL)\s+|@@(?:(?:SESSION|LOCAL)\.)?)?AUTOCOMMIT)\b/iy;

/**
 * Only what says so plainly: the rest is found at the end.
 *
 * @param {string} text
 * @returns {string | undefined}  what it says
 */
function endsTransaction(text) {
  let at = 0;
  do {
    END.lastIndex = NOTHING.lastIndex = at;
    const [end] = END.exec(text) ?? [];
    if (end !== undefined) return end.toUpperCase();
    NOTHING.test(text);
    at = NOTHING.lastIndex;
  } while (at > 0);
}

/** Of PostgreSQL. */
const postgres = {
  /** Of a term that nobody else could have. @returns {Rules} */
  alone() {
    // It fails after an error that the function has passed over, where COMMIT would roll back and say nothing.
    const when = "SELECT pg_catalog.date_part('epoch', pg_catalog.now())::pg_catalog.text";
    /** @type {string | undefined} */
    let began;
    return {
      before: async () => undefined,
      async begun(ask) {
        began = await ask(when);
        return "current";
      },
      ending: async (ask) => ((await ask(when)) === began ? "current" : ENDED_EARLY),
      after: async () => {},
    };
  },

  /** @param {Terms} terms @returns {Rules} */
  rules({ statements, hold, serverLimit: limit, lastLimit }) {
    const first = hold ? statements.hold : statements.check;
    /** When the transaction began; the same all over it. @type {string | undefined} */
    let began;
    return {
      async before() {
        return undefined;
      },
      async begun(ask) {
        if (limit !== undefined) await ask(limits(limit, ALL_LIMITS));
        const answer = await postgres.answer(ask, statements, first);
        began = answer.began;
        return answer.word;
      },
      async ending(ask) {
        if (limit === undefined) await ask(limits(lastLimit, [IDLE_LIMIT]));
        const answer = await postgres.answer(ask, statements, statements.hold);
        if (answer.word === undefined || answer.began === began) return answer.word;
        return ENDED_EARLY;
      },
      async after() {},
    };
  },

  /**
   * Without a row the lease is being taken over, or was, or never was there.
   *
   * @param {Ask} ask
   * @param {Statements} statements
   * @param {string} statement
   */
  async answer(ask, statements, statement) {
    let answer = await ask(statement);
    if (answer === undefined) {
      const [word, ...rest] = ((await ask(statements.check)) ?? "").split(" ");
      answer = [["older", "none"].includes(word) ? word : "taken", ...rest].join(" ");
    }
    const [word, place, began] = answer.split(" ");
    return { word, isInside: place === "inside", began };
  },

  /**
   * @param {Ask} ask
   * @param {Terms} terms
   */
  async verify(ask, { statements, hold, serverLimit: limit, lastLimit }) {
    // It comes before the lock: whoever freezes between them would bar a takeover without any.
    if (hold) await ask(limits(limit ?? lastLimit, [IDLE_LIMIT]));
    const statement = hold ? statements.hold : statements.check;
    const { word, isInside } = await postgres.answer(ask, statements, statement);
    return isInside ? word : "no-transaction";
  },

  /**
   * From here on the transaction does nothing more, and cannot be committed, also if nobody looks at the error.
   *
   * @param {Ask} ask
   * @param {string} why
   */
  async end(ask, why) {
    const text = [...Buffer.from(why)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    const told = `pg_catalog.convert_from(pg_catalog.decode('${text}', 'hex'), 'UTF8')`;
    await ask(`SELECT pg_catalog.int4in(pg_catalog.textout(${told}))`).catch(() => {});
  },

  /**
   * Nothing can be asked in a transaction that has failed.
   *
   * @returns {Promise<string | undefined>}
   */
  afterConflict: async () => undefined,

  /** @param {any} error @returns {Meaning} */
  meaning({ code, routine }) {
    // That of the row's lock; any other may be about any other row.
    if (code === "40001") return routine === "ExecLockRows" ? "taken" : "conflict";
    if (["40P01", "55P03"].includes(code)) return "conflict";
    if (code === "42P01" || code === "3F000") return "other-database";
    if (code === "42501") return "refused";
    if (code === "25006") return "read-only";
    if (code === "42703") return "bad-table";
  },

  /**
   * Whether the server says by this error that a commit was not done: not so, if it was ending meanwhile.
   *
   * @param {any} error
   */
  isAnswer({ code, severity }) {
    return typeof severity === "string" && /^[0-9A-Z]{5}$/.test(code) && !/^(57P0|08)/.test(code);
  },

  /** After which it takes nothing but its end, as everybody knows. @returns {Verdict} */
  verdict: () => undefined,

  /** What becomes of that which a function asks after it has ended its transaction. */
  afterEnd: "so may be what came after it, statement by statement",

  /** @param {string} table */
  rights: (table) => `GRANT SELECT, UPDATE (attempt) ON ${table} TO <its user>`,
};

const IDLE_LIMIT = "idle_in_transaction_session_timeout";
/** The last one is known from version 17 on. */
const ALL_LIMITS = [IDLE_LIMIT, "statement_timeout", "transaction_timeout"];

/**
 * For this transaction only, and not where a shorter one is set.
 *
 * @param {number} limit
 * @param {string[]} names
 */
function limits(limit, names) {
  const millis = wholeMillis(limit);
  return (
    `SELECT pg_catalog.set_config(s.name, '${millis}', true) FROM pg_catalog.pg_settings AS s ` +
    `WHERE s.name OPERATOR(pg_catalog.=) ANY (ARRAY[${names.map((name) => `'${name}'`).join(", ")}]) ` +
    `AND (s.setting OPERATOR(pg_catalog.=) '0' ` +
    `OR s.setting::pg_catalog.int8 OPERATOR(pg_catalog.>) '${millis}'::pg_catalog.int8)`
  );
}

/** @param {number} limit */
function wholeMillis(limit) {
  return Math.min(Math.max(Math.ceil(limit), 1), 2 ** 31 - 1);
}

const SAVEPOINT = "whenleader_guard";
/** How long a lock is waited for: a takeover that has it is one statement. In seconds. */
const LOCK_WAIT = 1;

/** Of MySQL and MariaDB. */
const mysql = {
  /** Of a term that nobody else could have. @returns {Rules} */
  alone() {
    const settings = new Settings();
    return {
      async before(ask) {
        await settings.neverCommit(ask);
        return undefined;
      },
      async begun(ask) {
        await ask(`SAVEPOINT ${SAVEPOINT}`);
        return "current";
      },
      ending: async (ask) => ((await isUnended(ask)) ? "current" : ENDED_EARLY),
      after: (ask) => settings.restore(ask),
    };
  },

  /** @param {Terms} terms @returns {Rules} */
  rules({ statements, hold, serverLimit: limit, lastLimit }) {
    const settings = new Settings();
    return {
      // Not inside: where the isolation is SERIALIZABLE, what is read there is locked, also against renewals.
      async before(ask) {
        const began = await settings.isAlwaysInside(ask);
        const word = await ask(statements.check);
        if (began) await ask("ROLLBACK");
        if (word !== "current") return word;
        if (limit !== undefined) await settings.limit(ask, limit, true);
        await settings.neverCommit(ask);
        return word;
      },
      async begun(ask) {
        await ask(`SAVEPOINT ${SAVEPOINT}`);
        if (!hold) return "current";
        await settings.waitShortly(ask);
        const word = await ask(statements.hold);
        await settings.waitAgain(ask);
        return word ?? "taken";
      },
      async ending(ask) {
        if (!(await isUnended(ask))) return ENDED_EARLY;
        if (limit === undefined) await settings.limit(ask, lastLimit, false);
        if (!hold) await settings.waitShortly(ask);
        return (await ask(statements.hold)) ?? "taken";
      },
      after: (ask) => settings.restore(ask),
    };
  },

  /**
   * @param {Ask} ask
   * @param {Terms} terms
   */
  async verify(ask, { statements, hold }) {
    if (!hold && !(await isSerializable(ask))) return ask(statements.check);
    const settings = new Settings();
    await settings.waitShortly(ask);
    try {
      return (await ask(statements.hold)) ?? "taken";
    } finally {
      await settings.waitAgain(ask);
    }
  },

  /** @param {Ask} ask */
  async end(ask) {
    await ask("ROLLBACK");
  },

  /**
   * What is locked may have been the lease, and the transaction is over or useless.
   *
   * @param {Ask} ask
   * @param {Statements} statements
   */
  async afterConflict(ask, statements) {
    await ask("ROLLBACK");
    return ask(statements.check);
  },

  /** @param {any} error @returns {Meaning} */
  meaning({ errno }) {
    if ([DEADLOCK, 3572, ...MAY_ROLL_BACK].includes(errno)) return "conflict";
    if ([1146, 1049].includes(errno)) return "other-database";
    if ([1142, 1143, 1044].includes(errno)) return "refused";
    if ([1290, 1792, 1836].includes(errno)) return "read-only";
    if ([1054, 1176].includes(errno)) return "bad-table";
  },

  /**
   * See that of PostgreSQL.
   *
   * @param {any} error
   */
  isAnswer({ errno, sqlMessage, fatal }) {
    return sqlMessage !== undefined && !fatal && !UNSURE.includes(errno);
  },

  /** @param {any} error @returns {Verdict} */
  verdict({ errno }) {
    if (errno === DEADLOCK) return "over";
    if (MAY_ROLL_BACK.includes(errno)) return "perhaps";
  },

  afterEnd: "what came after it is rolled back",

  /** @param {string} table */
  rights: (table) => `GRANT SELECT ON ${table} TO '<its user>'@'<host>'`,
};

/** Of two transactions that wait for each other the server rolls one back, not the statement alone. */
const DEADLOCK = 1213;
/** So it does after these by its settings, its version, or its memory. */
const MAY_ROLL_BACK = [1020, 1205, 1206];
const NO_SAVEPOINT = 1305;
/** The statement or the connection was ended by somebody, or the commit failed halfway. */
const UNSURE = [1053, 1180, 1317, 1927, 3169, 4031];

/**
 * Whatever ends the transaction ends the savepoint as well: a function that commits or alters a table, a deadlock.
 *
 * @param {Ask} ask
 */
async function isUnended(ask) {
  try {
    await ask(`RELEASE SAVEPOINT ${SAVEPOINT}`);
    return true;
  } catch (error) {
    if (Object(error).errno === NO_SAVEPOINT) return false;
    throw error;
  }
}

/** @param {Ask} ask */
async function isSerializable(ask) {
  // By two names: no version knows both.
  const names = "'transaction_isolation', 'tx_isolation'";
  const level = await ask(
    "SELECT VARIABLE_VALUE FROM information_schema.SESSION_VARIABLES " +
      `WHERE VARIABLE_NAME IN (${names}) AND VARIABLE_VALUE = 'SERIALIZABLE'`,
  ).catch(() =>
    ask(
      "SELECT VARIABLE_VALUE FROM performance_schema.session_variables " +
        `WHERE VARIABLE_NAME IN (${names}) AND VARIABLE_VALUE = 'SERIALIZABLE'`,
    ),
  );
  return level !== undefined;
}

/** Those of the connection, which are put back: there are none of a transaction alone. */
class Settings {
  /** What the application has. @type {{ wait: number, lock: number, autocommit: number, statement?: number } | null} */
  #own = null;
  #isLimited = false;

  /**
   * Ends a connection whose client does not speak within a transaction, and the transaction with it. In whole
   * seconds.
   *
   * @param {Ask} ask
   * @param {number} limit
   * @param {boolean} statementsToo
   */
  async limit(ask, limit, statementsToo) {
    const { wait, statement } = await this.#known(ask);
    const seconds = Math.max(Math.ceil(limit / 1000), 1);
    const least = (/** @type {number} */ own) => (own === 0 ? seconds : Math.min(own, seconds));
    this.#isLimited = true;
    const statements =
      statementsToo && statement !== undefined ? `, max_statement_time = ${least(statement)}` : "";
    await ask(`SET SESSION wait_timeout = ${Math.min(wait, seconds)}${statements}`);
  }

  /** Whether whatever reads a table begins a transaction. @param {Ask} ask */
  async isAlwaysInside(ask) {
    return (await this.#known(ask)).autocommit === 0;
  }

  /**
   * Where the transaction ends before its time, what comes after it begins another one, which is rolled back.
   *
   * @param {Ask} ask
   */
  async neverCommit(ask) {
    const { autocommit } = await this.#known(ask);
    if (autocommit !== 0) await ask("SET SESSION autocommit = 0");
  }

  /** @param {Ask} ask */
  async waitShortly(ask) {
    await this.#known(ask);
    await ask(`SET SESSION innodb_lock_wait_timeout = ${LOCK_WAIT}`);
  }

  /** @param {Ask} ask */
  async waitAgain(ask) {
    const { lock } = await this.#known(ask);
    await ask(`SET SESSION innodb_lock_wait_timeout = ${lock}`);
  }

  /** Outside of a transaction: `autocommit` commits one that is open. @param {Ask} ask */
  async restore(ask) {
    if (this.#own === null) return;
    const { wait, lock, autocommit, statement } = this.#own;
    // What was read since the end of the transaction began another one, which the change of `autocommit` ends else.
    if (autocommit === 0) await ask("ROLLBACK");
    const waiting = `SET SESSION autocommit = ${autocommit}, innodb_lock_wait_timeout = ${lock}`;
    const statements = statement === undefined ? "" : `, max_statement_time = ${statement}`;
    await ask(this.#isLimited ? `${waiting}, wait_timeout = ${wait}${statements}` : waiting);
  }

  /** @param {Ask} ask */
  async #known(ask) {
    if (this.#own === null) {
      // What only MariaDB has stands in a comment that only MariaDB reads.
      const answer = await ask(
        "SELECT CONCAT_WS(' ', @@SESSION.wait_timeout, @@SESSION.innodb_lock_wait_timeout, " +
          "IF(@@SESSION.autocommit, 1, 0)" +
          "/*M!100101 , @@SESSION.max_statement_time */) AS answer",
      );
      const [wait, lock, autocommit, statement] = (answer ?? "").split(" ").map(Number);
      this.#own = { wait, lock, autocommit, statement };
    }
    return this.#own;
  }
}

const DATABASES = { postgres, mysql };

/** @param {string} dialect */
function databaseOf(dialect) {
  return dialect === "postgres" || dialect === "mysql" ? DATABASES[dialect] : undefined;
}

module.exports = { ENDED_EARLY, databaseOf, endsTransaction };
