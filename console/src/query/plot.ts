// Lines on a canvas. Nothing here makes text into markup: the legend is not the library's.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { label } from "../axis";
import { colour } from "../theme";

export interface Line {
  name: string;
  values: Float64Array;
}

export interface Drawing {
  x: Float64Array;
  isTime: boolean;
  lines: Line[];
}

export interface Plot {
  points: number;
  resize(width: number, height: number): void;
  destroy(): void;
}

export const COLOURS = ["line-1", "line-2", "line-3", "line-4", "line-5", "line-6"];
const POINTS_SHOWN_MAX = 200;

/** Draw; `pointed` is called with the place of the row under the pointer, or null. */
export function drawn(
  host: HTMLElement,
  drawing: Drawing,
  pointed: (place: number | null) => void,
): Plot {
  const { x, lines, isTime } = sorted(drawing);
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
      axes: [isTime ? { ...axis, values: times } : axis, { ...axis, size: 64 }],
      cursor: { points: { size: 7 } },
      series: [
        {},
        ...lines.map((line, place) => ({
          label: line.name,
          stroke: colour(COLOURS[place % COLOURS.length] ?? "line-1"),
          width: 1.5,
          points: { show: x.length <= POINTS_SHOWN_MAX },
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

/** Lines are drawn from left to right; rows that have no x are not drawn. */
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
  const taken = (values: Float64Array) => Float64Array.from(order, (place) => values[place] ?? NaN);
  const lines = drawing.lines.map((line) => ({ ...line, values: taken(line.values) }));
  return { ...drawing, x: taken(x), lines };
}
