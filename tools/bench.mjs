// `npm run bench`: the set-up with the addon built for release, then the benchmarks.
import { spawn } from "node:child_process";
import { join } from "node:path";
import { root } from "./run.mjs";
import { setup } from "./setup.mjs";

await setup({ release: true });
const program = join(root, "bench", "run.mjs");
const bench = spawn(process.execPath, [program, ...process.argv.slice(2)], { stdio: "inherit" });
bench.on("close", (code) => {
  process.exitCode = code ?? 1;
});
