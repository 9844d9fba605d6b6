// The other versions of Node.js that the package promises to run on, from npm.
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { npm, run, targetDir, windows } from "./run.mjs";

const SUPPORTED = [20, 22, 24];

/** Every supported major version but the one that runs this: `{ major, path }`, without a path if it is not to be had. */
export async function otherNodes() {
  const mine = Number(process.versions.node.split(".")[0]);
  const nodes = [];
  for (const major of SUPPORTED)
    if (major !== mine) nodes.push({ major, path: await bring(major) });
  return nodes;
}

async function bring(major) {
  const home = join(targetDir, "nodes", `${major}`);
  const system = windows ? "win" : process.platform;
  const name = `node-${system}-${process.arch}`;
  const path = join(home, "node_modules", name, "bin", windows ? "node.exe" : "node");
  if (!existsSync(path)) {
    mkdirSync(home, { recursive: true });
    // npm installs into the nearest folder that has a package.json.
    writeFileSync(join(home, "package.json"), "{}\n");
    const flags = ["--no-audit", "--no-fund", "--no-save", "--loglevel=error"];
    await run(npm("install", ...flags, `${name}@${major}`), { cwd: home });
  }
  return (await run([path, "--version"])).code === 0 ? path : undefined;
}
