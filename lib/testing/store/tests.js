// The conformance tests for a store of somebody's own, as a list for any test runner.

const { inspect } = require("node:util");
const { ConfigError } = require("../../errors.js");
const { brokenRule } = require("../../main.js");
const { Bench } = require("./bench.js");
const { CONTRACT } = require("./contract.js");
const { ELECTION } = require("./election.js");

/** @typedef {import("./bench.js").Settings} Settings */

const CALL = "storeTests()";
const KNOWN = ["open", "close", "remove", "leaseDuration", "leaseName", "callTimeout"];
/** What a test runner should wait, in calls that take as long as they may. */
const CALLS_OF_A_SENTENCE = 6;
/** The longest name that leaves room for what makes it unique. */
const LONGEST_NAME = 100;

/** @param {unknown} options */
function storeTests(options) {
  const settings = checkOptions(options);
  return [...CONTRACT, ...ELECTION].map(({ name, run }) => ({
    name,
    timeout: CALLS_OF_A_SENTENCE * settings.callTimeout,
    run: async () => {
      const bench = new Bench(settings);
      try {
        await run(bench);
      } finally {
        await bench.close();
      }
    },
  }));
}

/**
 * @param {unknown} options
 * @returns {Settings}
 */
function checkOptions(options) {
  if (typeof options !== "object" || options === null) {
    throw new ConfigError(`${CALL} takes { open: () => store }, not ${inspect(options)}`);
  }
  const given = /** @type {Record<string, unknown>} */ (options);
  const unknown = Object.keys(given).find((key) => !KNOWN.includes(key));
  if (unknown !== undefined) {
    throw new ConfigError(`${CALL}: ${unknown} is not known; it takes ${KNOWN.join(", ")}`);
  }
  if (typeof given.open !== "function") {
    throw new ConfigError(
      `${CALL}: open must be a function that gives the store as one more process would see it, not ` +
        inspect(given.open),
    );
  }
  const { leaseName = "whenleader-test" } = given;
  const rule =
    typeof leaseName !== "string"
      ? "be a name"
      : leaseName.length > LONGEST_NAME
        ? `have at most ${LONGEST_NAME} characters here`
        : brokenRule(leaseName);
  if (rule !== null) {
    throw new ConfigError(`${CALL}: leaseName must ${rule}, not ${inspect(leaseName)}`);
  }
  return {
    open: /** @type {Settings["open"]} */ (given.open),
    close: /** @type {Settings["close"]} */ (optionalFunction(given, "close")),
    remove: /** @type {Settings["remove"]} */ (optionalFunction(given, "remove")),
    leaseDuration: millis(given, "leaseDuration", 300, 100),
    leaseName: /** @type {string} */ (leaseName),
    callTimeout: millis(given, "callTimeout", 5_000, 1),
  };
}

/**
 * @param {Record<string, unknown>} given
 * @param {string} name
 */
function optionalFunction(given, name) {
  const value = given[name];
  if (value === undefined || value === null) return null;
  if (typeof value === "function") return value;
  throw new ConfigError(`${CALL}: ${name} must be a function, not ${inspect(value)}`);
}

/**
 * @param {Record<string, unknown>} given
 * @param {string} name
 * @param {number} usual
 * @param {number} least
 */
function millis(given, name, usual, least) {
  const value = given[name] ?? usual;
  if (typeof value === "number" && value >= least && value <= 60_000) return value;
  throw new ConfigError(
    `${CALL}: ${name} must be ${least} to 60000 milliseconds, not ${inspect(value)}`,
  );
}

module.exports = { storeTests };
