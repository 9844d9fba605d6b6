// What happens in elections, for whoever watches the process: channels of node:diagnostics_channel. While nobody
// subscribes no message is made; of an attempt, a few numbers come from the native side all the same.

const { channel } = require("node:diagnostics_channel");

/** @typedef {import("./election.js").Election} Election */
/** @typedef {import("./errors.js").ElectionError} ElectionError */
/** @typedef {import("./errors.js").LeadershipLostError} LeadershipLostError */
/** @typedef {import("./term.js").Term} Term */
/** @typedef {{ name: string | undefined, instanceId?: string, term?: Term | null }} About  an election, or what is known of it */

const channels = {
  promoted: channel("whenleader:promoted"),
  demoted: channel("whenleader:demoted"),
  attempt: channel("whenleader:attempt"),
  error: channel("whenleader:error"),
};

/**
 * What an election emits. Of its events some are for these channels.
 *
 * @param {About} election
 * @param {string} event
 * @param {unknown[]} values
 */
function announce(election, event, values) {
  if (event === "promoted") {
    publish("promoted", () => about(election));
  } else if (event === "demoted") {
    const [lost, { token, traceId }] = /** @type {[LeadershipLostError, Term]} */ (values);
    publish("demoted", () => ({ ...about(election), token, traceId, reason: lost.reason }));
  } else if (event === "error") {
    const error = /** @type {ElectionError} */ (values[0]);
    const { token, traceId } = error;
    const term = token === undefined ? {} : { token, traceId };
    publish("error", () => ({ ...about(election), ...term, error }));
  }
}

/**
 * One request to the store.
 *
 * @param {Election} election
 * @param {object} attempt
 */
function announceAttempt(election, attempt) {
  publish("attempt", () => ({ ...about(election), ...attempt }));
}

/** What they tell with everything. @param {About} election */
function about({ name, instanceId, term }) {
  return { election: name, instanceId, token: term?.token, traceId: term?.traceId };
}

/**
 * A subscriber that throws is node's to report: it becomes an uncaught exception, and the election goes on.
 *
 * @param {keyof typeof channels} name
 * @param {() => object} message
 */
function publish(name, message) {
  const { [name]: channel } = channels;
  if (channel.hasSubscribers) channel.publish(message());
}

module.exports = { announce, announceAttempt };
