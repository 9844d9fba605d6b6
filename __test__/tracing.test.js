// Terms as spans, with the real SDK of OpenTelemetry.

const assert = require("node:assert/strict");
const { afterEach, test } = require("node:test");
const fs = require("node:fs");
const path = require("node:path");
const {
  context,
  diag,
  trace,
  DiagLogLevel,
  ROOT_CONTEXT,
  SpanStatusCode,
} = require("@opentelemetry/api");
const {
  AlwaysOnSampler,
  InMemorySpanExporter,
  NodeTracerProvider,
  SimpleSpanProcessor,
} = require("@opentelemetry/sdk-trace-node");
const { gate, startedWorld, settle, sleep } = require("./fake-native.js");
const { newFolder, runProgram, ROOT } = require("./support/child.js");

const exporter = new InMemorySpanExporter();
/** What of the application's tracing throws. @type {Set<string>} */
const broken = new Set();
const breaks = (what) => {
  if (broken.has(what)) throw new Error(`${what} is broken`);
};
const provider = new NodeTracerProvider({
  sampler: {
    shouldSample(...args) {
      breaks("the sampler");
      return new AlwaysOnSampler().shouldSample(...args);
    },
  },
  spanProcessors: [
    new SimpleSpanProcessor(exporter),
    {
      onStart: () => breaks("onStart"),
      onEnd: () => breaks("onEnd"),
      forceFlush: async () => {},
      shutdown: async () => {},
    },
  ],
});
const API = path.join(ROOT, "node_modules", "@opentelemetry", "api");
const HOW = { options: "{}", cluster: undefined, signal: undefined };

afterEach(() => {
  broken.clear();
  exporter.reset();
});

const spans = () =>
  Object.fromEntries(exporter.getFinishedSpans().map((span) => [span.name, span]));

test("without a registered SDK a term opens no span", async () => {
  const { environment, native } = await startedWorld();
  let active = "never ran";
  environment.runWhenLeader("job", () => (active = trace.getActiveSpan()), HOW);
  native.elections.get("job").promote(1);
  await settle();
  assert.equal(active, undefined);
});

test("a term opens a root span, the work runs in its context, and its spans are children of it", async () => {
  provider.register();
  const tracer = trace.getTracer("application");
  const { environment, native } = await startedWorld();
  let end = () => {};
  const outer = tracer.startSpan("whoever promotes");
  environment.runWhenLeader(
    "job",
    async () => {
      await sleep(1);
      tracer.startSpan("query").end();
      await new Promise((resolve) => (end = resolve));
      tracer.startSpan("last").end();
    },
    HOW,
  );
  const election = native.elections.get("job");
  context.with(trace.setSpan(context.active(), outer), () => election.promote(7));
  await sleep(10);
  election.demote("taken");
  await settle();
  assert.equal(spans()["lead job"], undefined, "it lasts as long as the work");
  end();
  await settle();
  const { "lead job": lead, query, last } = spans();
  assert.equal(lead.parentSpanContext, undefined);
  assert.notEqual(lead.spanContext().traceId, outer.spanContext().traceId);
  for (const child of [query, last]) {
    assert.equal(child.parentSpanContext.spanId, lead.spanContext().spanId);
    assert.equal(child.spanContext().traceId, lead.spanContext().traceId);
  }
  assert.deepEqual(lead.attributes, {
    "whenleader.election": "job",
    "whenleader.instance_id": "fake-1",
    "whenleader.token": 7,
    "whenleader.trace_id": "ab",
    "whenleader.reason": "taken",
  });
  assert.deepEqual(
    lead.events.map(({ name }) => name),
    ["demoted"],
  );
  assert.equal(lead.status.code, SpanStatusCode.UNSET);
});

test("an error of the work is told by its span", async () => {
  const { environment, native } = await startedWorld();
  environment.runWhenLeader("job", () => Promise.reject(new Error("no upstream")), HOW);
  native.elections.get("job").promote(1);
  await settle();
  await settle();
  const { "lead job": lead } = spans();
  assert.equal(lead.status.code, SpanStatusCode.ERROR);
  const [exception] = lead.events;
  assert.equal(exception.attributes["exception.message"], "no upstream");
});

test("callbacks of whenLeader run in the context of the term's one span", async () => {
  const tracer = trace.getTracer("application");
  const { environment, election } = await startedWorld();
  environment.whenLeader(
    () => tracer.startSpan("first").end(),
    async () => {
      await sleep(1);
      tracer.startSpan("cleanup").end();
    },
  );
  environment.whenLeader(() => tracer.startSpan("second").end());
  election.promote(1);
  await settle();
  election.demote("stopped");
  await sleep(10);
  const { "lead leader": lead, first, second, cleanup } = spans();
  for (const child of [first, second, cleanup]) {
    assert.equal(child.parentSpanContext.spanId, lead.spanContext().spanId);
  }
  assert.equal(exporter.getFinishedSpans().length, 4);
});

/** One term of work, from its promotion to its end, and what came of it. */
async function oneTerm() {
  const { environment, native, lines } = await startedWorld();
  const workEnd = gate();
  let times = 0;
  const told = [];
  const run = environment.runWhenLeader(
    "job",
    () => {
      times += 1;
      return workEnd.promise;
    },
    HOW,
  );
  run.on("promoted", () => told.push("promoted")).on("demoted", () => told.push("demoted"));
  const election = native.elections.get("job");
  election.promote(1);
  await settle();
  election.demote("taken");
  await settle();
  const settledEarly = [...election.settledTokens];
  workEnd.open();
  await settle();
  return { times, told, settledEarly, settled: election.settledTokens, lines };
}

const WHOLE = {
  times: 1,
  told: ["promoted", "demoted"],
  settledEarly: [],
  settled: [1],
  lines: [],
};

test("what fails of tracing reaches neither the election nor the process, and OpenTelemetry's log tells of it once", async () => {
  const told = [];
  const note = (...words) => told.push(words.join(" "));
  const logger = { error: note, warn: note, info() {}, debug() {}, verbose() {} };
  diag.setLogger(logger, { logLevel: DiagLogLevel.WARN, suppressOverrideMessage: true });
  for (const what of ["the sampler", "onStart", "onEnd"]) {
    broken.clear();
    broken.add(what);
    assert.deepEqual(await oneTerm(), WHOLE, what);
  }
  diag.disable();
  assert.equal(told.length, 1, told.join("\n"));
  assert.match(told[0], /whenleader: .*the sampler is broken/);
});

test("a log of OpenTelemetry's that throws is no harm either", async () => {
  const throws = () => breaks("the log");
  const isolated = path.join(ROOT, "lib", "tracing.js");
  const { openSpan } = freshly(isolated);
  diag.setLogger(
    { error: throws, warn: throws, info() {}, debug() {}, verbose() {} },
    { logLevel: DiagLogLevel.WARN, suppressOverrideMessage: true },
  );
  broken.add("the log").add("onStart");
  const about = { election: "job", instanceId: "fake-1", token: 1, traceId: "ab" };
  assert.equal(
    openSpan(() => about),
    null,
  );
  diag.disable();
});

/** A module as if for the first time. */
function freshly(file) {
  const { [file]: known } = require.cache;
  delete require.cache[file];
  try {
    return require(file);
  } finally {
    require.cache[file] = known;
  }
}

test("an error whose properties cannot be read is told by the span as far as it can be", async () => {
  const unreadable = Object.defineProperty(new Error("hidden"), "message", {
    get() {
      throw new Error("no message");
    },
  });
  const strange = new Proxy(new Error("strange"), {
    getPrototypeOf() {
      throw new Error("no prototype");
    },
  });
  for (const error of [unreadable, strange, Object.create(null), Symbol("thrown"), null]) {
    const { environment, native } = await startedWorld();
    environment.runWhenLeader("job", () => Promise.reject(error), HOW);
    const election = native.elections.get("job");
    election.promote(1);
    await settle();
    await settle();
    assert.deepEqual(election.steppedDown, [null], "the term is handed back");
    assert.deepEqual(election.settledTokens, [1]);
    const { "lead job": lead } = spans();
    assert.equal(lead.status.code, SpanStatusCode.ERROR);
    assert.deepEqual(
      lead.events.map(({ name }) => name),
      ["exception", "demoted"],
    );
    exporter.reset();
  }
});

test("the work runs exactly once and its answer is its own, whatever the context manager does", async () => {
  /** @type {Record<string, (call: () => unknown) => unknown>} */
  const ways = {
    "throws before": () => breaks("with"),
    "throws after": (call) => {
      call();
      breaks("with");
    },
    "does not call": () => undefined,
    "calls twice": (call) => [call(), call()],
    "calls later": (call) => setImmediate(call),
    "answers otherwise": (call) => {
      call();
      return Promise.reject(new Error("not the work's")).catch(() => {});
    },
  };
  for (const [how, way] of Object.entries(ways)) {
    broken.add("with");
    context.disable();
    context.setGlobalContextManager({
      active: () => ROOT_CONTEXT,
      with: (_, call) => way(call),
      bind: (_, target) => target,
      enable() {},
      disable() {},
    });
    assert.deepEqual(await oneTerm(), WHOLE, how);
    // What the work throws is still found where it is looked for.
    const { environment, native, lines } = await startedWorld();
    environment.whenLeader(() => {
      throw new Error("no upstream");
    });
    native.elections.get("leader").promote(1);
    await settle();
    assert.equal(lines.filter((line) => line.includes("no upstream")).length, 1, how);
    exporter.reset();
  }
  context.disable();
  provider.register();
});

/**
 * A folder where whenleader stands beside an API of its own, which may not be the application's.
 *
 * @param {(folder: string) => void} change  of that API
 */
function withOwnApi(change) {
  const root = newFolder();
  for (const part of ["index.js", "package.json", "lib"]) {
    fs.cpSync(path.join(ROOT, part), path.join(root, part), { recursive: true });
  }
  const own = path.join(root, "node_modules", "@opentelemetry", "api");
  fs.cpSync(API, own, { recursive: true });
  change(own);
  return root;
}

/** The spans of one term under the application's own SDK, which is this one's. */
async function spansBeside(change) {
  const sdk = JSON.stringify(require.resolve("@opentelemetry/sdk-trace-node"));
  const { code, stdout, stderr } = await runProgram(
    `const { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } = require(${sdk});
     const exporter = new InMemorySpanExporter();
     new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }).register();
     whenLeader(() => say("leads"), () => say("ends"));
     setImmediate(async () => {
       await stopCluster();
       setImmediate(() => say(...exporter.getFinishedSpans().map(({ name }) => name)));
     });`,
    { root: withOwnApi(change), flags: ["--preserve-symlinks"] },
  );
  assert.equal(code, 0, stderr);
  assert.equal(stderr, "");
  const [leads, ends, names] = stdout.split("\n");
  assert.deepEqual([leads, ends], ["leads", "ends"]);
  return names;
}

test("two copies of the API find the same SDK", async () => {
  assert.equal(await spansBeside(() => {}), "lead leader");
});

test("an API that cannot speak with the application's SDK, or is none, opens no span and harms nothing", async () => {
  const ofVersion = (version) => (folder) => {
    const file = path.join(folder, "build", "src", "version.js");
    fs.writeFileSync(file, `exports.VERSION = "${version}";`);
  };
  /** @type {Record<string, (folder: string) => void>} */
  const others = {
    "newer than the SDK's": ofVersion("1.999.0"),
    "of version 0": ofVersion("0.18.1"),
    "of version 2": ofVersion("2.0.0"),
    "with other names": (folder) =>
      fs.writeFileSync(path.join(folder, "build", "src", "index.js"), "exports.tracing = {};"),
    "that is nothing": (folder) =>
      fs.writeFileSync(
        path.join(folder, "build", "src", "index.js"),
        "module.exports = undefined;",
      ),
    "that cannot be loaded": (folder) =>
      fs.writeFileSync(path.join(folder, "build", "src", "index.js"), "throw new Error();"),
  };
  for (const [which, change] of Object.entries(others)) {
    assert.equal(await spansBeside(change), "", which);
  }
});

test("an application without the API has no need of it", async () => {
  const spans = await spansBeside((folder) => fs.rmSync(folder, { recursive: true }));
  assert.equal(spans, "");
});
