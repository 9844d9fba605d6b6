// A term as a span, where the application has OpenTelemetry: it opens at the promotion, callbacks run in its
// context, and it ends when the last of them has.
//
// The API is the application's: it is looked for only once an SDK has registered itself, so that an application
// without one pays nothing.

const { version } = require("../index.js");
const { describe } = require("./logger.js");

/** @typedef {import("@opentelemetry/api")} Api */
/** @typedef {Pick<import("../index.js").Term, "election" | "instanceId" | "token" | "traceId">} About */

/** Where every copy of the API finds what the SDK registered: a contract of its major version. */
const REGISTERED = Symbol.for("opentelemetry.js.api.1");

class TermSpan {
  #api;
  #span;
  #context;

  /**
   * @param {Api} api
   * @param {About} term
   */
  constructor(api, term) {
    this.#api = api;
    this.#span = api.trace.getTracer("whenleader", version).startSpan(`lead ${term.election}`, {
      root: true,
      attributes: {
        "whenleader.election": term.election,
        "whenleader.instance_id": term.instanceId,
        "whenleader.token": term.token,
        "whenleader.trace_id": term.traceId,
      },
    });
    this.#context = api.trace.setSpan(api.ROOT_CONTEXT, this.#span);
  }

  /**
   * @template T
   * @param {() => T} call
   * @returns {T}
   */
  run(call) {
    return this.#api.context.with(this.#context, call);
  }

  /** @param {unknown} error */
  failed(error) {
    this.#span.recordException(error instanceof Error ? error : describe(error));
    this.#span.setStatus({ code: this.#api.SpanStatusCode.ERROR });
  }

  /** @param {string} reason */
  demoted(reason) {
    this.#span.addEvent("demoted");
    this.#span.setAttribute("whenleader.reason", reason);
  }

  end() {
    this.#span.end();
  }
}

/** @type {Api | null | undefined} */
let api;

/**
 * @param {() => About} about
 * @returns {TermSpan | null}  null: the application does not trace
 */
function openSpan(about) {
  if (!(REGISTERED in globalThis)) return null;
  if (api === undefined) {
    try {
      api = require("@opentelemetry/api");
    } catch {
      api = null; // Of another major version, or out of reach from here.
    }
  }
  return api ? new TermSpan(api, about()) : null;
}

module.exports = { openSpan };
