// A Leader Election API that answers whatever a test wants, as hostile as it likes.

const { once } = require("node:events");
const http = require("node:http");

class StubApi {
  /** Every check-in, as it came. */
  asked = [];

  /** Answers to what is asked for the status; else it is not there. @type {((response: http.ServerResponse) => void) | undefined} */
  status;

  /** @param {(body: any, response: http.ServerResponse, request: http.IncomingMessage) => void} answer  to check-ins */
  constructor(answer) {
    this.answer = answer;
    this.server = http.createServer(async (request, response) => {
      let body = "";
      for await (const part of request) body += part;
      if (request.url === "/leader/status" && this.status) return this.status(response);
      if (request.url !== "/leader/elect") return response.writeHead(404).end();
      const { headers } = request;
      this.asked.push({ at: performance.now(), body: JSON.parse(body), headers });
      this.answer(JSON.parse(body), response, request);
    });
  }

  static async start(t, answer) {
    const stub = new StubApi(answer);
    stub.server.listen(0, "127.0.0.1");
    await once(stub.server, "listening");
    stub.url = `http://127.0.0.1:${stub.server.address().port}`;
    t.after(() => stub.close());
    return stub;
  }

  close() {
    this.server.closeAllConnections();
    this.server.close();
  }
}

/** What a good server answers. */
function granted(body, more = {}, item = {}) {
  return {
    check_in: new Date().toISOString(),
    lease_duration: "900ms",
    resources: body.resources.map((resource) => ({
      resource,
      leader: true,
      current_leader: body.id,
      ...item,
    })),
    ...more,
  };
}

/** Sends JSON. */
function send(response, value, status = 200) {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
}

module.exports = { StubApi, granted, send };
