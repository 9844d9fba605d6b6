// What term.transaction() and term.verify() may be told beside the client.

/** Of each method. @type {Record<"transaction" | "verify", string[]>} */
const OPTIONS = {
  transaction: ["hold", "timeout", "isolationLevel"],
  verify: ["hold", "timeout"],
};
/** As SQL has them: they become part of statements. */
const LEVELS = ["read committed", "repeatable read", "serializable"];

/**
 * @param {unknown} options
 * @param {"transaction" | "verify"} method
 * @returns {{ hold: boolean, timeout: number | undefined, isolationLevel: string | undefined }}
 */
function checkOptions(options = {}, method) {
  if (typeof options !== "object" || options === null) {
    throw new TypeError(`the options of term.${method}() must be an object, not ${shown(options)}`);
  }
  const known = OPTIONS[method];
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown !== undefined) {
    throw new TypeError(`term.${method}() has the options ${listed(known)}, and no ${unknown}`);
  }
  const {
    hold = false,
    timeout,
    isolationLevel,
  } = /** @type {Record<string, unknown>} */ (options);
  if (typeof hold !== "boolean") {
    throw new TypeError(`term.${method}(): options.hold must be true or false, not ${shown(hold)}`);
  }
  if (
    timeout !== undefined &&
    !(typeof timeout === "number" && timeout > 0 && timeout < Infinity)
  ) {
    throw new TypeError(
      `term.${method}(): options.timeout must be a number of milliseconds above 0, not ${shown(timeout)}`,
    );
  }
  if (isolationLevel !== undefined && !LEVELS.includes(/** @type {string} */ (isolationLevel))) {
    const levels = listed(
      LEVELS.map((level) => JSON.stringify(level)),
      "or",
    );
    throw new TypeError(
      `term.${method}(): options.isolationLevel must be ${levels}, not ${shown(isolationLevel)}`,
    );
  }
  return { hold, timeout, isolationLevel: /** @type {string | undefined} */ (isolationLevel) };
}

/** @param {string[]} words */
function listed(words, last = "and") {
  return `${words.slice(0, -1).join(", ")} ${last} ${words.at(-1)}`;
}

/** @param {unknown} value */
function shown(value) {
  if (typeof value === "function") return value.name ? `the function ${value.name}` : "a function";
  if (typeof value === "object" && value !== null) {
    return `an object (${value.constructor?.name ?? "without a class"})`;
  }
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}

module.exports = { checkOptions, shown };
