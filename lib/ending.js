// Which error of a callback is only the end of its term.

/** @typedef {import("./term.js").Term} Term */

/** How deep an error's causes are looked into. */
const CAUSES = 8;

/**
 * Whether it was thrown only because its term ended: the signal's reason, what came of it, or the database's
 * word that the term is over.
 *
 * @param {Term} term
 * @param {unknown} thrown
 */
function isEndOf(term, thrown) {
  try {
    return comesOfEnd(term, thrown);
  } catch {
    return false; // Its properties cannot even be read.
  }
}

/**
 * @param {Term} term
 * @param {unknown} thrown
 */
function comesOfEnd(term, thrown) {
  let error = thrown;
  for (let depth = 0; depth < CAUSES && typeof error === "object" && error !== null; depth += 1) {
    /** @type {{ name?: unknown, code?: unknown, election?: unknown, token?: unknown, cause?: unknown }} */
    const { name, code, election, token, cause } = error;
    if (code === "WHENLEADER_LOST" && election === term.election && token === term.token) {
      return true;
    }
    if (term.signal.aborted && name === "AbortError") return true;
    error = cause;
  }
  return false;
}

module.exports = { isEndOf };
