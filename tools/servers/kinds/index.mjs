// All servers that tests may use, each with all that is to know of it: what it is called, how its program is
// found and brought, what to do where it is missing, how it is started, and what it tells then.
import { onPath } from "../programs.mjs";
import { etcd } from "./etcd.mjs";
import { mariadb } from "./mariadb.mjs";
import { pgbouncer } from "./pgbouncer.mjs";
import { postgres } from "./postgres.mjs";
import { redis } from "./redis.mjs";
import { valkey } from "./valkey.mjs";

/**
 * @typedef {object} Kind
 * @property {string} name as people write it
 * @property {string} program what its program is called
 * @property {string} cure what brings it where we may not
 * @property {boolean} [needsOpenssl]
 * @property {number} [ports] how many it listens on; the first is where clients come
 * @property {string[]} [options] what its launcher can be told beside flags of the server, as --option
 * @property {(env: object) => string | undefined} [find] its program, where it is not merely on the PATH
 * @property {() => Promise<string | undefined>} [bring] brings the program where that harms nothing
 * @property {(how: object) => Promise<{ told: object, commands?: object }>} [start]
 */

/** @type {Record<string, Kind>} */
export const KINDS = { redis, valkey, postgres, pgbouncer, mariadb, etcd };

/** The variable that names a program, and goes before everything else. */
export const variableOf = (kind) => `WHENLEADER_${kind.toUpperCase()}_SERVER`;

/** The program of a kind, or undefined. */
export function findServer(kind, env = process.env) {
  const { find, program } = KINDS[kind];
  return env[variableOf(kind)] || (find ? find(env) : onPath(program, env));
}

/** What a test says that cannot have it. */
export function whyMissing(kind) {
  const { program, cure } = KINDS[kind];
  return `no ${program} here; ${cure}, or set ${variableOf(kind)} to the program`;
}
