// Terms as spans, with the real SDK of OpenTelemetry.

const assert = require("node:assert/strict");
const { afterEach, test } = require("node:test");
const { trace, SpanStatusCode } = require("@opentelemetry/api");
const {
  InMemorySpanExporter,
  NodeTracerProvider,
  SimpleSpanProcessor,
} = require("@opentelemetry/sdk-trace-node");
const { startedWorld, settle, sleep } = require("./fake-native.js");

const exporter = new InMemorySpanExporter();
const provider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
const HOW = { options: "{}", cluster: undefined, signal: undefined };

afterEach(() => exporter.reset());

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
  const { context } = require("@opentelemetry/api");
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
