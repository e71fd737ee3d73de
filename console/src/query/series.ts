// Rows as lines: sorted from left to right, one line for each series.
import type { Rows } from "./arrow";
import { type Drawing, type Line, sorted } from "./plot";

export const SERIES_MAX = 24;
const BETWEEN = " · ";

/** Whether an x occurs twice: one line through all rows would jump between series. */
export function isRepeated(x: Float64Array): boolean {
  const order = Float64Array.from(x).sort();
  return order.some((value, place) => place > 0 && value === order[place - 1]);
}

/** The name of a row's series: the text of some columns. */
function labelOf(rows: Rows, by: number[], row: number): string {
  return by.map((place) => rows.text(place, row) ?? "null").join(BETWEEN);
}

/**
 * The first of some choices of columns that divides rows into series: it has several values, and
 * several rows share a value. A message that differs in each row is no use.
 */
export function tellingOf(rows: Rows, choices: number[][]): number[] | undefined {
  const most = (rows.count + 1) / 2;
  return choices.find((by) => {
    const seen = new Set<string>();
    for (let row = 0; row < rows.count && seen.size <= most; row += 1) seen.add(labelOf(rows, by, row));
    return seen.size > 1 && seen.size <= most;
  });
}

export interface Wanted {
  across: number;
  up: number[];
  by: number[];
}

/** The lines of the columns `up`; with `by`, one for each value of those columns. */
export function drawingOf(rows: Rows, { across, up, by }: Wanted): Drawing {
  const x = rows.numbers(across);
  const isTime = rows.isTime(across);
  const columns = up.map((place) => ({ name: rows.names[place] ?? "", values: rows.numbers(place) }));
  if (!by.length) return sorted({ x, isTime, lines: columns, isScattered: isRepeated(x), series: 0 });
  const labels = Array.from({ length: rows.count }, (_, row) => labelOf(rows, by, row));
  const names = [...new Set(labels)].sort();
  const kept = new Map(names.slice(0, SERIES_MAX).map((name, place) => [name, place]));
  const order = Array.from(x.keys()).filter(
    (row) => !Number.isNaN(x[row]) && kept.has(labels[row] ?? ""),
  );
  order.sort((one, other) => (x[one] ?? 0) - (x[other] ?? 0));
  const { slots, across: places, isScattered } = placed(order, x, labels, kept.size);
  const lines: Line[] = [];
  for (const column of columns) {
    for (const [name, place] of kept) {
      // Undefined: this series has no row at that x, and its line continues. Null is a gap.
      const values = new Array<number | null | undefined>(places.length).fill(undefined);
      lines.push({ name: columns.length > 1 ? `${name} ${column.name}` : name, values });
      for (const [at, row] of order.entries()) {
        if (kept.get(labels[row] ?? "") !== place) continue;
        const value = column.values[row] ?? NaN;
        values[slots[at] ?? 0] = Number.isNaN(value) ? null : value;
      }
    }
  }
  return { x: Float64Array.from(places), isTime, lines, isScattered, series: names.length };
}

/** A position on the shared x axis for each row, also if a series has the same x twice. */
function placed(order: number[], x: Float64Array, labels: string[], series: number) {
  const across: number[] = [];
  const slots: number[] = [];
  let isScattered = false;
  let first = 0;
  let seen = new Map<string, number>();
  for (const row of order) {
    const value = x[row] ?? 0;
    if (!across.length || across[first] !== value) {
      first = across.length;
      seen = new Map();
    }
    const label = labels[row] ?? "";
    const times = seen.get(label) ?? 0;
    seen.set(label, times + 1);
    if (first + times >= across.length) across.push(value);
    slots.push(first + times);
    isScattered ||= times > 0 && series > 0;
  }
  return { across, slots, isScattered };
}
