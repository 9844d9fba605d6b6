// Figures out of samples.
export function quantile(samples, part) {
  const sorted = [...samples].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))];
}

export const median = (samples) => quantile(samples, 0.5);

export function summary(samples) {
  return {
    median: round(median(samples)),
    p90: round(quantile(samples, 0.9)),
    max: round(Math.max(...samples)),
    rounds: samples.length,
  };
}

/** Three digits: more than that no machine repeats. */
export function round(value) {
  return Number(value.toPrecision(3));
}

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** CPU seconds of this process in `work`. */
export function cpu(work) {
  const before = process.cpuUsage();
  work();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1e6;
}
