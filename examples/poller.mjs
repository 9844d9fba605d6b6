// A loop that polls as long as this instance leads. Everything that waits gets the signal of the term, so the
// loop ends the moment the leadership does, and not one poll later.
import { setTimeout as sleep } from "node:timers/promises";
import { whenLeader } from "whenleader";

whenLeader(
  async ({ signal }) => {
    console.log("starts to poll");
    while (!signal.aborted) {
      try {
        await poll(signal);
        await sleep(200, undefined, { signal });
      } catch (error) {
        if (!signal.aborted) console.log(`will try again: ${error.message}`);
      }
    }
    console.log(`polls no longer: ${signal.reason.reason}`);
  },
  // It is called when the function above has ended; nothing of it runs any more.
  () => console.log("all is quiet"),
);

let polls = 0;

/** Stands for `fetch(url, { signal })` or a query. */
async function poll(signal) {
  await sleep(20, undefined, { signal });
  polls += 1;
  if (polls % 5 === 0) throw new Error("the service did not answer");
  console.log(`poll ${polls}`);
}

setInterval(() => {}, 60_000);
