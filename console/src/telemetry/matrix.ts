// A matrix of Prometheus' API as lines.
import type { Drawing, Line } from "../query/plot";
import { SERIES_MAX } from "../query/series";

export type Matrix = { metric: Record<string, string>; values?: [time: number, value: string][] }[];

/** One line for each series; a step without a value is a gap in its line. */
export function drawingOfMatrix(matrix: Matrix): Drawing {
  const named = matrix.map((one) => ({ name: seriesName(one.metric), values: one.values ?? [] }));
  named.sort((one, other) => (one.name < other.name ? -1 : 1));
  const times = [...new Set(named.flatMap((one) => one.values.map(([time]) => time)))].sort((a, b) => a - b);
  const places = new Map(times.map((time, place) => [time, place]));
  const lines = named.slice(0, SERIES_MAX).map(({ name, values }): Line => {
    const drawn = new Array<number | null>(times.length).fill(null);
    for (const [time, value] of values) {
      const number = Number(value.replace("Inf", "Infinity"));
      drawn[places.get(time) ?? 0] = Number.isFinite(number) ? number : null;
    }
    return { name, values: drawn };
  });
  const x = Float64Array.from(times, (time) => time * 1000);
  return { x, isTime: true, lines, isScattered: false, series: matrix.length };
}

function seriesName(labels: Record<string, string>): string {
  const { __name__: name = "", ...others } = labels;
  const pairs = Object.entries(others).map(([label, value]) => `${label}="${value}"`);
  return pairs.length || !name ? `${name}{${pairs.join(", ")}}` : name;
}
