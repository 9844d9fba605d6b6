// One instance of a service, as the benchmarks start it: tells when it is promoted, stops when it is told to.
import { useCluster, whenLeader } from "whenleader";

const cluster = useCluster();
whenLeader(
  () => process.send({ event: "promoted" }),
  () => process.send({ event: "demoted" }),
);
cluster.on("error", (error) => process.send({ event: "error", message: error.message }));
setTimeout(() => process.send({ event: "ready" }), 300);

process.on("message", async () => {
  await cluster.stop();
  process.exit();
});
process.on("disconnect", () => process.exit());
