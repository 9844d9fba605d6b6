// The program `whenleader`. It prints where it serves on standard output, and everything else on standard error.

const { readFileSync } = require("node:fs");
const { resolve } = require("node:path");
const { inspect, parseArgs } = require("node:util");
const { hold } = require("./hold.js");
const { environment } = require("./main.js");
const { version } = require("../index.js");

const LEVELS = ["silent", "error", "warn", "info", "debug"];

const HELP = `Usage: whenleader serve [options]

Serves the Leader Election API, so that programs in every language can elect a leader by HTTP.

  --store <url>        where leases are kept, such as redis://127.0.0.1:6379 (default: file:.whenleader)
  --listen <address>   host:port, or a port of this machine alone (default: 127.0.0.1:8080)
  --lease <duration>   how long a lease lasts without a check-in, such as 5s (default) or 1m30s
  --token-file <path>  a file with the token that each request must show; else WHENLEADER_TOKEN, if it is set
  --cert <path>        serve TLS with this certificate, in PEM
  --key <path>         and its key
  --allow-reset        let clients end every term that this server knows of: for tests
  --log <level>        ${LEVELS.join(", ")} (default: info; debug logs each request)
  --version, --help

What it serves, and how: docs/leader-api.md`;

/** Something in the arguments. */
class UsageError extends Error {}

/** @param {string[]} args */
async function main(args) {
  // Whoever reads the log may go away; the elections go on.
  for (const stream of [process.stdout, process.stderr]) stream.on("error", () => {});
  try {
    const { command, options } = read(args);
    if (command === "help") console.log(HELP);
    else if (command === "version") console.log(version);
    else await serve(options);
  } catch (error) {
    const { message } = /** @type {Error} */ (error);
    if (error instanceof UsageError) console.error(`whenleader: ${message}\n\n${HELP}`);
    else console.error(`whenleader: ${message}`);
    process.exitCode = error instanceof UsageError ? 2 : 1;
  }
}

/** @param {string[]} args */
function read(args) {
  const { values, positionals } = parse(args);
  if (values.help) return { command: "help", options: values };
  if (values.version) return { command: "version", options: values };
  const [command, ...rest] = positionals;
  if (command === undefined) throw new UsageError("what shall it do? There is serve");
  if (command !== "serve") throw new UsageError(`${inspect(command)} is not known; there is serve`);
  if (rest.length > 0) throw new UsageError(`serve takes options only, not ${inspect(rest[0])}`);
  if (!LEVELS.includes(values.log)) {
    throw new UsageError(`--log must be one of ${LEVELS.join(", ")}, not ${inspect(values.log)}`);
  }
  return { command, options: values };
}

/** @param {string[]} args */
function parse(args) {
  try {
    return parseArgs({
      args,
      allowPositionals: true,
      options: {
        store: { type: "string", default: "file:.whenleader" },
        listen: { type: "string", default: "127.0.0.1:8080" },
        lease: { type: "string", default: "5s" },
        "token-file": { type: "string" },
        cert: { type: "string" },
        key: { type: "string" },
        "allow-reset": { type: "boolean", default: false },
        log: { type: "string", default: "info" },
        version: { type: "boolean", default: false },
        help: { type: "boolean", short: "h", default: false },
      },
    });
  } catch (error) {
    throw new UsageError(/** @type {Error} */ (error).message);
  }
}

/** @param {ReturnType<typeof parse>["values"]} options */
async function serve(options) {
  environment.useLogger(logger(options.log));
  const address = await environment.serve({
    store: options.store,
    baseDir: process.cwd(),
    listen: /^\d+$/.test(options.listen) ? `127.0.0.1:${options.listen}` : options.listen,
    lease: options.lease,
    token: token(options["token-file"]),
    cert: options.cert,
    key: options.key,
    allowReset: options["allow-reset"],
  });
  const scheme = options.cert === undefined ? "http" : "https";
  console.log(`serving the Leader Election API at ${scheme}://${address}`);
  const letGo = hold();
  let stopping = false;
  for (const signal of /** @type {const} */ (["SIGINT", "SIGTERM"])) {
    process.on(signal, async () => {
      // Whoever asks twice does not want to wait.
      if (stopping) process.exit(1);
      stopping = true;
      await environment.stopServing();
      letGo();
      process.exit(0);
    });
  }
}

/** @param {string | undefined} path */
function token(path) {
  const { WHENLEADER_TOKEN: given } = process.env;
  // As a secret looks that was not injected: nobody shall serve without one by accident.
  if (path === undefined && given === "") {
    throw new Error("WHENLEADER_TOKEN is set and empty: set the token, or unset the variable");
  }
  if (path === undefined) return given;
  const text = readFileSync(resolve(path), "utf8").trim();
  if (text === "") throw new Error(`--token-file: ${path} is empty`);
  return text;
}

/** @param {string} level */
function logger(level) {
  const write = (/** @type {string} */ name) => (/** @type {string} */ line) =>
    process.stderr.write(`${new Date().toISOString()} ${name} ${line}\n`);
  const [error, warn, info, debug] = ["error", "warn", "info", "debug"].map(write);
  return { level, error, warn, info, debug };
}

module.exports = { main };
