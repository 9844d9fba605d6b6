// Its tests: which instance leads, and how time passes, is what a test says. Run: node --test examples/testing/*.test.mjs
import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";
import { useTestCluster } from "whenleader/testing"; // Before the application.
import { startReminders } from "./reminders.mjs";

/** @type {import("whenleader/testing").TestCluster} */
let cluster;
/** @type {string[]} */
let sent;
/** @type {string[]} */
let reminders;
/** @type {() => void} */
let whileSending;

beforeEach(() => {
  mock.timers.enable({ apis: ["setInterval"] });
  cluster = useTestCluster({ tick: (ms) => mock.timers.tick(ms) });
  sent = [];
  reminders = ["call Ada"];
  whileSending = () => {};
  startReminders({
    due: () => reminders,
    send: (reminder, fence) => {
      sent.push(`${reminder} (${fence})`);
      whileSending();
    },
  });
});

afterEach(async () => {
  await cluster.restore();
  mock.timers.reset();
});

test("a follower sends nothing", async () => {
  await cluster.elect("another-pod");
  await cluster.advance(10 * 60_000);
  assert.deepEqual(sent, []);
});

test("the leader sends at once, and each minute", async () => {
  await cluster.promote();
  assert.deepEqual(sent, ["call Ada (1)"]);
  await cluster.advance(2 * 60_000);
  assert.equal(sent.length, 3);
});

test("who leads no longer sends no more, and a new term has a fence of its own", async () => {
  await cluster.promote();
  await cluster.demote();
  await cluster.advance(10 * 60_000);
  assert.deepEqual(sent, ["call Ada (1)"]);
  await cluster.promote();
  assert.deepEqual(sent, ["call Ada (1)", "call Ada (3)"]); // Term 2 was another instance's.
});

test("a store that is away ends it in time, and one that is back begins it again", async () => {
  await cluster.promote();
  cluster.hangStore();
  await cluster.advance(5 * 60_000);
  assert.equal(cluster.isLeader(), false);
  assert.equal(sent.length, 1);
  cluster.mendStore();
  await cluster.advance(60_000);
  assert.ok(sent.includes("call Ada (2)"));
});

test("a machine that is suspended in the middle of a round sends no more of it", async () => {
  reminders = ["call Ada", "call Bob"];
  whileSending = () => {
    whileSending = () => {};
    cluster.freeze(60_000);
  };
  const term = await cluster.promote();
  assert.deepEqual(sent, ["call Ada (1)", "call Ada (2)", "call Bob (2)"]); // Not Bob by term 1.
  assert.equal(term.token, 2);
});

test("nothing fails", async () => {
  await cluster.promote();
  await cluster.demote("unreachable");
  assert.deepEqual(cluster.callbackErrors, []);
});
