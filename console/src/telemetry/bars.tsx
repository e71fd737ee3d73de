// Counts over time as stacked bars, one colour for each kind.
import { axisTicks } from "../axis";
import { count, counted } from "../format";
import type { Stretch } from "./stretch";

export interface Bar {
  /** The start of the bar in seconds since 1970. */
  at: number;
  kind: string;
  n: number;
}

interface BarsAsked {
  of: Bar[];
  /** From the bottom to the top. */
  kinds: string[];
  stretch: Stretch;
  step_s: number;
  noun: string;
}

const HEIGHT = 100;
const SPACE = 0.12; // of a bar's width

export function Bars({ of, kinds, stretch, step_s, noun }: BarsAsked) {
  const [start, end] = [Math.floor(stretch.start / 1000 / step_s) * step_s, stretch.end / 1000];
  const width = (end - start) / step_s;
  const totals = new Map<number, number>();
  for (const bar of of) totals.set(bar.at, (totals.get(bar.at) ?? 0) + bar.n);
  const most = Math.max(...totals.values(), 1);
  const all = [...totals.values()].reduce((sum, n) => sum + n, 0);
  const bottoms = new Map<number, number>();
  const rectangles = kinds.flatMap((kind) =>
    of
      .filter((bar) => bar.kind === kind)
      .map((bar) => {
        const below = bottoms.get(bar.at) ?? 0;
        bottoms.set(bar.at, below + bar.n);
        const height = (HEIGHT * bar.n) / most;
        const y = HEIGHT - (HEIGHT * below) / most - height;
        return { kind, x: (bar.at - start) / step_s, y, height, title: titleOf(bar, noun) };
      }),
  );
  return (
    <figure class="bars">
      <figcaption class="small">
        {counted(all, noun)}; at most {count(most)} in a bar
        {kinds.map((kind) => (
          <span key={kind} class="key">
            <span class={`swatch kind-${kind}`} aria-hidden="true" /> {kind}
          </span>
        ))}
      </figcaption>
      <svg viewBox={`0 0 ${width} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${counted(all, noun)} over time`}>
        {rectangles.map(({ kind, x, y, height, title }) => (
          <rect key={`${kind} ${x}`} class={`kind-${kind}`} x={x + SPACE / 2} y={y} width={1 - SPACE} height={height}>
            <title>{title}</title>
          </rect>
        ))}
      </svg>
      <p class="ticks small quiet" aria-hidden="true">
        {axisTicks(start, end).map((tick) => (
          <span key={tick.time} style={{ left: `${(100 * (tick.time - start)) / (end - start)}%` }}>
            {tick.label}
          </span>
        ))}
      </p>
    </figure>
  );
}

function titleOf(bar: Bar, noun: string): string {
  return `${new Date(bar.at * 1000).toISOString().slice(0, 19)}: ${counted(bar.n, noun)} (${bar.kind})`;
}
