// MariaDB, with TLS for those who want it, and users that put a client to the test.
import { existsSync, mkdirSync, readFileSync, realpathSync } from "node:fs";
import { dirname, join } from "node:path";
import { Authority } from "../certificates.mjs";
import { aptInstall, mayInstall, onPath } from "../programs.mjs";

/** What clients often get wrong in URLs. */
const ODD = { user: "odd user@team", password: "p@ss/w:rd?#[1] %25&+'\"\\é" };
export const ADMIN = { user: "root", password: "tests" };

const text = (value) => `'${value.replaceAll("\\", "\\\\").replaceAll("'", "''")}'`;

/** What makes users, one statement a line, as SQL of MySQL's and of MariaDB's. */
export function statements(...first) {
  const all = [
    ...first,
    "SET NAMES utf8mb4",
    "CREATE DATABASE tests",
    "GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION",
    `CREATE USER ${text(ODD.user)}@'127.0.0.1' IDENTIFIED BY ${text(ODD.password)}`,
    `GRANT ALL ON tests.* TO ${text(ODD.user)}@'127.0.0.1'`,
    `CREATE USER tls_only@'127.0.0.1' IDENTIFIED BY 'tests' REQUIRE SSL`,
    "GRANT ALL ON tests.* TO tls_only@'127.0.0.1'",
    "CREATE USER certified@'127.0.0.1' IDENTIFIED BY 'tests' REQUIRE SUBJECT '/CN=certified'",
    "GRANT ALL ON tests.* TO certified@'127.0.0.1'",
  ];
  return all.map((statement) => `${statement};\n`).join("");
}

export function prepareTls(launcher) {
  const authority = new Authority(launcher.dir);
  authority.signServer("server", "/CN=mariadb");
  authority.signClient("certified", "/CN=certified");
  authority.signClient("stranger", "/CN=stranger");
}

/** Where it listens, and with which certificate. */
export function place(launcher, port) {
  return [
    ...[
      "--bind-address=127.0.0.1",
      `--port=${port}`,
      "--skip-name-resolve",
      "--max-connections=300",
    ],
    ...[`--socket=${launcher.in("socket")}`, `--pid-file=${launcher.in("pid")}`],
    `--ssl-ca=${launcher.in("ca.crt")}`,
    `--ssl-cert=${launcher.in("server.crt")}`,
    `--ssl-key=${launcher.in("server.key")}`,
  ];
}

/** What tests are to know of it. */
export function told(launcher, port) {
  const url = ({ user, password }, database) =>
    `mysql://${encodeURIComponent(user)}:${encodeURIComponent(password)}@127.0.0.1:${port}/${database}`;
  return {
    url: url(ADMIN, "tests"),
    ...ADMIN,
    database: "tests",
    odd: { ...ODD, database: "tests", url: url(ODD, "tests") },
    tlsOnly: { user: "tls_only", password: "tests" },
    // Needs the client's certificate beside the password.
    certified: {
      user: "certified",
      password: "tests",
      cert: launcher.in("certified.crt"),
      key: launcher.in("certified.key"),
    },
    stranger: { cert: launcher.in("stranger.crt"), key: launcher.in("stranger.key") },
    ca: launcher.in("ca.crt"),
    socket: launcher.in("socket"),
  };
}

export const mariadb = {
  name: "MariaDB",
  program: "mariadbd",
  cure: "install MariaDB (apt-get install mariadb-server-core)",
  needsOpenssl: true,

  async bring() {
    if (!mayInstall) return;
    await aptInstall("mariadb-server-core");
    return onPath("mariadbd");
  },

  async start({ launcher, program, ports: [port], flags }) {
    prepareTls(launcher);
    const data = launcher.in("data");
    mkdirSync(data);
    const common = [
      ...[program, "--no-defaults", `--datadir=${data}`, "--skip-log-bin"],
      // Several that start at once would take each other's temporary tables away.
      `--tmpdir=${launcher.dir}`,
      ...["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M"],
      ...(process.getuid?.() === 0 ? ["--user=root"] : []),
    ];
    // What mariadb-install-db does, less what it asks of other packages, and less help and time zones.
    const input = [
      "create database mysql;",
      "use mysql;",
      "set @skip_auth_anonymous = 1;",
      "set @auth_root_socket = null;",
      systemTables(program, "mysql_system_tables.sql"),
      systemTables(program, "mysql_system_tables_data.sql"),
      statements(
        "FLUSH PRIVILEGES",
        `CREATE OR REPLACE USER root@'127.0.0.1' IDENTIFIED BY ${text(ADMIN.password)}`,
      ),
    ];
    const command = [...common, "--bootstrap"];
    await launcher.once("bootstrap", { command, input: `${input.join("\n")}\n` });

    // The end of the process loses nothing that was answered; the end of the machine may.
    const fast = ["--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0"];
    await launcher.start("server", {
      command: [...common, ...place(launcher, port), ...fast, ...flags],
      ready: /ready for connections/,
    });

    return { told: told(launcher, port) };
  },
};

function systemTables(program, name) {
  const base = dirname(dirname(realpathSync(program)));
  const places = ["mysql", "mariadb"].map((share) => join(base, "share", share, name));
  const found = places.find((path) => existsSync(path));
  if (!found) throw new Error(`${name} of MariaDB is not in ${places.join(" or ")}`);
  return readFileSync(found, "utf8");
}
