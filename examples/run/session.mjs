// One session at an upstream that allows a single one: a feed, a PLC, a mail server with IDLE. Whoever leads has it.
//
// The session ends with the term: its goodbye is said the moment the signal aborts, a third of a lease before anybody
// else may lead. A process that dies takes its connection with it. Work that hangs, also in a loop that never yields,
// is ended by whenleader together with the process, still before its lease. What nobody but the upstream can end is the
// session of a machine that stands still or is cut off: let it do so when another one comes with a larger token, or
// when it hears nothing for less than a lease.
import { connect } from "node:net";
import { runWhenLeader } from "whenleader";

const [host, port] = (process.env.UPSTREAM ?? "127.0.0.1:7000").split(":");
const leaseDuration = Number(process.env.LEASE_DURATION ?? 15_000);
/** How long the upstream may be silent, and how long a goodbye may take. */
const SILENCE = 2 * leaseDuration;
const GOODBYE = leaseDuration / 10;

runWhenLeader("upstream-session", session, { leaseDuration });

/** Ends with the session. If that was not because of the term, another instance, or this one, opens the next one. */
async function session(term) {
  console.log(`leads: term ${term.token}`);
  const socket = connect({ host, port: Number(port) }).setEncoding("utf8");
  socket.setTimeout(SILENCE, () => socket.destroy(new Error("the upstream is silent")));
  const leave = () => {
    // Only when the upstream has closed its side, too, it surely has no session any more: wait for that, a while.
    socket.end("BYE\n");
    setTimeout(() => socket.destroy(term.signal.reason), GOODBYE).unref();
  };
  term.signal.addEventListener("abort", leave);
  try {
    socket.write(`HELLO ${term.token}\n`);
    let rest = "";
    for await (const text of socket) {
      const lines = (rest + text).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        // What is under way when the term ends is the next leader's: it was not confirmed.
        if (term.isCurrent()) socket.write(`${handle(line)}\n`);
      }
    }
  } finally {
    term.signal.removeEventListener("abort", leave);
    socket.destroy();
  }
  if (!term.signal.aborted) console.log("the upstream has ended the session");
}

/** What the session is for. Returns what the upstream shall hear. */
function handle(line) {
  return line.replace("EVENT", "DONE");
}
