// The package as it is imported: what that costs, what it keeps alive, and what is said when it is broken.

const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const { test } = require("node:test");
const { ROOT, newFolder, runProgram } = require("./support/child.js");

const NAMES = [
  "ConfigError",
  "LeaderElection",
  "LeadershipLostError",
  "LoadError",
  "currentTerm",
  "expectCluster",
  "runWhenLeader",
  "startCluster",
  "stopCluster",
  "useCluster",
  "version",
  "whenLeader",
];

const run = (code, options) => runProgram(code, { bare: true, ...options });

/** The package without its native part, as after an install that left it out. */
function withoutNative() {
  const root = newFolder();
  for (const part of ["index.js", "package.json", "lib"]) {
    fs.cpSync(path.join(ROOT, part), path.join(root, part), { recursive: true });
  }
  return root;
}

test("require gives the named exports", async () => {
  const { stdout } = await run('console.log(Object.keys(require("whenleader")).sort().join())');
  assert.equal(stdout.trim(), NAMES.join());
});

test("import gives the same named exports, and they are the same functions", async () => {
  const { stdout, stderr } = await run(
    `import { createRequire } from "node:module";
     import whole, { ${NAMES.join(", ")} } from "whenleader";
     const required = createRequire(import.meta.url)("whenleader");
     const same = Object.entries({ ${NAMES.join(", ")} })
       .filter(([name, value]) => value === required[name] && value === whole[name]);
     console.log(same.length, version);`,
    { type: "module" },
  );
  const { version } = require("../package.json");
  assert.equal(stdout.trim(), `${NAMES.length} ${version}`, stderr);
});

test("importing loads nothing but the classes, and costs next to nothing", async () => {
  const { stdout } = await run(
    `const before = process.cpuUsage();
     require("whenleader");
     const { user, system } = process.cpuUsage(before);
     const loaded = Object.keys(require.cache).filter((file) => !file.endsWith("main.cjs"));
     console.log(JSON.stringify({ ms: (user + system) / 1000, loaded }));`,
  );
  const { ms, loaded } = JSON.parse(stdout);
  assert.deepEqual(loaded.map((file) => path.basename(file)).sort(), [
    "errors.js",
    "index.js",
    "leader-election.js",
    "package.json",
  ]);
  assert.ok(ms < 50, `${ms} ms; 1 to 3 are usual`);
});

test("what the package requires is its own, Node's, or the application's as a peer that may be missing", () => {
  const { dependencies, peerDependencies, peerDependenciesMeta } = require("../package.json");
  const files = ["index.js", "testing.js", path.join("bin", "whenleader.js")];
  for (const file of fs.readdirSync(path.join(ROOT, "lib"), { recursive: true })) {
    if (file.endsWith(".js")) files.push(path.join("lib", file));
  }
  const others = new Set();
  for (const file of files) {
    const code = fs
      .readFileSync(path.join(ROOT, file), "utf8")
      .replace(/^\s*(\/?\*|\/\/).*$/gm, "");
    for (const [, name] of code.matchAll(/\brequire\("([^"]+)"\)/g)) {
      if (!/^(node:|\.)/.test(name)) others.add(name);
    }
  }
  assert.equal(dependencies, undefined);
  assert.deepEqual([...others].sort(), Object.keys(peerDependencies).sort());
  for (const name of others) assert.equal(peerDependenciesMeta[name].optional, true, name);
});

test("a process without a configuration starts no thread, writes no file, and ends by itself", async () => {
  const { code, stdout, stderr } = await run(
    `const { whenLeader, useCluster } = require("whenleader");
     const fs = require("node:fs");
     const threads = () => (fs.existsSync("/proc/self/task") ? fs.readdirSync("/proc/self/task").length : 0);
     const before = threads();
     whenLeader(() => console.log("fn"), () => console.log("deregistered"));
     setImmediate(() => {
       console.log(useCluster().isLeader(), threads() - before);
       console.log(Object.keys(require.cache).some((file) => file.endsWith(".node")));
       console.log(fs.readdirSync(".").filter((name) => !name.startsWith("program-")).join());
     });`,
  );
  assert.equal(stderr, "");
  assert.equal(stdout, "fn\ntrue 0\nfalse\nnode_modules\n");
  assert.equal(code, 0);
});

test("the native part that is missing is a LoadError that names its package and the cures", async () => {
  const root = withoutNative();
  for (const [platform, arch, expected] of [
    ["linux", "x64", /@whenleader\/binding-linux-x64-(gnu|musl) /],
    ["linux", "arm64", /@whenleader\/binding-linux-arm64-(gnu|musl) /],
    ["darwin", "arm64", /@whenleader\/binding-darwin-arm64 /],
    ["win32", "x64", /@whenleader\/binding-win32-x64-msvc /],
    ["freebsd", "riscv64", /@whenleader\/binding-freebsd-riscv64 /],
  ]) {
    const { stdout, stderr } = await run(
      `const { startCluster, LoadError } = require("whenleader");
       Object.defineProperty(process, "platform", { value: ${JSON.stringify(platform)} });
       Object.defineProperty(process, "arch", { value: ${JSON.stringify(arch)} });
       startCluster({ cluster: { type: "StoreCluster" } }).catch((error) => {
         console.log(error instanceof LoadError, error.code, error.cause !== undefined);
         console.log(error.message);
       });`,
      { root, flags: ["--preserve-symlinks"] },
    );
    const [first, message] = stdout.split("\n");
    assert.equal(first, "true WHENLEADER_LOAD true", stderr);
    assert.match(message, expected);
    for (const cure of ["optional dependencies", "lock file", "npm run build"]) {
      assert.ok(message.includes(cure), message);
    }
  }
});

test("the packages that the LoadError names are the ones that are published", () => {
  const { napi } = require("../package.json");
  for (const folder of fs.readdirSync(path.join(ROOT, "npm"))) {
    const { name } = require(`../npm/${folder}/package.json`);
    assert.equal(name, `${napi.packageName}-${folder}`);
    assert.match(
      folder,
      /^(linux-(x64|arm64)-(gnu|musl)|darwin-(x64|arm64)|win32-(x64|arm64)-msvc)$/,
    );
  }
  assert.equal(napi.packageName, "@whenleader/binding");
});

test("a configuration that is found, without the native part, is a LoadError at the first use", async () => {
  const { stdout } = await run(
    `const { whenLeader } = require("whenleader");
     try {
       whenLeader(() => console.log("led"));
     } catch (error) {
       console.log(error.name);
     }`,
    {
      root: withoutNative(),
      flags: ["--preserve-symlinks"],
      env: { WHENLEADER_CONFIG: '{ "cluster": { "type": "StoreCluster" } }' },
    },
  );
  assert.equal(stdout, "LoadError\n");
});

test("without a configuration the native part is not needed", async () => {
  const { stdout } = await run(
    `const { whenLeader } = require("whenleader");
     whenLeader(({ instanceId }) => console.log(instanceId));`,
    { root: withoutNative(), flags: ["--preserve-symlinks"], env: { HOSTNAME: "host" } },
  );
  assert.match(stdout, /^host-\d+-[0-9a-f]{8}\n$/);
});

test("arguments of the wrong kind are a TypeError that names the argument", () => {
  const { useCluster, whenLeader, startCluster } = require("../index.js");
  const noop = () => {};
  for (const bad of [undefined, null, 5, "fn", {}, Promise.resolve()]) {
    assert.throws(() => whenLeader(bad), { name: "TypeError", message: /fn must be a function/ });
  }
  for (const bad of [5, "x", {}, { election: "e" }, true]) {
    assert.throws(() => whenLeader(noop, bad), {
      name: "TypeError",
      message: /deregisteredFn must be a function.*third argument/,
    });
  }
  for (const [options, message] of [
    [5, /options must be an object/],
    [{ elektion: "x" }, /options\.elektion is not known/],
    [{ election: 5 }, /options\.election must be the name/],
    [{ election: "" }, /options\.election must not be empty/],
    [{ election: "a\n" }, /options\.election must hold no control character/],
    [{ election: " a" }, /options\.election must not begin or end with a space/],
    [{ election: "é".repeat(127) }, /options\.election must have at most 253 bytes/],
  ]) {
    assert.throws(() => whenLeader(noop, noop, options), { name: "TypeError", message });
  }
  for (const bad of [5, null, {}, "", "a\0"]) {
    assert.throws(() => useCluster(bad), {
      name: "TypeError",
      message: /useCluster\(name\): name/,
    });
  }
  return assert.rejects(startCluster({}, 5), { name: "TypeError", message: /options/ });
});

test("a million registrations that come and go leave the memory as it was", async () => {
  const { stdout, stderr } = await run(
    `const { whenLeader } = require("whenleader");
     const noop = () => {};
     (async () => {
       const rounds = [];
       for (let round = 0; round < 10; round += 1) {
         for (let i = 0; i < 100_000; i += 1) {
           const remove = whenLeader(noop, noop);
           if (i % 10 === 0) await null; // Some have run their fn.
           remove();
         }
         await new Promise(setImmediate);
         global.gc();
         rounds.push(Math.round(process.memoryUsage().rss / 2 ** 20));
       }
       console.log(JSON.stringify(rounds));
     })();`,
    { flags: ["--expose-gc", "--max-semi-space-size=16"] },
  );
  const rounds = JSON.parse(stdout || `"${stderr}"`);
  assert.ok(rounds.at(-1) - rounds[1] < 20, `MiB after each 100,000: ${rounds}`);
});

test("a misspelt option of startCluster, a list of options and a bare logger are refused by name", async () => {
  const { startCluster } = require("../index.js");
  for (const [options, message] of [
    [{ loger: console }, /options\.loger is not known; there is logger/],
    [[], /options must be an object/],
    [null, /options must be an object/],
    [() => {}, /options must be an object/],
    [console, /as the option logger/],
  ]) {
    await assert.rejects(startCluster({}, options), { name: "TypeError", message });
  }
});

test("half of a surrogate pair is in no election's name", () => {
  const { useCluster, whenLeader } = require("../index.js");
  for (const bad of ["\ud800", "a\udc00b"]) {
    assert.throws(() => useCluster(bad), { name: "TypeError", message: /surrogate/ });
    assert.throws(() => whenLeader(() => {}, null, { election: bad }), { message: /surrogate/ });
  }
});
