// Stores of one's own, as applications might write them.

/** Records in memory: what a database is to the functions over it. */
class MemoryStore {
  records = new Map();
  calls = [];
  #watches = new Map();

  async get(key) {
    this.calls.push(["get", key]);
    return this.records.get(key) ?? null;
  }

  async compareAndSet(key, expectedVersion, value) {
    this.calls.push(["compareAndSet", key, expectedVersion, value]);
    return this.set(key, expectedVersion, value);
  }

  set(key, expectedVersion, value) {
    if ((this.records.get(key)?.version ?? null) !== expectedVersion) return false;
    this.records.set(key, { ...value });
    for (const changed of this.#watches.get(key) ?? []) changed();
    return true;
  }

  onChange(key, changed) {
    const watches = this.#watches.get(key) ?? new Set();
    this.#watches.set(key, watches);
    watches.add(changed);
    return () => watches.delete(changed);
  }

  get watches() {
    return [...this.#watches.values()].reduce((sum, one) => sum + one.size, 0);
  }
}

module.exports = { MemoryStore };
