// `whenleader serve` as a process of its own, and what asks it.

const net = require("node:net");
const path = require("node:path");
const { Program, ROOT, newFolder } = require("./child.js");

const BIN = path.join(ROOT, "bin", "whenleader.js");

class ApiServer {
  #options;

  /** @param {{ args?: string[], cwd?: string, env?: Record<string, string> }} [options] */
  constructor(options = {}) {
    this.#options = { ...options, cwd: options.cwd ?? newFolder() };
    this.#run(options.args ?? []);
  }

  #run(args) {
    const words = JSON.stringify(["serve", "--listen", "0", "--lease", "2s", ...args]);
    const code = `process.argv.splice(2, 0, ...${words}); require(${JSON.stringify(BIN)});`;
    this.program = new Program(code, { ...this.#options, bare: true });
  }

  /** On the same port and store. */
  async restart() {
    this.#run([...(this.#options.args ?? []), "--listen", String(this.port)]);
    await this.listens();
  }

  /** Ends with the test. */
  static async start(t, options) {
    const server = new ApiServer(options);
    t.after(() => server.kill());
    await server.listens();
    return server;
  }

  async listens() {
    const words = "serving the Leader Election API at ";
    await this.program.said(words);
    const line = this.program.lines.find((line) => line.startsWith(words));
    this.url = line.slice(words.length);
    this.port = Number(new URL(this.url).port);
  }

  async kill() {
    this.program.kill("SIGKILL");
    await this.program.ended;
  }

  async stop() {
    this.program.kill("SIGTERM");
    return this.program.ended;
  }

  freeze() {
    this.program.kill("SIGSTOP");
  }

  thaw() {
    this.program.kill("SIGCONT");
  }

  async get(path, headers = {}) {
    return this.ask("GET", path, undefined, headers);
  }

  async post(path, body, headers = {}) {
    return this.ask("POST", path, typeof body === "string" ? body : JSON.stringify(body), headers);
  }

  async ask(method, path, body, headers = {}) {
    const answer = await fetch(this.url + path, { method, body, headers, redirect: "manual" });
    const text = await answer.text();
    const isJson = text !== "" && answer.headers.get("content-type") === "application/json";
    return {
      status: answer.status,
      headers: answer.headers,
      text,
      body: isJson && JSON.parse(text),
    };
  }

  /** A check-in for one resource: what is said of it. */
  async checkIn(id, resource = "krn:app:x", more = {}) {
    const { status, body, text } = await this.post("/leader/elect", {
      id,
      resources: [resource],
      ...more,
    });
    if (status !== 200) throw new Error(`${status}: ${text}`);
    return body.resources[0];
  }

  /** Sends bytes, and returns all that comes back until the server closes, or for so long. */
  raw(bytes, { time = 15_000, end = false } = {}) {
    return new Promise((resolve, reject) => {
      let text = "";
      const socket = net.connect(this.port, "127.0.0.1", () => {
        if (end) socket.end(bytes);
        else socket.write(bytes);
      });
      const timer = setTimeout(() => socket.destroy(), time);
      socket.setEncoding("latin1").on("data", (part) => {
        text += part;
      });
      socket.on("error", (error) => (text === "" ? reject(error) : undefined));
      socket.on("close", () => {
        clearTimeout(timer);
        resolve(text);
      });
    });
  }
}

module.exports = { ApiServer, BIN };
