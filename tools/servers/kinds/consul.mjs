// Consul, as Debian had it last. With --tls it takes TLS only, with --mtls it wants a certificate of its clients, too,
// with --acl it wants tokens, and with --cluster it has three members: `member2` and `member3` stand beside `server`,
// in freeze, thaw, kill and restart as `of`, and in what is told as names of ports.
import { readFileSync } from "node:fs";
import { get } from "node:https";
import { Authority } from "../certificates.mjs";
import { answers, freePorts } from "../launcher.mjs";
import { bringDeb, unpacked } from "../programs.mjs";

/** May do everything. */
const TOKEN = "5f1e0c9a-0b1d-4c55-8f0e-6f3d2a9b7c41";

export const consul = {
  name: "Consul",
  program: "consul",
  cure: "install Consul, so that consul is on the PATH",
  ports: 3,
  options: ["tls", "mtls", "acl", "cluster"],
  brought: () => unpacked("consul-bullseye", "usr/bin/consul"),
  bring: () => bringDeb("consul", "usr/bin/consul", "bullseye"),

  async start({ launcher, program, ports: [port, serving, gossip], flags, options }) {
    const encrypted = options.tls || options.mtls;
    if (encrypted) {
      const authority = new Authority(launcher.dir);
      authority.signServer("server", "/CN=consul");
      authority.signClient("client", "/CN=client");
    }
    const members = [{ name: "server", port, serving, gossip }];
    if (options.cluster) {
      const free = await freePorts(6);
      for (const name of ["member2", "member3"])
        members.push({ name, port: free.pop(), serving: free.pop(), gossip: free.pop() });
    }
    const run = ({ name, port, serving, gossip }) => {
      const http = encrypted ? [`-https-port=${port}`, "-http-port=-1"] : [`-http-port=${port}`];
      const tls = [
        `-hcl=cert_file = "${launcher.in("server.crt")}"`,
        `-hcl=key_file = "${launcher.in("server.key")}"`,
        `-hcl=ca_file = "${launcher.in("ca.crt")}"`,
        `-hcl=verify_incoming_https = ${!!options.mtls}`,
      ];
      const acl = `acl { enabled = true default_policy = "deny" tokens { master = "${TOKEN}" agent = "${TOKEN}" } }`;
      const command = [
        ...[program, "agent", "-server", `-bootstrap-expect=${members.length}`],
        ...[`-data-dir=${launcher.in(`${name}-data`)}`, `-node=${name}`],
        ...["-bind=127.0.0.1", "-client=127.0.0.1", ...http],
        ...[`-server-port=${serving}`, `-serf-lan-port=${gossip}`, "-serf-wan-port=-1"],
        ...members.map(({ gossip }) => `-retry-join=127.0.0.1:${gossip}`),
        ...["-dns-port=-1", "-grpc-port=-1", "-hcl=performance { raft_multiplier = 1 }"],
        ...["-hcl=disable_update_check = true"],
        ...(encrypted ? tls : []),
        ...(options.acl ? [`-hcl=${acl}`] : []),
        ...flags,
      ];
      return launcher.start(name, { command, ready: () => isReady(port) });
    };
    // It elects itself, and then answers those who ask for what is agreed upon.
    const isReady = (port) => {
      const path = `/v1/kv/none?consistent&token=${options.acl ? TOKEN : ""}`;
      if (!encrypted) return answers(`http://127.0.0.1:${port}${path}`, 404);
      const file = (name) => readFileSync(launcher.in(name));
      const shown = { ca: file("ca.crt"), cert: file("client.crt"), key: file("client.key") };
      return new Promise((resolve) => {
        const asked = get(`https://127.0.0.1:${port}${path}`, { ...shown, timeout: 1_000 });
        asked.on("response", (answer) => resolve(answer.resume().statusCode === 404));
        asked.on("timeout", () => asked.destroy());
        asked.on("error", () => resolve(false));
      });
    };
    await Promise.all(members.map(run));
    const certificates = encrypted && {
      ca: launcher.in("ca.crt"),
      clientCert: launcher.in("client.crt"),
      clientKey: launcher.in("client.key"),
    };
    const others = members.slice(1).map(({ name, port }) => [name, port]);
    return {
      told: {
        url: `${encrypted ? "https" : "http"}://127.0.0.1:${port}`,
        ...certificates,
        ...(options.acl ? { token: TOKEN } : {}),
        ...Object.fromEntries(others),
      },
    };
  },
};
