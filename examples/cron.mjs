// A timer that ticks on the leader only, however many instances run.
import { useCluster, whenLeader } from "whenleader";

const me = useCluster().getInstanceId();
let timer;

whenLeader(
  ({ token }) => {
    console.log(`${me} leads (term ${token})`);
    timer = setInterval(tick, 200);
  },
  ({ reason }) => {
    clearInterval(timer);
    console.log(`${me} leads no longer (${reason})`);
  },
);

function tick() {
  console.log(`${me} tick`);
}

// A follower has nothing to do, and taking part in an election keeps no process alive. A real service has its
// server for that.
setInterval(() => {}, 60_000);
