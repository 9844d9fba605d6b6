// docs/stores.md holds what it promises: every chapter has its parts, and nothing that the stores say of themselves
// in their sources is missing there.

const assert = require("node:assert/strict");
const { readdirSync, readFileSync } = require("node:fs");
const { join } = require("node:path");
const { test } = require("node:test");
const { Timing } = require("../lib/testing/timing.js");
const { ROOT } = require("./support/child.js");

const PARTS = ["Set-up", "Rights", "Statement", "Clock", "Failover", "Limits"];
const [top, ...chapters] = readFileSync(join(ROOT, "docs", "stores.md"), "utf8").split(/^## /m);
const chapter = (name) => chapters.find((text) => text.startsWith(name));
const rowsOf = (text) =>
  text
    .split("\n")
    .filter((line) => /^\| [^-]/.test(line))
    .map(cells);

/** @param {string} line */
function cells(line) {
  return line
    .split("|")
    .slice(1, -1)
    .map((cell) => cell.trim());
}

/** What the product says, without its tests. */
const sources = readdirSync(join(ROOT, "src"), { recursive: true, encoding: "utf8" })
  .filter((name) => name.endsWith(".rs") && !/(^|[\\/])tests([\\/]|\.rs)/.test(name))
  .map((name) => ({
    name: name.replaceAll("\\", "/"),
    text: readFileSync(join(ROOT, "src", name), "utf8").split(/#\[cfg\(test\)\]\s*mod \w+ \{/)[0],
  }));

test("every store's chapter has the same six parts, in one order", () => {
  const stores = chapters.filter((text) => !/^(Credentials|Error codes)/.test(text));
  assert.equal(stores.length, rowsOf(top).length - 1, "a chapter for each row of the table");
  for (const text of stores) {
    const found = [...text.matchAll(/^\*\*([A-Z][^*]*?)\.?\*\*/gm)].map(([, words]) => words);
    assert.deepEqual(found, PARTS, text.split("\n")[0]);
  }
});

test("the shortest lease of each store is told", () => {
  const [head, ...rows] = rowsOf(top);
  const column = head.indexOf("shortest lease");
  const told = Object.fromEntries(
    rows.map((row) => [row[0].replace(/^\[([\w-]+).*/, "$1").toLowerCase(), row[column]]),
  );
  assert.throws(() => new Timing(399, 50, undefined));
  new Timing(400, 50, undefined);
  const own = sources.flatMap(({ name, text }) => {
    const of = /^backend\/(?:aws\/)?(\w+)/.exec(name)?.[1];
    const unit = { secs: 1_000, millis: 1 };
    const constant = /const SHORTEST_LEASE: Duration = Duration::from_(secs|millis)\((\d+)\)/;
    const [, word, number] = constant.exec(text) ?? [];
    return of && word ? [[of === "own" ? "your" : of, unit[word] * Number(number)]] : [];
  });
  assert.ok(own.length >= 5, `${own}`);
  const shortest = new Map(own);
  for (const [store, words] of Object.entries(told)) {
    assert.equal(words, `${Math.max(400, shortest.get(store) ?? 0)} ms`, store);
  }
});

test("every code of a failure is in the table, with its meaning, and none that there is not", () => {
  const rows = rowsOf(chapter("Error codes")).slice(1);
  const told = rows.map(([code]) => code.replaceAll("`", ""));
  assert.deepEqual(told, [...told].sort(), "in the order of letters");
  const word = '"([a-z]+(?:-[a-z]+)*)"';
  const says = [
    `\\b(?:transient|ambiguous|fatal|unsure|trouble|ambiguous_if_writing)\\(\\s*(?:asked,\\s*)?${word},`,
    // In tables of what a server may say.
    `\\b(?:Fatal|Transient|Ambiguous|Refused|Unknown|unsure),\\s*${word}`,
    `\\bcode(?::| =) ${word}`,
    `ErrorKind::\\w+(?:\\s*\\| ErrorKind::\\w+)* => ${word}`,
  ].map((pattern) => new RegExp(pattern, "g"));
  const named =
    /\b(?:transient|ambiguous|fatal|unsure)\(\s*(?:\w+::)*([A-Z_]+),|\b(?:Fatal|Transient|Ambiguous|Refused|Unknown),\s*(?:\w+::)*([A-Z_]+),|\bcode(?::| =) (?:\w+::)*([A-Z_]+)\b/g;
  const found = new Set();
  for (const { text } of sources) {
    for (const pattern of says) for (const [, code] of text.matchAll(pattern)) found.add(code);
    for (const [, ...names] of text.matchAll(named)) {
      const name = names.find(Boolean);
      const constant = new RegExp(`const ${name}: &(?:'static )?str = ${word}`);
      // Its own file's, or else whose it is.
      const of = constant.exec(text) ?? sources.map((s) => constant.exec(s.text)).find(Boolean);
      if (of) found.add(of[1]);
    }
  }
  assert.ok(found.size > 30, `${[...found]}`);
  assert.deepEqual([...found].filter((code) => !told.includes(code)).sort(), [], "not told");
  const all = sources.map(({ text }) => text).join("\n");
  assert.deepEqual(
    told.filter((code) => !all.includes(`"${code}"`)),
    [],
    "there are none such",
  );
  for (const row of rows) assert.ok(row.length === 4 && row.every(Boolean), row.join("|"));
});
