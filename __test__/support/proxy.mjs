// A TCP proxy between one instance and its store, for the faults that networks have.
import { once } from "node:events";
import { connect, createServer } from "node:net";

export class TcpProxy {
  #server;
  #pairs = new Set();
  /** "open", "frozen" (nothing passes, connections stay), or "cut" (refused, and reset) */
  #mode = "open";
  /** How many milliseconds everything takes longer, each way. */
  delay = 0;
  /** How often the instance spoke first, or after it had heard something: what it asked costs so many ways there and back. */
  roundTrips = 0;
  /** When it spoke last. */
  lastSent = 0;

  /** @param {number} target a port on this machine */
  static async to(target) {
    const proxy = new TcpProxy();
    proxy.#server = createServer((client) => proxy.#accept(client, target));
    proxy.#server.listen(0, "127.0.0.1");
    await once(proxy.#server, "listening");
    return proxy;
  }

  get port() {
    return this.#server.address().port;
  }

  #accept(client, target) {
    if (this.#mode === "cut") return client.resetAndDestroy();
    const store = connect(target, "127.0.0.1");
    const pair = [client, store];
    this.#pairs.add(pair);
    let isSpeaking = false;
    client.on("data", () => {
      this.lastSent = performance.now();
      if (!isSpeaking) this.roundTrips += 1;
      isSpeaking = true;
    });
    store.on("data", () => {
      isSpeaking = false;
    });
    for (const [from, to] of [pair, [store, client]]) {
      from.on("data", (bytes) => {
        if (this.delay === 0) to.write(bytes);
        else setTimeout(() => to.write(bytes), this.delay);
      });
      from.on("error", () => {});
      from.on("close", () => {
        to.destroy();
        this.#pairs.delete(pair);
      });
      if (this.#mode === "frozen") from.pause();
    }
  }

  /** Nothing passes, and nobody is told: a broken cable. */
  freeze() {
    this.#mode = "frozen";
    for (const socket of this.#sockets()) socket.pause();
  }

  /** Connections are reset, new ones too. */
  cut() {
    this.#mode = "cut";
    for (const socket of this.#sockets()) socket.resetAndDestroy();
  }

  /** What was held back arrives now, late. */
  open() {
    this.#mode = "open";
    for (const socket of this.#sockets()) socket.resume();
  }

  async close() {
    this.#server.close();
    for (const socket of this.#sockets()) socket.destroy();
  }

  *#sockets() {
    for (const pair of [...this.#pairs]) yield* pair;
  }
}
