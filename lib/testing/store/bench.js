// Where one sentence about a store is tried: views on the store, keys that nobody else has, and time.

const { randomBytes } = require("node:crypto");
const { setTimeout: sleep } = require("node:timers/promises");
const { environment } = require("../../main.js");
const { View, fail } = require("./view.js");

/** @typedef {import("../../../index.js").LeaseStore} LeaseStore */
/** @typedef {import("../../client.js").Client} Client */

/** The most bytes that the name of an election may have. */
const NAME_LIMIT = 253;
/** What is repeated ends after so many milliseconds, so that a slow store needs no patience without end. */
const BUDGET = 3_000;
/** However slow it is. */
const LEAST_ROUNDS = 3;

/**
 * @typedef {object} Settings
 * @property {() => unknown} open
 * @property {((store: LeaseStore) => unknown) | null} close
 * @property {((key: string) => unknown) | null} remove
 * @property {number} leaseDuration
 * @property {string} leaseName
 * @property {number} callTimeout
 */

/** One instance, which makes raw attempts. */
class Contender {
  #client;

  /**
   * @param {string} id
   * @param {Client} client
   * @param {LeaseStore} store
   */
  constructor(id, client, store) {
    this.id = id;
    this.watches = typeof store.watch === "function";
    this.#client = client;
  }

  /**
   * @param {string} election
   * @param {number} leaseDuration
   * @param {number} [term]
   */
  attempt(election, leaseDuration, term) {
    return this.#client.attempt(election, leaseDuration, term);
  }

  /**
   * @param {string} election
   * @param {number} token
   */
  release(election, token) {
    return this.#client.release(election, token);
  }

  /** @param {string} election */
  peek(election) {
    return this.#client.peek(election);
  }

  /**
   * @param {string} election
   * @param {(hint: import("../../native-types").ClientAnswer) => void} hear
   */
  watch(election, hear) {
    return this.#client.watch(election, hear);
  }
}

class Bench {
  #settings;
  /** @type {Set<LeaseStore>} */
  #opened = new Set();
  #run = randomBytes(4).toString("hex");
  #names = 0;
  /** @type {Client[]} */
  #clients = [];

  /** @param {Settings} settings */
  constructor(settings) {
    this.#settings = settings;
  }

  get leaseDuration() {
    return this.#settings.leaseDuration;
  }

  get callTimeout() {
    return this.#settings.callTimeout;
  }

  get remove() {
    return this.#settings.remove;
  }

  /** @param {number} count  at least one */
  async stores(count) {
    /** @type {LeaseStore[]} */
    const stores = [];
    for (let i = 0; i < count; i += 1) {
      const store = /** @type {LeaseStore} */ (await this.#settings.open());
      for (const name of ["get", "compareAndSet"]) {
        if (typeof Reflect.get(Object(store), name) !== "function") {
          fail(
            `open() gave something without the function ${name}`,
            "it must give the store as one more process would see it: { get, compareAndSet, watch? }",
          );
        }
      }
      this.#opened.add(store);
      stores.push(store);
    }
    return stores;
  }

  /**
   * The store, as that many processes see it.
   *
   * @param {number} count
   * @returns {Promise<View[] & { 0: View, 1: View }>}
   */
  async views(count) {
    const stores = await this.stores(count);
    const views = stores.map((store) => new View(store, this.#settings.callTimeout));
    return /** @type {View[] & { 0: View, 1: View }} */ (views);
  }

  /**
   * Instances that take part in elections on the store, each in a process of its own as it were.
   *
   * @param {...string} ids
   * @returns {Promise<Contender[] & { 0: Contender, 1: Contender }>}
   */
  async contenders(...ids) {
    const stores = await this.stores(ids.length);
    const contenders = stores.map((store, i) => {
      const id = /** @type {string} */ (ids[i]);
      const client = environment.openClient(store, { instanceId: id, limit: this.callTimeout });
      this.#clients.push(client);
      return new Contender(id, client, store);
    });
    return /** @type {Contender[] & { 0: Contender, 1: Contender }} */ (contenders);
  }

  /** The name of an election of this sentence alone. */
  name(odd = "") {
    this.#names += 1;
    const { leaseName } = this.#settings;
    // One name for all that is odd, so that only the odd part differs.
    return odd === ""
      ? `${leaseName}-${this.#run}-${this.#names}`
      : `${leaseName}-${this.#run}/${odd}`;
  }

  longestName() {
    const name = this.name("x");
    return name + "x".repeat(NAME_LIMIT - Buffer.byteLength(name));
  }

  key() {
    return `cluster:${this.name()}`;
  }

  /** @returns {() => boolean}  whether the time is over */
  deadline() {
    const end = performance.now() + BUDGET;
    return () => performance.now() > end;
  }

  /**
   * @param {number} count
   * @param {() => Promise<void>} round
   */
  async rounds(count, round) {
    const over = this.deadline();
    for (let i = 0; i < count && (i < LEAST_ROUNDS || !over()); i += 1) await round();
  }

  /**
   * @param {() => boolean} holds
   * @returns {Promise<boolean>}
   */
  async eventually(holds) {
    const end = performance.now() + this.#settings.callTimeout;
    while (!holds()) {
      if (performance.now() > end) return false;
      await sleep(5);
    }
    return true;
  }

  async close() {
    for (const client of this.#clients) client.close();
    const { close } = this.#settings;
    if (close === null) return;
    for (const store of this.#opened) await close(store);
  }
}

module.exports = { Bench, Contender };
