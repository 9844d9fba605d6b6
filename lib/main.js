// The package's functions: arguments are checked here, then handed to this thread's environment. Loaded
// at the first call.

const { inspect } = require("node:util");
const { isMainThread } = require("node:worker_threads");
const { Bridge } = require("./bridge.js");
const { isAbortSignal } = require("./cluster.js");
const { Environment } = require("./environment.js");
const { watchExit } = require("./exit.js");
const { toJson } = require("./json.js");
const { loadNative } = require("./native.js");

/** @typedef {import("../index.js").WhenLeaderOptions} WhenLeaderOptions */

/** Longer than an application takes that asks for its configuration first. */
const REMIND_AFTER = 30_000;

/** @type {Bridge | null} */
let bridge = null;

const environment = new Environment({
  loadNative: () => {
    bridge ??= new Bridge(loadNative());
    return bridge;
  },
  env: process.env,
  cwd: () => process.cwd(),
  isMainThread,
  isClusterWorker: () =>
    /** @type {{ isWorker?: boolean }} */ (require("node:cluster")).isWorker === true,
  remindAfter: REMIND_AFTER,
  watchExit,
});

/** The most bytes that the name of an election may have. */
const NAME_LIMIT = 253;

/**
 * @param {unknown} fn
 * @param {unknown} deregisteredFn
 * @param {unknown} options
 */
function whenLeader(fn, deregisteredFn, options) {
  if (typeof fn !== "function") {
    throw new TypeError(`whenLeader(fn): fn must be a function, not ${inspect(fn)}`);
  }
  const hasSecond = deregisteredFn !== undefined && deregisteredFn !== null;
  if (hasSecond && typeof deregisteredFn !== "function") {
    throw new TypeError(
      "whenLeader(fn, deregisteredFn, options): deregisteredFn must be a function, " +
        `null or left out, not ${inspect(deregisteredFn)}; options are the third argument`,
    );
  }
  return environment.whenLeader(
    /** @type {(term: unknown) => unknown} */ (fn),
    hasSecond ? /** @type {(lost: unknown, term: unknown) => unknown} */ (deregisteredFn) : null,
    checkOptions(options),
  );
}

/**
 * @param {unknown} name
 * @param {unknown} work
 * @param {unknown} options
 */
function runWhenLeader(name, work, options) {
  if (name === undefined || name === null) {
    throw new TypeError(
      "runWhenLeader(name, work): name must be given: each piece of work has an election of its own",
    );
  }
  const election = /** @type {string} */ (checkName("runWhenLeader(name, work): name", name));
  if (typeof work !== "function") {
    throw new TypeError(`runWhenLeader(name, work): work must be a function, not ${inspect(work)}`);
  }
  return environment.runWhenLeader(
    election,
    /** @type {(term: unknown) => unknown} */ (work),
    checkRunOptions(options),
  );
}

/** @param {unknown} given */
function checkRunOptions(given) {
  const options = given ?? {};
  if (typeof options !== "object" || Array.isArray(options)) {
    throw new TypeError(`runWhenLeader(): options must be an object, not ${inspect(options)}`);
  }
  const { signal, cluster, ...others } = /** @type {Record<string, unknown>} */ (options);
  if (signal !== undefined && !isAbortSignal(signal)) {
    throw new TypeError(
      `runWhenLeader(): options.signal must be an AbortSignal, not ${inspect(signal)}`,
    );
  }
  const named = Object.entries(others).filter(([, value]) => value !== undefined);
  const json = toJson(Object.fromEntries(named), () => undefined);
  return { options: json, cluster, signal };
}

/**
 * @param {unknown} options
 * @returns {WhenLeaderOptions}
 */
function checkOptions(options) {
  if (options === undefined || options === null) return {};
  const election = onlyOption("whenLeader()", options, "election");
  return { election: checkName("whenLeader(): options.election", election) };
}

/**
 * A slip in an option's name would be silence.
 *
 * @param {string} call
 * @param {unknown} options
 * @param {string} known
 * @returns {unknown}  its value
 */
function onlyOption(call, options, known) {
  if (typeof options !== "object" || options === null || Array.isArray(options)) {
    throw new TypeError(`${call}: options must be an object, not ${inspect(options)}`);
  }
  const unknown = Object.keys(options).find((key) => key !== known);
  if (unknown !== undefined) {
    throw new TypeError(`${call}: options.${unknown} is not known; there is ${known}`);
  }
  return Reflect.get(options, known);
}

/** @param {unknown} name */
function useCluster(name) {
  return environment.useCluster(checkName("useCluster(name): name", name));
}

/**
 * @param {unknown} config
 * @param {unknown} options
 */
async function startCluster(config, options) {
  if (options === undefined) return environment.startCluster(config, undefined);
  if (typeof Object(options).warn === "function") {
    throw new TypeError("startCluster(): a logger is given as the option logger: { logger }");
  }
  return environment.startCluster(config, onlyOption("startCluster()", options, "logger"));
}

function stopCluster() {
  return environment.stopCluster();
}

function expectCluster() {
  environment.expectCluster();
}

/**
 * Not public: what a kit is made of that tests stores of one's own. `limit` is how many milliseconds an
 * operation may take. See lib/client.js.
 *
 * @param {import("../index.js").LeaseStore} store
 * @param {{ instanceId: string, limit: number }} how
 */
function openClient(store, how) {
  return environment.openClient(store, how);
}

/**
 * @param {string} what
 * @param {unknown} name
 * @returns {string | undefined}
 */
function checkName(what, name) {
  if (name === undefined) return undefined;
  if (typeof name !== "string") {
    throw new TypeError(`${what} must be the name of an election, not ${inspect(name)}`);
  }
  const rule = brokenRule(name);
  if (rule !== null) throw new TypeError(`${what} must ${rule}: ${inspect(name)}`);
  return name;
}

/**
 * The rules that hold for every store; a store may have more.
 *
 * @param {string} name
 * @returns {string | null}  words that follow "must"
 */
function brokenRule(name) {
  if (name === "") return "not be empty";
  if (Buffer.byteLength(name) > NAME_LIMIT) return `have at most ${NAME_LIMIT} bytes`;
  if (/\p{Cc}/u.test(name)) return "hold no control character";
  if (/\p{Cs}/u.test(name)) return "hold no half of a surrogate pair, which is no text";
  return name.trim() === name ? null : "not begin or end with a space";
}

module.exports = {
  environment,
  brokenRule,
  checkName,
  whenLeader,
  runWhenLeader,
  useCluster,
  startCluster,
  stopCluster,
  expectCluster,
  openClient,
};
