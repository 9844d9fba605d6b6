// The set-up of a checkout: says what is missing, installs the npm packages, builds the addon. Each part
// is skipped when it is up to date, so every command calls it.
//
//     node tools/start.cjs build [--release]
import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  writeFileSync,
} from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { bold, dim, env, last, npm, red, root, run, seconds, targetDir, windows } from "./run.mjs";

const RUST = [1, 89];

/** A line for each thing that is missing or too old, with the way to get it. Node was checked by start.cjs. */
async function missing() {
  const lines = [];
  const say = (what, cure) => lines.push(`${what}: ${cure}`);

  const [rust, cargo] = await Promise.all([
    run(["rustc", "--version"]),
    run(["cargo", "--version"]),
  ]);
  if (rust.code === 127 || cargo.code === 127) {
    say(
      `Rust ${RUST.join(".")} or newer is needed and was not found`,
      "get it from https://rustup.rs",
    );
  } else if (rust.code !== 0) {
    say("Rust is installed but does not run", `rustc says: ${rust.output.trim().split("\n")[0]}`);
  } else if (older(rust.output.split(" ")[1], RUST)) {
    say(
      `Rust ${RUST.join(".")} or newer is needed, this is ${rust.output.split(" ")[1]}`,
      "run: rustup update stable",
    );
  }
  // On Windows rustc finds the linker of Visual Studio by itself, and says so if there is none.
  if (!windows && (await run(["cc", "--version"])).code !== 0) {
    say("A C compiler is needed as the linker and was not found", compilerCure());
  }
  return lines;
}

function compilerCure() {
  if (process.platform === "darwin") return "run: xcode-select --install";
  if (existsSync("/etc/debian_version")) return "run: apt-get install build-essential";
  if (existsSync("/etc/alpine-release")) return "run: apk add build-base";
  return "install gcc or clang";
}

function older(version, [major, minor]) {
  const [a, b] = version.split(".").map(Number);
  return a < major || (a === major && b < minor);
}

/** `npm ci`, unless what the lock file names is what was installed last. */
async function installPackages() {
  const lock = createHash("sha256")
    .update(readFileSync(join(root, "package-lock.json")))
    .digest("hex");
  const stamp = join(root, "node_modules", ".installed");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === lock) return;
  await step(
    "Installing the npm packages",
    npm("ci", "--no-audit", "--no-fund", "--loglevel=error"),
  );
  writeFileSync(stamp, lock);
}

/**
 * Cargo decides what there is to do. `into` is the folder for the result, else it lies in the checkout; `waits`: whatever
 * else wants the processor has it first.
 */
export async function buildAddon({ release = false, into = root, waits = false } = {}) {
  const built = join(targetDir, "addon", release ? "release" : "debug");
  const napi = join(root, "node_modules", "@napi-rs", "cli", "dist", "cli.js");
  const command = [process.execPath, napi, "build", "--platform", "--output-dir", built];
  command.push("--js", "native.js", "--dts", "native.d.ts");
  if (release) command.push("--release");
  const options = release ? { env: { ...env, RUSTFLAGS: withoutPlaces() } } : {};
  await step(
    `Building the addon${release ? " for release" : ""}`,
    waits ? last(command) : command,
    options,
  );

  mkdirSync(into, { recursive: true });
  for (const name of readdirSync(built)) replace(join(built, name), join(into, name));
}

/** A program that runs has the old file mapped, and would crash if that changed under it. */
function replace(from, to) {
  const content = readFileSync(from);
  if (existsSync(to) && readFileSync(to).equals(content)) return;
  writeFileSync(`${to}.new`, content);
  renameSync(`${to}.new`, to);
}

/** Panic messages name source files: as seen from the project and the registry, not from this machine. */
function withoutPlaces() {
  const cargoHome = env.CARGO_HOME || join(homedir(), ".cargo");
  const flags = [
    `--remap-path-prefix=${cargoHome}=cargo`,
    `--remap-path-prefix=${root}=whenleader`,
  ];
  return [env.RUSTFLAGS, ...flags].filter(Boolean).join(" ");
}

/** One line while it runs and its time after it; the whole output only when it fails. */
async function step(what, command, options) {
  const start = performance.now();
  const quiet = setTimeout(() => console.log(dim(`${what} ...`)), 2_000);
  const { code, output } = await run(command, options);
  clearTimeout(quiet);
  if (code !== 0) throw new SetupFailed(`${what} failed:\n\n${output}`);
  if (performance.now() - start > 2_000) console.log(dim(`${what}: done in ${seconds(start)}`));
}

export class SetupFailed extends Error {}

/**
 * Makes the checkout ready, or ends the process with the reason. `meanwhile` is done beside the build; what it resolves
 * with is returned.
 * @template T
 * @param {{ release?: boolean, meanwhile?: () => Promise<T> }} [how]
 */
export async function setup({ release = false, meanwhile } = {}) {
  let other;
  try {
    const lines = await missing();
    if (lines.length > 0) throw new SetupFailed(lines.join("\n"));
    await installPackages();
    other = meanwhile?.();
    other?.catch(() => {}); // It is waited for below.
    await buildAddon({ release });
  } catch (error) {
    if (!(error instanceof SetupFailed)) throw error;
    console.error(`${red(bold("whenleader cannot be set up."))} ${error.message}`);
    await other; // Nothing is left half done.
    process.exit(1);
  }
  return other;
}
