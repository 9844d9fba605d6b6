// Ways out of the process, for the main thread of one that runs a real cluster. A lease that is not
// released keeps everybody waiting until it expires.

const { constants } = require("node:os");
const { after } = require("./timer.js");

/** @type {readonly NodeJS.Signals[]} */
const SIGNALS = ["SIGTERM", "SIGINT"];

/**
 * @typedef {object} Ways
 * @property {() => void} releaseNow      blocks for a bounded time
 * @property {() => Promise<void>} stop   runs the callbacks, then releases
 * @property {number} stopTimeout         in milliseconds
 * @property {boolean} signals            whether to handle SIGTERM and SIGINT
 * @property {import("./logger.js").Log} log
 */

/**
 * @param {Ways} ways
 * @returns {() => void}  takes everything back
 */
function watchExit({ releaseNow, stop, stopTimeout, signals, log }) {
  let stopping = false;

  /** @param {NodeJS.Signals} signal */
  const onSignal = (signal) => {
    if (stopping) {
      finish(signal);
      return;
    }
    if (process.listenerCount(signal) > 1) {
      // The application has its own answer, and calls stopCluster() or exits, which releases. We step
      // aside while it runs: some listeners end the process only if they are the last one.
      process.off(signal, onSignal);
      setImmediate(() => {
        if (watching) process.prependListener(signal, onSignal);
      }).unref();
      return;
    }
    stopping = true;
    log.info(`${signal}: stopping, then ending`);
    const noLimit = after(stopTimeout, () => finish(signal));
    stop().finally(() => {
      noLimit();
      finish(signal);
    });
  };

  /** Lets the signal do what it would have done without us. @param {NodeJS.Signals} signal */
  const finish = (signal) => {
    unwatch();
    releaseNow();
    process.kill(process.pid, signal);
    // Still here: a process with the number 1 (a container's first) gets no signals by default.
    process.exit(128 + constants.signals[signal]);
  };

  let watching = true;
  const unwatch = () => {
    watching = false;
    process.off("exit", releaseNow);
    for (const signal of SIGNALS) process.off(signal, onSignal);
  };

  process.on("exit", releaseNow);
  if (signals) for (const signal of SIGNALS) process.prependListener(signal, onSignal);
  return unwatch;
}

module.exports = { watchExit };
