// A Kubernetes API server for the benchmarks, which tells what it was asked, and by whom.
import { mkdtempSync, openSync, readSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { isMissing, KubernetesServer } from "../__test__/support/servers.mjs";
import { servers } from "../tools/servers/index.mjs";

/** One line for each request, as it comes. */
const AUDIT = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [ResponseStarted, ResponseComplete, Panic]
rules: [{ level: Metadata, namespaces: [bench], resources: [{ group: coordination.k8s.io }] }, { level: None }]
`;

export class Kubernetes {
  name = "Kubernetes";
  /** Followers judge by what they saw. */
  watched = true;
  shortest = 1_000;
  #accounts = 0;

  static async start() {
    await servers([]);
    if (isMissing("kubernetes", "the benchmarks on Kubernetes")) return;
    const kubernetes = new Kubernetes();
    kubernetes.folder = mkdtempSync(join(tmpdir(), "whenleader-audit-"));
    const policy = join(kubernetes.folder, "policy.yaml");
    kubernetes.log = join(kubernetes.folder, "log");
    writeFileSync(policy, AUDIT);
    writeFileSync(kubernetes.log, "");
    kubernetes.server = await KubernetesServer.start([
      `--apiserver-flag=--audit-policy-file=${policy}`,
      `--apiserver-flag=--audit-log-path=${kubernetes.log}`,
    ]);
    const body = { apiVersion: "v1", kind: "Namespace", metadata: { name: "bench" } };
    await kubernetes.server.request({ method: "POST", path: "/api/v1/namespaces", body });
    return kubernetes;
  }

  /** In whole seconds. */
  lasts(leaseDuration) {
    return Math.ceil(leaseDuration / 1_000) * 1_000;
  }

  /** For one instance: each has an account of its own. */
  async cluster() {
    const token = await this.server.account("bench", `instance-${this.#accounts++}`);
    const config = await this.server.kubeconfig({ token });
    return { type: "KubernetesCluster", config, namespace: "bench" };
  }

  /** The way to it for one more instance. The server itself tells what passes there. */
  async way() {
    const name = `system:serviceaccount:bench:instance-${this.#accounts}`;
    const cluster = await this.cluster();
    let requests = 0;
    const stop = this.#monitor((user) => {
      if (user === name) requests += 1;
    });
    return {
      cluster,
      roundTrips: () => requests,
      renewed: (election) => this.#renewed(election),
      close: stop,
    };
  }

  /** When a Lease was renewed last: leader and benchmark share their clock. */
  async #renewed(election) {
    const path = `/apis/coordination.k8s.io/v1/namespaces/bench/leases/${election}`;
    const { body } = await this.server.request({ path });
    return Date.parse(body.spec.renewTime) - Date.now() + performance.now();
  }

  /** Calls `seen(user)` for every request, until the answered function is called. */
  #monitor(seen) {
    const file = openSync(this.log, "r");
    const bytes = Buffer.alloc(1 << 20);
    let rest = "";
    const timer = setInterval(() => {
      for (let length = 1; length > 0; ) {
        length = readSync(file, bytes);
        const lines = (rest + bytes.toString("utf8", 0, length)).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          seen(JSON.parse(line).user.username);
        }
      }
    }, 100);
    return () => clearInterval(timer);
  }

  async stop() {
    await this.server.stop();
    rmSync(this.folder, { recursive: true, force: true });
  }
}
