// One instance of a service under test, in a process of its own. It writes down every answer `true` that
// it gets from isLeader(), and every callback, with the time before and after, straight into a file: what
// was written survives kill -9. It decides nothing by itself; the test commands it by messages.
import { openSync, writeSync } from "node:fs";
import { httpRegistryStore } from "../../examples/stores/http-registry.mjs";
import { startCluster, stopCluster, useCluster, whenLeader } from "../../index.js";

const [, , config, file] = process.argv;
const out = openSync(file, "a");
/** One clock for all processes of the machine. */
const now = () => Number(process.hrtime.bigint() / 1_000n);
const write = (...words) => writeSync(out, `${words.join(" ")}\n`);

let term;
whenLeader(
  (begun) => {
    term = begun;
    write("fn", begun.token, now());
    begun.signal.addEventListener("abort", () => write("abort", begun.token, now()));
    process.send?.({ event: "promoted", token: begun.token });
  },
  (lost, ended) => {
    write("dereg", ended.token, now(), lost.reason);
    process.send?.({ event: "demoted", token: ended.token, reason: lost.reason });
  },
);

function ask() {
  const before = now();
  const leads = useCluster().isLeader();
  const after = now();
  const current = term?.isCurrent();
  if (leads && current) write("true", term.token, before, after);
  else if (leads) write("true", "unknown", before, after);
  return leads;
}

for (const kind of ["uncaughtException", "unhandledRejection"]) {
  process.on(kind, (error) => {
    write(kind, JSON.stringify(String(error?.stack ?? error)));
    console.error(error);
    process.exit(1);
  });
}

process.on("message", async ({ command, ms }) => {
  if (command === "block") {
    const end = now() + ms * 1_000;
    while (now() < end) ask();
    process.send({ event: "unblocked", leads: ask() });
  } else if (command === "stepDown") {
    await useCluster().stepDown({ pause: ms });
  } else if (command === "stop") {
    await stopCluster();
    process.send({ event: "stopped" }, () => process.exit());
  }
});
process.on("disconnect", () => process.exit());

const { httpRegistry, ...cluster } = JSON.parse(config);
if (httpRegistry) cluster.store = httpRegistryStore(httpRegistry);
await startCluster(cluster);
process.send?.({ event: "started" });
setInterval(ask, 2);
