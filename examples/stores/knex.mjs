// Elections through knex, in a table of any SQL database that knex speaks: npm install knex, and its driver.
// Of PostgreSQL and MySQL, this package's own stores are the better choice: they let the database judge expiry.
//
//   await knex.schema.createTable("leases", (table) => {
//     table.string("id", 300).primary();             // cluster:<leaseName>
//     table.string("version", 32).notNullable();
//     table.string("instanceId", 253).nullable();
//     table.string("nonce", 32).notNullable();
//     table.bigInteger("token").notNullable();       // larger than 32 bits
//     table.integer("leaseDuration").notNullable();
//   });

/**
 * @param {import("knex").Knex} knex  connected to the server that takes writes, never to a replica
 * @param {string} [table]
 * @returns {import("whenleader").LeaseStore}
 */
export function knexStore(knex, table = "leases") {
  return {
    get: (id) => knex(table).where({ id }).first(),

    async compareAndSet(id, expectedVersion, value) {
      if (expectedVersion !== null) {
        const changed = await knex(table).where({ id, version: expectedVersion }).update(value);
        return changed === 1;
      }
      try {
        await knex(table).insert({ id, ...value });
        return true;
      } catch (error) {
        // Every database has an error of its own for a key that exists: whoever finds the row knows.
        if ((await knex(table).where({ id }).first()) !== undefined) return false;
        throw error;
      }
    },
  };
}
