// The servers that the tests need: finds them, and brings the missing ones where that harms nothing.
// What is to know of each is in kinds/.
import { join } from "node:path";
import { buildPrograms, findProgram, PROGRAMS, VERSION } from "../kubernetes/programs.mjs";
import { bold, dim, env, root, run, seconds } from "../run.mjs";
import { hasOpenssl } from "./certificates.mjs";
import { findServer, KINDS, variableOf, whyMissing } from "./kinds/index.mjs";
import { aptInstall, mayInstall, must } from "./programs.mjs";

/** What tests cannot do without: all but what runs only where somebody names its program. */
const NEEDED = Object.keys(KINDS).filter((kind) => !KINDS[kind].named);

/**
 * Sets the variables by which tests find the servers. Returns a line for each one that is missing.
 * @param {string[]} [kinds]
 * @param {{ withKubernetes?: boolean }} [how]
 */
export async function servers(kinds = NEEDED, { withKubernetes = true } = {}) {
  const skipped = await openssl();
  // That takes the processors, what else is brought the network.
  const built = withKubernetes || kinds.includes("etcd") ? kubernetes() : Promise.resolve([]);
  built.catch(() => {}); // It is waited for below.
  for (const kind of etcdLast(kinds)) {
    // It is built with Kubernetes.
    if (kind === "etcd") await built;
    const { name, bring } = KINDS[kind];
    const found = findServer(kind, env) || (await brought(bring));
    if (found) env[variableOf(kind)] = found;
    else skipped.push(`tests with ${name}: ${whyMissing(kind)}`);
  }
  return [...skipped, ...(await built)];
}

function etcdLast(kinds) {
  return kinds.toSorted((a, b) => Number(a === "etcd") - Number(b === "etcd"));
}

async function brought(bring) {
  try {
    return await bring?.();
  } catch (error) {
    console.log(error.message);
  }
}

/** Makes the certificates of all servers that speak TLS. */
async function openssl() {
  if (hasOpenssl()) return [];
  if (mayInstall) await aptInstall("openssl").catch(() => {});
  return hasOpenssl() ? [] : ["tests with TLS or Kubernetes: no openssl here; install it"];
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
    await buildPrograms(missing, (command, options) => must(run(command, options))).catch((error) =>
      console.log(error.message),
    );
    console.log(dim(`done in ${seconds(start)}`));
    missing = find();
  }
  const cure = go ? "see above why it was not built" : "install Go, so that it is built";
  return missing.map(
    (name) =>
      `tests with Kubernetes: no ${name} here; ${cure}, or set ${PROGRAMS[name].variable} to the program`,
  );
}
