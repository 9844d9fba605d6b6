// A real Kubernetes API server for tests, with an etcd of its own, on loopback and on free ports:
//
//     node tools/kubernetes/serve.mjs [--ipv6] [--apiserver-flag=<flag>]...
//
// When it is ready it prints one line of JSON: where the server is, and what opens it. Then it takes commands, as
// tools/servers/launcher.mjs tells. Where a program is missing, the line is `{ "missing": <why> }`.
import { createHash, randomBytes, sign } from "node:crypto";
import { once } from "node:events";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { Agent, request as httpsRequest } from "node:https";
import { connect, createServer } from "node:net";
import { hasOpenssl } from "../servers/certificates.mjs";
import { Launcher } from "../servers/launcher.mjs";
import { makeCertificates } from "./certificates.mjs";
import { findProgram } from "./programs.mjs";

const ISSUER = "https://kubernetes.default.svc.cluster.local";

const flags = [];
let ipv6 = false;
for (const arg of process.argv.slice(2)) {
  if (arg === "--ipv6") ipv6 = true;
  else if (arg.startsWith("--apiserver-flag=")) flags.push(arg.slice(arg.indexOf("=") + 1));
  else throw new Error(`unknown argument ${arg}`);
}

const launcher = new Launcher("kubernetes");
const inDir = (name) => launcher.in(name);
const programs = {};
for (const name of ["kube-apiserver", "etcd"]) {
  programs[name] = findProgram(name);
  if (!programs[name])
    launcher.missing(
      `there is no ${name} here: npm test builds it with Go, or set KUBEBUILDER_ASSETS`,
    );
}
if (!hasOpenssl()) launcher.missing("there is no openssl here");

const adminToken = randomBytes(16).toString("hex");
let port;
let etcdPort;
let sixth;
let agent;
let files = 0;

try {
  makeCertificates(launcher.dir);
  writeFileSync(inDir("tokens.csv"), `${adminToken},token-admin,1,"system:masters"\n`, {
    mode: 0o600,
  });
  await launcher.onFreePorts(
    2,
    async (ports) => {
      [port, etcdPort] = ports;
      await startEtcd();
      await startApiServer();
      if (ipv6) sixth = await listenOnIpv6();
    },
    async () => {
      await Promise.all([launcher.kill("apiserver"), launcher.kill("etcd")]);
      rmSync(inDir("etcd"), { recursive: true, force: true });
    },
  );
} catch (error) {
  await launcher.fail(error);
}

launcher.serve(
  {
    url: url(),
    port,
    url6: sixth && `https://[::1]:${port}`,
    dir: launcher.dir,
    ca: inDir("ca.crt"),
    admin: kubeconfig({ certificate: true }),
    adminToken: kubeconfig({ token: adminToken }),
    token: adminToken,
    clientCert: inDir("admin.crt"),
    clientKey: inDir("admin.key"),
    pids: pids(),
  },
  {
    /** The API server stands still: requests are taken and never answered. */
    freeze: () => launcher.freeze("apiserver"),
    thaw: () => launcher.thaw("apiserver"),
    /** The API server dies: connections are refused. */
    async kill() {
      sixth?.close();
      await launcher.kill("apiserver");
    },
    /** It comes back on the same port, and has forgotten nothing. */
    async restart() {
      agent.destroy();
      await launcher.restart("apiserver");
      if (sixth && !sixth.listening) sixth = await listenOnIpv6();
      return { pids: pids() };
    },
    /** { method?, path, contentType?, body?, token? } -> { status, body }; as the administrator, or as the
     * token says, where "" is nobody */
    request,
    /** -> { namespace } that was never used */
    namespace: async () => ({ namespace: await namespace() }),
    /** { namespace, name, rules, seconds? } -> { token, uid } */
    account,
    /** { namespace, name, seconds } -> { token } */
    shortToken,
    /** { server?, token?, tokenFile?, certificate?, namespace?, path? } -> { path } */
    kubeconfig: (asked) => ({ path: kubeconfig(asked) }),
  },
);

// The servers.

function startEtcd() {
  const client = `http://127.0.0.1:${etcdPort}`;
  const command = [
    ...[programs.etcd, "--name", "tests", "--data-dir", inDir("etcd"), "--unsafe-no-fsync"],
    ...["--listen-client-urls", client, "--advertise-client-urls", client],
    // A port that nobody else will ask for.
    ...["--listen-peer-urls", "http://127.0.0.1:0", "--log-level", "warn"],
  ];
  // Whether it is ready is seen by the API server.
  return launcher.start("etcd", { command, ready: async () => true });
}

function startApiServer() {
  agent = new Agent({ keepAlive: true, timeout: 10_000, ca: readFileSync(inDir("ca.crt")) });
  const command = [
    programs["kube-apiserver"],
    `--etcd-servers=http://127.0.0.1:${etcdPort}`,
    "--bind-address=127.0.0.1",
    "--advertise-address=127.0.0.1",
    `--secure-port=${port}`,
    "--endpoint-reconciler-type=none",
    `--cert-dir=${launcher.dir}`,
    `--tls-cert-file=${inDir("apiserver.crt")}`,
    `--tls-private-key-file=${inDir("apiserver.key")}`,
    `--client-ca-file=${inDir("ca.crt")}`,
    `--token-auth-file=${inDir("tokens.csv")}`,
    `--service-account-issuer=${ISSUER}`,
    `--service-account-key-file=${inDir("accounts.pub")}`,
    `--service-account-signing-key-file=${inDir("accounts.key")}`,
    "--service-cluster-ip-range=10.0.0.0/24",
    "--authorization-mode=RBAC",
    // Nothing here makes the accounts that it would ask for.
    "--disable-admission-plugins=ServiceAccount",
    ...flags,
  ];
  return launcher.start("apiserver", { command, ready });
}

/** Without that namespace a request that names none fails. */
async function ready() {
  for (const path of ["/readyz", "/api/v1/namespaces/default"])
    if ((await request({ path, timeout: 1_000 }).catch(() => ({}))).status !== 200) return false;
  if (!launcher.isRunning("etcd")) throw new Error("etcd ended");
  return true;
}

/**
 * The certificate holds for any port, so whoever comes by this address comes to the same server. Undefined
 * where the machine has no IPv6.
 */
async function listenOnIpv6() {
  const server = createServer((client) => {
    const backend = connect(port, "127.0.0.1");
    for (const [from, to] of [
      [client, backend],
      [backend, client],
    ]) {
      from.pipe(to);
      from.on("error", () => {});
      from.on("close", () => to.destroy());
    }
  });
  server.listen(port, "::1");
  try {
    await once(server, "listening");
    return server;
  } catch (error) {
    if (!["EADDRNOTAVAIL", "EAFNOSUPPORT"].includes(error.code)) throw error;
  }
}

function url() {
  return `https://127.0.0.1:${port}`;
}

function pids() {
  return { apiserver: launcher.pid("apiserver"), etcd: launcher.pid("etcd") };
}

// What stands in a test's place and asks.

/** @returns {Promise<{ status: number, body: any }>} the body is text where it is no JSON */
function request({
  method = "GET",
  path,
  contentType,
  body,
  token = adminToken,
  timeout = 20_000,
}) {
  const headers = {};
  if (token) headers.authorization = `Bearer ${token}`;
  const content = body === undefined || body === null ? undefined : textOf(body);
  if (content !== undefined) {
    headers["content-type"] = contentType ?? "application/json";
    // A DELETE would be sent without its length, and its body read as the next request.
    headers["content-length"] = Buffer.byteLength(content);
  }
  return new Promise((resolve, reject) => {
    const asked = httpsRequest(url() + path, { method, headers, agent }, (response) => {
      let text = "";
      response.setEncoding("utf8").on("data", (part) => {
        text += part;
      });
      response.on("error", reject);
      response.on("end", () => resolve({ status: response.statusCode, body: jsonOr(text) }));
    });
    asked.setTimeout(timeout, () => asked.destroy(new Error(`no answer in ${timeout} ms`)));
    asked.on("error", reject);
    asked.end(content);
  });
}

const textOf = (body) => (typeof body === "string" ? body : JSON.stringify(body));

function jsonOr(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** As `request`, of what must succeed. */
async function make(path, object) {
  const { status, body } = await request({ method: "POST", path, body: object });
  if (status !== 201) throw new Error(`POST ${path}: ${status} ${textOf(body)}`);
  return body;
}

async function namespace() {
  const name = `test-${randomBytes(5).toString("hex")}`;
  await make("/api/v1/namespaces", { metadata: { name } });
  return name;
}

/** A service account that may do what the rules say, in its namespace, and a token of it. */
async function account({ namespace, name, rules, seconds = 3600 }) {
  const accounts = `/api/v1/namespaces/${namespace}/serviceaccounts`;
  const { metadata } = await make(accounts, { metadata: { name } });
  const rbac = `/apis/rbac.authorization.k8s.io/v1/namespaces/${namespace}`;
  const apiGroup = "rbac.authorization.k8s.io";
  // One of these outlives the account where a test makes it anew.
  await replace(`${rbac}/roles`, { metadata: { name }, rules });
  await replace(`${rbac}/rolebindings`, {
    metadata: { name },
    roleRef: { apiGroup, kind: "Role", name },
    subjects: [{ kind: "ServiceAccount", name, namespace }],
  });
  const { status } = await make(`${accounts}/${name}/token`, {
    spec: { expirationSeconds: seconds },
  });
  return { token: status.token, uid: metadata.uid };
}

async function replace(path, object) {
  await request({ method: "DELETE", path: `${path}/${object.metadata.name}` });
  await make(path, object);
}

/** The server grants a token this much more time, for clocks that differ. */
const LEEWAY = 60;

/**
 * A token as the server makes them, but with a life as short as a test wants: there it is 10 minutes. The
 * server remembers for up to 10 seconds that a token was good, so that its end may come so much later.
 */
async function shortToken({ namespace, name, seconds }) {
  const path = `/api/v1/namespaces/${namespace}/serviceaccounts/${name}`;
  const { status, body } = await request({ path });
  if (status !== 200) throw new Error(`GET ${path}: ${status} ${textOf(body)}`);
  const now = Math.floor(Date.now() / 1000);
  const der = spki(readFileSync(inDir("accounts.pub"), "utf8"));
  const kid = createHash("sha256").update(der).digest("base64url");
  const claims = {
    iss: ISSUER,
    aud: [ISSUER],
    sub: `system:serviceaccount:${namespace}:${name}`,
    iat: now - LEEWAY,
    nbf: now - LEEWAY,
    exp: now + seconds - LEEWAY,
    "kubernetes.io": { namespace, serviceaccount: { name, uid: body.metadata.uid } },
  };
  const part = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
  const unsigned = `${part({ alg: "ES256", kid })}.${part(claims)}`;
  const key = { key: readFileSync(inDir("accounts.key")), dsaEncoding: "ieee-p1363" };
  return {
    token: `${unsigned}.${sign("sha256", Buffer.from(unsigned), key).toString("base64url")}`,
  };
}

function spki(pem) {
  return Buffer.from(pem.replace(/-----.*?-----/g, ""), "base64");
}

/** Writes a kubeconfig and returns its path. `server` is another address of the server, such as a proxy's. */
function kubeconfig({ server = url(), token, tokenFile, certificate, namespace, path } = {}) {
  const file = path ?? inDir(`${++files}.kubeconfig`);
  const data = (name) => readFileSync(inDir(name)).toString("base64");
  const user = [
    token && `token: ${JSON.stringify(token)}`,
    tokenFile && `tokenFile: ${JSON.stringify(tokenFile)}`,
    certificate && `client-certificate-data: ${data("admin.crt")}`,
    certificate && `client-key-data: ${data("admin.key")}`,
  ].filter(Boolean);
  const content = [
    "apiVersion: v1",
    "kind: Config",
    "current-context: tests",
    "clusters:",
    "- name: tests",
    "  cluster:",
    `    server: ${server}`,
    `    certificate-authority-data: ${data("ca.crt")}`,
    "contexts:",
    "- name: tests",
    "  context:",
    "    cluster: tests",
    "    user: tests",
    ...(namespace ? [`    namespace: ${namespace}`] : []),
    "users:",
    "- name: tests",
    ...(user.length > 0 ? ["  user:", ...user.map((line) => `    ${line}`)] : ["  user: {}"]),
  ];
  writeFileSync(file, `${content.join("\n")}\n`, { mode: 0o600 });
  return file;
}
