// Starting other programs, and saying so: what all tools share. Plain Node, no dependencies, since the
// set-up itself runs with it.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

export const root = dirname(dirname(fileURLToPath(import.meta.url)));
export const windows = process.platform === "win32";

/** Where everything that is built or downloaded goes; nothing of it belongs to the checkout. */
export const targetDir = resolve(root, process.env.CARGO_TARGET_DIR || "target");

const colours = process.stdout.isTTY && !process.env.NO_COLOR;
const paint = (code) => (text) => (colours ? `\x1b[${code}m${text}\x1b[0m` : `${text}`);
export const bold = paint(1);
export const dim = paint(2);
export const red = paint(31);
export const green = paint(32);
export const yellow = paint(33);

/** The environment of everything that is started: rustup puts cargo on the PATH of new shells only. */
export const env = { ...process.env };
const cargoBin = join(process.env.CARGO_HOME || join(homedir(), ".cargo"), "bin");
if (existsSync(cargoBin)) {
  const key = Object.keys(env).find((name) => name.toUpperCase() === "PATH") ?? "PATH";
  env[key] = `${env[key] ?? ""}${delimiter}${cargoBin}`;
}

/** npm as this very Node runs it, so that no shell is needed. */
export function npm(...args) {
  const cli = process.env.npm_execpath;
  return cli?.endsWith(".js") ? [process.execPath, cli, ...args] : ["npm", ...args];
}

/** The command, for what has the processor when nobody else wants it. */
export const last = (command) => (windows ? command : ["nice", "-n", "10", ...command]);

/**
 * Runs a program to its end. With `show` its output goes to the terminal, too.
 * Never rejects: a program that cannot be started has the code 127.
 */
export function run([program, ...args], { show = false, ...options } = {}) {
  const shell = windows && program === "npm";
  return new Promise((done) => {
    let output = "";
    const child = spawn(program, args, {
      cwd: root,
      env,
      shell,
      stdio: ["ignore", "pipe", "pipe"],
      ...options,
    });
    for (const [stream, to] of [
      [child.stdout, process.stdout],
      [child.stderr, process.stderr],
    ]) {
      stream?.setEncoding("utf8").on("data", (text) => {
        output += text;
        if (show) to.write(text);
      });
    }
    child.on("error", (error) => done({ code: 127, output: `${program}: ${error.message}\n` }));
    child.on("close", (code, signal) => done({ code: code ?? signal, output }));
  });
}

export const seconds = (since) => `${((performance.now() - since) / 1000).toFixed(1)} s`;
