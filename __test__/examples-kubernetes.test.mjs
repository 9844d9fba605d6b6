// The manifests of examples/kubernetes and docs/kubernetes.md are what a real API server takes, and what they
// give to the worker is what it needs.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { isMissing, KubernetesServer } from "./support/servers.mjs";

const root = fileURLToPath(new URL("..", import.meta.url));
const folder = join(root, "examples", "kubernetes");
const { loadNative } = createRequire(import.meta.url)("../lib/native.js");
const PATIENCE = 30_000;

/** Where the server keeps each kind. */
const COLLECTIONS = {
  ServiceAccount: "/api/v1/namespaces/*/serviceaccounts",
  Service: "/api/v1/namespaces/*/services",
  Pod: "/api/v1/namespaces/*/pods",
  Lease: "/apis/coordination.k8s.io/v1/namespaces/*/leases",
  Role: "/apis/rbac.authorization.k8s.io/v1/namespaces/*/roles",
  RoleBinding: "/apis/rbac.authorization.k8s.io/v1/namespaces/*/rolebindings",
  Deployment: "/apis/apps/v1/namespaces/*/deployments",
  PodDisruptionBudget: "/apis/policy/v1/namespaces/*/poddisruptionbudgets",
};

const yamlIn = (directory) =>
  readdirSync(directory)
    .filter((name) => name.endsWith(".yaml"))
    .flatMap((name) => readFileSync(join(directory, name), "utf8").split(/^---$/m));

const page = readFileSync(join(root, "docs", "kubernetes.md"), "utf8");
const blocks = (language) =>
  [...page.matchAll(/^```(\w+)\n(.*?)^```$/gms)]
    .filter(([, found]) => found === language)
    .map(([, , text]) => text);

test("every configuration in docs/kubernetes.md is accepted", () => {
  const found = blocks("json");
  assert.ok(found.length > 0);
  for (const json of found) loadNative().checkConfig(json, "docs/kubernetes.md", root);
});

const missing = isMissing("kubernetes", "the manifests of examples/kubernetes");
describe("on a real API server", { skip: missing }, () => {
  const running = new Set();
  let server;
  let namespace;
  let template;
  let kubeconfig;
  let token;

  before(async () => {
    server = await KubernetesServer.start();
    namespace = await server.newNamespace();
    // Pods that are not safe are refused there.
    await asked({
      method: "PATCH",
      path: `/api/v1/namespaces/${namespace}`,
      contentType: "application/merge-patch+json",
      body: { metadata: { labels: { "pod-security.kubernetes.io/enforce": "restricted" } } },
    });
  });

  after(async () => {
    for (const child of running) child.kill("SIGKILL");
    await server?.stop();
  });

  test("every manifest of the example is accepted as it is", async () => {
    for (const yaml of yamlIn(folder)) await create(yaml);
    const { spec } = await asked({ path: `${collection("Deployment")}/shop-worker` });
    template = spec.template;
    await signIn();
  });

  test("its Role is enough to elect: one pod leads, and hands over when it is told to end", async () => {
    const first = await startPod("shop-worker-1");
    await first.says(/shop-worker-1\S* leads \(term \d+\)/);
    const second = await startPod("shop-worker-2");
    assert.equal(await first.status("/leader"), 200);
    assert.equal(await second.status("/leader"), 503);
    for (const pod of [first, second]) assert.equal(await pod.status("/healthz"), 200);
    const { spec } = await asked({ path: `${collection("Lease")}/shop-worker` });
    assert.match(spec.holderIdentity, /^shop-worker-1-/);

    await first.stop();
    assert.match(first.said(), /leads no longer \(stopped\)/);
    await second.says(/shop-worker-2\S* leads/);
    await second.stop();
  });

  test("its Role gives no more than that", async () => {
    const lease = `${collection("Lease")}/shop-worker`;
    const patch = { contentType: "application/merge-patch+json", body: {} };
    for (const wanted of [
      { method: "DELETE", path: lease },
      { method: "PATCH", path: lease, ...patch },
      { path: collection("Lease") },
      { path: collection("Pod") },
      { path: "/apis/coordination.k8s.io/v1/namespaces/default/leases/shop-worker" },
    ]) {
      const { status } = await server.request({ ...wanted, token });
      assert.equal(status, 403, JSON.stringify(wanted));
    }
  });

  test("podLabels without its Role is refused at start, with the rule that is missing", async () => {
    const pod = await startPod("shop-worker-3", labelled, { waits: false });
    assert.equal(await pod.ended, 1);
    assert.match(pod.complained(), /patch pods in namespace/);
    assert.match(pod.complained(), /resources: \["pods"\]/);
  });

  test("the leader's Service selects the pod that leads, also after a hand-over", async () => {
    for (const yaml of yamlIn(join(folder, "leader-service"))) await create(yaml);
    const { spec } = await asked({ path: `${collection("Service")}/shop-worker-leader` });
    const selector = Object.entries(spec.selector).map((pair) => pair.join("="));
    const selected = async () => {
      const query = `?labelSelector=${encodeURIComponent(selector.join(","))}`;
      const { items } = await asked({ path: collection("Pod") + query });
      return items.map(({ metadata }) => metadata.name).join();
    };
    const first = await startPod("shop-worker-4", labelled);
    await eventually(async () => (await selected()) === "shop-worker-4");
    const second = await startPod("shop-worker-5", labelled);
    await first.stop();
    await eventually(async () => (await selected()) === "shop-worker-5");
    const { metadata } = await asked({ path: `${collection("Pod")}/shop-worker-4` });
    assert.equal(metadata.labels["whenleader/role"], "follower");
    await second.stop();
    assert.equal(await selected(), "");
  });

  test("every manifest in docs/kubernetes.md is accepted", async () => {
    namespace = await server.newNamespace();
    const found = blocks("yaml").flatMap((text) => text.split(/^---$/m));
    assert.ok(found.length > 1);
    for (const yaml of found) await create(completed(yaml), "&dryRun=All");
  });

  test("a Lease that was made beforehand, and a Role that names it, are enough as docs/kubernetes.md has them", async () => {
    namespace = await server.newNamespace();
    const manifests = blocks("yaml").find((text) => text.includes("resourceNames"));
    for (const yaml of manifests.split(/^---$/m)) await create(yaml);
    for (const yaml of yamlIn(folder).filter((text) => /^kind: (Service|RoleB)/m.test(text)))
      await create(yaml);
    await signIn();
    const pod = await startPod("shop-worker-6");
    await pod.says(/leads \(term \d+\)/);
    await pod.stop();
  });

  const collection = (kind) => {
    assert.ok(COLLECTIONS[kind], `a manifest of kind ${kind}`);
    return COLLECTIONS[kind].replace("*", namespace);
  };

  /** As a pod of the Deployment does. */
  async function signIn() {
    const account = `${collection("ServiceAccount")}/${template.spec.serviceAccountName}`;
    const { status } = await asked({
      method: "POST",
      path: `${account}/token`,
      body: { spec: {} },
    });
    token = status.token;
    kubeconfig = await server.kubeconfig({ token });
  }

  async function asked(request) {
    const { status, body } = await server.request(request);
    assert.ok(status < 300, `${request.path}: ${status} ${JSON.stringify(body)}`);
    return body;
  }

  async function create(yaml, more = "") {
    const path = `${collection(yaml.match(/^kind: (\w+)$/m)?.[1])}?fieldValidation=Strict${more}`;
    await asked({ method: "POST", path, contentType: "application/yaml", body: yaml });
  }

  /** A pod of the Deployment, and the process that its container would be. */
  async function startPod(name, change = (env) => env, { waits = true } = {}) {
    const { metadata, spec } = template;
    const pod = { metadata: { name, labels: metadata.labels }, spec };
    await asked({ method: "POST", path: collection("Pod"), body: pod });
    const { command, env } = spec.containers[0];
    const fields = { "metadata.name": name, "metadata.namespace": namespace };
    const given = env.map(({ name, value, valueFrom }) => [
      name,
      value ?? fields[valueFrom.fieldRef.fieldPath],
    ]);
    const worker = new Worker(command.slice(1), {
      ...change(Object.fromEntries(given)),
      PATH: process.env.PATH,
      // What a pod has by itself.
      HOSTNAME: name,
      KUBECONFIG: kubeconfig,
      PORT: "0",
    });
    running.add(worker);
    if (waits) await worker.says(/listens on port \d+/);
    return worker;
  }
});

/** The change that the leader's Service needs. */
function labelled({ WHENLEADER_CONFIG, ...env }) {
  const { cluster } = JSON.parse(WHENLEADER_CONFIG);
  return {
    ...env,
    WHENLEADER_CONFIG: JSON.stringify({ cluster: { ...cluster, podLabels: true } }),
  };
}

/** Rules alone stand for a Role. */
function completed(yaml) {
  if (!yaml.startsWith("rules:")) return yaml;
  return `apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata:\n  name: any\n${yaml}`;
}

async function eventually(holds) {
  for (const end = Date.now() + PATIENCE; Date.now() < end; await sleep(20)) {
    if (await holds()) return;
  }
  assert.fail("it did not come about");
}

class Worker {
  #child;
  #output = "";
  #errors = "";

  constructor(args, env) {
    this.#child = spawn(process.execPath, args, { cwd: folder, env });
    this.#child.stdout.setEncoding("utf8").on("data", (text) => (this.#output += text));
    this.#child.stderr.setEncoding("utf8").on("data", (text) => (this.#errors += text));
    this.ended = once(this.#child, "close").then(([code, signal]) => {
      this.end = signal ?? code;
      return this.end;
    });
  }

  said = () => this.#output;

  complained = () => this.#errors;

  says(pattern) {
    return eventually(() => {
      assert.equal(this.end, undefined, `it ended: ${this.#output}${this.#errors}`);
      return pattern.test(this.#output);
    });
  }

  async status(path) {
    const [, port] = this.#output.match(/listens on port (\d+)/);
    const { status } = await fetch(`http://127.0.0.1:${port}${path}`);
    return status;
  }

  kill(signal) {
    this.#child.kill(signal);
  }

  async stop() {
    this.kill("SIGTERM");
    assert.equal(await this.ended, "SIGTERM", this.#errors);
    assert.equal(this.#errors, "");
  }
}
