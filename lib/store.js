// A store that the application wrote: get(key), compareAndSet(key, expectedVersion, value), and perhaps
// watch(key, changed). Its functions are called here, and whatever they do becomes an answer that the native
// side understands, or an error in words.
//
// A version may be of several types. It goes through the native side as text that says which, and comes back
// to compareAndSet as it was. Nothing is remembered here in between.

const { inspect } = require("node:util");
const { isNativeError, isUint8Array } = require("node:util/types");
const { ConfigError } = require("./errors.js");
const { short } = require("./masked.js");

/** @typedef {import("../index.js").LeaseStore} LeaseStore */
/** @typedef {import("../index.js").LeaseVersion} LeaseVersion */
/** @typedef {import("./native-types").StoreCall} StoreCall */
/** @typedef {import("./native-types").RawNative} RawNative */

/** What can be called instead of saying what is wrong. */
const SHAPE = "{ get(key), compareAndSet(key, expectedVersion, value), watch?(key, changed) }";

/** Of what is often taken for a version. */
const NO_TIME = "no time: two writes within one tick of its clock would share it";

/** An answer that is none. Its code is for programs. */
class BadAnswer extends Error {
  #isOne = true;

  /**
   * Asks nothing of a value that may do anything when it is asked.
   *
   * @param {unknown} value
   * @returns {value is BadAnswer}
   */
  static is(value) {
    return typeof value === "object" && value !== null && #isOne in value && value.#isOne;
  }

  /**
   * @param {"bad-record" | "bad-answer"} code
   * @param {string} message
   */
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

// ---- the configuration ----

/**
 * Whether a value in a configuration is meant as a store of one's own. What turns into text by itself (a
 * URL) is none.
 *
 * @param {unknown} value
 * @returns {value is object}
 */
function isOwnStore(value) {
  if (typeof value === "function") return true;
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  try {
    return "get" in value || "compareAndSet" in value || !("toJSON" in value);
  } catch {
    return true; // checkStore() says what is wrong with it.
  }
}

/**
 * @param {object} store
 * @returns {string}  what it is called
 */
function checkStore(store) {
  for (const member of ["get", "compareAndSet", "watch"]) {
    /** @type {unknown} */
    let value;
    try {
      value = Reflect.get(store, member);
    } catch (error) {
      throw new ConfigError(`store.${member} cannot be read: ${describe(error)}`, { cause: error });
    }
    const isMissing = value === undefined || value === null;
    if (typeof value === "function" || (isMissing && member === "watch")) continue;
    throw new ConfigError(
      `store.${member} must be a function, not ${show(value)}: a store of your own is an object ` +
        `${SHAPE}; any other is named by a URL`,
    );
  }
  const name = nameOfClass(store);
  return name === null ? "your own store" : `your own store (${name})`;
}

/** @param {object} store */
function nameOfClass(store) {
  try {
    const { name } = /** @type {{ name: unknown }} */ (store.constructor);
    const isOwn = typeof name === "string" && /^[A-Z]\w{0,60}$/.test(name);
    return isOwn && name !== "Object" && name !== "Function" ? name : null;
  } catch {
    return null;
  }
}

// ---- calling it ----

/** The stores of one environment that are in use. */
class OwnStores {
  #raw;
  /** Those that a cluster or a client uses. @type {Map<number, LeaseStore>} */
  #used = new Map();
  /** Those of starts that are under way, and of clients. @type {Map<symbol, number>} */
  #claims = new Map();
  /** Those of a cluster. @type {Set<number>} */
  #kept = new Set();
  /** @type {WeakMap<object, number>} */
  #numbers = new WeakMap();
  #forgotten;
  /** What ends a watch, by its number. @type {Map<number, (() => unknown) | null>} */
  #watches = new Map();

  /** @param {RawNative} raw */
  constructor(raw) {
    this.#raw = raw;
    this.#forgotten = new FinalizationRegistry((/** @type {number} */ number) =>
      raw.forgetStore(number),
    );
  }

  /**
   * The same store has the same number.
   *
   * @param {LeaseStore} store
   * @param {string} name
   */
  register(store, name) {
    let number = this.#numbers.get(store);
    if (number === undefined) {
      number = this.#raw.registerStore(name, typeof store.watch === "function");
      this.#numbers.set(store, number);
      this.#forgotten.register(store, number);
    }
    return number;
  }

  /**
   * Claims a store: its functions can be called from now on.
   *
   * @param {object} store
   * @returns {(isKept: boolean) => void}  ends the claim, once; a store that is kept stays until the native
   *   side says that it needs it no more
   */
  use(store) {
    const number = /** @type {number} */ (this.#numbers.get(store));
    this.#used.set(number, /** @type {LeaseStore} */ (store));
    const claim = Symbol("claim");
    this.#claims.set(claim, number);
    return (isKept) => {
      this.#claims.delete(claim);
      if (isKept) this.#kept.add(number);
      this.#tidy(number);
    };
  }

  /** A cluster may be closed while the next one starts on the same store. @param {number} number */
  #tidy(number) {
    const isClaimed = [...this.#claims.values()].includes(number);
    if (!isClaimed && !this.#kept.has(number)) this.#used.delete(number);
  }

  /** Never throws. @param {StoreCall} call */
  call(call) {
    if (call.function === "close") {
      this.#kept.delete(call.store);
      this.#tidy(call.store);
    } else if (call.function === "unwatch") this.#unwatch(call.number);
    else this.#answer(call);
  }

  /** @param {StoreCall} call */
  async #answer(call) {
    const store = this.#used.get(call.store);
    const { number } = call;
    try {
      if (store === undefined) throw new Error("the store is not in use");
      const { version, value } = await this.#ask(store, call);
      this.#raw.storeAnswer(number, version, value);
    } catch (error) {
      const [code, message] = BadAnswer.is(error)
        ? [error.code, error.message]
        : ["failed", `${call.function}(${JSON.stringify(call.key)}) failed: ${describe(error)}`];
      this.#raw.storeAnswer(number, undefined, undefined, code, message);
    }
  }

  /**
   * @param {LeaseStore} store
   * @param {StoreCall} call
   * @returns {Promise<{ version?: string, value?: string }>}
   */
  async #ask(store, call) {
    const { key, number } = call;
    switch (call.function) {
      case "get":
        return readRecord(await store.get(key), key);
      case "compareAndSet": {
        /** @type {import("../index.js").LeaseRecord} */
        const value = JSON.parse(call.value ?? "null");
        const expected = call.expected === undefined ? null : fromText(call.expected);
        const own = toText(value.version);
        const written = await store.compareAndSet(key, expected, value);
        return { version: readWritten(written, own, key) };
      }
      default: {
        this.#watches.set(number, null);
        const changed = (/** @type {unknown} */ error) =>
          this.#raw.storeChanged(
            number,
            isError(error) ? `watch(${JSON.stringify(key)}) broke: ${describe(error)}` : undefined,
          );
        let end;
        try {
          end = await store.watch?.(key, changed);
        } catch (error) {
          this.#watches.delete(number);
          throw error;
        }
        const stop = typeof end === "function" ? end : () => {};
        // Nobody may need it any more.
        if (this.#watches.has(number)) this.#watches.set(number, stop);
        else endQuietly(stop);
        return {};
      }
    }
  }

  /** @param {number} number */
  #unwatch(number) {
    const stop = this.#watches.get(number);
    this.#watches.delete(number);
    if (stop) endQuietly(stop);
  }
}

/** Whatever it still throws concerns nobody. @param {() => unknown} stop */
async function endQuietly(stop) {
  try {
    await stop();
  } catch {
    // It is over in any case.
  }
}

// ---- what comes back ----

/**
 * @param {unknown} found  what get() answered
 * @param {string} key
 * @returns {{ version?: string, value?: string }}
 */
function readRecord(found, key) {
  if (found === null || found === undefined) return {};
  const record = typeof found === "string" || isUint8Array(found) ? parse(found, key) : found;
  if (typeof record !== "object" || record === null || Array.isArray(record)) {
    throw badRecord(key, `answered ${show(found)}, which is no record`);
  }
  /** @type {unknown} */
  let version;
  /** @type {Record<string, unknown>} */
  const value = {};
  try {
    version = Reflect.get(record, "version");
    for (const field of ["instanceId", "nonce", "token", "leaseDuration"]) {
      value[field] = plain(Reflect.get(record, field));
    }
  } catch (error) {
    throw badRecord(key, `answered a record that cannot be read: ${describe(error)}`);
  }
  const text = toText(version);
  if (text === null) {
    throw badRecord(
      key,
      `answered a record whose version is ${show(version)}; it must be the value.version that ` +
        `compareAndSet was given, or a version of the store (a string, number, bigint or Uint8Array, and ${NO_TIME})`,
    );
  }
  return { version: text, value: JSON.stringify(value) };
}

/**
 * @param {string | Uint8Array} text
 * @param {string} key
 * @returns {unknown}
 */
function parse(text, key) {
  try {
    return JSON.parse(typeof text === "string" ? text : Buffer.from(text).toString("utf8"));
  } catch {
    throw badRecord(key, "answered a text that is not JSON");
  }
}

/**
 * @param {string} key
 * @param {string} what
 */
function badRecord(key, what) {
  return new BadAnswer("bad-record", `get(${JSON.stringify(key)}) ${what}`);
}

/**
 * A field as JSON can hold it. Numbers have many forms: bigint, text, objects of a database driver.
 *
 * @param {unknown} field
 * @returns {unknown}
 */
function plain(field) {
  if (typeof field === "string") return wellFormed(field);
  if (typeof field === "bigint") return String(field);
  if (typeof field === "object" && field !== null && !Array.isArray(field)) {
    return wellFormed(String(field));
  }
  return typeof field === "function" || typeof field === "symbol" ? null : field;
}

/**
 * @param {unknown} written  what compareAndSet() answered
 * @param {string | null} own  the version in the value that it was given
 * @param {string} key
 * @returns {string | undefined}  the version of what was written; undefined: nothing was
 */
function readWritten(written, own, key) {
  if (written === true && own !== null) return own;
  if (written === false) return undefined;
  const isRecord = typeof written === "object" && written !== null && !Array.isArray(written);
  const version = isRecord ? Reflect.get(written, "version") : written;
  const text = isRecord || typeof version === "string" ? toText(version) : null;
  if (text !== null) return text;
  throw new BadAnswer(
    "bad-answer",
    `compareAndSet(${JSON.stringify(key)}) answered ${show(written)}; it must be true (written), false ` +
      "(somebody else wrote first, and nothing was written), or the new version of the store: a string, or " +
      `an object with the member version (${NO_TIME})`,
  );
}

/** Half of a surrogate pair is no text elsewhere, and becomes the sign that stands for such. */
const LONE_SURROGATE = /\p{Surrogate}/gu;

/** @param {string} text */
function wellFormed(text) {
  return text.replace(LONE_SURROGATE, "\ufffd");
}

/** @param {string} text */
function isWellFormed(text) {
  return text === wellFormed(text);
}

// ---- versions ----

/**
 * @param {unknown} version
 * @returns {string | null}  null: it is none
 */
function toText(version) {
  switch (typeof version) {
    case "string":
      if (version === "") return null;
      // UTF-8, in which it travels, has nothing for half of a surrogate pair.
      return isWellFormed(version)
        ? `s${version}`
        : `u${Buffer.from(version, "utf16le").toString("hex")}`;
    case "number":
      return Number.isFinite(version) ? `n${version}` : null;
    case "bigint":
      return `b${version}`;
  }
  return isUint8Array(version) && version.length > 0 ? `x${hexOf(version)}` : null;
}

/** @param {Uint8Array} bytes */
function hexOf(bytes) {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("hex");
}

/**
 * @param {string} text  of toText()
 * @returns {LeaseVersion}
 */
function fromText(text) {
  const rest = text.slice(1);
  switch (text[0]) {
    case "n":
      return Number(rest);
    case "b":
      return BigInt(rest);
    case "x":
      return Buffer.from(rest, "hex");
    case "u":
      return Buffer.from(rest, "hex").toString("utf16le");
    default:
      return rest;
  }
}

// ---- words ----

/**
 * What was thrown, for people. Never a password.
 *
 * @param {unknown} error
 * @returns {string}
 */
function describe(error) {
  try {
    if (!isError(error)) return `it threw ${show(error)}`;
    const { name, message, code } = /** @type {Error & { code?: unknown }} */ (error);
    const hasCode = typeof code === "string" || typeof code === "number";
    const told = hasCode && !String(message).includes(String(code)) ? ` (${code})` : "";
    return short(`${name}: ${message}${told}`);
  } catch {
    return "it threw an error that cannot be read";
  }
}

/** Also one of another realm, and a DOMException. @param {unknown} value */
function isError(value) {
  try {
    return isNativeError(value) || value instanceof Error;
  } catch {
    return false;
  }
}

/** @param {unknown} value */
function show(value) {
  try {
    return short(
      inspect(value, { depth: 0, breakLength: Number.POSITIVE_INFINITY, customInspect: false }),
    );
  } catch {
    return "something that cannot be shown";
  }
}

module.exports = {
  OwnStores,
  checkStore,
  describe,
  isOwnStore,
  readRecord,
  readWritten,
  fromText,
  toText,
};
