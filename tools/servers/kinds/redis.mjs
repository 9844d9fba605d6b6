// Redis, and Valkey, which is driven alike.
import { existsSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { aptInstall, debian, mayInstall, unpack, unpacked } from "../programs.mjs";

export const redis = {
  name: "Redis",
  program: "redis-server",
  cure: debian
    ? "apt-get install redis-server"
    : "install Redis, so that redis-server is on the PATH",
  brought: () => unpacked("redis", "redis-server"),
  bring,
  /** With every write on disk before it is answered, so that a killed server forgets nothing. */
  async start({ launcher, program, ports: [port], flags }) {
    const place = ["--port", port, "--bind", "127.0.0.1", "--dir", launcher.dir];
    const socket = launcher.in("socket");
    const keep = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];
    const command = [program, ...place, "--unixsocket", socket, ...keep, ...flags];
    await launcher.start("server", { command, ready: /Ready to accept connections/ });
    return { told: { url: `redis://127.0.0.1:${port}`, socket } };
  },
};

/**
 * Debian's redis-tools alone contains the server's program, which looks at the name by which it is called; no
 * service comes with it.
 */
async function bring() {
  const real = "/usr/bin/redis-check-rdb";
  if (!existsSync(real)) {
    if (!mayInstall) return;
    await aptInstall("redis-tools");
  }
  await unpack("redis", async (aside) => symlinkSync(real, join(aside, "redis-server")));
  return redis.brought();
}
