// The independent judge: reads what the contenders wrote, and knows nothing of how an election works.
import { readFileSync } from "node:fs";

/**
 * @param {{ id: string, file: string }[]} logs
 * @returns {{ terms: number, stretches: number, answers: number, overlap: number, problems: string[] }}
 *   overlap in microseconds
 */
export function judge(logs) {
  const problems = [];
  /** token -> { id, first, last, fn, dereg } */
  const terms = new Map();
  /** The same of those who lead without tokens: they are judged by time alone. */
  const stretches = new Map();
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
        saw(termOf(Number(token), id), before, after);
      } else if (word === "leads") {
        answers++;
        const name = `stretch ${token} of ${id}`;
        if (!stretches.has(name)) stretches.set(name, { id, first: Infinity, last: -Infinity });
        saw(stretches.get(name), before, after);
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
  const named = [...terms].map(([token, term]) => [`term ${token} of ${term.id}`, term]);
  const all = [...named, ...stretches];
  for (const [i, [name, stretch]] of [...stretches].entries()) {
    // Terms with one another were judged above.
    for (const [other, term] of all.slice(0, named.length + i)) {
      const shared = Math.min(stretch.last, term.last) - Math.max(stretch.first, term.first);
      if (shared <= 0) continue;
      overlap = Math.max(overlap, shared);
      problems.push(`${other} and ${name} overlap by ${shared} us`);
    }
  }
  return { terms: terms.size, stretches: stretches.size, answers, overlap, problems };
}

/**
 * It was true at some time between the two: the last time it may have been is "before", so that nothing is
 * called an overlap that need not be one.
 */
function saw(term, before, after) {
  term.last = Math.max(term.last, Number(before));
  term.first = Math.min(term.first, Number(after));
}

/** All whole lines; a process that was killed may have left a part of one. */
function read(file) {
  const text = readFileSync(file, "utf8");
  return text
    .slice(0, text.lastIndexOf("\n") + 1)
    .split("\n")
    .filter(Boolean);
}
