// The conformance tests for a store of one's own. This one is a table in memory, with a column for each member of a
// record; yours would have a connection to a database in place of `table`.
import { test } from "node:test";
import { storeTests } from "whenleader/testing";

/** @typedef {import("whenleader").LeaseStore} LeaseStore */
/** @typedef {import("whenleader").LeaseRecord} LeaseRecord */

/** @implements {LeaseStore} */
class TableStore {
  /** @param {Map<string, LeaseRecord>} table */
  constructor(table) {
    this.table = table;
  }

  /** SELECT * FROM leases WHERE key = $1 @param {string} key */
  async get(key) {
    return this.table.get(key) ?? null;
  }

  /**
   * UPDATE leases SET ... WHERE key = $1 AND version = $2, and INSERT ... ON CONFLICT DO NOTHING where none is expected.
   *
   * @param {string} key
   * @param {import("whenleader").LeaseVersion | null} expectedVersion
   * @param {LeaseRecord} value
   */
  async compareAndSet(key, expectedVersion, value) {
    if ((this.table.get(key)?.version ?? null) !== expectedVersion) return false;
    this.table.set(key, value);
    return true;
  }
}

/** @type {Map<string, LeaseRecord>} */
const table = new Map();
const tests = storeTests({
  open: () => new TableStore(table),
  remove: (key) => table.delete(key),
});
for (const { name, timeout, run } of tests) test(name, { timeout }, run);
