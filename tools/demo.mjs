// `npm run demo`: the set-up, then the show.
import { spawn } from "node:child_process";
import { join } from "node:path";
import { root } from "./run.mjs";
import { setup } from "./setup.mjs";

await setup();
const show = spawn(process.execPath, [join(root, "examples", "demo", "show.mjs")], {
  stdio: "inherit",
});
show.on("close", (code) => {
  process.exitCode = code ?? 1;
});
