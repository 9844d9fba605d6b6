// What runWhenLeader() runs in this thread: one piece of work for each name.

const { inspect } = require("node:util");
const { ConfigError } = require("./errors.js");
const { Run } = require("./run.js");

/** @typedef {import("./election.js").Election} Election */

/**
 * @typedef {object} Work
 * @property {Run} run
 * @property {string} options  how its election is held, in JSON
 * @property {boolean} isApart  on a store of its own: no election of the cluster is its
 */

class Works {
  /** @type {Map<string, Work>} */
  #works = new Map();

  /** @param {Work} work */
  add(work) {
    this.#works.set(work.run.election, work);
  }

  /**
   * @param {Run} run
   * @returns {Work | undefined}  what was there
   */
  delete(run) {
    const work = this.#works.get(run.election);
    if (work?.run !== run) return undefined;
    this.#works.delete(run.election);
    return work;
  }

  get runs() {
    return [...this.#works.values()].map(({ run }) => run);
  }

  /** Whose elections are the cluster's. */
  get runsOnCluster() {
    return [...this.#works.values()].filter(({ isApart }) => !isApart).map(({ run }) => run);
  }

  /**
   * The work that the cluster's election of that name belongs to.
   *
   * @param {string | undefined} name
   */
  ofElection(name) {
    const work = name === undefined ? undefined : this.#works.get(name);
    return work?.isApart === false ? work : undefined;
  }

  /** Whose work it is. @param {Election} election */
  runIn(election) {
    const run = this.ofElection(election.name)?.run;
    return run !== undefined && Run.electionOf(run) === election ? run : undefined;
  }

  /**
   * How that election is to be joined, if it is that of work. Work that outlived its cluster has no part in the next.
   *
   * @param {string} name
   */
  optionsFor(name) {
    const work = this.ofElection(name);
    return work === undefined || Run.isEnding(work.run) ? undefined : work.options;
  }

  /** @param {string} name */
  refuseTaken(name) {
    if (!this.#works.has(name)) return;
    throw takenName(
      name,
      "work of that name runs already; each needs a name of its own, and a name is free again when its done has " +
        "resolved",
    );
  }
}

/**
 * @param {string} name
 * @param {string} whom
 */
function takenName(name, whom) {
  return new ConfigError(`runWhenLeader(): the name ${inspect(name)} is taken: ${whom}`);
}

module.exports = { Works, takenName };
