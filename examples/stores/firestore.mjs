// Elections through Firestore: npm install @google-cloud/firestore (or firebase-admin, whose Firestore it is).
// Reads are consistent, and a transaction is written only if nothing that it read has changed. Each renewal is
// one read and one write: choose an interval that you want to pay for.

/**
 * @param {import("./firestore-client.js").Firestore} firestore
 * @param {string} [name]  of the collection
 * @returns {import("whenleader").LeaseStore}
 */
export function firestoreStore(firestore, name = "leases") {
  // An id cannot hold every character that the name of an election can.
  const document = (/** @type {string} */ key) =>
    firestore.collection(name).doc(encodeURIComponent(key));
  return {
    get: async (key) => (await document(key).get()).data(),

    compareAndSet: (key, expectedVersion, value) =>
      firestore.runTransaction(async (transaction) => {
        const found = await transaction.get(document(key));
        if ((found.data()?.version ?? null) !== expectedVersion) return false;
        transaction.set(document(key), value);
        return true;
      }),

    watch: (key, changed) =>
      document(key).onSnapshot(
        () => changed(),
        (error) => changed(error),
      ),
  };
}
