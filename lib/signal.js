// Whoever waits for an AbortSignal of the application. Many may share one, and Node.js warns of more than ten listeners:
// each signal gets one.

/** @type {WeakMap<AbortSignal, Waiting>} */
const signals = new WeakMap();

class Waiting {
  /** @type {Set<() => void>} */
  #all = new Set();
  #signal;
  #tell = () => {
    for (const then of [...this.#all]) then();
  };

  /** @param {AbortSignal} signal */
  constructor(signal) {
    this.#signal = signal;
    signal.addEventListener("abort", this.#tell, { once: true });
  }

  /** @param {() => void} then */
  add(then) {
    this.#all.add(then);
  }

  /** @param {() => void} then */
  remove(then) {
    this.#all.delete(then);
    if (this.#all.size > 0) return;
    this.#signal.removeEventListener("abort", this.#tell);
    signals.delete(this.#signal);
  }
}

/**
 * @param {AbortSignal} signal
 * @param {() => void} then  must not throw
 * @returns {() => void}  takes it back
 */
function onAbort(signal, then) {
  const waiting = signals.get(signal) ?? new Waiting(signal);
  signals.set(signal, waiting);
  waiting.add(then);
  return () => waiting.remove(then);
}

module.exports = { onAbort };
