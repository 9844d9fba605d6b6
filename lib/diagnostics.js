// What happens in elections, for whoever watches the process: channels of node:diagnostics_channel. While nobody
// subscribes no message is made; of an attempt, a few numbers come from the native side all the same.

const { channel } = require("node:diagnostics_channel");

/** @typedef {"promoted" | "demoted" | "attempt" | "error"} Name */

const channels = {
  promoted: channel("whenleader:promoted"),
  demoted: channel("whenleader:demoted"),
  attempt: channel("whenleader:attempt"),
  error: channel("whenleader:error"),
};

/**
 * A subscriber that throws is node's to report: it becomes an uncaught exception, and the election goes on.
 *
 * @param {Name} name
 * @param {() => object} message
 */
function publish(name, message) {
  const { [name]: channel } = channels;
  if (channel.hasSubscribers) channel.publish(message());
}

module.exports = { publish };
