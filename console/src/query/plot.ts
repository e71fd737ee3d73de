// Lines on a canvas. No text becomes markup here: the legend of the library is not used.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { label } from "../axis";
import { colour } from "../theme";

export interface Line {
  name: string;
  values: Float64Array | (number | null | undefined)[];
}

export interface Drawing {
  x: Float64Array;
  isTime: boolean;
  lines: Line[];
  /** One line has the same x twice: only points are drawn, without lines between them. */
  isScattered: boolean;
  /** How many series there are, drawn or not; 0 if rows are not divided into series. */
  series: number;
}

export interface Plot {
  points: number;
  resize(width: number, height: number): void;
  destroy(): void;
}

export const COLOURS = ["line-1", "line-2", "line-3", "line-4", "line-5", "line-6"];
const POINTS_SHOWN_MAX = 200;
const AXIS_MIN_PX = 64;
const AXIS_BESIDE_PX = 18;
const PLAIN_MAX = 1e15;
// The library's own steps end at 1e32, and larger numbers would have no label at all.
const STEPS = Array.from({ length: 614 }, (_, place) => place - 306).flatMap((power) =>
  [1, 2, 2.5, 5].map((one) => Number(`${one}e${power}`)),
);
const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 15 });

/** Draw; calls `pointed` with the position of the row under the pointer, or null. */
export function drawn(
  host: HTMLElement,
  drawing: Drawing,
  pointed: (place: number | null) => void,
): Plot {
  const { x, lines, isTime, isScattered } = sorted(drawing);
  const axis = {
    stroke: colour("quiet"),
    grid: { stroke: colour("line"), width: 1 },
    ticks: { stroke: colour("line"), width: 1 },
    font: `12px ${colour("sans")}`,
  };
  const plot = new uPlot(
    {
      width: host.clientWidth,
      height: host.clientHeight,
      ms: 1,
      tzDate: (time) => uPlot.tzDate(new Date(time), "Etc/UTC"),
      legend: { show: false },
      scales: { x: { time: isTime } },
      axes: [isTime ? { ...axis, values: times } : axis, { ...axis, values: numbers, size: wide, incrs: STEPS }],
      cursor: { points: { size: 7 } },
      series: [
        {},
        ...lines.map((line, place) => ({
          label: line.name,
          stroke: colour(COLOURS[place % COLOURS.length] ?? "line-1"),
          width: 1.5,
          points: { show: isScattered || x.length <= POINTS_SHOWN_MAX },
          ...(isScattered ? { paths: () => null } : {}),
        })),
      ],
      hooks: { setCursor: [(self) => pointed(self.cursor.idx ?? null)] },
    },
    [x, ...lines.map((line) => line.values)] as unknown as uPlot.AlignedData,
    host,
  );
  return {
    points: x.length * lines.length,
    resize: (width, height) => plot.setSize({ width, height }),
    destroy: () => plot.destroy(),
  };
}

function times(_: uPlot, splits: number[], __: number, ___: number, step: number): string[] {
  return splits.map((time) => label(time / 1000, step / 1000));
}

/** Numbers along an axis, with as many digits as make neighbours differ. */
function numbers(_: uPlot, splits: number[]): string[] {
  const largest = Math.max(...splits.map(Math.abs));
  if (largest < PLAIN_MAX) return splits.map((value) => NUMBER.format(value));
  const step = Math.abs((splits[1] ?? largest) - (splits[0] ?? 0)) || largest;
  const digits = Math.min(15, Math.max(1, Math.ceil(Math.log10(largest / step))));
  return splits.map((value) => (value ? value.toExponential(digits) : "0"));
}

/** The width of an axis is that of its longest label. */
function wide(plot: uPlot, labels: string[] | null, axis: number, cycle: number): number {
  const held = plot.axes[axis] as unknown as { _size: number; font: [string, ...unknown[]] };
  // Order matters: the first measured width stays, or the library would lay out again without end.
  if (cycle > 1) return held._size;
  const context = plot.ctx;
  const ratio = devicePixelRatio || 1;
  context.save();
  context.font = held.font[0];
  const widths = (labels ?? []).map((text) => context.measureText(text).width / ratio);
  context.restore();
  return Math.max(AXIS_MIN_PX, Math.ceil(Math.max(0, ...widths)) + AXIS_BESIDE_PX);
}

/** Lines are drawn from left to right; rows without an x are not drawn. */
export function sorted(drawing: Drawing): Drawing {
  const { x } = drawing;
  let isSorted = true;
  for (let place = 0; place < x.length && isSorted; place += 1) {
    const before = place ? (x[place - 1] ?? 0) : -Infinity;
    isSorted = (x[place] ?? NaN) >= before;
  }
  if (isSorted) return drawing;
  const order = Uint32Array.from(x.keys()).filter((place) => !Number.isNaN(x[place]));
  order.sort((one, other) => (x[one] ?? 0) - (x[other] ?? 0));
  const taken = (values: ArrayLike<number | null | undefined>) => Float64Array.from(order, (place) => values[place] ?? NaN);
  const lines = drawing.lines.map((line) => ({ ...line, values: taken(line.values) }));
  return { ...drawing, x: taken(x), lines };
}
