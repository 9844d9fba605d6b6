// The relay of an outbox: the leader takes what lies there, delivers it in order, and marks it as done.
// A leader may be paused between its last look at the lease and its next write, for as long as it likes; no
// lease can prevent that. So the receiver refuses tokens that are lower than one it has seen.
import { setTimeout as sleep } from "node:timers/promises";
import { whenLeader } from "whenleader";

/** Stands for a table that all instances share. */
const outbox = ["order 1", "order 2", "order 3", "order 4", "order 5", "order 6"];

/** Stands for the receiver: UPDATE ... WHERE last_token <= :token. */
const receiver = {
  lastToken: 0,
  accept(token, message) {
    if (token < this.lastToken) throw new Error(`refused: term ${token} is over`);
    this.lastToken = token;
    console.log(`delivered ${message}`);
  },
};

whenLeader(async (term) => {
  console.log("relays");
  while (term.isCurrent()) {
    const message = outbox[0];
    if (message) {
      receiver.accept(term.token, message);
      outbox.shift();
    }
    await sleep(50, undefined, { signal: term.signal }).catch(() => {});
  }
  console.log("relays no longer");
});

// What happens to a leader of an earlier term that wakes up late.
setTimeout(() => {
  try {
    receiver.accept(receiver.lastToken - 1, "order 1");
  } catch (error) {
    console.log(error.message);
  }
}, 500);

setInterval(() => {}, 60_000);
