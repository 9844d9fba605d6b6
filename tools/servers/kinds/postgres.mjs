// PostgreSQL, with TLS for those who want it, and users that put a client to the test.
//
// Its launcher has more commands: `standby` starts a streaming standby and tells its port, `promote` makes a
// primary of it, `pgbouncer` starts a PgBouncer in transaction mode in front of the server. freeze, thaw, kill
// and restart take `"of": "standby"` or `"of": "pgbouncer"`.
import { chownSync, existsSync, readdirSync, realpathSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { Authority } from "../certificates.mjs";
import { aptInstall, asRoot, mayInstall, onPath } from "../programs.mjs";
import { startPgBouncer } from "./pgbouncer.mjs";

/** What clients often get wrong in URLs, in startup packets and in SCRAM. */
const ODD = { user: "odd user@team", password: "p@ss/w:rd?#[1] %25&+'\"\\é" };
const ADMIN = { user: "postgres", password: "tests" };

const USERS = [
  `CREATE ROLE "${ODD.user}" LOGIN PASSWORD '${ODD.password.replaceAll("'", "''")}'`,
  `CREATE DATABASE tests OWNER "${ODD.user}"`,
  "CREATE ROLE tls_only LOGIN PASSWORD 'tests'",
  "CREATE ROLE plain_only LOGIN PASSWORD 'tests'",
  "CREATE ROLE certified LOGIN",
];

const HBA = `
local     all         all                      trust
local     replication all                      trust
hostnossl all         tls_only    127.0.0.1/32 reject
hostssl   all         plain_only  127.0.0.1/32 reject
hostssl   all         certified   127.0.0.1/32 cert
host      all         all         127.0.0.1/32 scram-sha-256
host      replication all         127.0.0.1/32 scram-sha-256
`;

export const postgres = {
  name: "PostgreSQL",
  program: "postgres",
  cure: "install PostgreSQL (apt-get install postgresql)",
  needsOpenssl: true,

  /** Debian has it for several versions, and on nobody's PATH. */
  find(env) {
    const debians = "/usr/lib/postgresql";
    const versions = existsSync(debians) ? readdirSync(debians).sort((a, b) => b - a) : [];
    const places = [
      onPath("postgres", env),
      ...versions.map((v) => `${debians}/${v}/bin/postgres`),
    ];
    return places.find((path) => path && existsSync(path) && existsSync(beside(path, "initdb")));
  },

  async bring() {
    if (!mayInstall) return;
    await aptInstall("postgresql-common");
    // Debian makes a cluster with the server, and starts it: not here, and as before for whoever comes next.
    const settings = "/etc/postgresql-common/createcluster.conf";
    const change = "s/^#?create_main_cluster *=.*/create_main_cluster = false/";
    await asRoot("sed", "-E", "-i.before", change, settings);
    try {
      await aptInstall("postgresql");
    } finally {
      await asRoot("mv", `${settings}.before`, settings);
    }
    return postgres.find(process.env);
  },

  async start({ launcher, program, ports: [port], flags, unprivileged, need }) {
    const user = unprivileged();
    const owned = (path) => {
      if (user) chownSync(path, user.uid, user.gid);
      return path;
    };
    owned(launcher.dir);
    const authority = new Authority(launcher.dir);
    authority.signServer("server", "/CN=postgres");
    authority.signClient("certified", "/CN=certified");
    authority.signClient("stranger", "/CN=stranger");
    owned(launcher.in("server.key"));

    const once = (name, command, input) => launcher.once(name, { command, user, input });
    const data = launcher.in("data");
    const secret = launcher.in("password");
    writeFileSync(secret, ADMIN.password);
    await once("initdb", [
      ...[beside(program, "initdb"), "--pgdata", data, "--no-sync", "--encoding=UTF8"],
      ...["--locale=C", `--username=${ADMIN.user}`, `--pwfile=${owned(secret)}`],
    ]);
    writeFileSync(join(data, "pg_hba.conf"), HBA);
    // Before it listens, so that nobody finds it without them.
    const single = [program, "--single", "-D", data, "-F", "postgres"];
    await once("initdb", single, USERS.map((statement) => `${statement}\n`).join(""));

    const run = (name, folder, port, ready) => {
      const settings = {
        port,
        listen_addresses: "127.0.0.1",
        unix_socket_directories: launcher.dir,
        // The end of a process loses nothing that was answered; the end of the machine may.
        fsync: "off",
        shared_buffers: "16MB",
        max_connections: 300,
        ssl: "on",
        ssl_ca_file: launcher.in("ca.crt"),
        ssl_cert_file: launcher.in("server.crt"),
        ssl_key_file: launcher.in("server.key"),
        cluster_name: name,
        lc_messages: "C",
      };
      const set = Object.entries(settings).flatMap(([key, value]) => ["-c", `${key}=${value}`]);
      const command = [program, "-D", folder, ...set, ...flags];
      return launcher.start(name, { command, user, ready });
    };
    await run("server", data, port, /database system is ready to accept connections/);

    const url = (account = ADMIN, at = port, database = "postgres") => {
      const [name, password] = [account.user, account.password].map(encodeURIComponent);
      return `postgres://${name}:${password}@127.0.0.1:${at}/${database}`;
    };
    const told = {
      url: url(),
      ...ADMIN,
      // A database of its own, where it may do everything.
      odd: { ...ODD, database: "tests", url: url(ODD, port, "tests") },
      // Who may come with TLS only, without it only, and with the client's certificate only.
      tlsOnly: { user: "tls_only", password: "tests" },
      plainOnly: { user: "plain_only", password: "tests" },
      certified: {
        user: "certified",
        cert: launcher.in("certified.crt"),
        key: launcher.in("certified.key"),
      },
      stranger: { cert: launcher.in("stranger.crt"), key: launcher.in("stranger.key") },
      ca: launcher.in("ca.crt"),
      socket: launcher.dir,
    };

    let standbyPort;
    const commands = {
      /** -> { port, url } of one that has all that was written before, and follows */
      async standby() {
        const copy = launcher.in("standby");
        const from = ["-h", launcher.dir, "-p", port, "-U", ADMIN.user];
        const backup = [beside(program, "pg_basebackup"), ...from, "-D", copy, "--no-sync"];
        await once("basebackup", [...backup, "--write-recovery-conf", "--checkpoint=fast"]);
        const ready = /database system is ready to accept (read-only )?connections/;
        await launcher.onFreePorts(1, async ([free]) => {
          standbyPort = free;
          await run("standby", copy, free, ready);
        });
        return { port: standbyPort, url: url(ADMIN, standbyPort) };
      },
      /** The standby becomes a primary; the old one, if it lives, does not learn of it. */
      async promote() {
        const promote = [
          beside(program, "pg_ctl"),
          "promote",
          "-D",
          launcher.in("standby"),
          "--wait",
        ];
        await once("promote", promote);
      },
      /** -> { port, url, odd } of a PgBouncer in front of the server */
      async pgbouncer() {
        const accounts = [ADMIN, ODD];
        const pool = await startPgBouncer(launcher, need("pgbouncer"), { user, port, accounts });
        return { port: pool, url: url(ADMIN, pool), odd: url(ODD, pool, "tests") };
      },
    };
    return { told, commands };
  },
};

function beside(program, name) {
  return join(dirname(realpathSync(program)), name);
}
