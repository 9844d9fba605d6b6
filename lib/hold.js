// Keeps the process alive while somebody waits. Nothing native does: its promises are ours.

/** Until it is let go. */
const FOR_EVER = 2 ** 30;

let holds = 0;
/** @type {NodeJS.Timeout | undefined} */
let timer;

/** @returns {() => void}  lets go; more than once is once */
function hold() {
  holds += 1;
  if (holds === 1) timer = setInterval(() => {}, FOR_EVER);
  let held = true;
  return () => {
    if (!held) return;
    held = false;
    holds -= 1;
    if (holds === 0) clearInterval(timer);
  };
}

module.exports = { hold };
