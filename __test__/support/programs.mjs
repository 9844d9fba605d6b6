// Programs that tests meet beside servers, or the line that says why a test must be left out.
import { findProgram, PROGRAMS } from "../../tools/programs.mjs";

/** `undefined`: it is missing. Under CI nothing may be. */
export function program(kind, what) {
  const found = findProgram(kind);
  if (found) return found;
  const line = `SKIPPED: ${what}: no ${PROGRAMS[kind].name} here; ${PROGRAMS[kind].cure}`;
  if (process.env.CI) throw new Error(line);
  console.log(line);
  return undefined;
}
