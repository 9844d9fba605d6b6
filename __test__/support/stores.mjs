// How an instance is configured that comes to a server of tools/servers: one row for each kind that can be started.
// Tests and benchmarks run on whatever is here.
import { KINDS } from "../../tools/servers/kinds/index.mjs";

/**
 * @typedef {object} Row
 * @property {(server: any, port: number) => string} url by that port, which may be a proxy's
 * @property {number} [shortest] the shortest lease in milliseconds, where it is not as short as any
 * @property {true} [watched] followers judge by themselves whether a lease has expired, by what they saw
 */

/** @type {Record<string, Row>} */
export const STORES = {
  redis: { url: own },
  valkey: { url: own },
  postgres: { url: own },
  mariadb: { url: own },
  mysql: { url: own },
  // It grants nothing shorter.
  etcd: { url: speaks("etcd"), shortest: 2_000 },
  nats: { url: own, watched: true },
  "nats-old": { url: own, watched: true },
  consul: { url: speaks("consul"), watched: true },
  s3: { url: (server, port) => onAws("s3", server, server.bucket, port), ...shown() },
  dynamodb: {
    url: (server, port) => `${onAws("dynamodb", server, "leases", port)}&create=true`,
    ...shown(),
  },
};

export const nameOf = (kind) => KINDS[kind].name;

/** Those that this machine has to have: of the others somebody must name the program. */
export const NEEDED = Object.keys(STORES).filter((kind) => !KINDS[kind].named);

function own(server, port) {
  return server.urlAt(port);
}

function speaks(scheme) {
  return (server, port) => server.urlAt(port).replace("http:", `${scheme}:`);
}

function onAws(scheme, { accessKey, secretKey, region }, place, port) {
  const keys = `${encodeURIComponent(accessKey)}:${encodeURIComponent(secretKey)}`;
  const endpoint = `http://127.0.0.1:${port}`;
  return `${scheme}://${keys}@${place}?region=${region}&endpoint=${endpoint}`;
}

/** @returns {{ shortest: number, watched: true }} */
function shown() {
  return { shortest: 1_000, watched: true };
}
