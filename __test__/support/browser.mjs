// A headless Chromium, spoken to through its debugging pipe: a page of it, what it loads and what it shows.
import { spawn } from "node:child_process";
import { EventEmitter } from "node:events";
import { newFolder } from "./temp.js";

const PATIENCE = 60_000;

export class Browser extends EventEmitter {
  #asked = 0;
  #waiting = new Map();
  #session;

  /** With one page, as wide as a telephone. */
  static async start(t, program, { width = 390, height = 844 } = {}) {
    const browser = new Browser();
    const flags = [
      "--headless=new",
      "--remote-debugging-pipe",
      "--no-first-run",
      "--disable-gpu",
      "--disable-dev-shm-usage",
      "--disable-background-networking",
      // A container's root has no other way.
      ...(process.getuid?.() === 0 ? ["--no-sandbox"] : []),
      `--user-data-dir=${newFolder()}`,
    ];
    const stdio = ["ignore", "ignore", "ignore", "pipe", "pipe"];
    browser.child = spawn(program, flags, { stdio });
    t.after(async () => {
      const ended = new Promise((resolve) => browser.child.on("exit", resolve));
      browser.child.kill("SIGKILL");
      await ended;
    });
    browser.#listen(browser.child.stdio[4]);
    const { targetId } = await browser.send("Target.createTarget", { url: "about:blank" });
    const attached = await browser.send("Target.attachToTarget", { targetId, flatten: true });
    browser.#session = attached.sessionId;
    await browser.send("Page.enable");
    await browser.send("Network.enable");
    const size = { width, height, deviceScaleFactor: 2, mobile: true };
    await browser.send("Emulation.setDeviceMetricsOverride", size);
    return browser;
  }

  #listen(stream) {
    let text = "";
    stream.setEncoding("utf8").on("data", (part) => {
      text += part;
      const messages = text.split("\0");
      text = messages.pop();
      for (const message of messages) this.#hear(JSON.parse(message));
    });
  }

  #hear({ id, result, error, method, params }) {
    if (id === undefined) return this.emit(method, params);
    const { resolve, reject } = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (error) reject(new Error(error.message));
    else resolve(result);
  }

  send(method, params = {}) {
    this.#asked += 1;
    const id = this.#asked;
    const message = { id, method, params, sessionId: this.#session };
    this.child.stdio[3].write(`${JSON.stringify(message)}\0`);
    return new Promise((resolve, reject) => {
      const late = () => reject(new Error(`Chromium does not answer ${method}`));
      const timer = setTimeout(late, PATIENCE);
      const end = (settle) => (value) => {
        clearTimeout(timer);
        settle(value);
      };
      this.#waiting.set(id, { resolve: end(resolve), reject: end(reject) });
    });
  }

  async open(url, headers = {}) {
    await this.send("Network.setExtraHTTPHeaders", { headers });
    const loaded = new Promise((resolve) => this.once("Page.loadEventFired", resolve));
    await this.send("Page.navigate", { url });
    await loaded;
  }

  /** What an expression is on the page, as JSON. */
  async evaluate(expression) {
    const asked = { expression, returnByValue: true };
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", asked);
    if (exceptionDetails) throw new Error(exceptionDetails.text);
    return result.value;
  }
}
