// Programs that tests meet beside servers: a client of the Leader Election API in another language, and a browser.
// Like servers, they are brought where that harms nothing, into the user's cache folder.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { bold, env, run, windows } from "./run.mjs";
import { aptInstall, mayInstall, must, onPath, unpack, unpacked } from "./servers/programs.mjs";

/** The client: Kelvin's SDK, which these facts of the protocol were read from. */
const SDK = "kelvin-python-sdk==0.5.0";
const PYTHON = windows ? join("Scripts", "python.exe") : join("bin", "python");

export const PROGRAMS = {
  sdk: {
    name: `Python with ${SDK}`,
    variable: "WHENLEADER_SDK_PYTHON",
    brought: () => unpacked(SDK, PYTHON),
    bring: bringSdk,
    cure: "install Python 3.9 or newer with venv and pip, so that npm test brings it",
  },
  chromium: {
    name: "Chromium",
    variable: "WHENLEADER_CHROMIUM",
    brought: () => onPath("chromium") ?? onPath("google-chrome") ?? onPath("chromium-browser"),
    bring: () => (mayInstall ? aptInstall("chromium") : undefined),
    cure: "apt-get install chromium",
  },
};

/** The program, or undefined. */
export function findProgram(kind) {
  const { variable, brought } = PROGRAMS[kind];
  const named = env[variable];
  return named && existsSync(named) ? named : brought();
}

/** Returns a line for each one that is missing. */
export async function programs() {
  const skipped = [];
  for (const [kind, { name, bring, cure }] of Object.entries(PROGRAMS)) {
    if (!findProgram(kind)) await bring()?.catch((error) => console.log(error.message));
    if (!findProgram(kind)) skipped.push(`tests with ${name}: not here; ${cure}`);
  }
  return skipped;
}

/** In an environment of its own. It may be moved: only its scripts hold its path. */
async function bringSdk() {
  const works = async () => (await run(["python3", "-c", "import venv, ensurepip"])).code === 0;
  if (!(await works())) {
    if (!mayInstall) return;
    await aptInstall("python3-venv");
  }
  console.log(`Bringing ${bold(SDK)} ...`);
  await unpack(SDK, async (aside) => {
    await must(run(["python3", "-m", "venv", aside]));
    const quiet = ["--quiet", "--disable-pip-version-check"];
    await must(run([join(aside, PYTHON), "-m", "pip", "install", ...quiet, SDK]));
  });
}
