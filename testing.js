// For tests of applications, and of stores: the package's second door. testing.d.ts is the reference.
//
// Whoever imports it means to say who leads: from then on this process leads by no accident.

const { environment } = require("./lib/main.js");

environment.awaitStandIn();

/** @type {import("./testing.js").useTestCluster} */
function useTestCluster(options) {
  return require("./lib/testing/cluster.js").useTestCluster(options);
}

/** @type {import("./testing.js").storeTests} */
function storeTests(options) {
  return require("./lib/testing/store/tests.js").storeTests(options);
}

/** @type {import("./testing.js")} */
module.exports = { useTestCluster, storeTests };
