// Raw attempts on a store of the application's own, one by one, as one process would make them: for a kit
// that tests such stores. Nothing is renewed by itself, and nobody becomes a leader by it.

/** @typedef {import("./native-types").RawNative} RawNative */
/** @typedef {import("./native-types").ClientAnswer} ClientAnswer */

/**
 * What the bridge does for a client.
 *
 * @typedef {object} Operations
 * @property {(start: (operation: number) => void) => Promise<ClientAnswer | undefined>} run
 * @property {(hear: (hint: ClientAnswer) => void, start: (operation: number) => void) =>
 *   { operation: number, ended: Promise<unknown> }} listen
 */

class Client {
  #raw;
  #operations;
  #number;
  #onClose;

  /**
   * @param {RawNative} raw
   * @param {Operations} operations
   * @param {number} number
   * @param {() => void} onClose
   */
  constructor(raw, operations, number, onClose) {
    this.#raw = raw;
    this.#operations = operations;
    this.#number = number;
    this.#onClose = onClose;
  }

  /**
   * One attempt: a campaign, or the renewal of the term of that token.
   *
   * @param {string} election
   * @param {number} leaseDuration  in milliseconds
   * @param {number} [term]
   * @returns {Promise<ClientAnswer>}  `what` is "held" or "other"; or "transient", "ambiguous" or "fatal",
   *   with `code` and `message`: it never rejects for what the store does
   */
  attempt(election, leaseDuration, term) {
    return this.#ask((operation) =>
      this.#raw.clientAttempt(this.#number, election, leaseDuration, term, operation),
    );
  }

  /**
   * @param {string} election
   * @param {number} token
   * @returns {Promise<ClientAnswer>}  `what` is "released" or "notReleased", or a failure
   */
  release(election, token) {
    return this.#ask((operation) =>
      this.#raw.clientRelease(this.#number, election, token, operation),
    );
  }

  /**
   * @param {string} election
   * @returns {Promise<ClientAnswer>}  `what` is "leader" or "nobody", or a failure
   */
  peek(election) {
    return this.#ask((operation) => this.#raw.clientPeek(this.#number, election, operation));
  }

  /**
   * @param {string} election
   * @param {(hint: ClientAnswer) => void} hear  `what` is "watching", "blind", "free" or "alive"; a store
   *   without watch() tells nothing
   * @returns {() => Promise<void>}  ends it
   */
  watch(election, hear) {
    const { operation, ended } = this.#operations.listen(hear, (number) =>
      this.#raw.clientWatch(this.#number, election, number),
    );
    return async () => {
      this.#raw.clientUnwatch(operation);
      await ended;
    };
  }

  /** Nothing else may be asked afterwards, and its watches hear nothing more. */
  close() {
    this.#raw.closeClient(this.#number);
    this.#onClose();
  }

  /**
   * @param {(operation: number) => void} start
   * @returns {Promise<ClientAnswer>}
   */
  async #ask(start) {
    const answer = await this.#operations.run(start);
    if (answer === undefined) throw new Error("whenleader was loaded anew in this thread");
    return answer;
  }
}

module.exports = { Client };
