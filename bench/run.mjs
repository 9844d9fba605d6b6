// `npm run bench`: everything, or the parts that are named. Prints a table and writes bench/results/*.json.
//
//     npm run bench -- [is-leader] [import] [elections] [requests] [handover] [--rounds=20] [--minutes=2] [--store=file|Redis|Kubernetes]
import { execFile } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { arch, cpus, platform } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs, promisify } from "node:util";
import { handover } from "./handover.mjs";
import { importing } from "./import.mjs";
import { openStores } from "./instances.mjs";
import { isLeader } from "./is-leader.mjs";
import { requests } from "./requests.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const PARTS = { import: importing, "is-leader": isLeader, elections, requests, handover };

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    rounds: { type: "string", default: "20" },
    minutes: { type: "string", default: "2" },
    store: { type: "string" },
  },
});
const unknown = positionals.find((name) => !(name in PARTS));
if (unknown) {
  console.error(
    `There is no benchmark "${unknown}": choose from ${Object.keys(PARTS).join(", ")}.`,
  );
  process.exit(2);
}

const opened = await openStores(values.store);
const context = {
  stores: opened.stores,
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
  for (const { name, url } of stores.filter(({ url }) => url)) {
    const { stdout } = await promisify(execFile)(process.execPath, [
      join(here, "elections.mjs"),
      url,
    ]);
    found.push({ store: name, ...JSON.parse(stdout.trim().split("\n").at(-1)) });
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
