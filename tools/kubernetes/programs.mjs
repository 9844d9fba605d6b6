// Where the programs of tests with Kubernetes are, and how they are brought: kube-apiserver, etcd, and
// `rival`, which elects with client-go. The first two are looked for as others do it who test with them.
import { createHash, randomBytes } from "node:crypto";
import {
  accessSync,
  constants,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
} from "node:fs";
import { delimiter, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { cache as userCache } from "../servers/programs.mjs";

const folder = dirname(fileURLToPath(import.meta.url));
const read = (name) => readFileSync(join(folder, name), "utf8");

/** The Kubernetes that go.mod names. */
export const VERSION = read("go.mod").match(/k8s\.io\/kubernetes v(\S+)/)[1];

/** Nothing that is built here lies in the checkout, and what one checkout built serves all. */
const cache = join(userCache, `kubernetes-${VERSION}`);

export const PROGRAMS = {
  "kube-apiserver": {
    variable: "TEST_ASSET_KUBE_APISERVER",
    source: "k8s.io/kubernetes/cmd/kube-apiserver",
    built: "kube-apiserver",
  },
  etcd: {
    variable: "TEST_ASSET_ETCD",
    source: "go.etcd.io/etcd/server/v3",
    built: "etcd",
  },
  rival: {
    variable: "WHENLEADER_KUBE_RIVAL",
    source: "./rival",
    // It is part of this project and changes with it.
    built: `rival-${fingerprint("go.mod", "go.sum", "rival/main.go")}`,
  },
};

/** The program's path, or undefined. */
export function findProgram(name, env = process.env) {
  const { variable, built } = PROGRAMS[name];
  if (env[variable]) return env[variable];
  const standard = name !== "rival";
  const places = [
    ...(standard && env.KUBEBUILDER_ASSETS ? [join(env.KUBEBUILDER_ASSETS, name)] : []),
    ...(standard ? (env.PATH ?? "").split(delimiter).map((dir) => dir && join(dir, name)) : []),
    join(cache, built),
  ];
  return places.find((path) => path && isProgram(path));
}

/**
 * Builds programs from their Go modules, into a folder of its own first: a build that breaks, or a second
 * one at the same time, leaves nothing half-done where programs are looked for.
 * @param {string[]} names
 * @param {(command: string[], options: object) => Promise<void>} run rejects if the command fails
 */
export async function buildPrograms(names, run) {
  mkdirSync(cache, { recursive: true });
  removeOldBuilds();
  const aside = join(cache, `.build-${randomBytes(6).toString("hex")}`);
  mkdirSync(aside);
  try {
    for (const name of names) {
      const { source, built } = PROGRAMS[name];
      const made = join(aside, built);
      // Two at a time: each compiler may take a gigabyte.
      const flags = [
        "-p",
        "2",
        "-mod=readonly",
        "-buildvcs=false",
        "-trimpath",
        "-ldflags",
        "-s -w",
      ];
      await run(["go", "build", ...flags, "-o", made, source], {
        cwd: folder,
        env: { ...process.env, GOFLAGS: "", GOWORK: "off", CGO_ENABLED: "0" },
      });
      renameSync(made, join(cache, built));
    }
  } finally {
    rmSync(aside, { recursive: true, force: true });
  }
}

/** What a build left that was killed, and rivals of a source that has changed since. */
function removeOldBuilds() {
  const month = 30 * 24 * 3600 * 1000;
  for (const name of readdirSync(cache)) {
    const path = join(cache, name);
    const age = Date.now() - (statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? Infinity);
    if (/^(\.build|rival)-/.test(name) && age > month)
      rmSync(path, { recursive: true, force: true });
  }
}

function fingerprint(...names) {
  const hash = createHash("sha256");
  for (const name of names) if (existsSync(join(folder, name))) hash.update(read(name));
  return hash.digest("hex").slice(0, 12);
}

function isProgram(path) {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}
