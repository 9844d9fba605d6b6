// Where a configuration is looked for, and what is said of a broken one.

const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const { test } = require("node:test");
const { inspect } = require("node:util");
const { discover } = require("../lib/discovery.js");
const { parseJson, toJson } = require("../lib/json.js");
const { fakeWorld } = require("./fake-native.js");
const { newFolder } = require("./support/temp.js");

/** Folders and files below a new folder, as an object of names and contents. */
function tree(files) {
  const root = newFolder();
  for (const [name, content] of Object.entries(files)) {
    const file = path.join(root, name);
    fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.writeFileSync(file, typeof content === "string" ? content : JSON.stringify(content));
  }
  return root;
}

const first = (cwd, env = {}) => discover({ env, cwd }).next().value ?? null;
const cluster = (store) => ({ cluster: { type: "StoreCluster", store } });

test("the order is whenleader.config.json, package.json, webda.config.json", () => {
  const files = {
    "whenleader.config.json": cluster("own"),
    "package.json": { whenleader: cluster("package") },
    "webda.config.json": { services: { c: { type: "Webda/StoreClusterService" } } },
  };
  const root = tree(files);
  assert.deepEqual(first(root), {
    json: JSON.stringify(files["whenleader.config.json"]),
    source: path.join(root, "whenleader.config.json"),
    baseDir: root,
  });
  fs.rmSync(path.join(root, "whenleader.config.json"));
  assert.deepEqual(JSON.parse(first(root).json), cluster("package"));
  assert.equal(first(root).source, `"whenleader" in ${path.join(root, "package.json")}`);
  fs.rmSync(path.join(root, "package.json"));
  assert.equal(first(root).source, path.join(root, "webda.config.json"));
  fs.rmSync(path.join(root, "webda.config.json"));
  assert.equal(first(root), null);
});

test("the working directory counts before the nearest parent with a package.json, and no other", () => {
  const root = tree({
    "whenleader.config.json": cluster("outer"),
    "package.json": {},
    "app/package.json": {},
    "app/whenleader.config.json": cluster("app"),
    "app/src/deep/x": "",
    "app/src/whenleader.config.json": cluster("src"),
  });
  const store = (folder) => JSON.parse(first(path.join(root, folder)).json).cluster.store;
  assert.equal(store("app/src"), "src");
  assert.equal(store("app/src/deep"), "app");
  fs.rmSync(path.join(root, "app/whenleader.config.json"));
  assert.equal(first(path.join(root, "app/src/deep")), null, "not beyond the package");
  assert.equal(first(path.join(root, "app")), null);
});

test("WHENLEADER_CONFIG is a path or JSON, and comes first", () => {
  const root = tree({
    "whenleader.config.json": cluster("found"),
    "etc/other.json": `\uFEFF${JSON.stringify(cluster("named"))}`,
  });
  const json = JSON.stringify(cluster("inline"));
  assert.deepEqual(first(root, { WHENLEADER_CONFIG: ` ${json}\n` }), {
    json,
    source: "WHENLEADER_CONFIG",
    baseDir: root,
  });
  const named = path.join(root, "etc/other.json");
  for (const WHENLEADER_CONFIG of ["etc/other.json", named]) {
    assert.deepEqual(first(root, { WHENLEADER_CONFIG }), {
      json: JSON.stringify(cluster("named")),
      source: named,
      baseDir: path.join(root, "etc"),
    });
  }
  assert.throws(() => first(root, { WHENLEADER_CONFIG: "missing.json" }), {
    name: "ConfigError",
    message: /WHENLEADER_CONFIG.*missing\.json.*does not exist/,
  });
  assert.throws(() => first(root, { WHENLEADER_CONFIG: "{nonsense" }), {
    name: "ConfigError",
    message: 'WHENLEADER_CONFIG is not valid JSON: line 1, column 2: found "n"',
  });
  assert.match(first(root, { WHENLEADER_CONFIG: "" }).json, /found/, "empty is as good as unset");
});

test("package.json and webda.config.json without a cluster are passed over", () => {
  for (const content of [{}, { whenleader: {} }, { whenleader: null }, [], 5, null]) {
    assert.equal(first(tree({ "package.json": content })), null, JSON.stringify(content));
  }
  for (const content of [
    {},
    { services: {} },
    { services: null },
    { services: { a: { type: "Webda/MemoryStore" }, b: null, c: 5, d: { type: 7 } } },
    [],
  ]) {
    assert.equal(first(tree({ "webda.config.json": content })), null, JSON.stringify(content));
  }
});

test('a slip in the "whenleader" key of package.json is not passed over', () => {
  for (const whenleader of [{ clutser: {} }, "redis://h", [1]]) {
    assert.notEqual(first(tree({ "package.json": { whenleader } })), null);
  }
});

test("a shared file in which the native side finds no cluster is passed over, an own file is refused", () => {
  const refuse = (native) => {
    native.checkConfig = () => {
      throw Object.assign(new Error("no cluster"), { code: "WHENLEADER_NO_CLUSTER" });
    };
  };
  const services = { services: { x: { type: "ClusterMonitor" } } };
  const shared = tree({
    "webda.config.json": services,
    "package.json": { whenleader: { services: {} } },
  });
  const world = fakeWorld({ cwd: () => shared });
  refuse(world.native);
  assert.equal(world.environment.useCluster().isLeader(), true);
  const own = tree({ "whenleader.config.json": {} });
  const other = fakeWorld({ cwd: () => own });
  refuse(other.native);
  assert.throws(() => other.environment.useCluster(), {
    name: "ConfigError",
    message: "no cluster",
  });
});

test("broken JSON is refused with file, line and column, in every file that is read", () => {
  for (const name of ["whenleader.config.json", "package.json", "webda.config.json"]) {
    const root = tree({ [name]: '{\n  "cluster": {\n    "leaseDuration": 15_000\n  }\n}\n' });
    assert.throws(() => first(root), {
      name: "ConfigError",
      message: `${path.join(root, name)} is not valid JSON: line 3, column 24: found "_"`,
    });
  }
});

test("a file that cannot be read is refused, not passed over", () => {
  const root = tree({ "whenleader.config.json/x": "" });
  assert.throws(() => first(root), { name: "ConfigError", message: /cannot be read.*EISDIR/ });
});

test("the place of an error in JSON is that of the first character that does not fit", () => {
  for (const [text, line, column] of [
    ["", 1, 1],
    ["  \n ", 2, 2],
    ["{", 1, 2],
    ['{"a":1', 1, 7],
    ['{"a":1,}', 1, 8],
    ['{"a" 1}', 1, 6],
    ["{a:1}", 1, 2],
    ["{'a':1}", 1, 2],
    ["[1 2]", 1, 4],
    ["[1,]", 1, 4],
    ["[01]", 1, 3],
    ["[1.]", 1, 3],
    ["[NaN]", 1, 2],
    ['["a\\x"]', 1, 2],
    ['["tab\t"]', 1, 2],
    ["{} {}", 1, 4],
    ["// no\n{}", 1, 1],
    ['{"a": {"b": [true, false, null, -1.5e+3, "\\u00e9"]},\n "c": undefined}', 2, 7],
  ]) {
    assert.throws(
      () => parseJson(text, "it"),
      (error) => {
        assert.ok(
          error.message.includes(`line ${line}, column ${column}:`),
          `${text}: ${error.message}`,
        );
        return true;
      },
    );
  }
});

test("the place of an error is where the engine sees one, for random damage", () => {
  const whole = JSON.stringify({ a: [1, -2.5e3, 'x\\"y', true, null, { b: {} }], c: "é" });
  for (let i = 0; i < whole.length; i += 1) {
    for (const damage of ["", "}", ",", '"', "#"]) {
      const text = whole.slice(0, i) + damage + whole.slice(i + 1);
      let engine = null;
      try {
        JSON.parse(text);
      } catch (error) {
        engine = error;
      }
      if (engine === null) {
        assert.doesNotThrow(() => parseJson(text, "it"));
        continue;
      }
      assert.throws(
        () => parseJson(text, "it"),
        (error) => {
          const column = Number(/column (\d+)/.exec(error.message)[1]);
          const place = /position (\d+)/.exec(engine.message);
          // The engine points into a broken string, we at its beginning.
          if (place !== null)
            assert.ok(column <= Number(place[1]) + 1, `${text}: ${error.message}`);
          return true;
        },
      );
    }
  }
});

test("values that JSON cannot hold reach the native side by name", () => {
  class Store {
    get() {}
  }
  const config = {
    a: Number.NaN,
    b: Number.NEGATIVE_INFINITY,
    c: undefined,
    d: 5000n,
    e: function read() {},
    f: () => {},
    g: Symbol("s"),
    h: [undefined, -0, 1.5],
    i: new URL("redis://h:6379/0"),
    j: new Date(0),
    k: null,
    l: Object.assign(Object.create(null), { x: 1 }),
    m: new Store(),
  };
  assert.deepEqual(JSON.parse(toJson(config)), {
    a: { $value: "NaN" },
    b: { $value: "-Infinity" },
    c: { $value: "undefined" },
    d: { $value: "5000n" },
    e: { $value: "function read" },
    f: { $value: "function f" },
    g: { $value: "Symbol(s)" },
    h: [{ $value: "undefined" }, 0, 1.5],
    i: "redis://h:6379/0",
    j: "1970-01-01T00:00:00.000Z",
    k: null,
    l: { x: 1 },
    m: {},
  });
  const twice = { x: 1 };
  assert.deepEqual(JSON.parse(toJson({ a: twice, b: twice })), { a: twice, b: twice });
});

test("what may be a password in WHENLEADER_CONFIG or in broken JSON is in no error, nor in its cause", () => {
  const secret = "S3CRETpw";
  const root = tree({ "a@b/[1].json": cluster("named") });
  for (const WHENLEADER_CONFIG of [
    `redis://:${secret}@h`,
    `redis:${secret}@h`,
    `[{"store":"redis://:${secret}@h"}]`,
    `["${secret.repeat(2000)}"]`,
    `"${secret}"`,
  ]) {
    assert.throws(
      () => first(root, { WHENLEADER_CONFIG }),
      (error) => {
        assert.equal(error.name, "ConfigError");
        assert.match(error.message, /neither a JSON object nor the path of a file/);
        assert.ok(!inspect(error, { showHidden: true, depth: 9 }).includes(secret));
        return true;
      },
    );
  }
  const named = first(root, { WHENLEADER_CONFIG: "a@b/[1].json" });
  assert.equal(named.source, path.join(root, "a@b/[1].json"), "a path is a path");
  for (const text of [`{"store":${secret}}`, `{'${secret}':1}`, `{"a":1,${secret}}`]) {
    const file = path.join(tree({ "broken.json": text }), "broken.json");
    for (const WHENLEADER_CONFIG of [text, file]) {
      assert.throws(
        () => first(root, { WHENLEADER_CONFIG }),
        (error) => {
          assert.match(error.message, /is not valid JSON: line 1/);
          assert.ok(!inspect(error, { showHidden: true }).includes(secret.slice(0, 3)));
          return true;
        },
      );
    }
  }
});

test("a configuration that is nested too deeply is a ConfigError, wherever it comes from", async () => {
  const deep = (levels) => {
    let value = {};
    for (let level = 1; level < levels; level += 1) value = { value };
    return value;
  };
  assert.deepEqual(JSON.parse(toJson(deep(100))), deep(100));
  const tooDeep = { name: "ConfigError", message: /nested more than 100 levels/ };
  for (const levels of [101, 100_000]) {
    assert.throws(() => toJson(deep(levels)), tooDeep);
    const { environment } = fakeWorld();
    await assert.rejects(environment.startCluster({ cluster: { x: deep(levels) } }), tooDeep);
  }
  const again = { toJSON: () => ({ again }) };
  assert.throws(() => toJson(again), { name: "ConfigError" });
  const text = `${'{"a":'.repeat(100_000)}1${"}".repeat(100_000)}`;
  const root = tree({ "package.json": `{"whenleader":${text}}` });
  assert.throws(() => first(root), tooDeep);
  for (const broken of ["[".repeat(100_000), `${text}x`, '{"a":'.repeat(100_000)]) {
    assert.throws(() => parseJson(broken, "it"), {
      name: "ConfigError",
      message: /not valid JSON/,
    });
  }
});
