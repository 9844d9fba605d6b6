/// <reference types="node" />

/**
 * Leader election for Node.js services: of all instances of a service, one leads, and only it runs the
 * work that must run once.
 *
 * ```js
 * import { whenLeader, useCluster } from "whenleader";
 *
 * whenLeader(
 *   (term) => { timer = setInterval(poll, 10_000); }, // this instance became the leader
 *   () => clearInterval(timer),                       // it no longer is, or is shutting down
 * );
 *
 * useCluster().isLeader(); // true only while the lease surely holds
 * ```
 *
 * Without a configuration the process is alone and always leads. With one, it takes part in an election
 * with all other instances that share the store. A configuration is looked for at the first use, never
 * at import, in this order:
 *
 * 1. what {@link startCluster} is given;
 * 2. the environment variable `WHENLEADER_CONFIG`: the path of a JSON file, or the JSON itself;
 * 3. in the working directory, then in the nearest parent that has a package.json:
 *    `whenleader.config.json`, the key `"whenleader"` of package.json, `webda.config.json`.
 *
 * All durations are milliseconds. Taking part keeps no process alive: one whose only purpose is the leader's
 * work, and which would end while it follows, sets `keepAlive: true` in its configuration.
 *
 * @packageDocumentation
 */

import type { EventEmitter } from "node:events";

/** The version of this package. */
export const version: string;

// ---- whenLeader ----

/**
 * Runs `fn` each time this instance becomes the leader, and `deregisteredFn` each time it stops leading.
 *
 * It may be called from anywhere, before or after the election started. If this instance leads already,
 * `fn` runs at once (right after the caller's own synchronous code).
 *
 * - The two never overlap: `deregisteredFn` waits until a pending `fn` has ended, and the next `fn` until
 *   a pending `deregisteredFn` has. For each `fn` that ran, `deregisteredFn` runs exactly once. If the
 *   leadership was lost and won several times meanwhile, only the newest term counts.
 * - A long `fn` should watch `term.signal`: it is aborted the moment the leadership ends, while
 *   `deregisteredFn` still waits. The lease of a term that ended by `stop()` or `stepDown()` is kept until
 *   all `deregisteredFn`s have ended (at most `stopTimeout`), so that no successor starts before.
 * - Both may be asynchronous. What they throw or reject with is logged, with the election, the token and
 *   the function's name, and changes nothing: the election goes on, and it is never an unhandled rejection. Only an
 *   `fn` that throws because its term has ended is no news.
 * - When a term begins, `isLeader()` is true first, then `promoted` is emitted, then each `fn` is called, in
 *   the order of registration. When it ends, `isLeader()` is false first, then all signals are aborted, then
 *   `demoted` is emitted, then the `deregisteredFn`s are called.
 *
 * @param fn What the leader does. It gets the {@link Term}.
 * @param deregisteredFn Undoes it. It gets the reason, and the term that ended.
 * @returns A function that removes the registration: no `fn` runs from then on, and `deregisteredFn` runs if
 *   `fn` had run (with the reason `"removed"` if this instance still leads). It may be called twice, inside
 *   of `fn`, or while the leadership is being lost. Its promise resolves when the callbacks have ended; if it
 *   is called by one of these callbacks, which it would have to wait for, at once.
 * @throws {TypeError} if an argument is of the wrong kind.
 * @throws {ConfigError} if the configuration that was found is wrong, or the store cannot hold an election
 *   of that name.
 * @throws {LoadError} if a configuration was found, and the native part cannot be loaded.
 */
export function whenLeader(
  fn: (term: Term) => unknown,
  deregisteredFn?: ((lost: LeadershipLostError, term: Term) => unknown) | null,
  options?: WhenLeaderOptions | null,
): () => Promise<void>;

export interface WhenLeaderOptions {
  /**
   * The election to take part in: each name has a leader of its own. 1 to 253 bytes; a store may have more
   * rules.
   *
   * @default the configuration's `leaseName`, which is "leader" by default
   */
  election?: string;
}

/** One unbroken leadership of this instance. */
export interface Term {
  /** The name of the election. */
  readonly election: string;

  /** This instance. */
  readonly instanceId: string;

  /**
   * The fencing token: the number of the term, larger than that of every earlier term of this election, of
   * whichever instance. Pass it along with writes, and let the receiver refuse a token that is lower than
   * one it has seen: nothing else protects from a leader that was paused in the middle of a write.
   */
  readonly token: number;

  /** Names the term in logs and traces: 32 hexadecimal digits, as in the W3C's trace context. */
  readonly traceId: string;

  /**
   * Aborted the moment the term ends, or the registration is removed, before any callback about it runs. Its
   * reason is a {@link LeadershipLostError}.
   */
  readonly signal: AbortSignal;

  /** Whether this instance leads this very term right now. Asks the clock at each call. */
  isCurrent(): boolean;

  /**
   * For how many more milliseconds this instance will lead if no renewal succeeds; 0 if the term is over, and
   * `Infinity` if the process is alone.
   */
  remaining(): number;

  /**
   * Runs `fn` in a transaction that cannot be committed once this term is over, in the database that holds the lease:
   * PostgreSQL, MySQL or MariaDB.
   *
   * ```js
   * whenLeader(async (term) => {
   *   await term.transaction(pool, async (tx) => {
   *     await tx.query("UPDATE invoices SET sent = true WHERE id = $1", [id]);
   *   });
   * });
   * ```
   *
   * The database is asked whether the term lasts before `fn` runs, and again, under a lock that bars a takeover, right
   * before COMMIT: what is committed comes before everything that a later term commits so. If the term is over, or ends
   * meanwhile, the transaction is rolled back. It is also rolled back if `fn` throws.
   *
   * `tx` is a connection of the pool in a transaction, with all that its client offers; with `postgres` the `sql` of
   * `sql.begin()`, with `knex` a `trx`. COMMIT and ROLLBACK are the library's. When the transaction is over, whatever
   * `fn` still asks of `tx` fails: it never meets a connection that somebody else has by then. If `fn` passes over an error
   * that has ended the transaction, nothing is committed, and the call rejects.
   *
   * Where nobody else could lead (a process without a configuration, {@link LocalClusterConfig}), it is an ordinary
   * transaction, which is rolled back when the term ends. docs/fencing.md says more.
   *
   * @param pool of `pg`, `postgres` (the `sql` function), `mysql2` (with callbacks or promises) or `knex`, whose database
   *   is that of the lease.
   * @returns What `fn` returned, once it is committed.
   *
   * It rejects with a {@link LeadershipLostError} if the term is over: nothing was committed. With what `fn` threw, after a
   * rollback. With the client's error if the database refuses. With an {@link ElectionError}: `WHENLEADER_TIMEOUT` after
   * `timeout`, and `WHENLEADER_TRANSACTION`, whose `reason` says what is wrong; `commit-unknown`: the answer to COMMIT did
   * not come, and nobody knows. With a TypeError if an argument is of the wrong kind.
   */
  transaction<Pool extends TransactionPool, Result>(
    pool: Pool,
    fn: (tx: TransactionOf<Pool>) => Result,
    options?: TransactionOptions,
  ): Promise<Awaited<Result>>;

  /**
   * Asks the database that holds the lease whether this term lasts, within a transaction of your own; rejects with a
   * {@link LeadershipLostError} if it does not, and nothing of the transaction can be committed then (with MySQL and
   * MariaDB it is rolled back).
   *
   * It looks once: what is committed later is not guarded by that, so it is for failing early. With `hold` it also bars
   * a takeover until the transaction ends. `verify(client)` as its first statement and `verify(client, { hold: true })`
   * as its last one, right before COMMIT, is what {@link transaction} does, which does the rest as well: the rollback
   * when the term ends meanwhile, and the connection.
   *
   * @param client the connection whose transaction is open: a client of `pg`, a connection of `mysql2`, the `sql` that
   *   `sql.begin()` of `postgres` gives, a `trx` of `knex`. Not within a savepoint.
   *
   * It rejects as {@link transaction} does. Where nobody else could lead, it asks only whether the term is over.
   */
  verify(client: TransactionClient, options?: GuardOptions): Promise<void>;
}

export interface GuardOptions {
  /**
   * Bars a takeover from now until the transaction ends: when this instance dies or hangs, nobody leads until then.
   * Renewals go on.
   *
   * @default false
   */
  hold?: boolean;

  /**
   * Milliseconds until the transaction is rolled back, counted from the call; on the server as well, for a process that
   * does not run any more. Of `verify()`: how long the server waits for the next statement of a transaction with `hold`,
   * in PostgreSQL; MySQL and MariaDB have the session's `wait_timeout` only.
   *
   * @default with `hold` the duration of the lease, else none; but the last moment, in which every transaction holds off
   *   a takeover, takes at most the duration of a lease in any case
   */
  timeout?: number;
}

export interface TransactionOptions extends GuardOptions {
  /**
   * How far the transaction is kept apart from others. The function cannot set it: its transaction has begun by then.
   *
   * @default what the database, or the session, has
   */
  isolationLevel?: "read committed" | "repeatable read" | "serializable";
}

/** A pool of `pg`, `postgres`, `mysql2` or `knex`, told by its shape. */
export type TransactionPool = object;

/** A connection or transaction of one of them. */
export type TransactionClient = object;

/** What a pool gives for a transaction. */
export type TransactionOf<Pool> = Pool extends {
  transaction<T>(scope: (trx: infer Tx) => Promise<T>, ...rest: Whatever[]): Whatever;
}
  ? Tx
  : Pool extends { begin<T>(options: string, run: (sql: infer Tx) => T): Whatever }
    ? Tx
    : Pool extends { getConnection(): Promise<infer Tx> }
      ? Tx
      : Pool extends { getConnection(then: (error: Whatever, tx: infer Tx) => Whatever): Whatever }
        ? Tx
        : Pool extends { connect(then: (error: Whatever, tx: infer Tx) => Whatever): Whatever }
          ? NonNullable<Tx>
          : Whatever;

// biome-ignore lint/suspicious/noExplicitAny: clients differ in what they declare.
type Whatever = any;

/**
 * Why a term ended.
 *
 * - `expired`: its deadline passed and no renewal had been tried: the process was paused or starved
 * - `taken`: another instance holds the lease
 * - `unreachable`: the store refused a renewal, or did not answer in time
 * - `released`: the lease was released or deleted by somebody else
 * - `steppedDown`: `stepDown()` was called, or work of `runWhenLeader()` ended by itself
 * - `stalled`: the event loop did not turn for `stallTimeout`
 * - `stopped`: `stop()` or `stopCluster()` was called, or the process is ending
 * - `removed`: the registration was removed; the instance may still lead
 */
export type LossReason =
  | "expired"
  | "taken"
  | "unreachable"
  | "released"
  | "steppedDown"
  | "stalled"
  | "stopped"
  | "removed";

// ---- runWhenLeader ----

/**
 * Runs one long piece of work on the leader only: following an upstream, relaying an outbox, holding a session,
 * consuming a topic. Each name is an election of its own, whose winner runs `work` until it has ended or
 * `term.signal` aborts.
 *
 * ```js
 * const relay = runWhenLeader("outbox-relay", async (term) => {
 *   while (!term.signal.aborted) await sendNextBatch(term);
 * });
 * await relay.stop();
 * ```
 *
 * - Work that returns, or throws, while its term lasts hands the name back. The campaign resumes after
 *   `campaignInterval`, here or elsewhere, and runs `work` from scratch. What it throws is logged.
 * - When the term ends, `term.signal` aborts, and the work has to end: its lease is not given to anybody else before
 *   its time. Whatever it throws because of that (the signal's reason, an `AbortError`, or an error that one of them
 *   caused) is a normal end; an error of its own is reported also then.
 * - Work that has not ended when its lease is about to (`leaseDuration - max(250, 1 %)` after the last renewal) ends the
 *   process with code 70, also while JavaScript is stuck in a loop: see `onOverrun`. Nothing else keeps it from overlapping
 *   with its successor.
 * - A stop (of the returned handle, by `signal`, by `stopCluster()`, or SIGTERM) aborts, waits for the work, then
 *   releases: the successor starts in milliseconds where the store can tell.
 *
 * Without a configuration the process is alone, and runs the work at once.
 *
 * @param name The election: 1 to 253 bytes; a store may have more rules.
 * @param work It gets the {@link Term}.
 * @throws {TypeError} if there is no name or no function.
 * @throws {ConfigError} if the name is taken in this thread (by other work, by `whenLeader()` or `useCluster()`, or as
 *   the cluster's default election), or an option is wrong; also if the cluster runs in this thread already, and another
 *   thread has taken the name, or the store refuses it. Before that `done` tells of these.
 */
export function runWhenLeader(
  name: string,
  work: (term: Term) => unknown,
  options?: RunOptions | null,
): Run;

export interface RunOptions {
  /** In milliseconds; 450 at least, unless one of the next two is given. @default 15000 */
  leaseDuration?: number;

  /** The time between two renewals. @default 2000, or 2/15 of `leaseDuration` if that is less, but 50 at least */
  renewInterval?: number;

  /**
   * How long the work goes on without a successful renewal; at most `leaseDuration` less 250 ms (or 1 %) and less another
   * 250 ms (or 5 %, if that is shorter), in which it ends.
   *
   * @default 2/3 of `leaseDuration`, or that most if it is less
   */
  leadLimit?: number;

  /**
   * How long this instance stays out of the election when its work ended by itself, and how often it campaigns where
   * it is not told of a free lease; up to a fifth is added at random.
   *
   * @default 5000, or a third of `leaseDuration` if that is less
   */
  campaignInterval?: number;

  /** What a failed renewal does: go on trying until `leadLimit`, or end the term at once. @default "retry" */
  onRenewError?: "stepDown" | "retry";

  /**
   * What work that outlives its lease does: end the process with code 70, or be told of: in the log, by the event
   * `overrun`, and in `overruns`. Another instance may then work at the same time.
   *
   * @default "exit"
   */
  onOverrun?: "warn" | "exit";

  /** Stops it, as `stop()` does. */
  signal?: AbortSignal;

  /**
   * A cluster of its own for this election, beside that of the process: its parameters, as {@link startCluster} takes
   * them, but no `LocalCluster`. Its name and times are those of this call. An election of the same name on the cluster of the
   * process is another one. Under a test cluster it is not used.
   */
  cluster?: Exclude<ClusterConfig, LocalClusterConfig>;
}

/** What {@link runWhenLeader} returns. */
export interface Run extends EventEmitter<RunEvents> {
  /** The name. */
  readonly election: string;

  /** How often work outlived its lease here. */
  readonly overruns: number;

  /** Whether this instance leads it: true only while the lease surely holds. */
  isLeader(): boolean;

  /**
   * Ends it: aborts, waits for the work, releases.
   *
   * @returns Resolves with `done`; inside of the work, which it would wait for, at once.
   */
  stop(): Promise<void>;

  /**
   * Resolves when it was stopped and its work has ended; the name is free again then. Rejects if this instance cannot
   * take part in the election, because the cluster that was found cannot be started, or (where it did not run when
   * this began) the store does not take its name or lease, or another thread has the name; never an unhandled rejection.
   * Whoever reads it keeps the process alive until then, also as a follower: `await runWhenLeader(…).done`.
   */
  readonly done: Promise<void>;
}

export interface RunEvents extends ClusterEvents {
  /** Work has not ended although its lease is about to; with `onOverrun: "warn"`. */
  overrun: [error: ElectionError];
}

/**
 * The term for which the present code runs: anywhere inside of the work of {@link runWhenLeader}, or of a callback of
 * {@link whenLeader} until that has ended, also behind an `await` or a timer. A logger can add it to every line.
 */
export function currentTerm(): Term | undefined;

// ---- useCluster ----

/**
 * The election to ask about: without a name, the default one of the first cluster configured. It may be had
 * before the cluster starts, and stays the same object when the cluster is stopped and started again.
 *
 * @param name Another election of the same cluster, joined at the first use.
 * @throws {TypeError} if the name is not a string of 1 to 253 bytes.
 * @throws {ConfigError} if the configuration that was found is wrong.
 * @throws {LoadError} if a configuration was found, and the native part cannot be loaded.
 */
export function useCluster(name?: string): Cluster;

export interface ClusterEvents {
  /** This instance became the leader. */
  promoted: [term: Term];
  /** It no longer is. All signals have been aborted; the `deregisteredFn`s have not run yet. */
  demoted: [lost: LeadershipLostError, term: Term];
  /** Another leader than before was seen, perhaps this instance. */
  leaderChanged: [leader: Leader];
  /** The store was lost, or callbacks did not end in time. It is logged in any case, and never throws. */
  error: [error: ElectionError];
}

export interface Leader {
  readonly instanceId: string;
  readonly token: number;
}

/** One election, as this instance sees it. Errors of listeners are logged. */
export interface Cluster extends EventEmitter<ClusterEvents> {
  /** The name of the election; undefined as long as no configuration is known. */
  readonly election: string | undefined;

  /**
   * Whether this instance leads: true only while the lease surely holds. Compares with the clock at each call,
   * so it is right also after a blocked event loop, a stopped process or a suspended machine. Costs well below
   * a microsecond. False until the cluster has started.
   *
   * A process without a configuration is alone, and is told true from the first question on, which makes it too
   * late to start a cluster: one that asks before it does so, as health probes do, calls {@link expectCluster} first.
   */
  isLeader(): boolean;

  /**
   * The id of this instance, unique per process: `<HOSTNAME or hostname()>-<pid>-<random>` unless it is
   * configured.
   */
  getInstanceId(): string;

  /**
   * The last leader that this instance has seen. It may be gone: this is for people, not for decisions. Kept
   * after a demotion and after `stop()`; null if none was seen yet.
   */
  getLeader(): Leader | null;

  /**
   * Resolves with the term as soon as this instance leads; at once if it does. Keeps the process alive while it
   * waits.
   *
   * It rejects with an {@link ElectionError}: code `WHENLEADER_TIMEOUT` after `timeout` milliseconds (default:
   * never), `WHENLEADER_STOPPED` if the election is stopped; and with the signal's reason when it is aborted.
   */
  waitUntilLeader(options?: { timeout?: number; signal?: AbortSignal }): Promise<Term>;

  /**
   * Hands the leadership over: runs the `deregisteredFn`s, then releases the lease, and stays out of the
   * election for `pause` milliseconds (default: `leaseDuration`; a process that is alone leads again at once;
   * more than a year counts as a year).
   * `isLeader()` is false from the call on.
   *
   * @returns Resolves when the callbacks of the term have ended; inside of a callback at once.
   */
  stepDown(options?: { pause?: number }): Promise<void>;

  /**
   * Leaves this election for good, and ends its registrations: runs the `deregisteredFn`s, waits for them (at
   * most `stopTimeout`), then releases the lease. No `fn` runs after the call, also if the cluster has not started
   * yet. When all elections are left, the cluster is stopped as by {@link stopCluster}.
   *
   * @returns Resolves when the lease is released; inside of a callback, whose end it would wait for, at once.
   */
  stop(): Promise<void>;
}

// ---- the cluster ----

/**
 * Starts the cluster of this process. Not needed if the configuration lies where it is looked for.
 *
 * @param config The parameters of a cluster ({@link ClusterConfig}), as they are or in one of the forms that a
 *   file has: `{ cluster: { ... } }`, or `{ services: { ... } }` as in Webda. Left out: what is looked for.
 *   `${NAME}` in a string is taken from the environment.
 * @returns What {@link useCluster} gives. Resolves when the store answered, or when it is merely away for now
 *   (then `error` tells it); this instance need not lead yet.
 *
 * It rejects with a {@link ConfigError} that names the parameter, the value and what would be right; also if a
 * cluster of another configuration runs already, or if the process already acted as its only leader, because no
 * configuration was there at the first use: one `isLeader()` that answered true is enough ({@link expectCluster}
 * tells what counts, and keeps health probes from it). With a {@link LoadError} if the native part cannot be
 * loaded. With an {@link ElectionError} of the code `WHENLEADER_STORE` if the store refuses for good.
 */
export function startCluster(
  config?: ClusterConfig | { cluster: ClusterConfig } | object,
  options?: StartOptions,
): Promise<Cluster>;

/**
 * What a configuration may say. Every bad value, and every name that is not known, is refused at start with a
 * {@link ConfigError}.
 */
export type ClusterConfig =
  | StoreClusterConfig
  | KubernetesClusterConfig
  | LeaderApiClusterConfig
  | LocalClusterConfig;

/** With or without what Webda puts around a name: `Webda/StoreClusterService` is `StoreCluster`. */
export type TypeName<Name extends string> = `${"Webda/" | ""}${Name}${"Service" | ""}`;

/** Instances elect through a store. */
export interface StoreClusterConfig extends CommonConfig {
  type?: TypeName<"StoreCluster">;

  /**
   * The store: `file:<directory>`, a URL such as `redis://:${REDIS_PASSWORD}@redis.internal:6379`,
   * `postgres://app:${PGPASSWORD}@db.internal/shop`, `mysql://app:${DB_PASSWORD}@db.internal/shop`,
   * `etcd://etcd-1:2379,etcd-2:2379`, `nats://nats-1:4222`, `consul://127.0.0.1:8500`, `s3://my-bucket/leases` or
   * `dynamodb://my-table`, or, given to {@link startCluster}, a store of your own.
   *
   * @default "file:.whenleader" beside the configuration file
   */
  store?: string | LeaseStore;

  /** The same as `store`, in the words of configurations that name a registry. */
  registry?: string | LeaseStore;

  /**
   * Redis: how many replicas must have a write before it counts.
   *
   * @default none
   */
  minReplicas?: number;
}

/**
 * A store of your own, for a database or a registry that this package does not speak to: two functions over one
 * record for each election, by its key `cluster:<leaseName>`.
 *
 * ```js
 * const records = new Map(); // of this process only: an example, and good for tests
 * const store = {
 *   get: (key) => records.get(key) ?? null,
 *   compareAndSet(key, expectedVersion, value) {
 *     if ((records.get(key)?.version ?? null) !== expectedVersion) return false;
 *     records.set(key, value);
 *     return true;
 *   },
 * };
 * await startCluster({ type: "StoreCluster", store });
 * ```
 *
 * What is asked of it:
 *
 * - **compareAndSet is one atomic operation**: of two calls with one expected version, at most one writes. A read
 *   followed by a write is none.
 * - **get shows every write that was answered before it was called.** A read from a replica or a cache does not.
 * - **What was answered stays written.** A database that may lose its last writes in a failover may make two
 *   leaders for a moment.
 *
 * The functions are called on the thread that called `startCluster()`, with the store as `this`. They may return
 * values or promises. What they throw, or return wrongly, is an `error` event of the cluster and never a crash; a
 * promise that does not settle is given up in time. A leader renews through the event loop: if that is blocked for
 * too long, leadership ends at its deadline. At process.exit() no function can be called any more, and the lease
 * runs out by itself; {@link stopCluster} releases it.
 */
export interface LeaseStore {
  /**
   * Reads the record. null or undefined: there is none. The record may have more members than
   * {@link LeaseRecord}, its numbers may be bigints or text, and all of it may be JSON text or a Buffer of it.
   */
  get(key: string): Awaitable<StoredLeaseRecord | string | Uint8Array | null | undefined>;

  /**
   * Writes `value` if the record is of the version `expectedVersion`: the `version` that `get` would answer
   * with. null: if there is no record.
   *
   * @returns `true`: it was written, and `get` answers with `value.version`. `false`: somebody else wrote first, and
   *   nothing was written. A store with versions of its own (an ETag, a revision) returns the new one: a string, or
   *   an object with the member `version`, such as the row that was written. Anything else is an error.
   */
  compareAndSet(
    key: string,
    expectedVersion: LeaseVersion | null,
    value: LeaseRecord,
  ): Awaitable<boolean | string | { readonly version: LeaseVersion }>;

  /**
   * Calls `changed` whenever the record may have changed, so that a hand-over does not wait for the next attempt.
   * A hint only: one that is lost or invented costs time at most. `changed(error)` says that the watch broke, and
   * it is begun again after a pause.
   *
   * @returns how to end it.
   */
  // biome-ignore lint/suspicious/noConfusingVoidType: one that returns nothing is fine.
  watch?(key: string, changed: (error?: unknown) => void): Awaitable<(() => unknown) | void>;
}

/**
 * As `get` answers and as `compareAndSet` is then given it, in its own type. Each write must have another one, so a
 * time is none: two writes within one tick of its clock would share it.
 */
export type LeaseVersion = string | number | bigint | Uint8Array;

/** What a store of your own keeps for an election. Flat, so that it maps to columns. */
export interface LeaseRecord {
  /** A fresh random word in every write: 16 characters. */
  version: string;
  /** Who holds the lease: at most 253 bytes. null: it was released. */
  instanceId: string | null;
  /** Tells processes of one `instanceId` apart: 16 characters. */
  nonce: string;
  /** The fencing token: below 2^53, and larger than any 32-bit integer. It stays when the lease is released. */
  token: number;
  /** Milliseconds: at most a day. 0: it was released. */
  leaseDuration: number;
}

/** A record as a store may give it back. */
export interface StoredLeaseRecord {
  readonly version: LeaseVersion;
  readonly instanceId?: string | null;
  readonly nonce?: string | null;
  readonly token?: number | bigint | string | object | null;
  readonly leaseDuration?: number | bigint | string | object | null;
}

/** A value, or a promise of it. */
export type Awaitable<Value> = Value | PromiseLike<Value>;

/**
 * Pods elect through a Lease of their Kubernetes cluster. They need the rights to get, create and update Leases of
 * its namespace; with the right to watch, a hand-over takes milliseconds, and without it until the next attempt.
 */
export interface KubernetesClusterConfig extends CommonConfig {
  type: TypeName<"KubernetesCluster">;

  /**
   * Where the Leases lie.
   *
   * @default the environment variable POD_NAMESPACE, else the namespace of the kubeconfig's context or of the pod's
   * service account, else "default"
   */
  namespace?: string;

  /**
   * The path of a kubeconfig; a relative one starts at the configuration file.
   *
   * @default the files that the environment variable KUBECONFIG lists, else the pod's service account, else
   * ~/.kube/config
   */
  config?: string;

  /**
   * The context of the kubeconfig. Where it is given, the pod's service account does not count.
   *
   * @default the kubeconfig's current-context
   */
  context?: string;

  /**
   * Milliseconds that one operation may wait for the API server, with all that is tried again within it: 100 up to the
   * time that a leader trusts its lease.
   *
   * @default as long as the election waits: `renewInterval`, or until the deadline for a renewal
   */
  timeout?: number;

  /**
   * Labels this process's pod `whenleader/role=leader` or `follower`, so that a Service can select the leader of the
   * election {@link CommonConfig.leaseName | leaseName}. It needs the right to patch pods, and the pod's name in the
   * environment variable POD_NAME, else HOSTNAME. A label is late by a moment: who answers for the leader asks
   * {@link Cluster.isLeader} first.
   *
   * @default false
   */
  podLabels?: boolean;
}

/**
 * Instances elect with a Leader Election API: a small HTTP service decides, and says how long its leases last.
 * The same for one election of its own: {@link LeaderElection}. What is not given comes from the environment.
 */
export interface LeaderApiClusterConfig
  extends Omit<
      CommonConfig,
      "leaseDuration" | "renewInterval" | "leaseName" | "instanceId" | "leadLimit" | "onRenewError"
    >,
    LeaderApiOptions {
  type: TypeName<"LeaderApiCluster">;
}

/** How to reach a Leader Election API, and as whom. */
export interface LeaderApiOptions {
  /**
   * Where it is: `http://<host>[:<port>]` or `https://...`, with a path if it has one, and with `?ca=<file>`,
   * `?cert=<file>&key=<file>` for certificates in PEM that are trusted and shown.
   *
   * @default "http://<KELVIN_LEADER_API_ADDRESS>:<KELVIN_LEADER_API_PORT>"
   */
  url?: string;

  /**
   * What to compete for: a KRN, `krn:<kind>:<name>`.
   *
   * @default "krn:app:<KELVIN_APP_NAME>"
   */
  resource?: string;

  /**
   * Who this process is. `whenleader serve` tells two processes of one identity apart; another server would tell
   * both that they lead, so it must be unique there.
   *
   * @default "krn:wl:<KELVIN_CLUSTER_NAME>/<KELVIN_WORKLOAD_NAME>"; where these are not set and a `url` is given,
   * "<HOSTNAME or hostname()>-<pid>-<random>"
   */
  identity?: string;

  /** A bearer token that the server asks for. */
  token?: string;

  /**
   * What a failed check-in does: end the term at once, or go on trying until the lease is about to end.
   *
   * @default "retry"
   */
  onRenewError?: "stepDown" | "retry";
}

/** One instance, which always leads. What a process without a configuration has. */
export interface LocalClusterConfig extends CommonConfig {
  type: TypeName<"LocalCluster">;
}

/** What every cluster may be given. Durations are milliseconds. */
export interface CommonConfig {
  /**
   * How long a lease is valid without renewal: at most a day. On Kubernetes at least 1000, and written in whole seconds,
   * rounded up.
   *
   * @default 15000
   */
  leaseDuration?: number;

  /**
   * The time between two attempts, at least 50. A third of `leaseDuration` is usual.
   *
   * @default 5000
   */
  renewInterval?: number;

  /**
   * The default election. Applications that share a store, or a namespace of Kubernetes, need names of their own.
   * On Kubernetes it is the name of the Lease: lower-case letters, digits, `-` and `.`.
   *
   * @default "leader"
   */
  leaseName?: string;

  /**
   * Unique per process.
   *
   * @default "<HOSTNAME or hostname()>-<pid>-<random>"
   */
  instanceId?: string;

  /**
   * `false`: this instance never leads, and only watches who does.
   *
   * @default true
   */
  candidate?: boolean;

  /**
   * What a failed renewal does: end the term at once, or go on trying until its deadline.
   *
   * @default "stepDown"
   */
  onRenewError?: "stepDown" | "retry";

  /**
   * How long a leader trusts its last renewal: at most `leaseDuration - max(250, 1 %)`; with `onOverrun: "exit"`
   * another `min(250, 5 %)` less, in which callbacks may end.
   *
   * @default min((leaseDuration + renewInterval) / 2, that most)
   */
  leadLimit?: number;

  /**
   * What callbacks that outlive a lost lease do: a warning, or the end of the process with code 70.
   *
   * @default "warn"
   */
  onOverrun?: "warn" | "exit";

  /**
   * How long a stop waits for callbacks; one by a signal waits 100 ms less, or a quarter, to release the lease then. In
   * a pod, terminationGracePeriodSeconds must be longer.
   *
   * @default leaseDuration
   */
  stopTimeout?: number;

  /**
   * An event loop that did not turn for so long gives the leadership up; 0: it never does.
   *
   * @default 4 * leaseDuration
   */
  stallTimeout?: number;

  /**
   * Stop by itself on SIGTERM and SIGINT, if the application has no listener of its own.
   *
   * @default true
   */
  signals?: boolean;

  /**
   * Keep the process alive as long as the cluster runs.
   *
   * @default false
   */
  keepAlive?: boolean;

  /** Where to log; only in JavaScript, since JSON has no place for it. */
  logger?: Logger;
}

export interface StartOptions {
  /**
   * Where to log. The parameter `logger` of the configuration does the same.
   *
   * @default warnings and errors to stderr
   */
  logger?: Logger;
}

/**
 * Console-shaped, and called with one line of text; or a pino logger (also bunyan's or Fastify's), and called
 * with an object of fields and a message. Its `level` counts, else "info"; the environment variable
 * `WHENLEADER_LOG` (silent, error, warn, info, debug) overrides it. Its own errors change nothing.
 */
export interface Logger {
  error: LogMethod;
  warn: LogMethod;
  info: LogMethod;
  debug?: LogMethod;
}

// biome-ignore lint/suspicious/noExplicitAny: loggers differ in what they declare to take.
export type LogMethod = (...values: any[]) => unknown;

/**
 * Says that {@link startCluster} will be called, so that nobody leads before: registrations wait for it. Call it
 * at the top of an application that learns its configuration only later.
 *
 * Before it, a process without a configuration is alone and leads. It has acted on that, and it is too late for a
 * cluster, once a `fn` was run, `isLeader()` answered true, `waitUntilLeader()` gave a term, or a listener of
 * `promoted` was called: work may be going on. A question that is asked before the start, as by a health probe,
 * is enough; with this call before it, it is answered false, and no start fails.
 *
 * @throws {ConfigError} if the process has already acted as its only leader.
 */
export function expectCluster(): void;

/**
 * Stops all elections of this process's cluster, as {@link Cluster.stop} does, and closes what it opened. Until
 * `startCluster()` is called again, nobody leads here. A {@link LeaderElection} is none of them: it has a `stop()` of
 * its own.
 *
 * Called by the main thread, it stops those of worker threads too; a worker joins the next cluster of its process
 * at its next call of {@link whenLeader}, {@link useCluster} or {@link startCluster}. Called by a worker, it stops
 * that worker's part only.
 *
 * SIGTERM and SIGINT do the same before they end the process, if the application has no listener of its own
 * for them (the parameter `signals: false` switches that off). At process.exit(), an uncaught exception, or when
 * nothing is left to do, the lease is released as well, but no callback runs.
 *
 * @returns Resolves when leases are released and connections closed; inside of a callback, whose end it would
 *   wait for, at once.
 */
export function stopCluster(): Promise<void>;

// ---- errors ----

/** Of a {@link LeaderElection}. */
export interface LeaderElectionOptions extends LeaderApiOptions {
  /** How many milliseconds {@link LeaderElection.stop} waits for a hook, or for an answer to a check-in. @default 5000 */
  stopTimeout?: number;

  /** An event loop that did not turn for so many milliseconds gives the leadership up; 0: never. @default 20000 */
  stallTimeout?: number;

  /** What a hook that outlives a lost lease does: a warning, or the end of the process with code 70. @default "warn" */
  onOverrun?: "warn" | "exit";

  /** Stop by itself on SIGTERM and SIGINT, if the application has no listener of its own. @default true */
  signals?: boolean;

  /** Keep the process alive as long as it is started. @default false */
  keepAlive?: boolean;

  /** Where to log. @default the console, from warnings on */
  logger?: Logger;
}

/**
 * One election with a Leader Election API, beside the cluster of the process and without it: for programs on an
 * edge cluster where a small HTTP service decides, or with `whenleader serve`.
 *
 * ```js
 * import { LeaderElection } from "whenleader";
 *
 * const election = new LeaderElection(); // or { url: "http://127.0.0.1:8080", resource: "krn:app:orders", identity }
 * election.onPromoted = () => publisher.start();
 * election.onDemoted = () => publisher.stop();
 * await election.start();
 * ```
 *
 * It checks in three times a lease, each time up to a fifth earlier or later, and leads until shortly before the end
 * of the lease that it was granted, counted from the moment before the check-in was sent. A check-in that fails
 * changes nothing: it is tried again until the lease is about to end.
 *
 * Without a `url`, where the environment does not say with whom to elect, or says it wrongly, it warns once and is
 * disabled: `isLeader` stays false. Bad options are thrown as a {@link ConfigError}.
 */
export class LeaderElection extends EventEmitter<ClusterEvents> {
  constructor(options?: LeaderElectionOptions);

  /** Whether this process leads: true only while the lease surely holds, compared with the clock at each read. */
  readonly isLeader: boolean;

  /** The identity of the last leader seen; kept after a demotion and after `stop()`. */
  readonly currentLeader: string | null;

  /** What it competes for; null if it is disabled. */
  readonly resource: string | null;

  /** Who it is; null if it is disabled. */
  readonly identity: string | null;

  /**
   * Runs each time this process becomes the leader. May be asynchronous; what it throws is logged. Given by
   * assignment or by a call; the next one replaces it, null clears it.
   */
  get onPromoted(): LeaderElectionHookSlot;
  set onPromoted(hook: LeaderElectionHook | null);

  /**
   * Runs each time it stops leading, after `onPromoted` has ended; also on `stop()`. Not for a term that was over
   * before its `onPromoted` was due, because the hooks of an earlier one still ran.
   */
  get onDemoted(): LeaderElectionHookSlot;
  set onDemoted(hook: LeaderElectionHook | null);

  /** Begins to check in. Does nothing while it is started, or disabled. It can be started again after a stop. */
  start(): Promise<void>;

  /**
   * Demotes at once, runs `onDemoted`, and releases the lease if the server can (`whenleader serve` can; elsewhere it
   * runs out). No answer that is still under way brings leadership back.
   *
   * @returns Resolves when the hooks of every session have ended and the lease is released, or their time
   *   (`stopTimeout`) is over; inside of a hook at once.
   */
  stop(): Promise<void>;

  /**
   * @param timeout milliseconds; default: for ever. Keeps the process alive while it waits.
   * @returns true as soon as this process leads; false after the timeout, on `stop()`, and if it is disabled.
   */
  waitUntilLeader(timeout?: number): Promise<boolean>;
}

export type LeaderElectionHook = () => unknown;

/** Takes the hook as its argument, and returns it. */
export type LeaderElectionHookSlot = <Hook extends LeaderElectionHook>(hook: Hook) => Hook;

/** The configuration cannot be used, or comes too late. The message names the cure. */
export class ConfigError extends Error {
  constructor(message: string, options?: { cause?: unknown });
  readonly code: "WHENLEADER_CONFIG";
}

/** The native part of the package cannot be loaded. The message names the package that is missing. */
export class LoadError extends Error {
  constructor(message: string, options?: { cause?: unknown });
  readonly code: "WHENLEADER_LOAD";
}

/** A term is over: the reason of its signal, and what `deregisteredFn` and `demoted` are told. */
export class LeadershipLostError extends Error {
  constructor(election: string, token: number, reason: LossReason);
  readonly code: "WHENLEADER_LOST";
  readonly reason: LossReason;
  readonly election: string;
  readonly token: number;
}

/** Something about an election that is neither its configuration nor the loss of a term. */
export interface ElectionError extends Error {
  /**
   * - `WHENLEADER_STORE`: the store fails, or the election on it; `reason` says how
   * - `WHENLEADER_OVERRUN`: callbacks of a lost term have not ended although its lease is about to
   * - `WHENLEADER_TIMEOUT`, `WHENLEADER_STOPPED`: of `waitUntilLeader()`; the first one also of a transaction that took
   *   too long, the second one of a `startCluster()` that was stopped meanwhile
   * - `WHENLEADER_TRANSACTION`: of {@link Term.transaction} and {@link Term.verify}; `reason` says what
   */
  readonly code:
    | "WHENLEADER_STORE"
    | "WHENLEADER_OVERRUN"
    | "WHENLEADER_TIMEOUT"
    | "WHENLEADER_STOPPED"
    | "WHENLEADER_TRANSACTION";
  readonly election: string | undefined;
  /**
   * A word for programs. Of `WHENLEADER_STORE`: `unreachable`, `timeout`, `refused`, `read-only`, `overloaded`, ... tell
   * what the store did; `token-went-back` that it forgot what it had been told (its data was lost or replaced);
   * `id-shared` that another instance has the same `instanceId`; `campaign-died` that this instance's part in the
   * election failed and was begun again; `config` that a configuration that was found cannot be used, and `cause`
   * is the {@link ConfigError}.
   *
   * Of `WHENLEADER_TRANSACTION`: `commit-unknown` (the answer to COMMIT did not come), `no-transactions` (the lease is in
   * a store that has none), `other-database` (the client's is not that of the lease), `no-transaction` (`verify()` was
   * called outside of one), `ended-early` (the function ended it by itself), `refused` (a right is missing), `read-only`,
   * `bad-table`.
   */
  readonly reason: string | undefined;
  /** It will not mend by itself. */
  readonly fatal: boolean;
  /** Of `WHENLEADER_OVERRUN`: the term whose callbacks have not ended, and its trace id. */
  readonly token?: number;
  readonly traceId?: string;
}
