// Threads share their process's part in an election: if the process leads, it leads in all of them, and each
// has registrations of its own.
const { Worker, isMainThread, threadId } = require("node:worker_threads");
const { whenLeader } = require("whenleader");

const name = isMainThread ? "main" : `worker ${threadId}`;

whenLeader(
  ({ signal }) => {
    console.log(`${name} starts`);
    signal.addEventListener("abort", () => console.log(`${name} is told to end`));
  },
  () => console.log(`${name} has ended`),
);

if (isMainThread) {
  for (let i = 0; i < 2; i++) new Worker(__filename);
}
setInterval(() => {}, 60_000);
