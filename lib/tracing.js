// A term as a span, where the application has OpenTelemetry: it opens at the promotion, callbacks run in its
// context, and it ends when the last of them has.
//
// The API is the application's: it is looked for only once an SDK has registered itself, so that an application
// without one pays nothing. So is all that hangs on it: span processors, samplers, context managers. Whatever they
// throw, nothing of it reaches the election, and the work runs exactly once.

const { version } = require("../index.js");
const { describe } = require("./logger.js");

/** @typedef {import("@opentelemetry/api")} Api */
/** @typedef {Pick<import("../index.js").Term, "election" | "instanceId" | "token" | "traceId">} About */

/** Where every copy of the API finds what the SDK registered: a contract of its major version. */
const REGISTERED = Symbol.for("opentelemetry.js.api.1");

/** @type {Api | null | undefined} */
let api;
let isTold = false;

/**
 * What belongs to tracing alone; if it throws, a span lacks something.
 *
 * @template T
 * @param {() => T} call
 * @returns {T | undefined}
 */
function harmless(call) {
  try {
    return call();
  } catch (error) {
    tell(error);
    return undefined;
  }
}

/**
 * Once, for what failed at one span fails at the next. In the log of OpenTelemetry itself, where people look when
 * spans are missing: this module knows no environment, whose log is another one in each.
 *
 * @param {unknown} error
 */
function tell(error) {
  if (isTold) return;
  isTold = true;
  try {
    api?.diag.warn(
      `whenleader: the span of a term lacks something, because tracing failed; the election goes on: ${describe(error)}`,
    );
  } catch {
    // That log fails too.
  }
}

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
   * Calls `call` exactly once, and answers as it does, whatever the context manager makes of it.
   *
   * @template T
   * @param {() => T} call
   * @returns {T}
   */
  run(call) {
    /** @type {(() => T) | undefined} */
    let answer;
    let hasBegun = false;
    const once = () => {
      if (hasBegun) return;
      hasBegun = true;
      try {
        const value = call();
        answer = () => value;
      } catch (error) {
        answer = () => {
          throw error;
        };
      }
    };
    harmless(() => this.#api.context.with(this.#context, once));
    once(); // If it threw before, or left the call out.
    return /** @type {() => T} */ (answer)();
  }

  /** @param {unknown} error */
  failed(error) {
    try {
      this.#span.recordException(error instanceof Error ? error : describe(error));
    } catch {
      // It may be the error whose properties cannot be read.
      harmless(() => this.#span.recordException(describe(error)));
    }
    harmless(() => this.#span.setStatus({ code: this.#api.SpanStatusCode.ERROR }));
  }

  /** @param {string} reason */
  demoted(reason) {
    harmless(() => this.#span.addEvent("demoted"));
    harmless(() => this.#span.setAttribute("whenleader.reason", reason));
  }

  end() {
    harmless(() => this.#span.end());
  }
}

/**
 * @param {() => About} about
 * @returns {TermSpan | null}  null: the application does not trace, or tracing fails
 */
function openSpan(about) {
  if (!(REGISTERED in globalThis)) return null;
  if (api === undefined) {
    try {
      api = /** @type {Api} */ (require("@opentelemetry/api"));
    } catch {
      api = null; // Out of reach from here.
    }
  }
  const found = api;
  if (found === null) return null;
  return harmless(() => new TermSpan(found, about())) ?? null;
}

module.exports = { openSpan };
