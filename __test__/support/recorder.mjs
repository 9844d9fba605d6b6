// The independent judge: reads what the contenders wrote, and knows nothing of how an election works.
import { readFileSync } from "node:fs";

/**
 * @param {{ id: string, file: string }[]} logs
 * @returns {{ terms: number, answers: number, overlap: number, problems: string[] }} overlap in microseconds
 */
export function judge(logs) {
  const problems = [];
  /** token -> { id, first, last, fn, dereg } */
  const terms = new Map();
  let answers = 0;
  const termOf = (token, id) => {
    const term = terms.get(token) ?? { id, first: Infinity, last: -Infinity, fn: 0, dereg: 0 };
    terms.set(token, term);
    if (term.id !== id) problems.push(`token ${token} was led by ${term.id} and by ${id}`);
    return term;
  };
  for (const { id, file } of logs) {
    let open;
    let largest = 0;
    for (const line of read(file)) {
      const [word, token, before, after] = line.split(" ");
      if (word === "true") {
        answers++;
        if (token === "unknown") continue;
        const term = termOf(Number(token), id);
        // It was true at some time between the two: the last time it may have been is "before", so that
        // nothing is called an overlap that need not be one.
        term.last = Math.max(term.last, Number(before));
        term.first = Math.min(term.first, Number(after));
      } else if (word === "fn") {
        const term = termOf(Number(token), id);
        term.fn++;
        if (open) problems.push(`${id}: fn of ${token} ran before deregisteredFn of ${open}`);
        if (Number(token) <= largest) problems.push(`${id}: token ${token} came after ${largest}`);
        largest = Number(token);
        open = token;
      } else if (word === "dereg") {
        termOf(Number(token), id).dereg++;
        if (open !== token) problems.push(`${id}: deregisteredFn of ${token} without its fn`);
        open = undefined;
      } else if (word === "uncaughtException" || word === "unhandledRejection") {
        problems.push(`${id}: ${line}`);
      }
    }
  }
  const inOrder = [...terms].sort(([a], [b]) => a - b);
  let overlap = 0;
  let latest = { token: 0, last: -Infinity };
  for (const [token, term] of inOrder) {
    if (term.fn > 1) problems.push(`fn of ${token} ran ${term.fn} times`);
    if (term.dereg > 1) problems.push(`deregisteredFn of ${token} ran ${term.dereg} times`);
    // A smaller token's leader must have answered true for the last time before a larger one's first.
    if (term.first < latest.last) {
      overlap = Math.max(overlap, latest.last - term.first);
      problems.push(`terms ${latest.token} and ${token} overlap by ${latest.last - term.first} us`);
    }
    if (term.last > latest.last) latest = { token, last: term.last };
  }
  return { terms: terms.size, answers, overlap, problems };
}

/** All whole lines; a process that was killed may have left a part of one. */
function read(file) {
  const text = readFileSync(file, "utf8");
  return text
    .slice(0, text.lastIndexOf("\n") + 1)
    .split("\n")
    .filter(Boolean);
}
