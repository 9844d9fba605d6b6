// Elections through MongoDB, with its driver: npm install mongodb.
//
// One document for each election, {_id: "cluster:<leaseName>", version, instanceId, nonce, token, leaseDuration}.
// An update of one document on a condition is atomic. Everything else is about replica sets: what a majority
// has not confirmed may be rolled back in a failover, and what was read from a member that is the primary no
// longer may be old.
import { once } from "node:events";
import { MongoServerError } from "mongodb";

const DUPLICATE_KEY = 11000;

/**
 * @param {import("mongodb").Db} db
 * @param {string} [name]  of the collection; the index that every collection has is all that it needs
 * @returns {import("whenleader").LeaseStore}
 */
export function mongoStore(db, name = "leases") {
  /** @type {import("mongodb").Collection<import("whenleader").LeaseRecord & { _id: string }>} */
  const leases = db.collection(name, {
    // Whatever the connection string says: a write counts when a majority has it.
    writeConcern: { w: "majority", journal: true, wtimeoutMS: 5_000 },
    // Waits until a majority confirms that this is the primary still. Needs the primary, and one document.
    readConcern: { level: "linearizable" },
    readPreference: "primary",
  });
  return {
    get: (key) => leases.findOne({ _id: key }, { maxTimeMS: 5_000, promoteLongs: true }),

    async compareAndSet(key, expectedVersion, value) {
      try {
        if (expectedVersion === null) {
          await leases.insertOne({ _id: key, ...value });
          return true;
        }
        const condition = { _id: key, version: String(expectedVersion) };
        const { matchedCount } = await leases.replaceOne(condition, value);
        return matchedCount === 1;
      } catch (error) {
        // Somebody else made the document first. Any other error is thrown: it may have been written.
        if (error instanceof MongoServerError && error.code === DUPLICATE_KEY) return false;
        throw error;
      }
    },

    // Change streams need a replica set. Without this function a hand-over waits for the next attempt.
    async watch(key, changed) {
      const stream = leases.watch([{ $match: { "documentKey._id": key } }], {
        readPreference: "primary",
      });
      stream.on("change", () => changed());
      stream.on("error", changed);
      // The server has answered: what changes from now on is heard.
      await once(stream, "resumeTokenChanged");
      return () => stream.close();
    },
  };
}
