// Elections through Prisma, in a table of whatever database it speaks to.
//
//   model Lease {
//     id            String  @id // cluster:<leaseName>
//     version       String
//     instanceId    String?
//     nonce         String
//     token         BigInt // larger than 32 bits
//     leaseDuration Int
//   }

/** Prisma's error for a row that exists. */
const UNIQUE_CONSTRAINT = "P2002";

/**
 * @param {import("./prisma-client.js").LeaseClient} prisma  the PrismaClient, without read replicas
 * @returns {import("whenleader").LeaseStore}
 */
export function prismaStore({ lease }) {
  return {
    get: (id) => lease.findUnique({ where: { id } }),

    async compareAndSet(id, expectedVersion, value) {
      try {
        if (expectedVersion === null) {
          await lease.create({ data: { id, ...value } });
          return true;
        }
        // updateMany, since it takes any condition and tells how many rows fulfilled it: one statement.
        const where = { id, version: String(expectedVersion) };
        const { count } = await lease.updateMany({ where, data: value });
        return count === 1;
      } catch (error) {
        if (error instanceof Error && Reflect.get(error, "code") === UNIQUE_CONSTRAINT)
          return false;
        throw error;
      }
    },
  };
}
