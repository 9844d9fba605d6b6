// The ways in which work ends, each in an election of its own.
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { runWhenLeader } from "whenleader";

const options = { leaseDuration: Number(process.env.LEASE_DURATION ?? 15_000) };

// With its term. Whatever waits gets the signal, and throws when that aborts: a normal end, of which no log tells.
runWhenLeader("follows", follow, options);

async function follow(term) {
  say(term, "begins");
  try {
    for (;;) await sleep(100, undefined, { signal: term.signal });
  } finally {
    say(term, `ends: ${term.signal.reason.reason}`);
  }
}

// Done. It hands the name back by that, and begins again after `campaignInterval`, here or elsewhere.
runWhenLeader("is-done", async (term) => say(term, "is done"), options);

// Done once and for all, as far as this instance goes: it leaves the election. Others do it once more, so what must
// be done only once is to be looked up first.
const run = runWhenLeader(
  "is-done-here",
  async (term) => {
    say(term, "is done here");
    await run.stop();
  },
  options,
);

// Failed. It is logged, and then the same as done: somebody begins again.
runWhenLeader("fails", fail, options);

async function fail(term) {
  say(term, "begins");
  await sleep(50, undefined, { signal: term.signal });
  throw new Error("this work is bound to fail");
}

// What may be better in a moment is tried again in place: that is faster than another election, and no other instance
// would do better.
runWhenLeader("retries", retry, options);

async function retry(term) {
  say(term, "begins");
  let pause = 50;
  for (let call = 1; ; call += 1) {
    try {
      await callUpstream(call, term.signal);
      pause = 50;
      say(term, `call ${call} went well`);
    } catch (error) {
      // The one error that is not to be tried again is that of the term.
      if (term.signal.aborted) throw error;
      say(term, `call ${call} failed, and is tried again: ${error.message}`);
      pause = Math.min(2 * pause, 5_000);
    }
    await sleep(pause, undefined, { signal: term.signal });
  }
}

/** Stands for a request. */
async function callUpstream(call, signal) {
  await sleep(10, undefined, { signal });
  if (call % 3 === 0) throw new Error("the upstream is overloaded");
}

// An error of its own while its term ends. It is neither the signal's reason nor caused by it, so it is logged, although
// the end itself was wanted.
runWhenLeader("flushes", flush, options);

async function flush(term) {
  say(term, "begins");
  // Throws nothing by itself, for there is something to be done at the end.
  await once(term.signal, "abort");
  throw new Error("the buffer could not be written");
}

function say({ election, token }, what) {
  console.log(`${election} ${token}: ${what}`);
}
