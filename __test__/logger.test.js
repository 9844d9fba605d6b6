// What the application's logger gets, and what it may do.

const assert = require("node:assert/strict");
const { test, mock } = require("node:test");
const { Log, checkLogger } = require("../lib/logger.js");
const { CONFIG, fakeWorld, startedWorld, sleep } = require("./fake-native.js");

const LEVELS = ["error", "warn", "info", "debug"];

/** Logs once at each level, and gives the calls that a logger of this shape got. */
function calls({ shape, override, fields = { election: "e" } } = {}) {
  const got = [];
  const logger =
    shape &&
    Object.assign(
      Object.fromEntries(
        LEVELS.map((level) => [level, (...values) => got.push([level, ...values])]),
      ),
      shape,
    );
  const log = new Log(logger, override);
  for (const level of LEVELS) log.write(level, `m ${level}`, fields);
  return got;
}

test("console gets one line of text, from info on", () => {
  assert.deepEqual(calls({ shape: {} }), [
    ["error", "whenleader: m error election=e"],
    ["warn", "whenleader: m warn election=e"],
    ["info", "whenleader: m info election=e"],
  ]);
});

test("fields that are no words are quoted, and an error is one line with its stack", () => {
  const err = new Error("two\nlines");
  const [[, text]] = calls({
    shape: {},
    fields: { a: "b c", n: 3, url: "redis://h:1/0", u: undefined, err },
  });
  assert.match(
    text,
    /^whenleader: m error a="b c" n=3 url=redis:\/\/h:1\/0 err=Error: two lines at /,
  );
  assert.ok(!text.includes("\n"));
});

test("pino and its kin get fields, then the message, from their own level on", () => {
  const shape = { level: "debug", child: () => null, bindings: () => ({}) };
  const got = calls({ shape });
  assert.equal(got.length, 4);
  assert.deepEqual(got[3], ["debug", { election: "e" }, "whenleader: m debug"]);
  assert.deepEqual(
    calls({ shape: { ...shape, level: "error" } }).map(([level]) => level),
    ["error"],
  );
});

test("winston, which has children too, gets text", () => {
  const [[, text]] = calls({ shape: { child: () => null, transports: [], level: "silly" } });
  assert.equal(text, "whenleader: m error election=e");
});

test("without a logger warnings and errors go to stderr, and nothing else is said", () => {
  const error = mock.method(console, "error", () => {});
  const warn = mock.method(console, "warn", () => {});
  const others = ["log", "info", "debug"].map((name) => mock.method(console, name, () => {}));
  try {
    calls();
    assert.deepEqual(error.mock.calls[0].arguments, ["whenleader: m error election=e"]);
    assert.deepEqual(warn.mock.calls[0].arguments, ["whenleader: m warn election=e"]);
    assert.equal(error.mock.callCount() + warn.mock.callCount(), 2);
    calls({ override: "debug" });
    assert.equal(error.mock.callCount() + warn.mock.callCount(), 6);
    assert.ok(
      others.every((method) => method.mock.callCount() === 0),
      "stdout is the application's",
    );
  } finally {
    mock.restoreAll();
  }
});

test("WHENLEADER_LOG overrides the level, and says so if it is none", () => {
  const of = (override, shape = {}) => calls({ shape, override }).map(([level]) => level);
  assert.deepEqual(of("debug"), LEVELS);
  assert.deepEqual(of(" WARN "), ["error", "warn"]);
  assert.deepEqual(of("silent"), []);
  assert.deepEqual(of("off"), []);
  assert.deepEqual(of("trace"), LEVELS);
  assert.deepEqual(of(""), ["error", "warn", "info"]);
  assert.deepEqual(of("loud"), ["warn", "error", "warn", "info"]);
  const children = [];
  const pino = {
    level: "info",
    bindings: () => ({}),
    child(_fields, options) {
      children.push(options);
      return { error() {}, warn() {}, info() {}, debug() {} };
    },
  };
  assert.deepEqual(of("debug", pino), []);
  assert.deepEqual(children, [{ level: "debug" }]);
});

test("a logger that throws, rejects, or lacks a method is survived", async () => {
  const unhandled = [];
  const note = (error) => unhandled.push(error);
  process.on("unhandledRejection", note);
  const fail = () => {
    throw new Error("the logger is broken");
  };
  for (const logger of [
    { error: fail, warn: fail, info: fail },
    { error: async () => fail(), warn: () => Promise.reject(undefined), info: fail },
    { error: fail, warn: fail, info: fail, level: "debug", child: fail, bindings: fail },
  ]) {
    const log = new Log(logger, "debug");
    for (const level of LEVELS) log.write(level, "m", {});
  }
  await sleep(10);
  process.off("unhandledRejection", note);
  assert.deepEqual(unhandled, []);
});

test("an error that cannot be shown is logged all the same", () => {
  const err = new Proxy({}, { get: () => assert.fail(), ownKeys: () => assert.fail() });
  const hostile = { [Symbol.for("nodejs.util.inspect.custom")]: () => assert.fail() };
  for (const value of [err, hostile, undefined, null, Object.create(null)]) {
    assert.equal(calls({ shape: {}, fields: { err: value } }).length, 3);
  }
});

test("a logger must be an object with error, warn and info", () => {
  assert.equal(checkLogger(undefined), undefined);
  assert.equal(checkLogger(null), undefined);
  assert.equal(checkLogger(console), console);
  for (const bad of [5, "console", true, {}, { error() {}, warn() {} }]) {
    assert.throws(() => checkLogger(bad), { name: "ConfigError", message: /"logger" must be/ });
  }
});

test("the native side's records reach the logger, and its level is the logger's", async () => {
  const { native, lines, environment } = await startedWorld();
  assert.equal(native.logLevel, "info");
  native.dispatch({
    type: "log",
    level: "warn",
    message: "slow store",
    fields: { election: "e", ms: "9" },
  });
  native.dispatch({ type: "log", level: "trace", message: "detail", fields: {} });
  assert.deepEqual(lines, ["warn whenleader: slow store election=e ms=9"]);
  await environment.stopCluster();
  const silent = { error() {}, warn() {}, info() {}, level: "silent", child() {}, bindings() {} };
  await environment.startCluster(CONFIG, silent);
  assert.equal(native.logLevel, "silent");
  assert.equal(fakeWorld().environment.log.level, "warn");
});
