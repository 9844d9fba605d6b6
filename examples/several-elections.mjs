// Several elections in one process: the instances share the work, since each kind of it has a leader of its
// own. An instance that does not want to lead everything steps down where it leads too much.
import { useCluster, whenLeader } from "whenleader";

const works = ["mail", "reports", "cleanup"];

for (const election of works) {
  whenLeader(
    () => console.log(`${election}: mine`),
    () => console.log(`${election}: no longer mine`),
    { election },
  );
}

setInterval(() => {
  const mine = works.filter((election) => useCluster(election).isLeader());
  console.log(`leading ${mine.length === 0 ? "nothing" : mine.join(", ")}`);
}, 300);
