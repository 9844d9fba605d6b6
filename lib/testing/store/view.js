// A store of somebody's own, as one more process sees it: its functions are called as an election calls them
// (lib/store.js reads what comes back), and whatever is wrong with an answer is said with the cure.

const { isDeepStrictEqual } = require("node:util");
const { describe, fromText, readRecord, readWritten, toText } = require("../../store.js");

/** @typedef {import("../../../index.js").LeaseRecord} LeaseRecord */
/** @typedef {import("../../../index.js").LeaseStore} LeaseStore */
/** @typedef {import("../../../index.js").LeaseVersion} LeaseVersion */

/**
 * What was read.
 *
 * @typedef {object} Entry
 * @property {LeaseVersion} version  as it is handed to compareAndSet
 * @property {string} word  the same, to be compared
 * @property {Record<string, unknown>} fields
 */

/** What a field should be made of, if it came back as another. @type {Record<string, string>} */
const CURES = {
  instanceId:
    "text of up to 253 bytes of UTF-8 must come back as it was, byte by byte (utf8mb4, no trimming, no " +
    "normalization), and null as null or empty text",
  nonce: "16 characters must come back as text, also where all of them are digits",
  token:
    "whole numbers up to 2^53 - 1 must come back exactly: use BIGINT, int64 or text, and no 32-bit integer " +
    "and no float",
  leaseDuration: "whole numbers from 0 to 86400000 must come back exactly",
};

/** What the store does that no store may. */
class StoreTestError extends Error {
  /**
   * @param {string} message
   * @param {unknown} [cause]
   */
  constructor(message, cause) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = "StoreTestError";
  }
}

/**
 * @param {string} what
 * @param {string} cure
 * @returns {never}
 */
function fail(what, cure) {
  throw new StoreTestError(`${what}: ${cure}`);
}

class View {
  #store;
  #patience;

  /**
   * @param {LeaseStore} store
   * @param {number} patience  milliseconds that a call may take
   */
  constructor(store, patience) {
    this.#store = store;
    this.#patience = patience;
  }

  get store() {
    return this.#store;
  }

  /**
   * @param {string} key
   * @returns {Promise<Entry | null>}
   */
  async get(key) {
    const found = await this.#call(
      "get",
      key,
      () => this.#store.get(key),
      "a key without a record is answered with null",
    );
    const { version, value } = this.#read(() => readRecord(found, key));
    if (version === undefined || value === undefined) return null;
    return { version: fromText(version), word: version, fields: JSON.parse(value) };
  }

  /**
   * What is there for sure.
   *
   * @param {string} key
   * @param {string} when
   * @returns {Promise<Entry>}
   */
  async find(key, when) {
    const found = await this.get(key);
    if (found !== null) return found;
    return fail(
      `get(${JSON.stringify(key)}) found no record ${when}`,
      "what was answered as written must be found from then on, from every process, and nobody but compareAndSet " +
        "may delete or expire it",
    );
  }

  /**
   * @param {string} key
   * @param {LeaseVersion | null} expected
   * @param {LeaseRecord} value
   * @returns {Promise<Pick<Entry, "version" | "word"> | null>}  null: nothing was written
   */
  async set(key, expected, value) {
    const written = await this.#call(
      "compareAndSet",
      key,
      () => this.#store.compareAndSet(key, expected, { ...value }),
      "a record that is there already, or of another version, is no error: catch what your database throws then " +
        "(a duplicate key, a failed condition) and return false",
    );
    const word = this.#read(() => readWritten(written, toText(value.version), key));
    return word === undefined ? null : { version: fromText(word), word };
  }

  /**
   * A write that nothing stands against.
   *
   * @param {string} key
   * @param {LeaseVersion | null} expected
   * @param {LeaseRecord} value
   */
  async write(key, expected, value) {
    const written = await this.set(key, expected, value);
    if (written !== null) return written;
    const call = `compareAndSet(${JSON.stringify(key)}, ${shown(expected)}, value)`;
    if (expected === null) {
      return fail(
        `${call} answered false although there is no record`,
        "null as the expected version means: write if there is none",
      );
    }
    return fail(
      `${call} answered false although that is the version of the record`,
      "the record must be compared with the version that get answered, in its own type, and a write that was done " +
        "is answered with true",
    );
  }

  get watches() {
    return typeof this.#store.watch === "function";
  }

  /**
   * @param {string} key
   * @param {(error?: unknown) => void} changed
   * @returns {Promise<(() => unknown) | null>}  null: it cannot be ended
   */
  async watch(key, changed) {
    const end = await this.#call(
      "watch",
      key,
      () => this.#store.watch?.(key, changed),
      "it returns once changes are told",
    );
    return typeof end === "function" ? /** @type {() => unknown} */ (end) : null;
  }

  /**
   * @param {string} name
   * @param {string} key
   * @param {() => unknown} call
   * @param {string} cure
   */
  async #call(name, key, call, cure) {
    /** @type {NodeJS.Timeout | undefined} */
    let timer;
    const shownCall = `${name}(${JSON.stringify(key)})`;
    try {
      return await Promise.race([
        (async () => call())(),
        new Promise((_, reject) => {
          const late = new StoreTestError(
            `${shownCall} did not settle within ${this.#patience} ms: every call must end, with an error if need be`,
          );
          timer = setTimeout(() => reject(late), this.#patience);
        }),
      ]);
    } catch (error) {
      if (error instanceof StoreTestError) throw error;
      throw new StoreTestError(`${shownCall} failed: ${describe(error)}; ${cure}`, error);
    } finally {
      clearTimeout(timer);
    }
  }

  /**
   * @template T
   * @param {() => T} read
   * @returns {T}
   */
  #read(read) {
    try {
      return read();
    } catch (error) {
      throw new StoreTestError(/** @type {Error} */ (error).message);
    }
  }
}

/**
 * Whether what was read is what was written.
 *
 * @param {Entry} entry
 * @param {LeaseRecord} value
 */
function isSame({ fields }, value) {
  return Object.keys(CURES).every((field) => fits(field, fields[field], Reflect.get(value, field)));
}

/**
 * @param {string} key
 * @param {Entry} entry
 * @param {LeaseRecord} value
 */
function mustBeSame(key, { fields }, value) {
  for (const [field, cure] of Object.entries(CURES)) {
    const wrote = Reflect.get(value, field);
    if (!fits(field, fields[field], wrote)) {
      const read = `get(${JSON.stringify(key)}) answered ${field} as ${shown(fields[field])}`;
      fail(`${read} after ${shown(wrote)} was written`, cure);
    }
  }
}

/**
 * @param {string} field
 * @param {unknown} read
 * @param {unknown} wrote
 */
function fits(field, read, wrote) {
  if (field === "instanceId" && wrote === null)
    return read === null || read === undefined || read === "";
  if (typeof wrote !== "number") return isDeepStrictEqual(read, wrote);
  if (typeof read === "string") return /^\d+$/.test(read) && BigInt(read) === BigInt(wrote);
  return read === wrote;
}

/** @param {unknown} value */
function shown(value) {
  if (typeof value === "bigint" || value === undefined) return String(value);
  return JSON.stringify(value);
}

module.exports = { View, StoreTestError, fail, isSame, mustBeSame, shown };
