// Instances of one service, each in a process of its own, that say what happens to them.

const assert = require("node:assert/strict");
const { setTimeout: sleep } = require("node:timers/promises");
const { PATIENCE, Program, newFolder } = require("./child.js");

const CONFIG = { type: "StoreCluster", leaseDuration: 1500, renewInterval: 500 };

/** Says what happens, and answers a question for each line of its input. */
const INSTANCE = `
const cluster = useCluster();
whenLeader(
  ({ token }) => say("fn", token),
  ({ reason }, { token }) => say("deregistered", token, reason),
);
const answers = {
  leads: () => cluster.isLeader(),
  token: async () => (await cluster.waitUntilLeader()).token,
  leader: () => JSON.stringify(cluster.getLeader()),
  id: () => cluster.getInstanceId(),
  stepDown: (pause = 5000) => cluster.stepDown({ pause: Number(pause) }),
  stop: () => stopCluster(),
  remaining: async () => (await cluster.waitUntilLeader()).remaining(),
  block: (ms) => {
    for (const end = Date.now() + Number(ms); Date.now() < end; );
    return cluster.isLeader();
  },
};
require("node:readline").createInterface({ input: process.stdin }).on("line", async (line) => {
  const [question, ...values] = line.split(" ");
  say("answer", await answers[question](...values));
}).on("close", () => process.exit());
`;

/** Instances of one service, ended with the test. */
function service(t, { config = {}, cwd = newFolder(), count = 3 } = {}) {
  const start = (own = {}) => {
    const program = new Program(INSTANCE, { cwd, config: { ...CONFIG, ...config, ...own } });
    t.after(async () => {
      program.kill("SIGCONT");
      program.kill("SIGKILL");
      await program.ended;
    });
    return program;
  };
  const instances = Array.from({ length: count }, () => start());
  return { instances, start };
}

async function ask(program, question) {
  const from = program.lines.length;
  program.tell(question);
  await program.said("answer", from);
  return program.lines
    .slice(from)
    .find((line) => line.startsWith("answer"))
    .slice("answer ".length);
}

const leads = (program) => {
  const last = program.lines.filter((line) => !line.startsWith("answer")).at(-1);
  return last?.startsWith("fn") === true;
};

/** The one that leads, as they say themselves. */
async function leaderOf(programs) {
  for (const end = Date.now() + PATIENCE; Date.now() < end; await sleep(5)) {
    const leader = programs.find(leads);
    if (leader !== undefined) return leader;
  }
  return assert.fail("nobody leads");
}

const tokens = (...programs) =>
  programs
    .flatMap((program) => program.lines.filter((line) => line.startsWith("fn")))
    .map((line) => Number(line.slice(3)));

module.exports = { CONFIG, service, ask, leads, leaderOf, tokens };
