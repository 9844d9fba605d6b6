// All servers that tests may use, each with all that is to know of it: what it is called, how its program is
// found and brought, what to do where it is missing, how it is started, and what it tells then.
import { onPath } from "../programs.mjs";
import { consul } from "./consul.mjs";
import { dynamodb } from "./dynamodb.mjs";
import { etcd } from "./etcd.mjs";
import { kafka } from "./kafka.mjs";
import { mariadb } from "./mariadb.mjs";
import { mysql } from "./mysql.mjs";
import { nats, natsOld } from "./nats.mjs";
import { pgbouncer } from "./pgbouncer.mjs";
import { postgres } from "./postgres.mjs";
import { redis } from "./redis.mjs";
import { s3 } from "./s3.mjs";
import { valkey } from "./valkey.mjs";

/**
 * @typedef {object} Kind
 * @property {string} name as people write it
 * @property {string} program what its program is called
 * @property {string} cure what brings it where we may not
 * @property {boolean} [named] it is used only where its variable names it, and missed by nobody elsewhere
 * @property {false} [store] nobody can elect on it: it is for an example
 * @property {boolean} [needsOpenssl]
 * @property {number} [ports] how many it listens on; the first is where clients come
 * @property {string[]} [options] what its launcher can be told beside flags of the server, as --option
 * @property {(env: object) => string | undefined} [find] its program, where it is not simply the one on the PATH
 * @property {() => string | undefined} [brought] its program, where it was brought without the system's packages
 * @property {() => Promise<string | undefined>} [bring] brings the program where that harms nothing
 * @property {(how: object) => Promise<{ told: object, commands?: object }>} [start] undefined: others start it
 */

/** @type {Record<string, Kind>} */
export const KINDS = {
  redis,
  valkey,
  postgres,
  pgbouncer,
  mariadb,
  mysql,
  etcd,
  nats,
  "nats-old": natsOld,
  consul,
  s3,
  dynamodb,
  kafka,
};

/** The variable that names a program, and goes before everything else. */
export const variableOf = (kind) => `WHENLEADER_${kind.toUpperCase().replaceAll("-", "_")}_SERVER`;

/** The program of a kind, or undefined. */
export function findServer(kind, env = process.env) {
  const { find = (env) => onPath(program, env), program, named, brought } = KINDS[kind];
  return env[variableOf(kind)] || (named ? undefined : find(env)) || brought?.();
}

/** What a test says that cannot have it. */
export function whyMissing(kind) {
  const { program, cure } = KINDS[kind];
  return `no ${program} here; ${cure}, or set ${variableOf(kind)} to the program`;
}
