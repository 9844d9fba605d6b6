// Elections through Mongoose: npm install mongoose. The reasons of each setting are in mongodb.mjs.
import mongoose from "mongoose";

const DUPLICATE_KEY = 11000;

const schema = new mongoose.Schema(
  {
    _id: String, // cluster:<leaseName>
    version: { type: String, required: true },
    instanceId: { type: String, default: null },
    nonce: String,
    token: Number,
    leaseDuration: Number,
  },
  {
    collection: "leases",
    // Mongoose's own version of a document would be one more thing to compare.
    versionKey: false,
    writeConcern: { w: "majority", j: true, wtimeout: 5_000 },
    readConcern: { level: "linearizable" },
    read: "primary",
  },
);

/**
 * @param {import("mongoose").Connection} connection
 * @returns {import("whenleader").LeaseStore}
 */
export function mongooseStore(connection) {
  /** @type {import("mongoose").Model<import("mongoose").InferSchemaType<typeof schema>>} */
  const Lease = connection.models.Lease ?? connection.model("Lease", schema);
  return {
    // lean(): the plain document, without getters and hooks.
    get: (key) => Lease.findById(key).maxTimeMS(5_000).lean(),

    async compareAndSet(key, expectedVersion, value) {
      try {
        if (expectedVersion === null) {
          await Lease.create({ _id: key, ...value });
          return true;
        }
        const condition = { _id: key, version: String(expectedVersion) };
        const { matchedCount } = await Lease.replaceOne(condition, value);
        return matchedCount === 1;
      } catch (error) {
        if (error instanceof mongoose.mongo.MongoServerError && error.code === DUPLICATE_KEY) {
          return false;
        }
        throw error;
      }
    },
  };
}
