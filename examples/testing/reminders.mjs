// A small application to be tested: each minute, the leader sends the reminders that are due.
import { whenLeader } from "whenleader";

const EACH_MINUTE = 60_000;

/**
 * @param {object} world
 * @param {() => string[] | Promise<string[]>} world.due
 * @param {(reminder: string, fence: number) => unknown} world.send
 */
export function startReminders({ due, send }) {
  /** @type {NodeJS.Timeout | undefined} */
  let timer;
  const round = async (/** @type {import("whenleader").Term} */ term) => {
    for (const reminder of await due()) {
      if (!term.isCurrent()) return; // Asked before each step: the term may have ended meanwhile.
      await send(reminder, term.token);
    }
  };
  return whenLeader(
    async (term) => {
      timer = setInterval(() => round(term), EACH_MINUTE);
      await round(term);
    },
    () => clearInterval(timer),
  );
}
