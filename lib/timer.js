// setTimeout() for any duration: its own takes what is longer than 24.8 days for one millisecond.

const LONGEST = 2 ** 31 - 1;

/**
 * @param {number} ms
 * @param {() => void} then
 * @param {{ holds?: boolean }} [options]  holds: whether it keeps the process alive; it does
 * @returns {() => void}  takes it back
 */
function after(ms, then, { holds = true } = {}) {
  /** @type {NodeJS.Timeout} */
  let timer;
  const arm = (/** @type {number} */ left) => {
    const part = Math.min(left, LONGEST);
    timer = setTimeout(() => (left > part ? arm(left - part) : then()), part);
    if (!holds) timer.unref();
  };
  arm(ms);
  return () => clearTimeout(timer);
}

module.exports = { after };
