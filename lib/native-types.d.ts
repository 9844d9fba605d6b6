// What lib expects of native.js (`RawNative`, which the generated native.d.ts describes as Rust sees it),
// and of whatever can stand in for it: the local cluster, and tests.

import type { LeaseStore, LossReason } from "../index.js";
import type { Client } from "./client.js";

/** About an election, or for the log. */
export type NativeEvent =
  | { type: "promoted"; election: string; token: number; traceId: string }
  | { type: "demoted"; election: string; token: number; reason: LossReason }
  | { type: "leaderChanged"; election: string; token: number; readonly instanceId: string }
  | { type: "error"; election: string; code: string; message: string; fatal: boolean }
  /** So many milliseconds after the end of the term. */
  | { type: "overrun"; election: string; token: number; traceId?: string; duration: number }
  /** Of a term, if it is about one's own lease. */
  | {
      type: "attempt";
      election: string;
      what: string;
      outcome: string;
      duration: number;
      token?: number;
      traceId?: string;
    }
  /** The election is over in this process, although nobody in this environment stopped it. */
  | { type: "left"; election: string }
  | {
      type: "log";
      level: "trace" | "debug" | "info" | "warn" | "error";
      message: string;
      fields: Record<string, string>;
    };

/** Between the addon and lib/bridge.js. */
export type BridgeEvent =
  | { type: "turn" }
  | {
      type: "done";
      operation: number;
      code?: string;
      message?: string;
      /** Of a store that refuses: its word for programs. */
      reason?: string;
      info?: ClusterInfo;
      answer?: ClientAnswer;
      /** Where a server listens. */
      address?: string;
    }
  /** What the watch heard that this operation began. */
  | { type: "hint"; operation: number; answer: ClientAnswer }
  | { type: "store"; call: StoreCall };

/** A function of a store of the application's own that is to be called. */
export interface StoreCall {
  /** 0: nothing is waited for. */
  number: number;
  store: number;
  function: "get" | "compareAndSet" | "watch" | "unwatch" | "close";
  key: string;
  /** As lib/store.js wrote it. */
  expected?: string;
  /** JSON text. */
  value?: string;
}

/** What came of one operation of a client, or what its watch heard. */
export interface ClientAnswer {
  what:
    | "held"
    | "other"
    | "released"
    | "notReleased"
    | "leader"
    | "nobody"
    | "transient"
    | "ambiguous"
    | "fatal"
    | "watching"
    | "blind"
    | "free"
    | "alive";
  token?: number;
  /** Milliseconds from the send of an attempt that was granted. */
  validFor?: number;
  /** Milliseconds from the answer that the lease of somebody else still runs. */
  remaining?: number;
  instanceId?: string;
  code?: string;
  message?: string;
}

export type Dispatch = (event: NativeEvent) => void;

export interface ClusterInfo {
  type: string;
  instanceId: string;
  leaseName: string;
  leaseDuration: number;
  renewInterval: number;
  stopTimeout: number;
  signals: boolean;
  keepAlive: boolean;
  candidate: boolean;
  /** Without a password; empty until the cluster runs. */
  store: string;
  warnings: string[];
}

/** How a transaction of the application's own depends on a term. */
export interface Guard {
  /** Which store it is, without a password. */
  store: string;
  leaseDuration: number;
  /** None: the store has no transactions. */
  statements?: GuardStatements;
}

export interface GuardStatements {
  dialect: string;
  /** Where the lease is, for people. */
  table: string;
  /** One row of one text; locks nothing. */
  check: string;
  /** The same, and bars a takeover until the transaction ends. No row: the term is over. */
  hold: string;
}

/** An election beside the cluster, as it would be started. */
export interface CheckedElection {
  info: ClusterInfo;
  /** Opaque here: the configuration with all that it took from the environment. */
  election: object;
}

/** Of a server of the Leader Election API. */
export interface ServeOptions {
  /** A URL. */
  store: string;
  baseDir: string;
  /** `host:port` */
  listen: string;
  /** As Go writes durations. */
  lease: string;
  token?: string;
  cert?: string;
  key?: string;
  allowReset: boolean;
}

export interface RawNative {
  attach(dispatch: (event: NativeEvent | BridgeEvent) => void, logLevel: string): void;
  setLogLevel(level: string): void;
  checkConfig(json: string, source: string, baseDir: string): ClusterInfo;
  startCluster(json: string, source: string, baseDir: string, operation: number): void;
  runningCluster(): ClusterInfo | null;
  checkRun(options: string): void;
  joinElection(name: string, run?: string): void;
  checkElection(
    json: string,
    source: string,
    baseDir: string,
    run?: { name: string; options: string },
  ): CheckedElection;
  startElection(election: CheckedElection["election"]): string;
  isLeaderFunction(name: string): () => boolean;
  remaining(name: string, token: number): number;
  guard(name: string, token: number): Guard | null;
  leader(name: string): { instanceId: string; token: number } | null;
  settled(name: string, token: number): void;
  stepDown(name: string, pauseMs?: number): void;
  stopElection(name: string, operation: number): void;
  stopCluster(operation: number): void;
  releaseAllNow(): boolean;
  serve(options: ServeOptions, operation: number): void;
  stopServing(operation: number): void;
  defaultInstanceId(): string;
  registerStore(name: string, watches: boolean): number;
  forgetStore(store: number): void;
  storeAnswer(
    call: number,
    version?: string,
    value?: string,
    code?: string,
    message?: string,
  ): void;
  storeChanged(watch: number, message?: string): void;
  openClient(store: number, instanceId: string, limitMs: number): number;
  clientAttempt(
    client: number,
    election: string,
    leaseDurationMs: number,
    term: number | undefined,
    operation: number,
  ): void;
  clientRelease(client: number, election: string, token: number, operation: number): void;
  clientPeek(client: number, election: string, operation: number): void;
  clientWatch(client: number, election: string, operation: number): void;
  clientUnwatch(operation: number): void;
  closeClient(client: number): void;
}

/** What lib/bridge.js makes of it. */
export interface Native {
  attach(dispatch: Dispatch, logLevel: string): void;
  setLogLevel(level: string): void;
  checkConfig(json: string, source: string, baseDir: string): ClusterInfo;
  /** `run`: of runWhenLeader(), which has a name and options of its own. */
  checkElection(
    json: string,
    source: string,
    baseDir: string,
    run?: { name: string; options: string },
  ): CheckedElection;
  /** `store`: the application's own, which the JSON names by its number. */
  startCluster(
    json: string,
    source: string,
    baseDir: string,
    store: object | null,
  ): Promise<ClusterInfo>;
  registerStore(store: LeaseStore, name: string): number;
  openClient(store: LeaseStore, how: { instanceId: string; limit: number }): Client;
  runningCluster(): ClusterInfo | null;
  /** Throws for options of runWhenLeader() that are wrong on every cluster. */
  checkRun(options: string): void;
  /** With options of runWhenLeader(), in JSON, it is this environment's alone. */
  joinElection(name: string, run?: string): ElectionSource;
  /** One beside the cluster. The name is what its events call it. */
  startElection(
    checked: CheckedElection,
    store: object | null,
  ): { name: string; source: ElectionSource };
  /** Where it listens. */
  serve(options: ServeOptions): Promise<string | undefined>;
  stopServing(): Promise<void>;
  releaseAllNow(): boolean;
  stopCluster(): Promise<void>;
  defaultInstanceId(): string;
}

/** One election, as the side that decides it sees it. */
export interface ElectionSource {
  /** Fast; works without `this`. */
  isLeader: () => boolean;
  /** Milliseconds until the deadline of that term; 0 if it is not led. */
  remaining(token: number): number;
  /** How transactions depend on that term; null: it is over. "alone": there is nobody else who could lead. */
  guard(token: number): Guard | "alone" | null;
  /** The last one seen. */
  leader(): { instanceId: string; token: number } | null;
  /** All callbacks about the end of that term have ended: owed after each "demoted". */
  settled(token: number): void;
  /** null: for as long as the source finds right. */
  stepDown(pauseMs: number | null): void;
  /** Tells "demoted" first, if it led; resolves when the lease is released, or the wait was too long. */
  stop(): Promise<void>;
}

/** A running cluster, native or local. */
export interface Provider {
  readonly info: Pick<ClusterInfo, "leaseName" | "store" | "stopTimeout"> & {
    readonly instanceId: string;
  };
  /** With options of runWhenLeader(), in JSON. */
  join(name: string, run?: string): ElectionSource;
  stop(): Promise<void>;
}
