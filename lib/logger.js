// Hands what happens to the application's logger. A logger may throw, reject or lack a method: nothing
// of that reaches the election.

const { inspect } = require("node:util");
const { ConfigError } = require("./errors.js");

/** @typedef {import("../index.js").Logger} Logger */
/** @typedef {"error" | "warn" | "info" | "debug"} Level */
/** @typedef {Record<string, unknown>} Fields */
/** @typedef {(level: Level, message: string, fields: Fields) => unknown} Sink */

/** From the one that says least. @type {readonly string[]} */
const LEVELS = ["silent", "error", "warn", "info", "debug"];

class Log {
  #threshold;
  #sink;

  /** @param {Logger | undefined} logger  @param {string | undefined} override  WHENLEADER_LOG */
  constructor(logger, override) {
    const wanted = override?.trim().toLowerCase() || undefined;
    const forced = wanted === undefined ? undefined : asLevel(wanted);
    /** As the native side names it. @readonly */
    this.level = forced ?? (logger === undefined ? "warn" : levelOf(logger));
    this.#threshold = LEVELS.indexOf(this.level);
    this.#sink = sinkOf(logger, forced);
    if (wanted !== undefined && forced === undefined) {
      this.warn(
        `WHENLEADER_LOG is ${JSON.stringify(wanted)}, which is no level: ` +
          `one of ${LEVELS.join(", ")} is expected`,
      );
    }
  }

  /** @param {string} message  @param {Fields} [fields] */
  error(message, fields) {
    this.write("error", message, fields);
  }

  /** @param {string} message  @param {Fields} [fields] */
  warn(message, fields) {
    this.write("warn", message, fields);
  }

  /** @param {string} message  @param {Fields} [fields] */
  info(message, fields) {
    this.write("info", message, fields);
  }

  /** @param {Level} level  @param {string} message  @param {Fields} [fields] */
  write(level, message, fields = {}) {
    if (LEVELS.indexOf(level) > this.#threshold) return;
    try {
      const result = this.#sink(level, message, fields);
      // An asynchronous logger that fails must not become an unhandled rejection.
      if (isObject(result)) Promise.resolve(result).catch(() => {});
    } catch {
      // There is nowhere left to say it.
    }
  }
}

/** @param {unknown} value */
function isObject(value) {
  return typeof value === "object" && value !== null;
}

/**
 * @param {Logger | undefined} logger
 * @param {string | undefined} forced  a level that overrides the logger's own
 * @returns {Sink}
 */
function sinkOf(logger, forced) {
  if (logger === undefined) {
    return (level, message, fields) =>
      console[level === "error" ? "error" : "warn"](line(message, fields));
  }
  if (takesFieldsFirst(logger)) {
    const target = forced === undefined ? logger : atLevel(logger, forced);
    return (level, message, fields) => target[level]?.(fields, `whenleader: ${message}`);
  }
  return (level, message, fields) => logger[level]?.(line(message, fields));
}

/**
 * pino and its kin (bunyan, Fastify's) take an object of fields, then the message; console and its kin
 * (winston too) take text.
 *
 * @param {Logger} logger
 */
function takesFieldsFirst(logger) {
  const { child, bindings, transports } = /** @type {Record<string, unknown>} */ (
    /** @type {unknown} */ (logger)
  );
  return (
    transports === undefined && (typeof child === "function" || typeof bindings === "function")
  );
}

/**
 * @param {Logger} logger
 * @param {string} level
 * @returns {Logger}
 */
function atLevel(logger, level) {
  try {
    const { child } = /** @type {{ child?: Function }} */ (/** @type {unknown} */ (logger));
    return child?.call(logger, {}, { level }) ?? logger;
  } catch {
    return logger;
  }
}

/** @param {Logger} logger */
function levelOf(logger) {
  const { level } = /** @type {{ level?: unknown }} */ (/** @type {unknown} */ (logger));
  return (typeof level === "string" && asLevel(level.toLowerCase())) || "info";
}

/**
 * @param {string} name  as pino, bunyan, winston or RUST_LOG call it
 * @returns {string | undefined}
 */
function asLevel(name) {
  if (LEVELS.includes(name)) return name;
  /** @type {Record<string, string>} */
  const others = {
    off: "silent",
    none: "silent",
    fatal: "error",
    warning: "warn",
    trace: "debug",
    verbose: "debug",
    silly: "debug",
  };
  return others[name];
}

/** What a line begins with, so that lines can be compared by eye. The error, which is long, ends it. */
const FIRST_FIELDS = ["election", "token", "instance"];

/**
 * @param {string} message
 * @param {Fields} fields
 */
function line(message, fields) {
  const { err, ...others } = fields;
  const names = new Set([...FIRST_FIELDS, ...Object.keys(others).sort()]);
  let text = `whenleader: ${message}`;
  for (const name of names) {
    if (others[name] !== undefined) text += ` ${name}=${asWord(others[name])}`;
  }
  return "err" in fields ? `${text} err=${describe(err)}` : text;
}

/** @param {unknown} value */
function asWord(value) {
  const text = String(value);
  return /^[\w.:/@#-]+$/.test(text) ? text : JSON.stringify(text);
}

/**
 * Anything that was thrown, on one line.
 *
 * @param {unknown} error
 * @returns {string}
 */
function describe(error) {
  try {
    return inspect(error).replace(/\s*\n\s*/g, " ");
  } catch {
    return "a value that cannot be shown";
  }
}

/**
 * @param {unknown} logger
 * @returns {Logger | undefined}
 */
function checkLogger(logger) {
  if (logger === undefined || logger === null) return undefined;
  const methods = ["error", "warn", "info"];
  const missing =
    typeof logger === "object" || typeof logger === "function"
      ? methods.filter((method) => typeof Reflect.get(logger, method) !== "function")
      : methods;
  if (missing.length > 0) {
    throw new ConfigError(
      `"logger" must be an object with the functions error, warn, info and debug, ` +
        `like console or a pino logger; it has no ${missing.join(", no ")}`,
    );
  }
  return /** @type {Logger} */ (logger);
}

/** @param {Log[]} logs */
function mostVerbose(logs) {
  return LEVELS[Math.max(...logs.map(({ level }) => LEVELS.indexOf(level)))];
}

module.exports = { Log, checkLogger, describe, mostVerbose };
