// Time that passes only when a test says so, in milliseconds from zero.

class VirtualClock {
  #now = 0;
  /** In the order in which they were asked for. @type {Set<{ at: number, then: () => void }>} */
  #agenda = new Set();

  get now() {
    return this.#now;
  }

  /**
   * In place of setTimeout(): it keeps no process alive.
   *
   * @param {number} ms
   * @param {() => void} then
   * @returns {() => void}  takes it back
   */
  after = (ms, then) => {
    const entry = { at: this.#now + ms, then };
    this.#agenda.add(entry);
    return () => this.#agenda.delete(entry);
  };

  /** When something is due next, at the earliest now. */
  get next() {
    return Math.min(...[...this.#agenda].map(({ at }) => at));
  }

  /** @param {number} moment */
  moveTo(moment) {
    this.#now = Math.max(this.#now, moment);
  }

  runDue() {
    const due = [...this.#agenda].filter(({ at }) => at <= this.#now);
    for (const entry of due.sort((one, other) => one.at - other.at)) {
      if (this.#agenda.delete(entry)) entry.then();
    }
  }
}

module.exports = { VirtualClock };
