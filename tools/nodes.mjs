// The other versions of Node.js that the package promises to run on, from npm.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { npm, root, run, targetDir, windows } from "./run.mjs";

const SUPPORTED = [20, 22, 24];

/** Every supported major version but the one that runs this: `{ major, path }`, without a path if it is not to be had. */
export async function otherNodes() {
  const mine = Number(process.versions.node.split(".")[0]);
  const nodes = [];
  for (const major of SUPPORTED)
    if (major !== mine) nodes.push({ major, path: await bring(major) });
  return nodes;
}

/** The very first one that package.json promises: `{ version, path }`. */
export async function oldestNode() {
  const { engines } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const [major] = engines.node.match(/\d+/);
  const version = `${major}.0.0`;
  return { version, path: await bring(version) };
}

async function bring(version) {
  const home = join(targetDir, "nodes", `${version}`);
  const system = windows ? "win" : process.platform;
  const name = `node-${system}-${process.arch}`;
  const path = join(home, "node_modules", name, "bin", windows ? "node.exe" : "node");
  if (!existsSync(path)) {
    mkdirSync(home, { recursive: true });
    // npm installs into the nearest folder that has a package.json.
    writeFileSync(join(home, "package.json"), "{}\n");
    const flags = ["--no-audit", "--no-fund", "--no-save", "--loglevel=error"];
    await run(npm("install", ...flags, `${name}@${version}`), { cwd: home });
  }
  return (await run([path, "--version"])).code === 0 ? path : undefined;
}
