// Numbers, sizes and times for people. Times are always UTC, and say so.

const NUMBER = new Intl.NumberFormat("en");
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function count(value: number): string {
  return NUMBER.format(value);
}

export function counted(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

export function size(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

export function share(value: number): string {
  // One missing bucket in a million is not 100 %.
  const shown = value < 1 ? Math.min(99.9, Math.floor(value * 1000) / 10) : 100;
  return `${shown.toFixed(1)} %`;
}

/** A length of time, in the largest unit that fits. */
export function duration(seconds: number): string {
  if (seconds < 0.001) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86_400) {
    return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  }
  return counted(Math.floor(seconds / 86_400), "day");
}

/** An instant of the API, without its `T` and `Z`, and without a fraction of zeros. */
export function clock(instant: string): string {
  return instant.replace("T", " ").replace(/(\.\d*?)0*Z?$/, "$1").replace(/[.Z]+$/, "");
}

export function seconds(instant: string): number {
  return Date.parse(instant) / 1000;
}

/** How long before `now` an instant was. */
export function ago(instant: string, from: string): string {
  const passed = seconds(from) - seconds(instant);
  return passed < 1 ? "just now" : `${duration(passed)} ago`;
}

/** Seconds since 1970 as an instant of the API. */
export function instantOf(time: number): string {
  return new Date(time * 1000).toISOString().replace(/\.000Z$/, "Z");
}
