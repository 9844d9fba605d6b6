// PgBouncer, which stands in front of a PostgreSQL: its launcher starts it on command.
import { chownSync, writeFileSync } from "node:fs";
import { aptInstall, asRoot, mayInstall, onPath } from "../programs.mjs";

export const pgbouncer = {
  name: "PgBouncer",
  program: "pgbouncer",
  cure: "install PgBouncer (apt-get install pgbouncer)",
  async bring() {
    if (!mayInstall) return;
    await aptInstall("pgbouncer");
    // Nor shall it start with the machine.
    await asRoot("systemctl", "disable", "pgbouncer").catch(() => {});
    return onPath("pgbouncer");
  },
};

/** In transaction mode, where a statement may meet another connection than the one before. Returns its port. */
export async function startPgBouncer(launcher, program, { user, port, accounts }) {
  const users = launcher.in("pgbouncer.users");
  const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
  const lines = accounts.map((one) => `${quoted(one.user)} ${quoted(one.password)}\n`);
  writeFileSync(users, lines.join(""), { mode: 0o600 });
  const config = launcher.in("pgbouncer.ini");
  let own;
  await launcher.onFreePorts(1, async ([free]) => {
    own = free;
    const settings = [
      "[databases]",
      `* = host=127.0.0.1 port=${port}`,
      "[pgbouncer]",
      "listen_addr = 127.0.0.1",
      `listen_port = ${free}`,
      "unix_socket_dir =",
      "pool_mode = transaction",
      "auth_type = scram-sha-256",
      `auth_file = ${users}`,
      // Drivers send it, and a pool cannot keep it.
      "ignore_startup_parameters = extra_float_digits",
      "client_tls_sslmode = allow",
      `client_tls_cert_file = ${launcher.in("server.crt")}`,
      `client_tls_key_file = ${launcher.in("server.key")}`,
    ];
    writeFileSync(config, `${settings.join("\n")}\n`, { mode: 0o600 });
    if (user) for (const file of [users, config]) chownSync(file, user.uid, user.gid);
    await launcher.start("pgbouncer", { command: [program, config], user, ready: /process up/ });
  });
  return own;
}
