// The status page of `whenleader serve`, in a real browser.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import apiServer from "./support/api-server.js";
import { Browser } from "./support/browser.mjs";
import { program } from "./support/programs.mjs";

const { ApiServer } = apiServer;
const chromium = program("chromium", "the status page in a browser");
const skip = !chromium;

const rows = (table) =>
  `[...document.querySelectorAll("#${table} tbody tr")].map((row) => [...row.cells].map((cell) => cell.innerText.trim()))`;

async function until(what, so) {
  for (const end = Date.now() + 30_000; Date.now() < end; await sleep(100)) {
    // The page may be just about to be replaced.
    if (await so().catch(() => false)) return;
  }
  assert.fail(`not in time: ${what}`);
}

test("the page shows who leads, refreshes itself, and loads nothing from elsewhere", {
  skip,
}, async (t) => {
  const server = await ApiServer.start(t, { args: ["--lease", "30s"] });
  const browser = await Browser.start(t, chromium, { width: 1_000, height: 800 });
  // Nothing on it needs JavaScript.
  await browser.send("Emulation.setScriptExecutionDisabled", { value: true });
  const requests = [];
  browser.on("Network.requestWillBeSent", ({ request }) => requests.push(request.url));
  await browser.open(server.url);
  assert.match(await browser.evaluate("document.body.innerText"), /Nobody has checked in yet/);

  const session = "s";
  const { token } = await server.checkIn("krn:wl:edge/a", "krn:app:flow", { session });
  await server.checkIn("krn:wl:edge/b", "<b>&amp;</b>");
  await until(
    "it shows them",
    async () => (await browser.evaluate(rows("elections"))).length === 2,
  );
  const shown = await browser.evaluate(rows("elections"));
  assert.deepEqual(
    shown.map(([resource, leader]) => [resource, leader]),
    [
      ["<b>&amp;</b>", "krn:wl:edge/b"],
      ["krn:app:flow", "krn:wl:edge/a"],
    ],
  );
  for (const [, , since, left] of shown) {
    assert.match(since, /^\d+ s$/);
    assert.match(left, /^\d+(\.\d)?s$/);
  }
  assert.equal((await browser.evaluate(rows("changes"))).length, 2);

  const resources = ["krn:app:flow"];
  await server.post("/leader/release", { id: "krn:wl:edge/a", session, token, resources });
  await until("it shows that nobody leads", async () => {
    const now = await browser.evaluate(rows("elections"));
    return now[1][1] === "nobody";
  });
  const [latest] = await browser.evaluate(rows("changes"));
  assert.deepEqual(latest.slice(1), ["krn:app:flow", "nobody"]);
  assert.ok(requests.length > 1);
  for (const url of requests) assert.equal(new URL(url).host, new URL(server.url).host, url);
});

test("the page can be read on a telephone", { skip }, async (t) => {
  const server = await ApiServer.start(t);
  const long = `krn:app:${"a-very-long-name".repeat(9)}`;
  await server.checkIn(`krn:wl:edge/${"w".repeat(120)}`, long);
  const browser = await Browser.start(t, chromium, { width: 360, height: 740 });
  await browser.open(server.url);
  const { width, size } = await browser.evaluate(
    "({ width: document.documentElement.scrollWidth, size: parseFloat(getComputedStyle(document.body).fontSize) })",
  );
  assert.ok(width <= 360, `nothing is wider than the screen: ${width}`);
  assert.ok(size >= 16, "it need not be enlarged");
  assert.match(await browser.evaluate("document.body.innerText"), new RegExp(long));
});

test("with a token the page opens for whoever knows it", { skip }, async (t) => {
  const server = await ApiServer.start(t, { env: { WHENLEADER_TOKEN: "hunter2" } });
  const browser = await Browser.start(t, chromium);
  const authorization = `Basic ${Buffer.from("me:hunter2").toString("base64")}`;
  await browser.open(server.url, { authorization });
  assert.match(await browser.evaluate("document.title"), /Elections/);
});
