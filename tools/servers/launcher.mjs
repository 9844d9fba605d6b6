// What every launcher of a server has in common: free ports, a folder that vanishes, programs that end with
// it, and the protocol by which it is driven. It knows no server.
//
// A launcher prints one line of JSON when its server is ready. Then it reads commands from its input, one a
// line, and answers each with one line of JSON: a word alone, or `{ "id": 7, "do": "freeze" }`, whose answer
// has the same id. It ends when its input does: so all goes with whoever started it, however that ended.
import { spawn, spawnSync } from "node:child_process";
import { randomInt } from "node:crypto";
import { once } from "node:events";
import {
  closeSync,
  fstatSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
} from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

/** Far longer than any server takes on a busy machine. */
const TIME_TO_START = 120_000;
const TIME_TO_STOP = 5_000;
const TAKEN = /address (is )?already in use|EADDRINUSE/i;

/** On Linux the kernel ends the programs even if this process is killed. */
const setpriv = spawnSync("setpriv", ["--pdeathsig", "KILL", "true"]).status === 0;

export class Launcher {
  #specs = new Map();
  #running = new Map();
  #logFrom = new Map();
  #watchdogs = new Map();
  #ready = false;
  #ending;
  #lines = createInterface({ input: process.stdin });
  /** Lines that came before the server was ready. */
  #early = [];

  constructor(name) {
    this.dir = mkdtempSync(join(tmpdir(), `whenleader-${name}-`));
    process.on("exit", () => {
      for (const child of this.#running.values()) child.kill("SIGKILL");
      rmSync(this.dir, { recursive: true, force: true, maxRetries: 10 });
    });
    for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) process.on(signal, () => this.end(0));
    this.#lines.on("line", (line) => this.#early?.push(line));
    this.#lines.on("close", () => this.end(0));
    process.stdout.on("error", () => this.end(0));
  }

  in(...names) {
    return join(this.dir, ...names);
  }

  /**
   * Runs a program until it is ready: until `ready` matches what it wrote since, or answers true. It runs as
   * `user` where one is given.
   * @param {{ command: any[], ready: RegExp | (() => Promise<boolean>), user?: { uid: number, gid: number } }} spec
   */
  async start(name, spec) {
    this.#specs.set(name, spec);
    this.#run(name, spec);
    const { ready } = spec;
    const isReady = ready instanceof RegExp ? () => ready.test(this.#log(name)) : ready;
    const end = Date.now() + TIME_TO_START;
    while (!(await isReady())) {
      if (!this.isRunning(name)) {
        const taken = TAKEN.test(this.#log(name));
        throw Object.assign(new Error(`${name} ended:\n${this.#tail(name)}`), { taken });
      }
      if (Date.now() > end)
        throw new Error(`${name} is not ready after ${TIME_TO_START} ms:\n${this.#tail(name)}`);
      await sleep(10);
    }
  }

  /** Again as it was started. What a killed one still holds for a moment, such as its port, is waited for. */
  async restart(name) {
    for (let tries = 1; ; tries++) {
      await this.kill(name);
      try {
        return await this.start(name, this.#specs.get(name));
      } catch (error) {
        if (this.isRunning(name) || tries === 20) throw error;
        await sleep(250);
      }
    }
  }

  #run(name, { command, user }) {
    const path = this.in(`${name}.log`);
    const log = openSync(path, "a");
    this.#logFrom.set(name, fstatSync(log).size);
    // What a change of user would take back comes after it.
    const before = [...asUser(user), ...(setpriv ? ["setpriv", "--pdeathsig", "KILL"] : [])];
    const [program, ...args] = [...before, ...command.map(String)];
    const child = spawn(program, args, { stdio: ["ignore", log, log], cwd: this.dir });
    closeSync(log);
    child.on("error", (error) => console.error(`${name}: ${error.message}`));
    child.on("close", (code, signal) => {
      if (this.#running.get(name) !== child) return;
      this.#running.delete(name);
      if (this.#ready)
        console.error(`${name} ended by itself (${signal ?? code}):\n${this.#tail(name)}`);
    });
    this.#running.set(name, child);
  }

  isRunning(name) {
    return this.#running.has(name);
  }

  pid(name) {
    return this.#running.get(name)?.pid;
  }

  /** It stands still, with all that it started: connections are taken, and nothing is answered. */
  async freeze(name) {
    const pids = this.#family(name);
    // The kernel kills the program if this process dies, but not those that it started and that stand still.
    if (pids.length > 1) {
      const script = `read -r line || kill -KILL ${pids.join(" ")}`;
      const stdio = ["pipe", "ignore", "ignore"];
      this.#watchdogs.set(name, spawn("sh", ["-c", script], { stdio }));
    }
    // One that waits for the processor stops when it has it next, and its other threads work until then.
    const end = Date.now() + TIME_TO_STOP;
    while (!pids.every(standsStill) && Date.now() < end) await sleep(1);
  }

  thaw(name) {
    for (const pid of this.#family(name)) signal(pid, "SIGCONT");
    this.#dismiss(name);
  }

  /** As a crash does it: at once, with all that it started. */
  async kill(name) {
    const child = this.#running.get(name);
    if (!child) return;
    const family = this.#family(name);
    this.#running.delete(name);
    const ended = once(child, "close");
    child.kill("SIGKILL");
    for (const pid of family) signal(pid, "SIGKILL");
    await ended;
    this.#dismiss(name);
  }

  /** The program first, so that it starts nothing while the others are looked for. All stand still then. */
  #family(name) {
    const pids = [this.pid(name)].filter(Boolean);
    for (const pid of pids) {
      signal(pid, "SIGSTOP");
      pids.push(...childrenOf(pid));
    }
    return pids;
  }

  #dismiss(name) {
    this.#watchdogs.get(name)?.stdin.end("done\n");
    this.#watchdogs.delete(name);
  }

  /** What it wrote since it was started last. */
  #log(name) {
    return readFileSync(this.in(`${name}.log`)).toString("utf8", this.#logFrom.get(name));
  }

  #tail(name) {
    return this.#log(name).trimEnd().split("\n").slice(-8).join("\n");
  }

  /** Ends and deletes what was made so far. */
  async empty() {
    await this.#killAll();
    for (const name of readdirSync(this.dir)) rmSync(this.in(name), { recursive: true });
  }

  /** Runs a program to its end, as it is needed before a server can start. */
  async once(name, { command, user, input }) {
    const path = this.in(`${name}.log`);
    const log = openSync(path, "a");
    const [program, ...args] = [...asUser(user), ...command.map(String)];
    const child = spawn(program, args, { stdio: ["pipe", log, log], cwd: this.dir });
    closeSync(log);
    child.stdin.on("error", () => {});
    child.stdin.end(input);
    const code = await new Promise((resolve) => {
      child.on("error", (error) => resolve(error.message));
      child.on("close", resolve);
    });
    if (code !== 0)
      throw new Error(`${name} failed (${code}):\n${readFileSync(path, "utf8").slice(-2000)}`);
  }

  /**
   * Another process may take a port between its choice and its use: the next try has other ones, after `clear`
   * removed what the one before left.
   * @template T
   * @param {(ports: number[]) => Promise<T>} start
   * @param {() => any} [clear]
   */
  async onFreePorts(count, start, clear = () => {}) {
    for (let tries = 1; ; tries++) {
      try {
        return await start(await freePorts(count));
      } catch (error) {
        if (!(error.taken || TAKEN.test(error.message)) || tries === 5) throw error;
        await clear();
      }
    }
  }

  /** From now on it tells what it was asked. @param {Record<string, (asked: any) => any>} commands */
  serve(told, commands) {
    this.#ready = true;
    print(told);
    const early = this.#early;
    this.#early = undefined;
    const answer = async (line) => {
      if (line.trim() === "") return;
      let id;
      try {
        const asked = line.startsWith("{") ? JSON.parse(line) : { do: line.trim() };
        id = asked.id;
        if (asked.do === "stop") {
          print({ id, ok: true });
          return await this.end(0);
        }
        if (!Object.hasOwn(commands, asked.do)) throw new Error(`there is no command ${asked.do}`);
        print({ id, ok: true, ...(await commands[asked.do](asked)) });
      } catch (error) {
        print({ id, error: error.message });
      }
    };
    for (const line of early) answer(line);
    this.#lines.on("line", answer);
  }

  /** There is no such server here. */
  missing(why) {
    print({ missing: why });
    process.exit(1);
  }

  /** It could not be started. */
  async fail(error) {
    if (!this.#ending) console.error(error.message);
    await this.end(1);
  }

  /** When this process is gone, so are they: nobody finds a server that is about to die. */
  end(code) {
    this.#ending ??= this.#killAll().then(() => process.exit(code));
    return this.#ending;
  }

  #killAll() {
    return Promise.all([...this.#running.keys()].map((name) => this.kill(name)));
  }
}

/**
 * So many different ones, below those that the systems give to outgoing connections: one of these would take it
 * before the server does, or, of whoever asks whether the server is there, meet itself.
 */
export async function freePorts(count) {
  const servers = [];
  while (servers.length < count) {
    const server = createServer().listen(randomInt(15_000, 32_000), "127.0.0.1");
    const error = await once(server, "listening").then(
      () => undefined,
      (error) => error,
    );
    if (!error) servers.push(server);
    else if (error.code !== "EADDRINUSE" && error.code !== "EACCES") throw error;
  }
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => once(server.close(), "close")));
  return ports;
}

/** Whether it answers with that status: for servers that write nothing down when they are ready. */
export async function answers(url, status) {
  // Somebody else may be there, who never answers.
  const signal = AbortSignal.timeout(1_000);
  const answer = await fetch(url, { signal }).catch(() => undefined);
  await answer?.body?.cancel();
  return answer?.status === status;
}

function print(value) {
  process.stdout.write(`${JSON.stringify(value)}\n`);
}

function asUser(user) {
  if (!user) return [];
  return ["setpriv", `--reuid=${user.uid}`, `--regid=${user.gid}`, "--clear-groups"];
}

function signal(pid, name) {
  try {
    process.kill(pid, name);
  } catch {}
}

/** Each of its threads, as far as the system tells. */
function standsStill(pid) {
  const folder = `/proc/${pid}/task`;
  return orNothing(() => readdirSync(folder), []).every((thread) => {
    const stat = orNothing(() => readFileSync(join(folder, thread, "stat"), "utf8"), "");
    return /^[TtZX]?$/.test(stat.slice(stat.lastIndexOf(")") + 2)[0] ?? "");
  });
}

/** What has ended meanwhile, or is not told of here. */
function orNothing(read, nothing) {
  try {
    return read();
  } catch {
    return nothing;
  }
}

function childrenOf(pid) {
  let text;
  try {
    text = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8");
  } catch {
    text = spawnSync("pgrep", ["-P", `${pid}`], { encoding: "utf8" }).stdout ?? "";
  }
  return text.split(/\s+/).filter(Boolean).map(Number);
}
