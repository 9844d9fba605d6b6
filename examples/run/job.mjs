// A job that runs every minute, however many instances there are: on the leader only, one at a time. The times are those
// of the wall clock, so a new leader keeps the rhythm of the old one; what would have run while nobody led is left out.
//
// With a scheduler of a library it is the same: start it in the work, wait for the signal, and before the work ends stop
// it and wait for the run that is under way, which gets the signal, too.
import { setTimeout as sleep } from "node:timers/promises";
import { runWhenLeader } from "whenleader";

const { JOB_URL } = process.env;
const every = Number(process.env.JOB_EVERY ?? 60_000);
const leaseDuration = Number(process.env.LEASE_DURATION ?? 15_000);

runWhenLeader("report", schedule, { leaseDuration });

async function schedule(term) {
  console.log(`leads: term ${term.token}`);
  for (;;) {
    // It is over with the term, and so is the work: this throws then.
    await sleep(every - (Date.now() % every), undefined, { signal: term.signal });
    try {
      await run(term);
    } catch (error) {
      if (term.signal.aborted) throw error;
      // One that failed is no reason to stop leading: the next one comes in its time.
      console.error(`the job failed, and runs again in its time: ${error.message}`);
    }
  }
}

/** Gives up what is under way when the term ends. A job of several steps asks between two of them. */
async function run({ token, signal }) {
  const answer = await fetch(JOB_URL, {
    method: "POST",
    headers: { "x-fencing-token": String(token) },
    signal,
  });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  await answer.arrayBuffer();
  console.log(`ran in term ${token}`);
}
