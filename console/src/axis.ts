// Labels of times along an axis: few, round and short.

export interface Tick {
  time: number;
  label: string;
}

const STEPS_S = [
  1, 5, 15, 30, 60, 300, 900, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 172_800, 259_200, 604_800,
  1_209_600, 2_592_000, 7_776_000, 31_536_000, 157_680_000,
];
const TICKS_MAX = 8;

export function axisTicks(start: number, end: number): Tick[] {
  const step = STEPS_S.find((one) => (end - start) / one <= TICKS_MAX) ?? end - start;
  const ticks: Tick[] = [];
  for (let time = Math.ceil(start / step) * step; time < end; time += step) {
    // A tick at the very edge has no space for its label.
    if (time - start < (end - start) * 0.9) ticks.push({ time, label: label(time, step) });
  }
  return ticks;
}

/** A time in seconds, as short as the step between it and the next one allows. */
export function label(time: number, step: number): string {
  const text = new Date(time * 1000).toISOString();
  if (step >= 86_400) return text.slice(0, 10);
  if (time % 86_400 === 0) return text.slice(5, 10);
  return step < 60 ? text.slice(11, 19) : text.slice(11, 16);
}
