// How soon work is led again with the times that runWhenLeader() has by default, on a store that tells nobody of a free
// lease: the longest that docs/run-when-leader.md promises.
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { newFolder, Program } from "./support/child.js";
import { until } from "./support/instances.mjs";
import { isMissing, Server } from "./support/servers.mjs";

/** For slow machines; the times themselves are those of the documents. */
const SLACK = 2_000;
const HANDED_BACK = 6_000;
const CRASHED = 21_000;
const ROUNDS = 3;

const WORK = `
const { runWhenLeader } = require("whenleader");
let end = () => {};
runWhenLeader("job", (term) => {
  say("begins", Date.now(), term.token);
  return new Promise((resolve) => { end = resolve; });
});
process.stdin.on("data", () => { say("ends", Date.now()); end(); });
`;

const skip = isMissing("mariadb", "how soon work is led again");

describe("where a store tells nobody of a free lease", { skip }, () => {
  let server;
  const programs = [];
  before(async () => {
    server = await Server.start("mariadb");
    const config = { type: "StoreCluster", store: server.url };
    const cwd = newFolder();
    for (let i = 0; i < 2; i += 1) programs.push(new Program(WORK, { cwd, config }));
  });
  after(async () => {
    for (const program of programs) program.kill("SIGKILL");
    await server?.stop();
  });

  /** The begins of all, the latest first. */
  const begins = () =>
    programs
      .flatMap((program) =>
        program.lines
          .map((line) => line.split(" "))
          .filter(([what]) => what === "begins")
          .map(([, at, token]) => ({ program, at: Number(at), token: Number(token) })),
      )
      .sort((a, b) => b.token - a.token);
  const nextAfter = async (token) => {
    await until(() => begins()[0]?.token > token, "nobody leads", CRASHED + SLACK);
    return begins()[0];
  };

  test("a name that was handed back is led again within 6 s", async () => {
    let leader = await nextAfter(0);
    for (let round = 0; round < ROUNDS; round += 1) {
      const { program, token } = leader;
      const seen = program.lines.length;
      program.tell("end");
      await program.said("ends", seen);
      const ended = Number(program.lines.findLast((line) => line.startsWith("ends")).split(" ")[1]);
      leader = await nextAfter(token);
      assert.ok(
        leader.at - ended <= HANDED_BACK + SLACK,
        `round ${round}: ${leader.at - ended} ms`,
      );
    }
  });

  test("the work of a leader that crashed is led again within 21 s", async () => {
    const [{ program, token }] = begins();
    const crashed = Date.now();
    program.kill("SIGKILL");
    const { at } = await nextAfter(token);
    assert.ok(at - crashed <= CRASHED + SLACK, `${at - crashed} ms`);
  });
});
