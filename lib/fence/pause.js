const { after } = require("../timer.js");

/**
 * Keeps no process alive.
 *
 * @param {number} ms
 * @returns {Promise<void>}
 */
function pause(ms) {
  return new Promise((done) => {
    after(ms, done, { holds: false });
  });
}

module.exports = { pause };
