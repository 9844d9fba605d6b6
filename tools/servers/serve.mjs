// A real server for tests, on loopback and on free ports, with a folder of its own:
//
//     node tools/servers/serve.mjs <kind> [--flag=<flag of the server>]... [--<option of the kind>]...
//
// The kinds and their options are in kinds/. When the server is ready, it prints one line of JSON: at least
// url, port, pid and dir. Then it takes commands, as launcher.mjs tells: freeze, thaw, kill, restart (on the
// same port, with the same data), and what more the kind has. Where the server cannot be had, the line is
// `{ "missing": <why> }`. With --find nothing is started: the line says where the server's program is.
import { spawnSync } from "node:child_process";
import { hasOpenssl } from "./certificates.mjs";
import { findServer, KINDS, whyMissing } from "./kinds/index.mjs";
import { Launcher } from "./launcher.mjs";

const [kind, ...args] = process.argv.slice(2);
if (!KINDS[kind]?.start) {
  const known = Object.keys(KINDS).filter((name) => KINDS[name].start);
  throw new Error(`there is no server "${kind}": choose from ${known.join(", ")}`);
}
const { start, ports: count = 1, options: known = [], needsOpenssl } = KINDS[kind];
const flags = [];
const options = {};
let find = false;
for (const arg of args) {
  if (arg === "--find") find = true;
  else if (arg.startsWith("--flag=")) flags.push(arg.slice("--flag=".length));
  else if (known.includes(arg.slice(2)) && arg.startsWith("--")) options[arg.slice(2)] = true;
  else throw new Error(`unknown argument ${arg} for ${kind}`);
}

const program = findServer(kind);
if (find) {
  console.log(JSON.stringify(program ? { program } : { missing: `there is ${whyMissing(kind)}` }));
  process.exit();
}
const launcher = new Launcher(kind);
if (!program) launcher.missing(`there is ${whyMissing(kind)}`);
if (needsOpenssl && !hasOpenssl()) launcher.missing("there is no openssl here: install it");

try {
  let port;
  const { told, commands } = await launcher.onFreePorts(
    count,
    (ports) => {
      port = ports[0];
      return start({ launcher, program, ports, flags, options, unprivileged, need });
    },
    () => launcher.empty(),
  );
  launcher.serve(
    { port, pid: launcher.pid("server"), dir: launcher.dir, ...told },
    {
      freeze: ({ of = "server" }) => launcher.freeze(of),
      thaw: ({ of = "server" }) => launcher.thaw(of),
      kill: ({ of = "server" }) => launcher.kill(of),
      async restart({ of = "server" }) {
        await launcher.restart(of);
        return { pid: launcher.pid(of) };
      },
      ...commands,
    },
  );
} catch (error) {
  await launcher.fail(error);
}

/** The program of another kind that a command of this one needs. */
function need(other) {
  const found = findServer(other);
  if (!found) throw new Error(`there is ${whyMissing(other)}`);
  return found;
}

/** Whom a server runs as that refuses to run as root. Undefined: as we are. */
function unprivileged() {
  if (process.getuid?.() !== 0) return;
  const id = (flag) => Number(spawnSync("id", [flag, "nobody"], { encoding: "utf8" }).stdout);
  return { uid: id("-u"), gid: id("-g") };
}
