// Runs the application's callbacks, and knows which code runs inside of one.
//
// A callback that waits for its own end would wait for ever: `await remove()` inside `fn`, or
// `await stopCluster()`. Such a wait is told apart by its asynchronous context. Following contexts costs
// every promise of the process something on older versions of Node.js, so it is switched on only while a
// callback is pending.

/** @typedef {import("./term.js").Term} Term */

/**
 * @typedef {object} Running
 * @property {object} owner  whose callback it is
 * @property {Term} term
 * @property {boolean} ended
 */

/** @type {import("node:async_hooks").AsyncLocalStorage<Running> | null} */
let contexts = null;
let pending = 0;

/**
 * Calls `call`. Returns undefined if that ended at once, else a promise of its end, which never rejects.
 *
 * @param {object} owner
 * @param {Term} term
 * @param {() => unknown} call
 * @param {(error: unknown) => void} onError
 * @returns {Promise<void> | undefined}
 */
function runCallback(owner, term, call, onError) {
  if (contexts === null) {
    const { AsyncLocalStorage } = require("node:async_hooks");
    contexts = new AsyncLocalStorage();
  }
  /** @type {Running} */
  const run = { owner, term, ended: false };
  const end = () => {
    run.ended = true;
    pending -= 1;
    if (pending === 0) contexts?.disable();
  };
  pending += 1;
  /** @type {unknown} */
  let result;
  try {
    result = contexts.run(run, call);
  } catch (error) {
    end();
    onError(error);
    return undefined;
  }
  if ((typeof result !== "object" && typeof result !== "function") || result === null) {
    end();
    return undefined;
  }
  // Thenables of all kinds, also those that throw, settle twice or resolve to another: as promises do.
  return new Promise((resolve) => resolve(result)).then(end, (error) => {
    end();
    onError(error);
  });
}

/** Whether this code was called by a callback that has not ended: by any, or by one of `owner`'s. */
function insideCallback(/** @type {object | undefined} */ owner = undefined) {
  const run = pending === 0 ? undefined : contexts?.getStore();
  return run !== undefined && !run.ended && (owner === undefined || run.owner === owner);
}

/** The term whose callback this code was called by. @returns {Term | undefined} */
function currentTerm() {
  const run = pending === 0 ? undefined : contexts?.getStore();
  return run === undefined || run.ended ? undefined : run.term;
}

/**
 * For people. A function's name may be anything, or throw when it is read.
 *
 * @param {{ name: unknown }} fn
 * @returns {string | null}
 */
function nameOf(fn) {
  try {
    return typeof fn.name === "string" && fn.name !== "" ? fn.name : null;
  } catch {
    return null;
  }
}

module.exports = { runCallback, insideCallback, currentTerm, nameOf };
