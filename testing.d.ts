/// <reference types="node" />

/**
 * For your own tests: a cluster on a virtual clock, for an application that uses `whenleader`, and the conformance
 * tests for a store of your own. Any test runner will do.
 *
 * ```js
 * import { useTestCluster } from "whenleader/testing"; // before the application
 * import { poller } from "./poller.js"; // calls whenLeader()
 *
 * test("polls on the leader only", async () => {
 *   const cluster = useTestCluster();
 *   await cluster.promote(); // this instance leads, and each fn has run
 *   assert.equal(poller.running, true);
 *   await cluster.demote(); // another one does, and each deregisteredFn has run
 *   assert.equal(poller.running, false);
 *   await cluster.restore(); // in afterEach(), best
 * });
 * ```
 *
 * Importing it changes one thing: this process no longer leads by itself without a configuration, and looks for
 * none. Registrations wait for {@link useTestCluster} (or for `startCluster()`). So import it before the application:
 * in the test file, or in the set-up file of the test runner (`node --test --import whenleader/testing`, `setupFiles`
 * of Jest and Vitest).
 *
 * @packageDocumentation
 */

import type { Awaitable, Leader, LeaseStore, Logger, LossReason, Term } from "./index.js";

// ---- testing an application ----

/**
 * Puts a cluster that obeys your test in the place of any other. The application uses `whenLeader()`,
 * `useCluster()`, `startCluster()` (whose configuration then has no meaning) and `stopCluster()` as always. Nobody
 * leads before {@link TestElection.promote}.
 *
 * Time is the test's: the lease is renewed, runs out, and pauses end only in {@link TestCluster.advance}. Also the
 * timeouts of `waitUntilLeader()`, of calls made while the test cluster runs. No native code is loaded (but to check
 * options of `runWhenLeader()`), no thread is started, no file is written and no timer is left behind.
 *
 * Many can follow each other in one process, one at a time: await {@link TestCluster.restore} before the next.
 *
 * @throws {ConfigError} if an option is wrong; if a real cluster or another test cluster runs in this process; if this
 * process has already led without a configuration, because the application was used before this module was imported.
 */
export function useTestCluster(options?: TestClusterOptions): TestCluster;

/** Durations are virtual milliseconds; what `ClusterConfig` has too means the same. */
export interface TestClusterOptions {
  /** @default "leader" */
  leaseName?: string;
  /** @default "test-<pid>" */
  instanceId?: string;
  /** @default 15000 */
  leaseDuration?: number;
  /** @default 5000 */
  renewInterval?: number;
  /** @default min((leaseDuration + renewInterval) / 2, leaseDuration - max(250, 1 %)) */
  leadLimit?: number;
  /** @default leaseDuration */
  stopTimeout?: number;
  /** @default "stepDown" */
  onRenewError?: "stepDown" | "retry";
  /** @default true */
  candidate?: boolean;

  /**
   * Which calls of `whenLeader()`, and which listeners of cluster objects, are there again for the next test cluster:
   *
   * - `"earlier"`: those made before this test cluster. Modules register once, when they are imported; what a test
   *   registers belongs to that test.
   * - `"all"`: also those made since, for modules that are imported within a test, and stay loaded.
   * - `"none"`.
   *
   * What the application itself removed stays removed.
   *
   * @default "earlier"
   */
  keepRegistrations?: "earlier" | "all" | "none";

  /**
   * Moves the fake timers of your test runner, so that {@link TestCluster.advance} moves the application's timers and
   * its election together, in steps of a tenth of `renewInterval` at most.
   *
   * ```js
   * mock.timers.enable(); // node:test
   * useTestCluster({ tick: (ms) => mock.timers.tick(ms) });
   *
   * jest.useFakeTimers(); // Vitest: vi in place of jest
   * useTestCluster({ tick: (ms) => jest.advanceTimersByTimeAsync(ms) });
   * ```
   */
  tick?: (ms: number) => unknown;

  /** @default warnings and errors to stderr */
  logger?: Logger;
}

/** Why a term may end in a test; a registration is `removed` by the function that `whenLeader()` returned. */
export type TestLossReason = Exclude<LossReason, "removed">;

/** One election, as the test sees and decides it. */
export interface TestElection {
  readonly name: string;

  /**
   * The largest fencing token that was given so far, to whomever; 0 before the first. Tokens look as on a real store:
   * the first is 1.8e15 or more, and a later one larger by the virtual time in microseconds, or by 1. So compare them,
   * as a receiver does, and keep them where 64 bits fit.
   */
  readonly token: number;

  /** Whether this instance leads. Unlike the application's question it changes nothing. */
  isLeader(): boolean;

  getLeader(): Leader | null;

  /**
   * This instance becomes the leader, and stays it as far as it renews. From then on it wins whenever it asks: it leads
   * again after a `stepDown()` and its pause, after a store that was away, after {@link TestCluster.freeze}, in a term
   * of its own each time, until {@link demote} or {@link elect}.
   *
   * @param options `wait: "called"`: each `fn` has been called, and need not have ended. For a `fn` that goes on as
   *   long as its term does.
   * @returns Resolves when each `fn` has ended (its promise settled), with the term.
   */
  promote(options?: { wait?: "settled" | "called" }): Promise<Term>;

  /**
   * This instance stops leading, for that reason (default: `"taken"`, and then another instance leads), and does not
   * come back before {@link promote}.
   *
   * @returns Resolves when each `deregisteredFn` has ended.
   */
  demote(reason?: TestLossReason): Promise<void>;

  /**
   * Somebody else leads: `getLeader()` and `leaderChanged` tell so. If this instance led, its term is `taken`.
   *
   * @param instanceId Default: "another-instance".
   */
  elect(instanceId?: string): Promise<void>;
}

/** What {@link useTestCluster} gives: the default election, and what all elections share. */
export interface TestCluster extends TestElection, AsyncDisposable {
  /** Another election of the application. */
  election(name: string): TestElection;

  /** What the application is told by `getInstanceId()`. */
  readonly instanceId: string;

  /** Virtual milliseconds since the test cluster began. */
  readonly now: number;

  /** What callbacks threw or rejected with so far. It stops no election, here as elsewhere, so look yourself. */
  readonly callbackErrors: unknown[];

  /**
   * Time passes: leases are renewed each `renewInterval`, or are not, and what becomes due happens in its order, with a
   * turn of the event loop for the application after each. It does not wait for callbacks: {@link settled} does.
   */
  advance(ms: number): Promise<void>;

  /**
   * The process is frozen for so long, as by SIGSTOP, a suspended machine, or a garbage collection without end. Right
   * after the call, before the promise resolves, `isLeader()` and `term.isCurrent()` know if that was too long,
   * although no event has told yet: timers of the application may run before it is told. Then the term ends with
   * `"expired"`, and a new one begins if nobody else was elected.
   */
  freeze(ms: number): Promise<void>;

  /** Each renewal from now on fails at once. What that does is `onRenewError`. */
  failStore(): void;

  /**
   * No request is answered from now on, also after {@link mendStore}: what was sent meanwhile is given up in its time.
   * A stop of the application that waits for that ends in {@link advance}, or in {@link restore}.
   */
  hangStore(): void;

  /** Requests are answered again. */
  mendStore(): void;

  /** Resolves when no callback of the application is running. */
  settled(): Promise<void>;

  /**
   * Ends it: leadership ends with the reason `"stopped"`, each `deregisteredFn` runs and is waited for, and everything
   * is as it was before, for the next test. `await using cluster = useTestCluster()` does it by itself.
   */
  restore(): Promise<void>;
}

// ---- testing a store of your own ----

/**
 * The conformance tests for a store of your own ({@link LeaseStore}): what is asked of its functions, and elections on
 * top of it. A list for any test runner; the names are sentences, and what fails says what is wrong and how to mend it.
 *
 * ```js
 * import { storeTests } from "whenleader/testing";
 *
 * for (const { name, timeout, run } of storeTests({ open: () => new MyStore(url), close: (store) => store.end() })) {
 *   test(name, { timeout }, run); // of Jest and Vitest: test(name, run, timeout)
 * }
 * ```
 *
 * They use elections with names of their own, `whenleader-test-<random>-<number>`, and leave one record of each behind,
 * about 80 in all: a store has no function to delete. On a store in memory they take a few seconds, most of it waiting
 * for leases to run out. What is repeated many times is repeated less often on a slow store: with 20 ms for a call they
 * take less than a minute.
 *
 * @throws {ConfigError} if an option is wrong.
 */
export function storeTests<Store extends LeaseStore>(options: StoreTestOptions<Store>): StoreTest[];

export interface StoreTestOptions<Store extends LeaseStore = LeaseStore> {
  /**
   * Gives the store as one more process sees it, best with a connection of its own. Called up to eight times in one
   * test. Where it gives the same object each time, one process only is tested.
   */
  open: () => Awaitable<Store>;

  /** Called at the end of each test, with everything that `open` gave. */
  close?: (store: Store) => unknown;

  /**
   * Deletes the record of a key, as somebody might who tidies the database. With it, deleted records are tested too.
   */
  remove?: (key: string) => unknown;

  /**
   * The leases that run out in the tests. Longer on a store that is slow: ten times what a write takes, at least.
   *
   * @default 300
   */
  leaseDuration?: number;

  /** What the names of elections begin with. @default "whenleader-test" */
  leaseName?: string;

  /**
   * The milliseconds that one call of a function may take.
   *
   * @default 5000
   */
  callTimeout?: number;
}

export interface StoreTest {
  /** A sentence of the contract. */
  readonly name: string;
  /** The milliseconds that a test runner should give it. */
  readonly timeout: number;
  /** Rejects with an error that names the call, what came of it, and the cure. */
  readonly run: () => Promise<void>;
}
