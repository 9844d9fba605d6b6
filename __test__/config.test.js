// Bad configurations, as startCluster() and a configuration file get them: each is refused with a
// ConfigError that names the parameter, the value, and what would be right.

const assert = require("node:assert/strict");
const { once } = require("node:events");
const fs = require("node:fs");
const net = require("node:net");
const path = require("node:path");
const { test } = require("node:test");
const { inspect } = require("node:util");
const { ConfigError, startCluster, stopCluster, useCluster } = require("../index.js");
const { newFolder, runProgram } = require("./support/child.js");

process.chdir(newFolder());

/** How startCluster() refuses the parameters of a cluster. */
async function refusal(parameters, wrap = (cluster) => ({ cluster })) {
  let error;
  try {
    await startCluster(wrap({ type: "StoreCluster", ...parameters }));
  } catch (thrown) {
    error = thrown;
  }
  await stopCluster();
  assert.ok(error instanceof ConfigError, `${inspect(parameters)}: ${error}`);
  assert.equal(error.code, "WHENLEADER_CONFIG");
  return error.message;
}

test("every bad value of a parameter is refused by name, with the value", async () => {
  for (const [parameters, ...parts] of [
    [
      { leaseDuration: 5000, renewInterval: 5000 },
      "renewInterval",
      "5000",
      "lower than leaseDuration",
    ],
    [{ leaseDuration: 5000, renewInterval: 15000 }, "renewInterval", "15000"],
    [{ leaseDuration: 0, renewInterval: 0 }, "renewInterval", "0"],
    [{ leaseDuration: -1 }, "leaseDuration", "-1"],
    [{ leaseDuration: Number.NaN }, "leaseDuration", "NaN"],
    [{ leaseDuration: Number.POSITIVE_INFINITY }, "leaseDuration", "Infinity"],
    [{ leaseDuration: 1e12 }, "leaseDuration", "1000000000000", "24 hours"],
    [{ leaseDuration: "15000" }, "leaseDuration", '"15000"'],
    [{ leaseDuration: "15s" }, "leaseDuration", '"15s"'],
    [{ leaseDuration: 15000.5 }, "leaseDuration", "15000.5"],
    [{ leaseDuration: null }, "leaseDuration", "null"],
    [{ leaseDuration: 15000n }, "leaseDuration", "15000n"],
    [{ leaseDuration: () => 15000 }, "leaseDuration", "function"],
    [{ leaseDuration: [15000] }, "leaseDuration"],
    [{ leaseDuration: {} }, "leaseDuration"],
    [{ leaseDuration: 15000, renewInterval: 14999 }, "renewInterval", "14999"],
    [{ leaseDuration: 15000, renewInterval: 1 }, "renewInterval", "1"],
    [{ leaseDuraton: 15000 }, "leaseDuraton", "leaseDuration"],
    [{ leaseName: "" }, "leaseName", '""'],
    [{ leaseName: " " }, "leaseName", '" "'],
    [{ leaseName: "x".repeat(254) }, "leaseName", "253"],
    [{ leaseName: 5 }, "leaseName", "5"],
    [{ instanceId: "" }, "instanceId", '""'],
    [{ instanceId: "x".repeat(4096) }, "instanceId", "253"],
    [{ candidate: "yes" }, "candidate", '"yes"'],
    [{ signals: 1 }, "signals", "1"],
    [{ keepAlive: "true" }, "keepAlive", '"true"'],
    [{ onRenewError: "crash" }, "onRenewError", '"crash"', "retry"],
    [{ onOverrun: "panic" }, "onOverrun", '"panic"', "warn"],
    [{ stopTimeout: -5 }, "stopTimeout", "-5"],
    [{ stallTimeout: 1 }, "stallTimeout", "1"],
    [{ leadLimit: 20000 }, "leadLimit", "20000"],
    [{ store: 5 }, "store", "5"],
    [{ store: "nonsense" }, "store", "nonsense"],
    [{ store: "gopher://h" }, "store", "gopher"],
    [{ namespace: "x" }, "namespace", "KubernetesCluster"],
    [{ type: "StorCluster" }, "StorCluster", "StoreCluster"],
    [{ type: 5 }, "type", "5"],
    // biome-ignore lint/suspicious/noTemplateCurlyInString: it is for the library to expand.
    [{ store: "redis://${WHENLEADER_TEST_MISSING}@h" }, "WHENLEADER_TEST_MISSING"],
  ]) {
    const message = await refusal(parameters);
    for (const part of parts) {
      assert.ok(
        message.includes(part),
        `${Object.keys(parameters)}: ${part} is not in: ${message}`,
      );
    }
  }
});

test("undefined is refused by name too, for it is mostly a slip", async () => {
  assert.match(await refusal({ leaseDuration: undefined }), /leaseDuration.*undefined/);
});

test("an error says where in the configuration it is", async () => {
  const bad = { leaseDuration: "x" };
  assert.match(await refusal(bad), /startCluster\(\): cluster\.leaseDuration/);
  const services = (election) => ({ services: { election } });
  assert.match(await refusal(bad, services), /startCluster\(\): services\.election\.leaseDuration/);
});

test("a configuration without a cluster is refused", async () => {
  for (const config of [{}, { services: {} }, { services: { a: { type: "Other" } } }]) {
    await assert.rejects(startCluster(config), ConfigError, JSON.stringify(config));
  }
});

test("a LeaderApiCluster says what neither it nor its platform tells", async () => {
  assert.match(await refusal({ type: "LeaderApiCluster" }), /has no KELVIN_LEADER_API_ADDRESS/);
  const given = { type: "LeaderApiCluster", url: "http://127.0.0.1:1", resource: "orders" };
  assert.match(await refusal(given), /must be a resource name like krn:app:my-app/);
});

test("bad values of a KubernetesCluster are refused by name, value and cure", async () => {
  const leaseName = "shop";
  for (const [parameters, ...parts] of [
    [{ leaseName: "My_App" }, "leaseName", '"My_App"', "RFC 1123"],
    [{ leaseName: "a." }, "leaseName", '"a."', "RFC 1123"],
    [{ leaseName: "cluster:leader" }, "leaseName", '"cluster:leader"', "RFC 1123"],
    [{ leaseName: "1ca428e5." }, "leaseName", '"1ca428e5."', "RFC 1123"],
    [{ leaseDuration: 999, renewInterval: 300 }, "leaseDuration", "1000", "999"],
    [{ namespace: "" }, "namespace", '""'],
    [{ namespace: "Shop" }, "namespace", '"Shop"', "lower-case"],
    [{ namespace: 5 }, "namespace", "5"],
    [{ config: "" }, "config", '""', "path"],
    [{ config: "./nowhere.yaml" }, "nowhere.yaml"],
    [{ context: 1 }, "context", "1"],
    [{ timeout: 20000 }, "timeout", "20000", "10000"],
    [{ timeout: 5 }, "timeout", "5", "100"],
    [{ timeout: "5s" }, "timeout", '"5s"'],
    [{ podLabels: "yes" }, "podLabels", '"yes"'],
    [{ podLabel: true }, "podLabel", "podLabels"],
    [{ store: "redis://h" }, "store", "StoreCluster"],
  ]) {
    const config = { type: "KubernetesCluster", leaseName, ...parameters };
    const message = await refusal(config);
    for (const part of parts) {
      assert.ok(message.includes(part), `${JSON.stringify(parameters)}: no ${part} in: ${message}`);
    }
  }
});

test("a password never appears in an error", async () => {
  for (const store of [
    "redis://user:hunter2@h:6379/x",
    "gopher://user:hunter2@h",
    "redis://user:hunter2@h:99999",
    "redis://:hun/ter2@h:6379",
  ]) {
    const message = await refusal({ store });
    assert.ok(!/hun\/?ter2/.test(message), message);
  }
});

test("a refused start leaves nothing behind: the next one works", async () => {
  await refusal({ leaseDuration: "x" });
  const cluster = await startCluster({ cluster: { type: "StoreCluster", store: "file:./good" } });
  await cluster.waitUntilLeader({ timeout: 20_000 });
  assert.equal(cluster, useCluster());
  await assert.rejects(startCluster({ cluster: { type: "StoreCluster", store: "file:./bad" } }), {
    name: "ConfigError",
    message: /already takes part in a cluster/,
  });
  assert.equal(cluster.isLeader(), true, "the running one goes on");
  await stopCluster();
});

test("the three forms of a configuration mean the same", async () => {
  const parameters = { leaseName: "forms", store: "file:./forms" };
  for (const config of [
    { services: { cluster: { type: "Webda/StoreClusterService", ...parameters } } },
    { services: { other: { type: "X" }, mine: { type: "StoreCluster", ...parameters } } },
    { cluster: { type: "StoreClusterService", ...parameters } },
    { type: "Webda/StoreCluster", ...parameters },
  ]) {
    const cluster = await startCluster(config);
    assert.equal(cluster.election, "forms");
    await stopCluster();
  }
});

test("a LocalCluster leads at once, under the name that it is given", async () => {
  const cluster = await startCluster({
    cluster: { type: "LocalCluster", leaseName: "mine", instanceId: "me" },
  });
  assert.equal(cluster.isLeader(), true);
  assert.equal(cluster.election, "mine");
  assert.equal(cluster.getInstanceId(), "me");
  await stopCluster();
});

test("files are read with their names in errors, and relative paths start at the file", async () => {
  const folder = newFolder();
  const file = path.join(folder, "whenleader.config.json");
  fs.writeFileSync(path.join(folder, "package.json"), "{}");
  fs.mkdirSync(path.join(folder, "src"));
  const attempt = (code) => runProgram(`process.chdir("src"); ${code}`, { cwd: folder });

  fs.writeFileSync(file, '{ "cluster": {\n "leaseDuration": "x" } }');
  const bad = await attempt("whenLeader(() => {});");
  assert.equal(bad.code, 1);
  assert.match(bad.stderr, /ConfigError.*whenleader\.config\.json.*leaseDuration/);

  fs.writeFileSync(file, '{ "cluster": {\n "store" "x" } }');
  assert.match(
    (await attempt("useCluster();")).stderr,
    /whenleader\.config\.json.*line 2, column 10/,
  );

  fs.writeFileSync(file, '{ "cluster": { "store": "file:./data" } }');
  const good = await attempt("useCluster().waitUntilLeader().then(() => say('leads'));");
  assert.equal(good.stdout, "leads\n", good.stderr);
  assert.ok(fs.existsSync(path.join(folder, "data")));
});

test("webda.config.json without a cluster leaves the process alone", async () => {
  const cwd = newFolder();
  fs.writeFileSync(
    path.join(cwd, "webda.config.json"),
    JSON.stringify({ version: 3, services: { Store: { type: "Webda/MemoryStore" } } }),
  );
  const { stdout, stderr } = await runProgram("whenLeader(() => say('leads'));", { cwd });
  assert.equal(stdout, "leads\n", stderr);
});

test("a store's URL that is wrong is thrown at the first use, and names no password", async () => {
  for (const [store, ...parts] of [
    ["gopher://u:hunter2@h", "file:<directory>", "redis://"],
    ["redis://u:hunter2@h:99999", "port"],
    ["redis://u:hunter2@h:6379/x", "number of a database"],
    ["not a URL", "file:<directory>", "redis://"],
  ]) {
    for (const use of ["whenLeader(() => say('fn'))", "useCluster()"]) {
      const { stdout, stderr } = await runProgram(
        `try { ${use}; } catch ({ name, code, message }) { say(name, code, message); }`,
        { config: { type: "StoreCluster", store } },
      );
      assert.match(stdout, /^ConfigError WHENLEADER_CONFIG .*\n$/, store + stderr);
      for (const part of parts) assert.ok(stdout.includes(part), stdout);
      assert.ok(!/hunter2/.test(stdout + stderr), stdout + stderr);
    }
  }
});

test("a store that refuses is an ElectionError with its reason, a directory that cannot serve is a ConfigError", async (t) => {
  // Answers each command, an array in its protocol, with the same refusal.
  const server = net.createServer((socket) => {
    socket.on("error", () => {});
    socket.on("data", (data) => {
      const commands = String(data).match(/\*\d+\r\n/g) ?? [];
      socket.write("-NOAUTH Authentication required.\r\n".repeat(commands.length));
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  const store = `redis://127.0.0.1:${server.address().port}`;
  const file = path.join(newFolder(), "file");
  fs.writeFileSync(file, "");
  const code = `
    const known = ({ name, code, reason, fatal, election }) =>
      JSON.stringify({ name, code, reason, fatal, election });
    useCluster().on("error", (error) => say("event", known(error)));
    startCluster().catch((error) => say("rejection", known(error)));`;
  const implicit = code.replace(/startCluster.*/, "setTimeout(() => process.exit(), 5000);");
  const storeError = {
    name: "ElectionError",
    code: "WHENLEADER_STORE",
    reason: "refused",
    fatal: true,
    election: "leader",
  };
  const refused = await runProgram(code, { config: { type: "StoreCluster", store } });
  assert.equal(refused.stdout, `rejection ${JSON.stringify(storeError)}\n`, refused.stderr);
  const told = await runProgram(implicit, { config: { type: "StoreCluster", store } });
  assert.equal(told.stdout, `event ${JSON.stringify(storeError)}\n`, told.stderr);

  const config = { type: "StoreCluster", store: `file:${file}` };
  const configError = { name: "ConfigError", code: "WHENLEADER_CONFIG" };
  const bad = await runProgram(code, { config });
  assert.equal(bad.stdout, `rejection ${JSON.stringify(configError)}\n`, bad.stderr);
  const badTold = await runProgram(implicit, { config });
  const wrapped = { ...storeError, reason: "config" };
  assert.equal(badTold.stdout, `event ${JSON.stringify(wrapped)}\n`, badTold.stderr);
});
