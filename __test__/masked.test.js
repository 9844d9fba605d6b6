// What is repeated of others' texts: all that helps, and no password.

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { short } = require("../lib/masked.js");

test("the passwords of URLs are masked, however they were written", () => {
  for (const [text, shown] of [
    ["no route to mongodb://u:hunter2@h/db", "no route to mongodb://u:***@h/db"],
    ["mongodb://u:hunter2@h1:1,h2:2/db?w=1", "mongodb://u:***@h1:1,h2:2/db?w=1"],
    ['"mongodb://u:hunter2@h/db", twice', '"mongodb://u:***@h/db", twice'],
    // Not percent-encoded.
    ["mongodb://u:hunter2/hunter2@h/db", "mongodb://u:***@h/db"],
    ["mongodb://u:hunter2@hunter2@h/db", "mongodb://u:***@h/db"],
    ["postgres://u:hunter2?hunter2#@h", "postgres://u:***@h"],
    ["http://u:hunter2/hunter2@h", "http://u:***@h"],
    // Without a user, and without a password: then this may be one.
    ["redis://:hunter2@h", "redis://:***@h"],
    ["mongodb+srv://hunter2@h/db", "mongodb+srv://***@h/db"],
    ["the host is missing in redis://:hunter2", "the host is missing in redis://:***"],
    [
      "https://h/db?authSource=a&password=hunter2&w=1",
      "https://h/db?authSource=a&password=***&w=1",
    ],
  ]) {
    assert.equal(short(text), shown);
  }
});

test("passwords that have a name are masked wherever they stand", () => {
  for (const [text, shown] of [
    [
      "Server=h;User Id=u;Password=hunter2;Encrypt=true",
      "Server=h;User Id=u;Password=***;Encrypt=true",
    ],
    ["host=h user=u password='hunter2 hunter2' port=1", "host=h user=u password=*** port=1"],
    ["{ user: 'u', password: 'hunter2' }", "{ user: 'u', password: *** }"],
    ['{"accessKey":"hunter2","n":1}', '{"accessKey":***,"n":1}'],
    ["AWS_SECRET_ACCESS_KEY=hunter2", "AWS_SECRET_ACCESS_KEY=***"],
    ["DB_PASS=hunter2 DB_HOST=h", "DB_PASS=*** DB_HOST=h"],
    ["Authorization: Bearer hunter2", "Authorization: Bearer ***"],
  ]) {
    assert.equal(short(text), shown);
  }
});

test("what is no password is shown", () => {
  for (const text of [
    "connect ECONNREFUSED http://127.0.0.1:8080: refused",
    "https://registry.npmjs.org/@scope/package",
    "mongodb://h1:27017,h2:27017/db",
    "http://[::1]:80/x, and redis://h:1/0.",
    "password: authentication failed for user u",
    "term=5 token=1800000000000000 monkey=1 bypass=2",
    "write to ops@example.com",
  ]) {
    assert.equal(short(text), text);
  }
});

test("a long text is cut between two characters, and quickly", () => {
  const shown = short(`x${"😀".repeat(400)}`);
  assert.equal(shown, `x${"😀".repeat(299)}...`);
  assert.equal(short("a\n\t b"), "a b");
  const begun = performance.now();
  for (const part of ["a-", "password=", "x://", "://@", " "]) short(part.repeat(1_000_000));
  assert.ok(performance.now() - begun < 5_000);
  const cut = `${"x".repeat(280)} mongodb://u:hunter2hunter2hunter2@h`;
  assert.ok(!short(cut).includes("hunter2"), short(cut));
});
