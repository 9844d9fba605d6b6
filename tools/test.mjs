// `npm test`: everything that must hold, in one command that does its own set-up.
//
//     npm test                  all of it, as CI does
//     npm test -- rust          the Rust side: format, lints, tests
//     npm test -- js            the JavaScript side: format, lints, types, tests on this Node.js
//     npm test -- nodes         the quick JavaScript tests on the other supported versions, some on the oldest
//     npm test -- pack          the packed packages, installed into an empty folder
//
// What a test cannot run here it says in a line `SKIPPED: <what>; <how to bring it>`; those lines are
// gathered at the end. Under CI they are failures. Lines `FIGURES: <text>` are shown with their step.
import { existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { stripVTControlCharacters } from "node:util";
import { oldestNode, otherNodes } from "./nodes.mjs";
import { programs } from "./programs.mjs";
import { bold, dim, env, green, last, red, root, run, seconds, targetDir, yellow } from "./run.mjs";
import { servers } from "./servers/index.mjs";
import { buildAddon, setup } from "./setup.mjs";

const ci = !!env.CI;
const GROUPS = ["rust", "js", "nodes", "pack"];
/** Files that run on one version of Node.js only: they take their time, and repeat nothing that differs. */
const SLOW =
  /^(pack|fencing|fenced-rivalry|examples|chaos|losses|stale|rivalry|testing-stories|sdk|page|serve-stores|run-process|run-again)/;
/** Files that the oldest Node.js runs: what loads the addon and meets the ends of threads and processes. */
const OLDEST = /^(package|cluster|config|callbacks|run|worker|exit)\./;
/** Files run side by side; while they wait, one more than there are cores keeps these busy. */
const CONCURRENCY = [`--test-concurrency=${availableParallelism() + 1}`];

const wanted = process.argv.slice(2);
const unknown = wanted.find((name) => !GROUPS.includes(name));
if (unknown) {
  console.error(`There is no part "${unknown}" of the tests: choose from ${GROUPS.join(", ")}.`);
  process.exit(2);
}
const chosen = (group) => wanted.length === 0 || wanted.includes(group);

const start = performance.now();
const skipped = new Set();
const failures = [];
const total = { passed: 0, failed: 0 };
const logs = join(targetDir, "test-logs");
mkdirSync(logs, { recursive: true });

heading("set-up");
const missing = await setup({ meanwhile: () => Promise.all([servers(), programs()]) });
for (const line of missing.flat()) skipped.add(line);

if (chosen("rust")) await rust();
if (chosen("js")) await javaScript();
// Tests wait more than they work: what the package's tests need is built meanwhile. They say what is wrong with it.
const ahead =
  chosen("nodes") && chosen("pack")
    ? buildAddon({ release: true, into: join(targetDir, "addon", "ahead"), waits: true }).catch(
        () => {},
      )
    : undefined;
if (chosen("nodes")) await nodes();
await ahead;
if (chosen("pack")) await pack();
summary();

async function rust() {
  heading("rust");
  const lints = ["cargo", "clippy", "--quiet", "--all-targets"];
  await step("format", ["cargo", "fmt", "--check"]);
  await step("lints", [...lints, "--", "-D", "warnings"]);
  await step("lints without the addon", [
    ...lints,
    "--no-default-features",
    "--",
    "-D",
    "warnings",
  ]);
  // Most tests wait for something: a lease, a server. Twice as many as there are cores keep them busy.
  env.RUST_TEST_THREADS ??= String(2 * availableParallelism());
  await step("builds of the tests", ["cargo", "test", "--quiet", "--no-run"]);
  // --show-output: what was skipped and measured is told on the output of tests that pass.
  const test = (...which) => ["cargo", "test", ...which, "--", "--show-output"];
  // Those of the stores wait most of the time, the election's compute.
  await Promise.all([
    step("tests of the stores", test("--test", "conformance"), countCargo),
    step("all other tests", last(test("--workspace", "--exclude", "conformance")), countCargo),
  ]);
}

async function javaScript() {
  heading("javascript");
  const bin = (name) => join(root, "node_modules", ".bin", name);
  await step("format and lints", [bin("biome"), "check", "."]);
  await step("types", [bin("tsc"), "-p", "."]);
  await step("types of the examples", [bin("tsc"), "-p", "examples"]);
  await nodeTest(
    `tests on Node.js ${process.versions.node}`,
    process.execPath,
    tests().filter(notPack),
  );
}

async function nodes() {
  heading("other versions of Node.js");
  const quick = tests().filter((name) => !SLOW.test(name));
  for (const { major, path } of await otherNodes()) {
    const what = `quick tests on Node.js ${major}`;
    if (path) await nodeTest(what, path, quick);
    else skipped.add(noNode(what));
  }
  const { version, path } = await oldestNode();
  const what = `some tests on Node.js ${version}`;
  const some = tests().filter((name) => OLDEST.test(name));
  // It knows no --test-concurrency yet.
  if (path) await nodeTest(what, path, some, []);
  else skipped.add(noNode(what));
}

function noNode(what) {
  return `${what}: npm has no Node.js for this machine; run them with one of your own`;
}

async function pack() {
  heading("package");
  await nodeTest(
    "packed and installed",
    process.execPath,
    tests().filter((name) => !notPack(name)),
  );
}

function notPack(name) {
  return !name.startsWith("pack");
}

function tests() {
  const folder = join(root, "__test__");
  if (!existsSync(folder)) return [];
  return readdirSync(folder).filter((name) => /\.test\.(js|cjs|mjs)$/.test(name));
}

async function nodeTest(what, node, files, flags = CONCURRENCY) {
  if (files.length === 0) return;
  const command = [node, "--test", "--test-reporter=spec", ...flags];
  const paths = files.map((name) => join("__test__", name));
  await step(what, [...command, ...paths], countNode);
}

/** Runs one command: a line with its time, and its whole output if it failed. */
async function step(what, command, count = countOne) {
  const begun = performance.now();
  if (process.stdout.isTTY) process.stdout.write(`\r\x1b[K${dim(`  … ${what}`)}`);
  const { code, output } = await run(command);
  if (process.stdout.isTTY) process.stdout.write("\r\x1b[K");
  const text = stripVTControlCharacters(output);
  writeFileSync(join(logs, `${what.replaceAll(/[^\w.]+/g, "-")}.log`), text);

  const counted = count(text, code);
  // A step that ran no test proves nothing, and one that died on its way counts no failure itself.
  const empty = counted.passed + counted.failed === 0;
  if ((code !== 0 || empty) && counted.failed === 0) counted.failed = 1;
  total.passed += counted.passed;
  total.failed += counted.failed;

  const tests = count === countOne ? "" : `${counted.passed} passed, `;
  const told = dim(`${tests}${seconds(begun)}`);
  if (counted.failed === 0) {
    console.log(`  ${green("✓")} ${what}  ${told}`);
  } else {
    failures.push(what);
    console.log(`  ${red("✗")} ${what}  ${told}\n`);
    console.log(`$ ${command.join(" ")}\n${output}`);
    if (empty && code === 0) console.log("No test was run.");
  }
  for (const [, line] of text.matchAll(/^\s*(?:[ℹ#] )?SKIPPED: (.*)$/gm)) skipped.add(line.trim());
  for (const [, line] of text.matchAll(/^\s*(?:[ℹ#] )?FIGURES: (.*)$/gm))
    console.log(dim(`    ${line}`));
}

/** Checks that are no test runners count as one each. */
function countOne(_, code) {
  return code === 0 ? { passed: 1, failed: 0 } : { passed: 0, failed: 1 };
}

function countCargo(text) {
  const counted = { passed: 0, failed: 0 };
  for (const [, passed, failed] of text.matchAll(/^test result: .*?(\d+) passed; (\d+) failed/gm)) {
    counted.passed += Number(passed);
    counted.failed += Number(failed);
  }
  return counted;
}

function countNode(text) {
  const of = (word) => Number(text.match(new RegExp(`^ℹ ${word} (\\d+)$`, "m"))?.[1] ?? 0);
  if (of("skipped") + of("todo") > 0) {
    skipped.add(`${of("skipped") + of("todo")} tests of ${"`node --test`"}; see ${logs}`);
  }
  return { passed: of("pass"), failed: of("fail") + of("cancelled") };
}

function heading(text) {
  console.log(`\n${bold(text)}`);
}

function summary() {
  if (skipped.size > 0) {
    heading("skipped");
    for (const line of skipped) console.log(`  ${yellow("–")} ${line}`);
    if (ci) {
      total.failed += 1;
      failures.push("nothing may be skipped under CI");
    }
  }
  heading("summary");
  if (failures.length > 0) console.log(`  ${red("failed")}: ${failures.join(", ")}`);
  console.log(`  took ${seconds(start)}; the outputs are in ${logs}\n`);
  console.log(`${total.passed} passed, ${total.failed} failed`);
  process.exitCode = total.failed === 0 ? 0 : 1;
}
