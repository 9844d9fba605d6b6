// JSON in and out: errors that say where, and values that JSON cannot hold.
//
// The text may hold a password, so no error quotes it: the engine's own, which do, are not even a cause.

const { ConfigError } = require("./errors.js");

/**
 * @param {string} text
 * @param {string} source  what the text is, for the error
 * @returns {unknown}
 */
function parseJson(text, source) {
  try {
    return JSON.parse(text);
  } catch {
    const offset = firstError(text);
    const before = text.slice(0, offset).split("\n");
    const line = before.length;
    const column = (before[line - 1]?.length ?? 0) + 1;
    const found =
      offset < text.length ? `found ${JSON.stringify(text[offset])}` : "the text ends too early";
    throw new ConfigError(`${source} is not valid JSON: line ${line}, column ${column}: ${found}`);
  }
}

/** As deep as anything is nested here: far deeper than a configuration, and far from what a stack holds. */
const DEEPEST = 100;

// One token of JSON, at the place where the expression is put (it is sticky).
const SPACE = /[ \t\n\r]*/y;
// biome-ignore lint/suspicious/noControlCharactersInRegex: JSON refuses them in strings.
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const SCALAR = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;

/**
 * Where a text stops being JSON. The engines tell it in ways that differ by version, or not at all.
 *
 * @param {string} text  known not to be JSON
 * @returns {number}
 */
function firstError(text) {
  let at = 0;
  /** @type {(token: RegExp) => boolean} */
  const take = (token) => {
    token.lastIndex = at;
    const taken = token.test(text);
    if (taken) at = token.lastIndex;
    return taken;
  };
  /** @type {(character: string) => boolean} */
  const takeSign = (character) => {
    take(SPACE);
    if (text[at] !== character) return false;
    at += 1;
    return true;
  };
  /** @type {(item: () => boolean, close: string) => boolean} */
  const takeList = (item, close) => {
    if (takeSign(close)) return true;
    do {
      if (!item()) return false;
    } while (takeSign(","));
    return takeSign(close);
  };
  const takeMember = () => {
    take(SPACE);
    return take(STRING) && takeSign(":") && takeValue();
  };
  let depth = 0;
  /** @returns {boolean} */
  const takeValue = () => {
    if (depth === DEEPEST) return false; // Where it is too deep to go on is place enough.
    depth += 1;
    const taken = takeSign("{")
      ? takeList(takeMember, "}")
      : takeSign("[")
        ? takeList(takeValue, "]")
        : take(STRING) || take(SCALAR);
    depth -= 1;
    return taken;
  };
  if (takeValue()) take(SPACE);
  return at;
}

/**
 * A configuration object as JSON text. What JSON would drop or change silently (NaN, Infinity,
 * undefined, functions, bigints, symbols) becomes `{"$value": "NaN"}`, so that the error about it can
 * name it.
 *
 * @param {unknown} config
 * @param {(owner: object, key: string) => { json: unknown } | null | undefined} [standIn]  what stands for
 *   a member of an object; null: it is left out, undefined: it stands for itself
 * @returns {string}
 */
function toJson(config, standIn = () => undefined) {
  /** @type {Set<object>} */
  const path = new Set();
  /** @type {(value: unknown) => unknown} */
  const plain = (value) => {
    switch (typeof value) {
      case "number":
        return Number.isFinite(value) ? value : { $value: String(value) };
      case "bigint":
        return { $value: `${value}n` };
      case "undefined":
      case "symbol":
        return { $value: String(value) };
      case "function":
        return { $value: value.name === "" ? "function" : `function ${value.name}` };
      case "object":
        break;
      default:
        return value;
    }
    if (value === null) return null;
    if (path.has(value)) {
      throw new ConfigError("the configuration given to startCluster() refers to itself");
    }
    if (path.size === DEEPEST) {
      throw new ConfigError(`the configuration is nested more than ${DEEPEST} levels deep`);
    }
    path.add(value);
    const { toJSON } = /** @type {{ toJSON?: unknown }} */ (value);
    /** @type {unknown} */
    let result;
    if (typeof toJSON === "function") {
      result = plain(toJSON.call(value));
    } else if (Array.isArray(value)) {
      result = value.map(plain);
    } else {
      /** @type {[string, unknown][]} */
      const members = [];
      for (const [key, member] of Object.entries(value)) {
        const stand = standIn(value, key);
        if (stand !== null) members.push([key, stand === undefined ? plain(member) : stand.json]);
      }
      result = Object.fromEntries(members);
    }
    path.delete(value);
    return result;
  };
  return JSON.stringify(plain(config));
}

module.exports = { parseJson, toJson };
