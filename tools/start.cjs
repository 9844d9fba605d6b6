// Starts one of the other tools: `node tools/start.cjs demo`. It is written in old JavaScript on
// purpose: a Node that is too old shall say so, and not that it cannot read the file.
"use strict";

// The package runs on older ones (package.json says so); what builds the addon does not.
var NODE = [20, 17];
var have = process.versions.node.split(".").map(Number);

if (have[0] < NODE[0] || (have[0] === NODE[0] && have[1] < NODE[1])) {
  console.error(
    "Node.js " +
      NODE.join(".") +
      " or newer is needed, this is " +
      process.versions.node +
      ": get it from https://nodejs.org or with a version manager.",
  );
  process.exit(1);
}

var tool = process.argv.splice(2, 1)[0];
import("./" + tool + ".mjs").catch((error) => {
  console.error(error);
  process.exit(1);
});
