// What lib expects of native.js, and of whatever stands in for it: the local cluster, and tests.
// The generated native.d.ts describes the same functions as Rust sees them.

import type { LossReason } from "../index.js";

export type NativeEvent =
  | { type: "promoted"; election: string; token: number }
  | { type: "demoted"; election: string; token: number; reason: LossReason }
  | { type: "leaderChanged"; election: string; instanceId: string; token: number }
  | { type: "error"; election: string; code: string; message: string; fatal: boolean }
  | { type: "overrun"; election: string; token: number }
  | {
      type: "log";
      level: "trace" | "debug" | "info" | "warn" | "error";
      message: string;
      fields: Record<string, string | number>;
    };

export type Dispatch = (event: NativeEvent) => void;

export interface ClusterInfo {
  type: string;
  instanceId: string;
  leaseName: string;
  leaseDuration: number;
  renewInterval: number;
  stopTimeout: number;
  onOverrun: string;
  signals: boolean;
  candidate: boolean;
  /** Without a password. */
  store: string;
  warnings: string[];
}

export interface NativeElection {
  isLeader(): boolean;
  remaining(): number;
  isCurrent(token: number): boolean;
  leader(): { instanceId: string; token: number } | null;
  settled(token: number): void;
  stepDown(pauseMs: number | null): void;
  stop(): Promise<void>;
}

export interface Native {
  attach(dispatch: Dispatch, logLevel: string): void;
  setLogLevel(level: string): void;
  checkConfig(json: string, source: string, baseDir: string): ClusterInfo;
  startCluster(json: string, source: string, baseDir: string): Promise<ClusterInfo>;
  runningCluster(): ClusterInfo | null;
  joinElection(name: string): NativeElection;
  releaseAllNow(timeoutMs: number): boolean;
  stopCluster(): Promise<void>;
  defaultInstanceId(): string;
}

/** A running cluster, native or local. */
export interface Provider {
  readonly local: boolean;
  readonly info: Pick<ClusterInfo, "leaseName" | "store" | "stopTimeout"> & {
    readonly instanceId: string;
  };
  join(name: string): NativeElection;
  stop(): Promise<void>;
}
