// What useTestCluster() may be given, checked in the words of src/config.rs.

const { ConfigError } = require("../errors.js");
const { checkLogger } = require("../logger.js");
const { brokenRule } = require("../main.js");
const { BadTiming, DEFAULTS, LONGEST_LEASE, Timing } = require("./timing.js");

/** @typedef {import("../../testing.js").TestClusterOptions} TestClusterOptions */

/**
 * @typedef {object} Settings
 * @property {Timing} timing
 * @property {string} leaseName
 * @property {string} instanceId
 * @property {boolean} candidate
 * @property {"stepDown" | "retry"} onRenewError
 * @property {number} stopTimeout
 * @property {"earlier" | "all" | "none"} keepRegistrations
 * @property {((ms: number) => unknown) | undefined} tick
 * @property {import("../../index.js").Logger | undefined} logger
 */

const CALL = "useTestCluster()";

const KNOWN = [
  "leaseName",
  "instanceId",
  "leaseDuration",
  "renewInterval",
  "leadLimit",
  "stopTimeout",
  "onRenewError",
  "candidate",
  "keepRegistrations",
  "tick",
  "logger",
];

/** A day of microseconds, and an exact number still. */
const LARGEST = 9e15;

/**
 * @param {unknown} options
 * @returns {Settings}
 */
function checkOptions(options = {}) {
  if (typeof options !== "object" || options === null || Array.isArray(options)) {
    throw new ConfigError(`${CALL} takes an object of options, not ${shown(options)}`);
  }
  const unknown = Object.keys(options).find((key) => !KNOWN.includes(key));
  if (unknown !== undefined) {
    throw new ConfigError(`${CALL}.${unknown} is not known; it takes ${KNOWN.join(", ")}`);
  }
  const given = /** @type {Record<string, unknown>} */ (options);
  const timing = readTiming(given);
  return {
    timing,
    leaseName: readName(given, "leaseName") ?? "leader",
    instanceId: readName(given, "instanceId") ?? `test-${process.pid}`,
    candidate: readOne(given, "candidate", [true, false]) ?? true,
    onRenewError: readOne(given, "onRenewError", ["stepDown", "retry"]) ?? "stepDown",
    stopTimeout: readUpToADay(given, "stopTimeout") ?? timing.defaultStopTimeout,
    keepRegistrations: readOne(given, "keepRegistrations", ["earlier", "all", "none"]) ?? "earlier",
    tick: readTick(given.tick),
    logger: checkLogger(given.logger),
  };
}

/** @param {Record<string, unknown>} given */
function readTiming(given) {
  const lease = readMillis(given, "leaseDuration") ?? DEFAULTS.leaseDuration;
  const renew = readMillis(given, "renewInterval") ?? DEFAULTS.renewInterval;
  try {
    return new Timing(lease, renew, readMillis(given, "leadLimit"));
  } catch (error) {
    if (!(error instanceof BadTiming)) throw error;
    const { parameter, rule } = error;
    if (given[parameter] !== undefined) throw bad(parameter, rule, given[parameter]);
    throw new ConfigError(
      `${CALL}.${parameter} must ${rule}; it is not given, and its default does not fit`,
    );
  }
}

/**
 * @param {Record<string, unknown>} given
 * @param {string} parameter
 * @returns {number | undefined}
 */
function readMillis(given, parameter) {
  const value = given[parameter];
  if (value === undefined) return undefined;
  if (typeof value === "number" && Number.isInteger(value) && value >= 0 && value <= LARGEST) {
    return value;
  }
  const digits = typeof value === "string" && /^\+?\d+$/.test(value.trim());
  const cure = digits ? `; write ${Number(value)} without quotes` : "";
  throw bad(parameter, `be a whole number of milliseconds${cure}`, value);
}

/**
 * @param {Record<string, unknown>} given
 * @param {string} parameter
 */
function readUpToADay(given, parameter) {
  const value = readMillis(given, parameter);
  if (value !== undefined && value > LONGEST_LEASE) {
    throw bad(parameter, `be at most ${LONGEST_LEASE} ms (24 hours)`, value);
  }
  return value;
}

/**
 * @param {Record<string, unknown>} given
 * @param {string} parameter
 * @returns {string | undefined}
 */
function readName(given, parameter) {
  const value = given[parameter];
  if (value === undefined) return undefined;
  const rule = typeof value === "string" ? brokenRule(value) : 'be a name like "leader"';
  if (rule !== null) throw bad(parameter, rule, value);
  return /** @type {string} */ (value);
}

/**
 * @template T
 * @param {Record<string, unknown>} given
 * @param {string} parameter
 * @param {T[]} choices
 * @returns {T | undefined}
 */
function readOne(given, parameter, choices) {
  const value = given[parameter];
  if (value === undefined) return undefined;
  const chosen = choices.find((choice) => choice === value);
  if (chosen === undefined) {
    const words = choices.map((choice) => JSON.stringify(choice));
    throw bad(parameter, `be ${words.slice(0, -1).join(", ")} or ${words.at(-1)}`, value);
  }
  return chosen;
}

/**
 * @param {unknown} tick
 * @returns {((ms: number) => unknown) | undefined}
 */
function readTick(tick) {
  if (tick === undefined || typeof tick === "function") {
    return /** @type {((ms: number) => unknown) | undefined} */ (tick);
  }
  const rule = "be a function that moves fake timers, like (ms) => mock.timers.tick(ms)";
  throw bad("tick", rule, tick);
}

/**
 * @param {string} parameter
 * @param {string} rule
 * @param {unknown} value
 */
function bad(parameter, rule, value) {
  return new ConfigError(`${CALL}.${parameter} must ${rule}, not ${shown(value)}`);
}

/** @param {unknown} value */
function shown(value) {
  if (typeof value === "string") return JSON.stringify(value);
  if (typeof value === "function") return "a function";
  if (Array.isArray(value)) return "an array";
  return typeof value === "object" && value !== null ? "an object" : String(value);
}

module.exports = { checkOptions, CALL };
