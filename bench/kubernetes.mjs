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
  #accounts = 0;

  static async start() {
    await servers();
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

  /** For one instance: each has an account of its own. */
  async cluster() {
    const token = await this.server.account("bench", `instance-${this.#accounts++}`);
    const config = await this.server.kubeconfig({ token });
    return { type: "KubernetesCluster", config, namespace: "bench" };
  }

  /** The milliseconds until a lease ends: leader and benchmark share their clock. */
  async timeLeft(election) {
    const path = `/apis/coordination.k8s.io/v1/namespaces/bench/leases/${election}`;
    const { body } = await this.server.request({ path });
    const { renewTime, leaseDurationSeconds } = body.spec;
    return Date.parse(renewTime) + 1_000 * leaseDurationSeconds - Date.now();
  }

  /** Calls `seen(client, command)` for every request, until the answered function is called. */
  monitor(seen) {
    const file = openSync(this.log, "r");
    const bytes = Buffer.alloc(1 << 20);
    let rest = "";
    const timer = setInterval(() => {
      for (let length = 1; length > 0; ) {
        length = readSync(file, bytes);
        const lines = (rest + bytes.toString("utf8", 0, length)).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          const { user, verb } = JSON.parse(line);
          seen(user.username, verb.toUpperCase());
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
