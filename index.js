// The public package. Everything is loaded at the first call, so that importing costs nothing.
// index.d.ts is the reference.

const { ConfigError, LeadershipLostError, LoadError } = require("./lib/errors.js");
const { LeaderElection } = require("./lib/leader-election.js");
const { version } = require("./package.json");

/** @type {import("./index.js").whenLeader} */
function whenLeader(fn, deregisteredFn, options) {
  return require("./lib/main.js").whenLeader(fn, deregisteredFn, options);
}

/** @type {import("./index.js").runWhenLeader} */
function runWhenLeader(name, work, options) {
  return require("./lib/main.js").runWhenLeader(name, work, options);
}

/** @type {import("./index.js").currentTerm} */
function currentTerm() {
  return require("./lib/callbacks.js").currentTerm();
}

/** @type {import("./index.js").useCluster} */
function useCluster(name) {
  return require("./lib/main.js").useCluster(name);
}

/** @type {import("./index.js").startCluster} */
function startCluster(config, options) {
  return require("./lib/main.js").startCluster(config, options);
}

/** @type {import("./index.js").stopCluster} */
function stopCluster() {
  return require("./lib/main.js").stopCluster();
}

/** @type {import("./index.js").expectCluster} */
function expectCluster() {
  require("./lib/main.js").expectCluster();
}

/** @type {import("./index.js")} */
module.exports = {
  whenLeader,
  runWhenLeader,
  currentTerm,
  useCluster,
  startCluster,
  stopCluster,
  expectCluster,
  LeaderElection,
  ConfigError,
  LeadershipLostError,
  LoadError,
  version,
};
