// Of @google-cloud/firestore, what is used in firestore.mjs: its own types come with hundreds of packages.

export interface DocumentSnapshot {
  data(): import("whenleader").StoredLeaseRecord | undefined;
}

export interface DocumentReference {
  get(): Promise<DocumentSnapshot>;
  onSnapshot(
    onNext: (snapshot: DocumentSnapshot) => void,
    onError?: (error: Error) => void,
  ): () => void;
}

export interface Transaction {
  get(document: DocumentReference): Promise<DocumentSnapshot>;
  set(document: DocumentReference, data: object): Transaction;
}

export interface Firestore {
  collection(name: string): { doc(id: string): DocumentReference };
  runTransaction<Result>(
    work: (transaction: Transaction) => Promise<Result>,
    options?: { maxAttempts?: number },
  ): Promise<Result>;
}
