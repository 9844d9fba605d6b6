// How the show looks: a live line for each process and, below, what happened. Where the output is no
// terminal, only what happened is printed.
const WIDTH = 24;
const live = process.stdout.isTTY && process.env.TERM !== "dumb";
const coloured = live && !process.env.NO_COLOR;
const paint = (code, text) => (coloured ? `\x1b[${code}m${text}\x1b[0m` : text);

const LOOK = {
  starting: ["·", 2],
  follower: ["○", 2],
  leader: ["●", 32],
  frozen: ["❄", 36],
  killed: ["✗", 31],
  stopping: ["◌", 33],
  stopped: ["·", 2],
};

export class Screen {
  #instances;
  #said = [];
  #doing = "";
  #drawn = 0;
  #timer;

  constructor(instances) {
    this.#instances = instances;
  }

  open(title) {
    console.log(`\n  ${paint(1, "whenleader")}  ${title}\n`);
    if (!live) return;
    process.stdout.write("\x1b[?25l");
    this.#timer = setInterval(() => this.#draw(), 50);
    process.once("exit", () => process.stdout.write("\x1b[?25h"));
  }

  /** What happens now, until the next `say`. */
  doing(text) {
    this.#doing = text;
  }

  say(text, took) {
    const time = took === undefined ? "" : `${Math.max(1, Math.round(took))} ms`.padStart(8);
    const line = time ? `${text.padEnd(58)} ${paint(1, time)}` : text;
    this.#doing = "";
    this.#said.push(`  ${paint(32, "✓")} ${line}`);
    if (live) this.#draw();
    else console.log(this.#said.at(-1));
  }

  fail(text) {
    this.#said.push(`  ${paint(31, "✗")} ${text}`);
    if (!live) console.log(this.#said.at(-1));
  }

  close() {
    clearInterval(this.#timer);
    if (live) this.#draw();
    console.log("");
  }

  #draw() {
    const doing = this.#doing ? `  ${paint(33, "…")} ${this.#doing}` : "";
    const lines = [...this.#instances.map(process_), "", ...this.#said, doing];
    const up = this.#drawn ? `\x1b[${this.#drawn}A` : "";
    process.stdout.write(`${up}${lines.map((line) => `\r\x1b[K${line}`).join("\n")}\n\x1b[J`);
    this.#drawn = lines.length;
  }
}

function process_({ number, pid, state, remaining, heard }) {
  const [sign, colour] = LOOK[state];
  const line = `${sign} #${number}  pid ${String(pid).padEnd(8)} ${state.padEnd(9)}`;
  return `  ${paint(colour, line)} ${paint(colour, bar(state, remaining, heard))}`;
}

let longest = 1;

/** What is left of the time for which the leader may lead, as far as is known. */
function bar(state, remaining, heard) {
  if (state !== "leader" && state !== "frozen") return "";
  const left = Math.max(0, remaining - (performance.now() - heard));
  longest = Math.max(longest, left);
  const full = Math.round((left / longest) * WIDTH);
  return "━".repeat(full) + "╌".repeat(Math.max(0, WIDTH - full));
}
