// Its tests: which instance leads, and how time passes, is what a test says. Run: node --test examples/testing/*.test.mjs
import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";
import { useTestCluster } from "whenleader/testing"; // Before the application.
import { startReminders } from "./reminders.mjs";

/** @type {import("whenleader/testing").TestCluster} */
let cluster;
/** @type {string[]} */
let sent;
/** Of each of them. @type {number[]} */
let fences;
/** @type {string[]} */
let reminders;
/** @type {() => void} */
let whileSending;

beforeEach(() => {
  mock.timers.enable({ apis: ["setInterval"] });
  cluster = useTestCluster({ tick: (ms) => mock.timers.tick(ms) });
  sent = [];
  fences = [];
  reminders = ["call Ada"];
  whileSending = () => {};
  startReminders({
    due: () => reminders,
    send: (reminder, fence) => {
      sent.push(reminder);
      fences.push(fence);
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
  const term = await cluster.promote();
  assert.deepEqual(sent, ["call Ada"]);
  await cluster.advance(2 * 60_000);
  assert.equal(sent.length, 3);
  assert.ok(fences.every((fence) => fence === term.token));
});

test("who leads no longer sends no more, and a new term has a larger fence", async () => {
  await cluster.promote();
  await cluster.demote();
  await cluster.advance(10 * 60_000);
  assert.deepEqual(sent, ["call Ada"]);
  const other = cluster.token; // Of the instance that led in between.
  await cluster.promote();
  assert.deepEqual(sent, ["call Ada", "call Ada"]);
  assert.ok(fences[0] < other && other < fences[1]);
});

test("a store that is away ends it in time, and one that is back begins it again", async () => {
  await cluster.promote();
  cluster.hangStore();
  await cluster.advance(5 * 60_000);
  assert.equal(cluster.isLeader(), false);
  assert.equal(sent.length, 1);
  cluster.mendStore();
  await cluster.advance(60_000);
  assert.ok(sent.length > 1);
  assert.ok(fences[1] > fences[0]);
});

test("a machine that is suspended in the middle of a round sends no more of it", async () => {
  reminders = ["call Ada", "call Bob"];
  whileSending = () => {
    whileSending = () => {};
    cluster.freeze(60_000);
  };
  const term = await cluster.promote();
  assert.deepEqual(sent, ["call Ada", "call Ada", "call Bob"]); // Both anew by the second term.
  const [first, ...second] = fences;
  assert.deepEqual(second, [term.token, term.token]);
  assert.ok(first < term.token);
});

test("nothing fails", async () => {
  await cluster.promote();
  await cluster.demote("unreachable");
  assert.deepEqual(cluster.callbackErrors, []);
});
