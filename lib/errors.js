// The errors that users meet. Each says what failed, what the library does now, and what to do.

/** @typedef {import("../index.js").LossReason} LossReason */

/** The configuration cannot be used, or comes too late. */
class ConfigError extends Error {
  /**
   * @param {string} message
   * @param {{ cause?: unknown }} [options]
   */
  constructor(message, options) {
    super(message, options);
    this.name = "ConfigError";
    /** @readonly @type {"WHENLEADER_CONFIG"} */
    this.code = "WHENLEADER_CONFIG";
  }
}

/** The native part of the package cannot be loaded. */
class LoadError extends Error {
  /**
   * @param {string} message
   * @param {{ cause?: unknown }} [options]
   */
  constructor(message, options) {
    super(message, options);
    this.name = "LoadError";
    /** @readonly @type {"WHENLEADER_LOAD"} */
    this.code = "WHENLEADER_LOAD";
  }
}

/** @type {Partial<Record<LossReason, string>>} */
const LOSSES = {
  expired: "its lease ran out before it could be renewed (was this process paused or starved?)",
  taken: "another instance holds the lease",
  unreachable: "the store did not renew the lease in time",
  released: "the lease was released or deleted by somebody else",
  steppedDown: "stepDown() was called",
  stalled: "the event loop did not turn for stallTimeout",
  stopped: "it was stopped",
};

/** A term is over. The reason of a term's abort signal, and what deregisteredFn is told. */
class LeadershipLostError extends Error {
  /**
   * @param {string} election
   * @param {number} token
   * @param {LossReason} reason
   */
  constructor(election, token, reason) {
    super(
      reason === "removed"
        ? `the registration for the election "${election}" was removed in term ${token}`
        : `this instance no longer leads the election "${election}" (term ${token}): ${LOSSES[reason] ?? reason}`,
    );
    this.name = "LeadershipLostError";
    /** @readonly @type {"WHENLEADER_LOST"} */
    this.code = "WHENLEADER_LOST";
    /** @readonly */
    this.reason = reason;
    /** @readonly */
    this.election = election;
    /** @readonly */
    this.token = token;
  }
}

/** Something about one election that is neither its configuration nor the loss of a term. */
class ElectionError extends Error {
  /**
   * @param {import("../index.js").ElectionError["code"]} code
   * @param {string} message
   * @param {{ election?: string, reason?: string, fatal?: boolean, token?: number, traceId?: string, cause?: unknown }}
   *   [details]
   */
  constructor(code, message, details = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = code === "WHENLEADER_TIMEOUT" ? "TimeoutError" : "ElectionError";
    /** @readonly */
    this.code = code;
    /** @readonly */
    this.election = details.election;
    /** @readonly */
    this.reason = details.reason;
    /** @readonly */
    this.fatal = details.fatal ?? false;
    if (details.token !== undefined) {
      /** @readonly */
      this.token = details.token;
      /** @readonly */
      this.traceId = details.traceId;
    }
  }
}

/** Of native code: the text is fine, but configures no cluster. */
const NO_CLUSTER = "WHENLEADER_NO_CLUSTER";

/** Of native code: the text leaves to the environment what that does not say. */
const UNSET = "WHENLEADER_UNSET";

/** Of native code: another thread stops the cluster. */
const STOPPING = "WHENLEADER_STOPPING";

/** @type {WeakSet<ConfigError>} */
const withoutCluster = new WeakSet();
/** @type {WeakSet<ConfigError>} */
const unset = new WeakSet();
/** @type {WeakSet<ConfigError>} */
const late = new WeakSet();

/** @param {unknown} error */
function saysNoCluster(error) {
  return error instanceof ConfigError && withoutCluster.has(error);
}

/** @param {unknown} error */
function saysStopping(error) {
  return error instanceof ConfigError && late.has(error);
}

/** @param {unknown} error */
function saysUnset(error) {
  return error instanceof ConfigError && unset.has(error);
}

/**
 * What native code threw, as the class that users know. Told by its code: it may be no `Error` of this
 * realm, since tools such as Jest run modules in a context of their own. Not as its cause: that would say
 * the same once more.
 *
 * @param {unknown} error
 * @param {string} [election]
 * @returns {unknown}
 */
function fromNative(error, election) {
  if (error instanceof ConfigError || error instanceof ElectionError) return error;
  /** @type {{ code?: unknown, reason?: string, message: string }} */
  const { code, reason, message } = Object(error);
  if (["WHENLEADER_CONFIG", NO_CLUSTER, UNSET, STOPPING].includes(/** @type {string} */ (code))) {
    const refusal = new ConfigError(message);
    if (code === NO_CLUSTER) withoutCluster.add(refusal);
    if (code === UNSET) unset.add(refusal);
    if (code === STOPPING) late.add(refusal);
    return refusal;
  }
  if (code === "WHENLEADER_STORE") {
    return new ElectionError(code, message, { election, reason, fatal: true });
  }
  return error;
}

module.exports = {
  ConfigError,
  LoadError,
  LeadershipLostError,
  ElectionError,
  fromNative,
  saysNoCluster,
  saysStopping,
  saysUnset,
};
