// A program of Kelvin's Python SDK: one workload that takes part in an election.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const PROGRAM = `
import asyncio, sys, threading
from kelvin.ha import AsyncLeaderElection, LeaderElection

def say(*words):
    print(*words, flush=True)

def shown(election):
    return "leader", str(election.is_leader).lower(), election.current_leader

def sync():
    election = LeaderElection()
    election.on_promoted = lambda: say("promoted")

    @election.on_demoted
    def demoted():
        say("demoted")

    election.start()
    for line in sys.stdin:
        if line.strip() == "leader":
            say(*shown(election))
        elif line.strip() == "stop":
            election.stop()
            say("stopped")

async def asynchronous():
    election = AsyncLeaderElection()

    @election.on_promoted
    async def promoted():
        say("promoted")

    @election.on_demoted
    async def demoted():
        await asyncio.sleep(0)
        say("demoted")

    await election.start()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line.strip() == "leader":
            say(*shown(election))
        elif line.strip() == "stop":
            await election.stop()
            say("stopped")

if sys.argv[1] == "sync":
    sync()
else:
    asyncio.run(asynchronous())
`;

const PATIENCE = 30_000;

export class Workload {
  lines = [];
  #answers = [];
  #looks = new Set();

  constructor(t, python, { kind, port, workload }) {
    const env = {
      ...process.env,
      KELVIN_CLUSTER_NAME: "edge",
      KELVIN_WORKLOAD_NAME: workload,
      KELVIN_APP_NAME: "flow",
      KELVIN_LEADER_API_ADDRESS: "127.0.0.1",
      KELVIN_LEADER_API_PORT: String(port),
    };
    const stdio = ["pipe", "pipe", "ignore"];
    this.child = spawn(python, ["-c", PROGRAM, kind], { env, stdio });
    t.after(() => this.child.kill("SIGKILL"));
    createInterface({ input: this.child.stdout }).on("line", (line) => {
      if (line.startsWith("leader ")) this.#answers.shift()?.(line);
      else this.lines.push(line);
      for (const look of this.#looks) look();
    });
  }

  async said(line) {
    await new Promise((resolve, reject) => {
      const fail = () => reject(new Error(`it did not say ${line}, but ${this.lines}`));
      const timer = setTimeout(fail, PATIENCE);
      const look = () => {
        if (!this.lines.includes(line)) return;
        clearTimeout(timer);
        this.#looks.delete(look);
        resolve();
      };
      this.#looks.add(look);
      look();
    });
  }

  async ask(word) {
    this.child.stdin.write(`${word}\n`);
    if (word === "leader") return new Promise((resolve) => this.#answers.push(resolve));
    await this.said("stopped");
    return "stopped";
  }

  kill(signal) {
    this.child.kill(signal);
  }
}
