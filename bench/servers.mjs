// The stores of tools/servers for the benchmarks. What an instance asks of one is counted on the way to it, so that it
// is counted in one way for all of them.
import { TcpProxy } from "../__test__/support/proxy.mjs";
import { isMissing, Server } from "../__test__/support/servers.mjs";
import { nameOf, STORES } from "../__test__/support/stores.mjs";
import { servers } from "../tools/servers/index.mjs";

export const SERVER_KINDS = Object.keys(STORES);

/** Where a server of tests would write each answer to its disk: what is measured is the election, and no disk. */
const FLAGS = Object.fromEntries(
  ["redis", "valkey"].map((kind) => [kind, ["--flag=--appendonly", "--flag=no"]]),
);

export class ServerStore {
  #row;

  /** @returns {Promise<ServerStore | undefined>} undefined: it is not to be had, which was said */
  static async start(kind) {
    await servers([kind], { withKubernetes: false });
    if (isMissing(kind, `the benchmarks on ${nameOf(kind)}`)) return;
    const store = new ServerStore();
    store.name = nameOf(kind);
    store.#row = STORES[kind];
    store.server = await Server.start(kind, FLAGS[kind]);
    return store;
  }

  get watched() {
    return !!this.#row.watched;
  }

  get shortest() {
    return this.#row.shortest ?? 0;
  }

  /** What a lease of so many milliseconds is there. */
  lasts(leaseDuration) {
    return leaseDuration;
  }

  /** What one more instance is configured with. */
  cluster(port = this.server.port) {
    return { type: "StoreCluster", store: this.#row.url(this.server, port) };
  }

  /** The way to it for one more instance, on which all passes that it asks. */
  async way() {
    const proxy = await TcpProxy.to(this.server.port);
    return {
      cluster: this.cluster(proxy.port),
      roundTrips: () => proxy.roundTrips,
      /** The moment when a leader renewed last, which it did by what it said last. */
      renewed: () => proxy.lastSent,
      close: () => proxy.close(),
    };
  }

  stop() {
    return this.server.stop();
  }
}
