// A registry that speaks HTTP with ETags: what examples/stores/http-registry.mjs elects through. It can be frozen,
// killed and started again as a server of its own process can, and keeps its records then.
import { once } from "node:events";
import { createServer } from "node:http";

export class HttpRegistry {
  #records = new Map();
  #version = 0;
  #held = null;
  #server;

  static async start() {
    const registry = new HttpRegistry();
    await registry.#listen(0);
    return registry;
  }

  async #listen(port) {
    this.#server = createServer((request, response) => this.#answer(request, response));
    this.#server.listen(port, "127.0.0.1");
    await once(this.#server, "listening");
    this.port = this.#server.address().port;
  }

  urlAt(port) {
    return `http://127.0.0.1:${port}`;
  }

  async #answer(request, response) {
    let body = "";
    try {
      for await (const chunk of request) body += chunk;
    } catch {
      return; // The other end has gone.
    }
    await this.#held?.promise;
    const record = this.#records.get(request.url);
    const end = (status, headers = {}) => response.writeHead(status, headers).end();
    if (request.method === "GET") {
      if (record === undefined) end(404);
      else response.writeHead(200, { ETag: record.etag }).end(record.body);
      return;
    }
    const expected = request.headers["if-match"];
    const isFirst = request.headers["if-none-match"] === "*" && record === undefined;
    if (!isFirst && (expected === undefined || expected !== record?.etag)) return end(412);
    this.#version += 1;
    const etag = `"${this.#version}"`;
    this.#records.set(request.url, { etag, body });
    end(record === undefined ? 201 : 200, { ETag: etag });
  }

  /** Requests are taken and not answered; what waits is done at the thaw. */
  async freeze() {
    let open;
    const promise = new Promise((resolve) => {
      open = resolve;
    });
    this.#held = { promise, open };
  }

  async thaw() {
    this.#held?.open();
    this.#held = null;
  }

  async kill() {
    const closed = once(this.#server, "close");
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }

  async restart() {
    await this.#listen(this.port);
  }

  async stop() {
    await this.thaw();
    if (this.#server.listening) await this.kill();
  }
}
