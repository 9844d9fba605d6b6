// etcd, the same program that tests with Kubernetes use. With --tls it takes TLS only, with --mtls it wants a
// certificate of its clients, too, with --auth it wants users, and with --cluster it has three members: `member2` and
// `member3` stand beside `server`, in freeze, thaw, kill and restart as `of`, and in what is told as names of URLs.

import { readFileSync } from "node:fs";
import { request as httpRequest } from "node:http";
import { request as httpsRequest } from "node:https";
import { findProgram } from "../../kubernetes/programs.mjs";
import { Authority } from "../certificates.mjs";
import { freePorts } from "../launcher.mjs";
import { bringDeb, unpacked } from "../programs.mjs";

const ROOT = { user: "root", password: "tests" };
/** May read and write where keys begin with `cluster:`. */
const ODD = { user: "odd user@team", password: "p@ss/w:rd?#[1] %25&+'\"\\é" };

export const etcd = {
  name: "etcd",
  program: "etcd",
  cure: "npm test builds it with Go, or install it (apt-get install etcd-server)",
  ports: 2,
  options: ["tls", "mtls", "auth", "cluster"],
  find: (env) => findProgram("etcd", env),
  // For those who have no Go: Debian's, which is older.
  brought: () => unpacked("etcd-server", "usr/bin/etcd"),
  bring: () => bringDeb("etcd-server", "usr/bin/etcd"),

  async start({ launcher, program, ports: [port, peerPort], flags, options }) {
    const tls = options.tls || options.mtls;
    if (tls) {
      const authority = new Authority(launcher.dir);
      // Its own gateway is a client that comes with this certificate, whose name would be a user's.
      authority.signServer("server", "/O=etcd", { usage: "serverAuth, clientAuth" });
      authority.signClient("client", "/O=client");
    }
    const urlAt = (port) => `${tls ? "https" : "http"}://127.0.0.1:${port}`;
    const url = urlAt(port);
    const members = [{ name: "server", port, peer: `http://127.0.0.1:${peerPort}` }];
    if (options.cluster) {
      const free = await freePorts(4);
      for (const name of ["member2", "member3"])
        members.push({ name, port: free.pop(), peer: `http://127.0.0.1:${free.pop()}` });
    }
    const run = ({ name, port, peer }) => {
      const command = [
        ...[program, "--name", name, "--data-dir", launcher.in(`${name}-data`)],
        ...["--log-outputs", "stderr"],
        ...["--listen-client-urls", urlAt(port), "--advertise-client-urls", urlAt(port)],
        ...["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer],
        ...["--initial-cluster", members.map(({ name, peer }) => `${name}=${peer}`).join()],
        ...(tls
          ? ["--cert-file", launcher.in("server.crt"), "--key-file", launcher.in("server.key")]
          : []),
        ...(options.mtls ? ["--client-cert-auth", "--trusted-ca-file", launcher.in("ca.crt")] : []),
        // The end of the process loses nothing that was answered; the end of the machine may.
        "--unsafe-no-fsync",
        ...flags,
      ];
      return launcher.start(name, { command, ready: /ready to serve client requests/ });
    };
    // None of them is ready before most of them run.
    await Promise.all(members.map(run));

    const certificates = tls && {
      ca: launcher.in("ca.crt"),
      clientCert: launcher.in("client.crt"),
      clientKey: launcher.in("client.key"),
    };
    if (options.auth) await turnOnUsers((path, body) => post(url + path, body, certificates));
    const others = members.slice(1).map(({ name, port }) => [name, urlAt(port)]);
    const users = options.auth ? { ...ROOT, odd: ODD } : {};
    return { told: { url, ...certificates, ...users, ...Object.fromEntries(others) } };
  },
};

async function turnOnUsers(ask) {
  for (const { user, password } of [ROOT, ODD])
    await ask("/v3/auth/user/add", { name: user, password });
  await ask("/v3/auth/role/add", { name: "root" });
  await ask("/v3/auth/user/grant", { user: ROOT.user, role: "root" });
  await ask("/v3/auth/role/add", { name: "elector" });
  const base64 = (text) => Buffer.from(text).toString("base64");
  // All keys with that beginning: up to the one after it.
  const perm = { permType: "READWRITE", key: base64("cluster:"), range_end: base64("cluster;") };
  await ask("/v3/auth/role/grant", { name: "elector", perm });
  await ask("/v3/auth/user/grant", { user: ODD.user, role: "elector" });
  await ask("/v3/auth/enable", {});
}

function post(url, body, certificates) {
  const read = (path) => path && readFileSync(path);
  const { ca, clientCert, clientKey } = certificates ?? {};
  const tls = { ca: read(ca), cert: read(clientCert), key: read(clientKey) };
  const request = certificates ? httpsRequest : httpRequest;
  return new Promise((resolve, reject) => {
    const asked = request(url, { method: "POST", ...tls }, (response) => {
      let text = "";
      response.setEncoding("utf8").on("data", (part) => {
        text += part;
      });
      response.on("end", () => {
        if (response.statusCode === 200) resolve(text);
        else reject(new Error(`${url}: ${response.statusCode} ${text}`));
      });
    });
    asked.on("error", reject);
    asked.end(JSON.stringify(body));
  });
}
