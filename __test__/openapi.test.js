// docs/leader-api.openapi.json against `whenleader serve`: every answer is as it says, and nothing is missing.

const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const { test } = require("node:test");
const { default: Ajv } = require("ajv/dist/2020.js");
const { default: addFormats } = require("ajv-formats");
const { ApiServer } = require("./support/api-server.js");
const { ROOT } = require("./support/child.js");

const api = JSON.parse(fs.readFileSync(path.join(ROOT, "docs", "leader-api.openapi.json"), "utf8"));
const ajv = new Ajv({ strict: false, allErrors: true });
addFormats(ajv);
ajv.addSchema({ $id: "api", ...api });

/** The description's part of an answer, with its reference followed. */
function described(path, method, status) {
  const operation = api.paths[path]?.[method.toLowerCase()];
  const response = operation?.responses[status];
  const name = response?.$ref?.split("/").at(-1);
  return name === undefined ? response : api.components.responses[name];
}

function check(path, method, { status, headers, body, text }) {
  const response = described(path, method, status);
  assert.ok(response, `${method} ${path} may answer ${status}: ${text}`);
  if (response.content === undefined) {
    assert.equal(text, "");
    return;
  }
  const [type] = Object.keys(response.content);
  assert.equal(headers.get("content-type"), type, `${method} ${path} ${status}`);
  if (type !== "application/json") return;
  const { schema } = response.content[type];
  const pointer = `api${schema.$ref}`;
  assert.ok(ajv.validate({ $ref: pointer }, body), `${path}: ${ajv.errorsText()}: ${text}`);
}

test("the description is one of OpenAPI 3.1", async () => {
  const { Validator } = await import("@seriousme/openapi-schema-validator");
  const result = await new Validator().validate(structuredClone(api));
  assert.deepEqual(result, { valid: true });
});

test("every path and every method that is served is described, and no other", async (t) => {
  const server = await ApiServer.start(t);
  const { message } = (await server.get("/no-such-path")).body.error;
  const served = message.match(/\/[\w/]*/g);
  assert.deepEqual([...served].sort(), Object.keys(api.paths).sort());
  for (const path of served) {
    const { headers } = await server.ask("DELETE", path);
    const methods = Object.keys(api.paths[path]).map((method) => method.toUpperCase());
    assert.deepEqual([headers.get("allow")], methods, path);
  }
});

test("every answer is as the description says", async (t) => {
  const server = await ApiServer.start(t, { args: ["--allow-reset", "--lease", "1500ms"] });
  const guarded = await ApiServer.start(t, { env: { WHENLEADER_TOKEN: "x" } });
  const seen = new Set();
  const ask = async (path, body, { on = server, headers } = {}) => {
    const [method] = Object.keys(api.paths[path]);
    const text = typeof body === "object" ? JSON.stringify(body) : body;
    const answer = await on.ask(method.toUpperCase(), path, text, headers);
    check(path, method, answer);
    seen.add(`${method} ${path} ${answer.status}`);
    return answer.body;
  };
  const id = "krn:wl:c/w";
  const resources = ["krn:app:a", "plain name", "ü/%"];
  await ask("/leader/status");
  await ask("/leader/elect", { id, resources });
  await ask("/leader/elect", { id: "other", resources });
  await ask("/leader/elect", { id, session: "s", resources: ["krn:app:counted"] });
  await ask("/leader/bulk/elect", {
    data: [
      { id, resources },
      { id: "b", resources },
    ],
  });
  await ask("/leader/bulk/elect", { data: [] });
  await ask("/leader/status");
  await ask("/workloads/list");
  await ask("/leader/release", { id, resources });
  await ask("/leader/status");
  await ask("/healthz");
  await ask("/metrics");
  await ask("/");
  await ask("/leader/reset", "");
  for (const path of ["/leader/elect", "/leader/bulk/elect", "/leader/release"]) {
    await ask(path, "{");
    await ask(path, " ".repeat(70_000));
  }
  for (const path of Object.keys(api.paths)) {
    await ask(path, undefined, { on: guarded });
  }
  await ask("/leader/reset", "", { on: guarded, headers: { authorization: "Bearer x" } });
  for (const path of Object.keys(api.paths)) {
    if (path !== "/") await ask(path, undefined, { headers: { origin: "https://evil.example" } });
  }
  // What only a lost store and a slow body bring is tried in serve.test.js.
  const all = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).flatMap(([method, { responses }]) =>
      Object.keys(responses).map((status) => `${method} ${path} ${status}`),
    ),
  );
  assert.deepEqual(
    all.filter((one) => !seen.has(one) && !/ (503|408)$| \/ 403$/.test(one)),
    [],
  );
});

test("a request is taken if the description allows it, and refused if not", async (t) => {
  const server = await ApiServer.start(t);
  const good = { id: "a", resources: ["b"] };
  for (const body of [
    good,
    { ...good, session: "s" },
    { ...good, session: null, token: null },
    { ...good, session: "s", token: 5 },
    { ...good, token: 5 },
    { ...good, session: "s", after: 0 },
    { ...good, session: "s", after: -1 },
    { ...good, session: "s", after: "5" },
    { ...good, resources: ["b", "b"] },
    { ...good, more: true },
    { ...good, id: "x".repeat(253) },
    { ...good, id: "x".repeat(254) },
    { ...good, id: "" },
    { ...good, id: 1 },
    { resources: ["b"] },
    { id: "a" },
    { ...good, resources: [] },
    { ...good, resources: "b" },
    { ...good, resources: [1] },
    { ...good, session: "" },
    { ...good, session: "x".repeat(65) },
    { ...good, session: "s", token: 0 },
    { ...good, session: "s", token: 2 ** 53 },
    { ...good, session: "s", token: "5" },
  ]) {
    const allowed = ajv.validate({ $ref: "api#/components/schemas/CheckIn" }, body);
    const { status, text } = await server.post("/leader/elect", body);
    assert.equal(status, allowed ? 200 : 400, `${JSON.stringify(body)}: ${text}`);
  }
});
