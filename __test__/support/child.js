// Programs that use the package, in processes of their own: what they say, and how they end.

const { spawn } = require("node:child_process");
const fs = require("node:fs");
const path = require("node:path");
const { newFolder } = require("./temp.js");

const ROOT = path.join(__dirname, "..", "..");
/** Long enough for a busy machine; a test that needs it has failed. */
const PATIENCE = 30_000;

/** What most programs begin with. Each line of stdout is one thing said. */
const PRELUDE = `
const { whenLeader, useCluster, startCluster, stopCluster, expectCluster } = require("whenleader");
const say = (...words) => require("node:fs").writeSync(1, words.join(" ") + "\\n");
`;

/** Children that a failed test would leave behind. */
const alive = new Set();
process.on("exit", () => {
  for (const child of alive) child.kill("SIGKILL");
});

class Program {
  stdout = "";
  stderr = "";
  #waiting = new Set();

  /**
   * @param {string} code
   * @param {{ cwd?: string, root?: string, type?: "commonjs" | "module", flags?: string[],
   *   env?: Record<string, string>, config?: object, bare?: boolean }} [options]
   *   config: of the cluster; bare: without the prelude
   */
  constructor(code, options = {}) {
    const { root = ROOT, type = "commonjs", flags = [], env = {}, config } = options;
    const cwd = options.cwd ?? newFolder();
    const link = path.join(cwd, "node_modules", "whenleader");
    if (!fs.existsSync(link)) {
      fs.mkdirSync(path.dirname(link), { recursive: true });
      fs.symlinkSync(root, link, "junction");
    }
    const name = `${type === "module" ? "main.mjs" : "main.cjs"}`;
    const file = path.join(fs.mkdtempSync(path.join(cwd, "program-")), name);
    fs.writeFileSync(file, type === "module" || options.bare ? code : PRELUDE + code);
    const { NODE_TEST_CONTEXT: _, ...inherited } = process.env;
    const found = config && { WHENLEADER_CONFIG: JSON.stringify({ cluster: config }) };
    this.child = spawn(process.execPath, [...flags, file], {
      cwd,
      env: { ...inherited, ...found, ...env },
      stdio: ["pipe", "pipe", "pipe"],
    });
    alive.add(this.child);
    for (const name of ["stdout", "stderr"]) {
      this.child[name].setEncoding("utf8").on("data", (text) => {
        this[name] += text;
        for (const look of this.#waiting) look();
      });
    }
    this.ended = new Promise((resolve) => {
      this.child.on("close", (code, signal) => {
        alive.delete(this.child);
        this.over = true;
        for (const look of this.#waiting) look();
        resolve({ code, signal, stdout: this.stdout, stderr: this.stderr });
      });
    });
  }

  get pid() {
    return this.child.pid;
  }

  get lines() {
    return this.stdout.split("\n").slice(0, -1);
  }

  /** Resolves when stdout has `text` in it, from line `from` on. */
  async said(text, from = 0) {
    await new Promise((resolve, reject) => {
      const end = (settle, value) => {
        clearTimeout(timer);
        this.#waiting.delete(look);
        settle(value);
      };
      const failed = (why) =>
        end(reject, new Error(`${why} before it said "${text}":\n${this.stdout}${this.stderr}`));
      const look = () => {
        if (this.lines.slice(from).some((line) => line.includes(text))) end(resolve);
        else if (this.over) failed("it ended");
      };
      const timer = setTimeout(() => failed("its time was over"), PATIENCE);
      this.#waiting.add(look);
      look();
    });
  }

  /** To its standard input. */
  tell(text) {
    this.child.stdin.write(`${text}\n`);
  }

  kill(signal) {
    this.child.kill(signal);
  }
}

/** Runs a program to its end. */
function runProgram(code, options) {
  const program = new Program(code, options);
  const timer = setTimeout(() => program.kill("SIGKILL"), 2 * PATIENCE);
  return program.ended.finally(() => clearTimeout(timer));
}

module.exports = { Program, runProgram, newFolder, PATIENCE, ROOT };
