// The show: three processes elect a leader, and things happen to it. Everything that is claimed on the
// screen was seen; what was not seen ends the show with an error.
import { fork } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Screen } from "./screen.mjs";

const LEASE = 1_500;
const RENEW = 500;
/** Nothing in here takes longer, unless it is broken. */
const PATIENCE = 10_000;

const folder = mkdtempSync(join(tmpdir(), "whenleader-demo-"));
const program = fileURLToPath(new URL("instance.mjs", import.meta.url));
const config = JSON.stringify({
  cluster: {
    type: "StoreCluster",
    store: `file:${folder}`,
    leaseDuration: LEASE,
    renewInterval: RENEW,
  },
});

const instances = [];
const everyone = new Set();
/** All times in which somebody led: `{ since, until }` by the clock of the machine. */
const spans = [];
const tokens = [];
const screen = new Screen(instances);

class Instance {
  constructor(number) {
    this.number = number;
    this.start();
  }

  start() {
    this.state = "starting";
    this.remaining = 0;
    this.led = undefined;
    this.errors = "";
    this.child = fork(program, {
      env: { ...process.env, WHENLEADER_CONFIG: config },
      stdio: ["ignore", "ignore", "pipe", "ipc"],
    });
    this.pid = this.child.pid;
    this.ended = new Promise((done) => this.child.on("close", done));
    this.child.stderr.setEncoding("utf8").on("data", (text) => {
      this.errors += text;
    });
    this.child.on("message", (/** @type {any} */ message) => this.hear(message));
    everyone.add(this.child);
  }

  hear({ event, ...rest }) {
    if (event === "promoted") {
      tokens.push(rest.token);
      this.token = rest.token;
    } else if (event === "led") {
      spans.push({ number: this.number, ...rest.span });
      this.led = undefined;
    } else if (event === "state") {
      this.led = rest.span;
      this.remaining = rest.remaining;
      this.heard = performance.now();
      if (this.state !== "frozen") this.state = rest.leader ? "leader" : "follower";
    } else if (event === "woke") {
      this.woke = rest;
    }
    if (event === "promoted") this.state = "leader";
    changed();
  }

  kill() {
    // What it led until now is known from its last message; its next process has spans of its own.
    if (this.led) spans.push({ number: this.number, ...this.led });
    this.child.kill("SIGKILL");
    this.state = "killed";
  }

  freeze() {
    this.child.kill("SIGSTOP");
    this.woke = undefined;
    this.state = "frozen";
  }

  wake() {
    this.state = "follower";
    this.child.kill("SIGCONT");
  }

  async stop() {
    this.state = "stopping";
    this.child.send("stop");
    const code = await this.ended;
    this.state = "stopped";
    if (code !== 0) throw new Error(`process ${this.number} ended with ${code}`);
  }
}

let waiting = () => {};

/** Waits until it is so, and answers how many milliseconds that took. */
async function until(what, isSo) {
  const start = performance.now();
  const timeout = setTimeout(() => waiting(), PATIENCE);
  while (!isSo()) {
    if (performance.now() - start >= PATIENCE) throw new Error(`not seen: ${what}`);
    await new Promise((resolve) => {
      waiting = () => resolve(undefined);
    });
  }
  clearTimeout(timeout);
  return performance.now() - start;
}

function changed() {
  waiting();
}

const leaders = () => instances.filter(({ state }) => state === "leader");
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function newLeader(old) {
  const took = await until("another leader", () => leaders().some((one) => one !== old));
  return { leader: leaders().find((one) => one !== old), took };
}

async function show() {
  for (let number = 1; number <= 3; number++) instances.push(new Instance(number));
  await until("three running processes", () =>
    instances.every(({ state }) => state !== "starting"),
  );
  await until("a leader", () => leaders().length === 1);
  await pause(1_000);
  check(leaders().length === 1, "one leader");
  let [leader] = leaders();
  screen.say(`three processes, one leads: ${name(leader)}`);

  await pause(1_500);
  screen.doing(`kill -9 ${leader.number}`);
  leader.kill();
  let next = await newLeader(leader);
  screen.say(`killed ${name(leader)}: ${name(next.leader)} took over`, next.took);

  await pause(1_000);
  leader.start();
  await until("the new process", () => leader.state === "follower");
  screen.say(`started ${name(leader)} again: it follows`);

  if (process.platform !== "win32") {
    leader = next.leader;
    await pause(1_500);
    screen.doing(`freeze ${leader.number}: it cannot know that time goes by`);
    leader.freeze();
    next = await newLeader(leader);
    screen.say(
      `froze ${name(leader)}: ${name(next.leader)} took over when the lease ended`,
      next.took,
    );
    await pause(1_000);
    leader.wake();
    await until("an answer of the process that woke", () => leader.woke);
    check(leader.woke.leader === false, "a process that woke and did not believe that it leads");
    screen.say(`woke ${name(leader)}: its very first isLeader() answered false`);
  }

  leader = next.leader;
  await pause(1_500);
  screen.doing(`stop ${leader.number} cleanly`);
  const stopped = leader.stop();
  next = await newLeader(leader);
  screen.say(`stopped ${name(leader)}: handed over to ${name(next.leader)}`, next.took);
  await stopped;

  await pause(1_000);
  // The followers first, so that nobody is promoted any more.
  const last = leaders();
  for (const one of instances.filter(({ state }) => state === "follower")) await one.stop();
  for (const one of last) await one.stop();
  verify();
}

/** What must have been so all the time. */
function verify() {
  check(tokens.length >= 3, "a leader after each fault");
  check(
    tokens.every((token, i) => i === 0 || token > tokens[i - 1]),
    `tokens that only grow: ${tokens}`,
  );
  spans.sort((a, b) => a.since - b.since);
  for (let i = 1; i < spans.length; i++) {
    check(spans[i].since > spans[i - 1].until, "one leader at a time");
  }
  screen.say(
    `${tokens.length} terms, never two leaders at once, and each token larger than the last`,
  );
}

function check(isSo, what) {
  if (!isSo) throw new Error(`not seen: ${what}`);
}

function name({ number }) {
  return `#${number}`;
}

// Also when the show is broken off: a frozen process would stay for ever.
let isShown = false;
process.once("exit", (code) => {
  if (code === 0 && !isShown) process.exitCode = 1;
  for (const child of everyone) child.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
});
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => process.exit(130));

try {
  screen.open("Three processes on one machine, the embedded store, a lease of 1.5 seconds.");
  await show();
  isShown = true;
} catch (error) {
  screen.fail(error.message);
  for (const { number, errors } of instances) if (errors) console.error(`#${number}: ${errors}`);
} finally {
  screen.close();
}
// Children that still run would keep this process waiting for them.
process.exit();
