// MySQL itself, where somebody has it: no package system that the tests may use brings it, and what Debian calls
// mysqld is MariaDB. Only the variable names it; then the tests of MySQL and MariaDB run on it.
import { writeFileSync } from "node:fs";
import { ADMIN, place, prepareTls, statements, told } from "./mariadb.mjs";

export const mysql = {
  name: "MySQL",
  program: "mysqld",
  cure: "it is not looked for",
  named: true,
  needsOpenssl: true,

  async start({ launcher, program, ports: [port], flags }) {
    prepareTls(launcher);
    const common = [
      ...[program, "--no-defaults", `--datadir=${launcher.in("data")}`, `--tmpdir=${launcher.dir}`],
      ...[
        "--mysqlx=0",
        "--disable-log-bin",
        "--secure-file-priv=NULL",
        "--innodb-buffer-pool-size=16M",
      ],
      ...(process.getuid?.() === 0 ? ["--user=root"] : []),
    ];
    const file = launcher.in("users.sql");
    writeFileSync(
      file,
      statements(`CREATE USER root@'127.0.0.1' IDENTIFIED BY '${ADMIN.password}'`),
    );
    const command = [...common, "--initialize-insecure", `--init-file=${file}`];
    await launcher.once("initialize", { command });
    // The end of the process loses nothing that was answered; the end of the machine may.
    const fast = ["--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0"];
    await launcher.start("server", {
      command: [...common, ...place(launcher, port), ...fast, ...flags],
      ready: /ready for connections.*socket/,
    });
    return { told: told(launcher, port) };
  },
};
