// The stretch of time that the screens of telemetry show. A choice holds on all of them.
import { useMemo, useState } from "preact/hooks";
import { part } from "../api";
import { useAsk } from "../ask";
import { type Params, change } from "../route";
import { literal } from "../screen/sql";
import type { TableInfo } from "../screen/shape";
import { Pick } from "../show/listing";

/** From `start` to `end`, in milliseconds since 1970. */
export interface Stretch {
  start: number;
  end: number;
}

const ALL = "all";
const LENGTHS_S: Record<string, number> = {
  "15 min": 900,
  "1 h": 3_600,
  "6 h": 21_600,
  "24 h": 86_400,
  "7 days": 604_800,
  "30 days": 2_592_000,
};
const LENGTH_DEFAULT = "24 h";
const RANGES = [...Object.keys(LENGTHS_S), ALL];

let chosenLast = LENGTH_DEFAULT;

export interface Range {
  /** Undefined while the extent of the table is not known. */
  stretch: Stretch | undefined;
  name: string;
  again: () => void;
}

/** The chosen stretch, which ends now; `all` is the extent of the table. */
export function useRange(params: Params, table: string): Range {
  const wanted = params["range"] ?? chosenLast;
  const name = RANGES.includes(wanted) ? wanted : LENGTH_DEFAULT;
  chosenLast = name;
  const [turn, put] = useState(0);
  const info = useAsk<TableInfo>(name === ALL ? `tables/${part(table)}` : null).value;
  const stretch = useMemo(() => {
    const end = Date.now();
    const length_s = LENGTHS_S[name];
    if (length_s !== undefined) return { start: end - length_s * 1000, end };
    if (!info) return undefined;
    // A table without rows has no extent.
    return { start: Date.parse(info.start ?? "") || end - 1000, end: Date.parse(info.end ?? "") || end };
  }, [name, turn, info]);
  return { stretch, name, again: () => put((turn) => turn + 1) };
}

export function RangePick({ range }: { range: Range }) {
  return (
    <>
      <Pick label="Time" of={RANGES} chosen={range.name} choose={(name) => change({ range: name })} />
      <button type="button" onClick={range.again}>
        Refresh
      </button>
    </>
  );
}

/** A condition of SQL for rows in the stretch. */
export function within(stretch: Stretch): string {
  const [start, end] = [stretch.start, stretch.end].map((time) => literal(new Date(time).toISOString()));
  return `ts >= ${start} and ts < ${end}`;
}

const STEPS_S = [1, 5, 10, 30, 60, 300, 900, 3_600, 10_800, 21_600, 86_400, 604_800, 2_592_000];

/** A round number of seconds that cuts the stretch into at most `most` steps. */
export function stepOf(stretch: Stretch, most: number): number {
  const length_s = (stretch.end - stretch.start) / 1000;
  return STEPS_S.find((step) => length_s / step <= most) ?? Math.ceil(length_s / most);
}
