// One instance of a service; the demo starts three of them. The configuration comes from the environment
// (WHENLEADER_CONFIG), and this is all that a service needs:
import { useCluster, whenLeader } from "whenleader";

let term;
whenLeader(
  (promoted) => {
    term = promoted;
    tell({ event: "promoted", token: term.token });
  },
  () => tell({ event: "demoted" }),
);

// The rest is for the show. It asks `isLeader()` all the time, and tells what it answers.
const ASK_EVERY = 5;
const TELL_EVERY = 50;
const SLEPT = 500;

const cluster = useCluster();
let asked = clock();
let told = 0;
/** The time through which the answer was true, on the clock that all processes of a machine share. */
let span;

setInterval(() => {
  const before = clock();
  const leader = cluster.isLeader();
  const after = clock();
  // This process stood still: here is its very first answer since it woke.
  if (before - asked > SLEPT) tell({ event: "woke", slept: before - asked, leader });
  asked = after;

  if (leader && span) span.until = before;
  else if (leader) span = { since: after, until: after };
  else if (span) endSpan();
  if (after - told < TELL_EVERY) return;
  told = after;
  tell({ event: "state", leader, remaining: leader ? term?.remaining() : 0, span });
}, ASK_EVERY);

function endSpan() {
  tell({ event: "led", span });
  span = undefined;
}

process.on("message", async () => {
  await cluster.stop();
  if (span) endSpan();
  process.disconnect();
  process.exit();
});
// If the show is gone, nobody wants this process.
process.on("disconnect", () => process.exit());

function clock() {
  return Number(process.hrtime.bigint()) / 1e6;
}

function tell(message) {
  if (process.connected) process.send(message);
}
