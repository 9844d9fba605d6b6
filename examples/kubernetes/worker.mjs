// A service whose replicas all answer requests, and of which one does the work that must run once.
import { createServer } from "node:http";
import { startCluster, useCluster, whenLeader } from "whenleader";

// A right that is missing ends the process here, and the log says which rule gives it. An API server that is
// away for now does not.
await startCluster();

const me = useCluster().getInstanceId();
let timer;

whenLeader(
  ({ token }) => {
    console.log(`${me} leads (term ${token})`);
    timer = setInterval(() => console.log(`${me} tick`), 1_000);
  },
  ({ reason }) => {
    clearInterval(timer);
    console.log(`${me} leads no longer (${reason})`);
  },
);

const server = createServer((request, response) => {
  const leads = useCluster().isLeader();
  // Readiness and liveness say that this replica works, and nothing of who leads.
  if (request.url === "/healthz") response.end("ok\n");
  // What only the leader may answer asks again here: a Service is late by a moment, isLeader() never is.
  else if (request.url === "/leader") response.writeHead(leads ? 200 : 503).end(`${me}\n`);
  else
    response.end(`${me}: the leader is ${useCluster().getLeader()?.instanceId ?? "not known"}\n`);
});
server.listen(Number(process.env.PORT ?? 8080), () => {
  const address = server.address();
  console.log(`listens on port ${typeof address === "object" ? address.port : address}`);
});
