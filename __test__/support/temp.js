// Folders for a test file, which are gone when it has ended.

const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");

/** @type {string[]} */
const folders = [];

process.on("exit", () => {
  for (const folder of folders) fs.rmSync(folder, { recursive: true, force: true });
});

function newFolder() {
  // Its real name: on some systems the temporary folder is behind a link.
  const folder = fs.realpathSync(fs.mkdtempSync(path.join(os.tmpdir(), "whenleader-test-")));
  folders.push(folder);
  return folder;
}

module.exports = { newFolder };
