// What `prisma generate` makes of the model in prisma.mjs, as far as it is used there.

export interface LeaseRow {
  id: string;
  version: string;
  instanceId: string | null;
  nonce: string;
  token: bigint;
  leaseDuration: number;
}

/** Prisma takes numbers where a column is a BigInt. */
export type LeaseInput = Omit<LeaseRow, "token"> & { token: bigint | number };

export interface LeaseClient {
  lease: {
    findUnique(query: { where: { id: string } }): Promise<LeaseRow | null>;
    create(query: { data: LeaseInput }): Promise<LeaseRow>;
    updateMany(query: {
      where: Partial<LeaseRow>;
      data: Partial<LeaseInput>;
    }): Promise<{ count: number }>;
  };
}
