// One listener of a signal for all that wait for it, however many transactions there are.

/** Who waits for a signal. @type {WeakMap<AbortSignal, Set<() => void>>} */
const waiting = new WeakMap();

/**
 * @param {AbortSignal} signal
 * @param {() => void} then
 * @returns {() => void}  takes it back
 */
function whenAborted(signal, then) {
  let all = waiting.get(signal);
  if (all === undefined) {
    const set = new Set();
    all = set;
    waiting.set(signal, set);
    const callAll = () => {
      for (const one of set) one();
    };
    signal.addEventListener("abort", callAll, { once: true });
  }
  all.add(then);
  return () => all.delete(then);
}

module.exports = { whenAborted };
