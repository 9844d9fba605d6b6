// `npm run bench`: everything, or the parts that are named. Prints a table and writes bench/results/*.json.
//
//     npm run bench -- [is-leader] [import] [elections] [requests] [handover] [serve] [awaits]
//         [--store=<name>[,<name>]...|all] [--rounds=20] [--minutes=2] [--lease=1500,15000]
import { execFile } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { arch, cpus, platform } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs, promisify } from "node:util";
import { awaits } from "./awaits.mjs";
import { handover } from "./handover.mjs";
import { importing } from "./import.mjs";
import { openStores, STORES } from "./instances.mjs";
import { isLeader } from "./is-leader.mjs";
import { Kubernetes } from "./kubernetes.mjs";
import { requests } from "./requests.mjs";
import { serve } from "./serve.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const PARTS = {
  import: importing,
  "is-leader": isLeader,
  elections,
  requests,
  handover,
  serve,
  awaits,
};

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    rounds: { type: "string", default: "20" },
    minutes: { type: "string", default: "2" },
    // The others take their time; they are measured where they are named.
    store: { type: "string", default: "file,redis,kubernetes" },
    lease: { type: "string", default: "1500,15000" },
  },
});
const unknown = positionals.find((name) => !(name in PARTS));
if (unknown) {
  console.error(
    `There is no benchmark "${unknown}": choose from ${Object.keys(PARTS).join(", ")}.`,
  );
  process.exit(2);
}

const names = values.store === "all" ? STORES : values.store.toLowerCase().split(",");
const stranger = names.find((name) => !STORES.includes(name));
if (stranger !== undefined) {
  console.error(`There is no store "${stranger}": choose from ${STORES.join(", ")}, or all.`);
  process.exit(2);
}

const opened = await openStores(names);
const context = {
  stores: opened.stores,
  leases: values.lease.split(",").map(Number),
  rounds: Number(values.rounds),
  minutes: Number(values.minutes),
};
const results = {
  machine: `${cpus().length} × ${cpus()[0].model.trim()}, ${platform()} ${arch()}, Node.js ${process.versions.node}`,
};
try {
  for (const name of positionals.length > 0 ? positionals : Object.keys(PARTS)) {
    console.log(`\n${name}`);
    results[name] = await PARTS[name](context);
    print(results[name]);
  }
} finally {
  await opened.close();
}
const folder = join(here, "results");
mkdirSync(folder, { recursive: true });
const file = join(folder, `${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.json`);
writeFileSync(file, `${JSON.stringify(results, null, 2)}\n`);
console.log(`\nThe results are in ${file}`);
// The addon's own cluster was stopped; nothing else is left to wait for.
process.exit();

/** Each store in a process of its own, since what is measured is a process. */
async function elections({ stores }) {
  const found = [];
  // On Kubernetes each election watches on a connection of its own: nobody has a thousand there.
  for (const store of stores.filter((store) => !(store instanceof Kubernetes))) {
    const { stdout } = await promisify(execFile)(process.execPath, [
      join(here, "elections.mjs"),
      store.cluster().store,
    ]);
    found.push({ store: store.name, ...JSON.parse(stdout.trim().split("\n").at(-1)) });
  }
  return found;
}

function print(found) {
  const rows = [found].flat().map((row) => flat(row));
  if (rows.length === 1)
    for (const [name, value] of Object.entries(rows[0]))
      console.log(`  ${name.padEnd(40)} ${value}`);
  else console.table(rows);
}

/** Nested results in one row: `{ ms: { median } }` becomes `{ "ms median" }`. */
function flat(value, prefix = "") {
  const entries = Object.entries(value).map(([name, inner]) => {
    const key = prefix ? `${prefix} ${name}` : name;
    return typeof inner === "object" ? Object.entries(flat(inner, key)) : [[key, inner]];
  });
  return Object.fromEntries(entries.flat());
}
