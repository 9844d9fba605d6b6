// The package as npm delivers it: packed, installed into an empty folder, on a machine without Rust.

const assert = require("node:assert/strict");
const { execFileSync, spawn, spawnSync } = require("node:child_process");
const { once } = require("node:events");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { createInterface } = require("node:readline");
const { before, after, test } = require("node:test");

const root = path.dirname(__dirname);
const MIB = 2 ** 20;
const BINARY_LIMIT = 10 * MIB;
const BUILD_PATIENCE = 20 * 60_000;

const NAMES = [
  "ConfigError",
  "LeaderElection",
  "LeadershipLostError",
  "LoadError",
  "currentTerm",
  "expectCluster",
  "runWhenLeader",
  "startCluster",
  "useCluster",
  "whenLeader",
];

/** Everything of this test, and nothing of it in the checkout. */
const work = fs.mkdtempSync(path.join(os.tmpdir(), "whenleader-pack-"));
const app = path.join(work, "app");
let platform;
let main;
let binary;

before(
  async () => {
    const { buildAddon } = await import("../tools/setup.mjs");
    const built = path.join(work, "built");
    await buildAddon({ release: true, into: built });

    const name = fs.readdirSync(built).find((file) => file.endsWith(".node"));
    platform = name.split(".")[1];
    binary = path.join(built, name);
    const staged = path.join(work, "platform");
    fs.cpSync(path.join(root, "npm", platform), staged, { recursive: true });
    fs.copyFileSync(binary, path.join(staged, name));

    main = npmPack(root);
    const other = npmPack(staged);
    install(app, main.file, other.file);
  },
  { timeout: BUILD_PATIENCE },
);

after(() => fs.rmSync(work, { recursive: true, force: true }));

test("the package holds what a user needs and nothing else", () => {
  const expected =
    /^((index|testing)\.(js|d\.ts)|native\.(js|d\.ts)|lib\/[\w/-]+\.js|bin\/whenleader\.js|package\.json|README\.md|CHANGELOG\.md|LICENSE-(MIT|APACHE))$/;
  const files = main.files.map((file) => file.path);
  assert.deepEqual(
    files.filter((file) => !expected.test(file)),
    [],
  );
  const needed = [
    "index.js",
    "index.d.ts",
    "testing.js",
    "testing.d.ts",
    "native.js",
    "bin/whenleader.js",
  ];
  for (const file of [...needed, "README.md", "LICENSE-MIT"]) {
    assert.ok(files.includes(file), `${file} is missing`);
  }
});

test("nothing in the packages tells where they were built", () => {
  const files = main.files.map((file) => path.join(app, "node_modules", "whenleader", file.path));
  for (const file of [...files, binary]) {
    const bytes = fs.readFileSync(file);
    for (const place of [root, os.homedir()])
      assert.ok(!bytes.includes(`${place}${path.sep}`), file);
  }
});

test("the binary keeps to its limit", (t) => {
  const { size } = fs.statSync(binary);
  t.diagnostic(`FIGURES: the binary has ${(size / MIB).toFixed(2)} MiB`);
  assert.ok(size < BINARY_LIMIT, `${size} bytes`);
});

test("the package has no dependencies but its binaries, and its peer is not installed with it", () => {
  const tree = fs.readdirSync(path.join(app, "node_modules")).filter((name) => name[0] !== ".");
  assert.deepEqual(tree.sort(), ["@whenleader", "whenleader"]);
  const manifest = path.join(app, "node_modules", "whenleader", "package.json");
  const { peerDependencies, peerDependenciesMeta } = json(fs.readFileSync(manifest, "utf8"));
  assert.deepEqual(Object.keys(peerDependencies), ["@opentelemetry/api"]);
  assert.deepEqual(peerDependenciesMeta, { "@opentelemetry/api": { optional: true } });
});

test("require and import give the same named exports", () => {
  const required = json(
    runIn(app, "-p", `JSON.stringify(Object.keys(require("whenleader")).sort())`),
  );
  for (const name of NAMES) assert.ok(required.includes(name), `${name} is missing`);
  const imported = json(
    runIn(
      app,
      "--input-type=module",
      "-e",
      `import * as all from "whenleader";
       import { createRequire } from "node:module";
       const required = createRequire(process.cwd() + "/")("whenleader");
       const names = Object.keys(required);
       for (const name of names) if (all[name] !== required[name]) throw new Error(name);
       console.log(JSON.stringify(names.sort()));`,
    ),
  );
  assert.deepEqual(imported, required);
});

test("an installed package leads without a configuration", () => {
  const out = runIn(
    app,
    "-e",
    `const { whenLeader, useCluster } = require("whenleader");
     whenLeader(() => console.log("leads", useCluster().isLeader()), () => console.log("ends"));
     setImmediate(() => useCluster().stop());`,
  );
  assert.equal(out, "leads true\nends\n");
});

test("an installed package leads on the embedded store with its own binary", () => {
  fs.writeFileSync(
    path.join(app, "whenleader.config.json"),
    '{ "cluster": { "type": "StoreCluster" } }\n',
  );
  const out = runIn(
    app,
    "--input-type=module",
    "-e",
    `import { whenLeader, useCluster } from "whenleader";
     whenLeader(
       (term) => console.log("leads", useCluster().isLeader(), term.isCurrent()),
       () => console.log("ends", useCluster().isLeader()),
     );
     await useCluster().waitUntilLeader({ timeout: 10_000 });
     await useCluster().stop();`,
  );
  fs.rmSync(path.join(app, "whenleader.config.json"));
  assert.equal(out, "leads true true\nends false\n");
  assert.ok(
    fs.existsSync(path.join(app, ".whenleader")),
    "the store lies beside the configuration",
  );
});

test("an installed package brings a cluster for tests, by require and by import", () => {
  const code = `whenLeader(() => console.log("leads"), () => console.log("ends"));
     const cluster = useTestCluster();
     cluster.promote().then(() => cluster.restore());`;
  const names = ["{ useTestCluster }", "{ whenLeader }"];
  const [required, imported] = [
    names.map((name, i) => `const ${name} = require("whenleader${i === 0 ? "/testing" : ""}");`),
    names.map((name, i) => `import ${name} from "whenleader${i === 0 ? "/testing" : ""}";`),
  ].map((lines) => lines.join("\n") + code);
  assert.equal(runIn(app, "-e", required), "leads\nends\n");
  assert.equal(runIn(app, "--input-type=module", "-e", imported), "leads\nends\n");
});

test("an installed package brings the program whenleader, which serves", async () => {
  const program = path.join(app, "node_modules", ".bin", "whenleader");
  const server = spawn(program, ["serve", "--listen", "0", "--log", "warn"], {
    cwd: app,
    env: onUsersMachine(),
    shell: process.platform === "win32",
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [line] = await once(createInterface({ input: server.stdout }), "line");
  const url = /http:\S+/.exec(line)?.[0];
  assert.ok(url, line);
  assert.equal((await fetch(`${url}/healthz`)).status, 200);
  server.kill("SIGTERM");
  assert.deepEqual(await once(server, "exit"), [0, null]);
});

test("without a binary for this platform the error names the package", () => {
  const without = path.join(work, "without");
  install(without, main.file);
  const out = runIn(
    without,
    "-e",
    `const { startCluster, LoadError } = require("whenleader");
     Promise.resolve()
       .then(() => startCluster({ cluster: { type: "StoreCluster" } }))
       .catch((error) => console.log(error instanceof LoadError, error.message));`,
  );
  assert.match(out, /^true /);
  assert.ok(out.includes(`@whenleader/binding-${platform}`), out);
});

test("every platform has a package of the same version, and publishing names them all", () => {
  const copy = path.join(work, "publish");
  fs.mkdirSync(copy);
  fs.copyFileSync(path.join(root, "package.json"), path.join(copy, "package.json"));
  fs.cpSync(path.join(root, "npm"), path.join(copy, "npm"), { recursive: true });
  const { version } = require("../package.json");
  const names = {};
  for (const dir of fs.readdirSync(path.join(copy, "npm"))) {
    const manifest = JSON.parse(
      fs.readFileSync(path.join(copy, "npm", dir, "package.json"), "utf8"),
    );
    // Publishing refuses while any binary is missing; what is in them is no matter here.
    fs.writeFileSync(path.join(copy, "npm", dir, manifest.main), "");
    assert.deepEqual(manifest.files, [manifest.main]);
    names[manifest.name] = version;
    assert.equal(manifest.version, version, dir);
  }
  const napi = path.join(root, "node_modules", "@napi-rs", "cli", "dist", "cli.js");
  const flags = ["-t", "npm", "--skip-optional-publish", "--no-gh-release"];
  execFileSync(process.execPath, [napi, "prepublish", ...flags], { cwd: copy, stdio: "pipe" });
  const published = JSON.parse(fs.readFileSync(path.join(copy, "package.json"), "utf8"));
  assert.deepEqual(published.optionalDependencies, names);
  assert.equal(published.dependencies, undefined);
});

function npmPack(folder) {
  const out = npm(folder, "pack", "--json", "--pack-destination", work);
  const [packed] = JSON.parse(out.slice(out.indexOf("[")));
  return { files: packed.files, file: path.join(work, packed.filename) };
}

function install(folder, ...tarballs) {
  fs.mkdirSync(folder);
  fs.writeFileSync(path.join(folder, "package.json"), '{ "private": true }\n');
  npm(folder, "install", "--offline", "--no-audit", "--no-fund", ...tarballs);
}

function npm(cwd, ...args) {
  const cli = process.env.npm_execpath;
  const [program, ...first] = cli?.endsWith(".js") ? [process.execPath, cli] : ["npm"];
  return execFileSync(program, [...first, ...args], {
    cwd,
    encoding: "utf8",
    stdio: ["ignore", "pipe", "pipe"],
    shell: process.platform === "win32" && program === "npm",
  });
}

/** Node in the folder, on a machine whose PATH has nothing but Node. */
function runIn(cwd, ...args) {
  const env = onUsersMachine();
  const { status, stdout, stderr } = spawnSync(process.execPath, args, {
    cwd,
    env,
    encoding: "utf8",
  });
  assert.equal(status, 0, stderr);
  assert.equal(stderr, "");
  return stdout;
}

function onUsersMachine() {
  const env = { ...process.env, PATH: onlyNode() };
  for (const name of Object.keys(env))
    if (/^(CARGO|RUST|WHENLEADER|KELVIN|npm_|NODE_)/.test(name)) delete env[name];
  assert.ok(spawnSync("cargo", ["--version"], { env }).error, "cargo is on the PATH");
  return env;
}

function onlyNode() {
  if (process.platform === "win32") return path.dirname(process.execPath);
  const folder = path.join(work, "bin");
  if (!fs.existsSync(folder)) {
    fs.mkdirSync(folder);
    fs.symlinkSync(process.execPath, path.join(folder, "node"));
  }
  return folder;
}

function json(text) {
  return JSON.parse(text);
}
