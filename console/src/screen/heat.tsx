// The picture of coverage: a lane for each entity, a block for each stretch of buckets. A block is
// filled from below: first the flushed share, then the hot share; the missing share stays empty.
import { useEffect, useRef, useState } from "preact/hooks";
import { clock, count, counted, instantOf, seconds } from "../format";
import { colour, onTheme } from "../theme";
import { axisTicks } from "../axis";
import type { Blocks } from "./shape";

export const LANE_PX = 24;
const GAP_PX = 3;
const DRAG_MIN_PX = 6;

export interface Cursor {
  lane: number;
  block: number;
}

interface HeatAsked {
  of: Blocks;
  pick: (cursor: Cursor) => void;
  zoom: (start: string, end: string) => void;
  closer: (factor: number) => void;
}

export function Heat({ of, pick, zoom, closer }: HeatAsked) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [held, putHeld] = useState<{ of: Blocks; cursor: Cursor } | null>(null);
  // After a zoom the same block is another time, so the cursor belongs to one picture.
  const cursor = held?.of === of ? held.cursor : null;
  const put = (to: Cursor | null) => putHeld(to && { of, cursor: to });
  const [drag, putDrag] = useState<[from: number, to: number] | null>(null);
  useEffect(() => {
    const draw = () => canvas.current && drawBlocks(canvas.current, of, cursor);
    draw();
    const size = new ResizeObserver(draw);
    if (canvas.current) size.observe(canvas.current);
    const stop = onTheme(draw);
    return () => (stop(), size.disconnect());
  }, [of, cursor]);

  const at = (event: PointerEvent): Cursor => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const block = Math.floor(((event.clientX - box.left) / box.width) * of.blocks);
    return bounded({ lane: Math.floor((event.clientY - box.top) / LANE_PX), block }, of);
  };
  const pressed = (event: KeyboardEvent) => {
    const { lane, block } = cursor ?? { lane: 0, block: 0 };
    const moves: Record<string, Cursor> = {
      ArrowDown: { lane: lane + 1, block },
      ArrowUp: { lane: lane - 1, block },
      ArrowRight: { lane, block: block + 1 },
      ArrowLeft: { lane, block: block - 1 },
      Home: { lane, block: 0 },
      End: { lane, block: of.blocks - 1 },
    };
    const to = moves[event.key];
    if (to) put(bounded(to, of));
    else if (event.key === "Enter" && cursor) pick(cursor);
    else if (event.key === "+") closer(0.5);
    else if (event.key === "-") closer(2);
    else return;
    event.preventDefault();
  };
  const lifted = (event: PointerEvent) => {
    const [from, to] = drag ?? [event.clientX, event.clientX];
    putDrag(null);
    if (Math.abs(from - to) < DRAG_MIN_PX) {
      pick(at(event));
      return;
    }
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const edges = [from, to].map((x) => Math.round(((x - box.left) / box.width) * of.blocks));
    zoom(edge(of, Math.min(...edges)), edge(of, Math.max(...edges)));
  };
  return (
    <div class="heat">
      <ol class="lanes" aria-hidden="true">
        {of.lanes.map((lane, place) => (
          <li key={place} title={laneName(lane.entity)}>
            {laneName(lane.entity)}
          </li>
        ))}
      </ol>
      <div
        class="blocks"
        tabIndex={0}
        role="application"
        aria-label={
          "Coverage picture. Arrow keys move over the blocks, Enter lists what is missing, " +
          "plus and minus change the stretch. The view Table shows the same numbers."
        }
        style={{ height: `${of.lanes.length * LANE_PX}px` }}
        onKeyDown={pressed}
        onPointerDown={(event) => {
          (event.currentTarget as HTMLElement).setPointerCapture(event.pointerId);
          putDrag([event.clientX, event.clientX]);
        }}
        onPointerMove={(event) => {
          put(at(event));
          if (drag) putDrag([drag[0], event.clientX]);
        }}
        onPointerUp={lifted}
        onPointerLeave={() => drag || put(null)}
      >
        <canvas ref={canvas} />
        {drag && <Selection drag={drag} canvas={canvas.current} />}
      </div>
      <Axis of={of} />
      <p class="reading number" role="status">
        {cursor ? describe(of, cursor) : "Drag across the blocks to zoom in. Select a block to list its gaps."}
      </p>
    </div>
  );
}

function Selection({ drag, canvas }: { drag: [number, number]; canvas: HTMLElement | null }) {
  const left = canvas?.getBoundingClientRect().left ?? 0;
  const from = Math.min(...drag) - left;
  return (
    <span
      class="selection"
      style={{ left: `${from}px`, width: `${Math.abs(drag[1] - drag[0])}px` }}
    />
  );
}

function Axis({ of }: { of: Blocks }) {
  if (!of.start || !of.end) return null;
  const start = seconds(of.start);
  const span = seconds(of.end) - start;
  return (
    <div class="axis" aria-hidden="true">
      {axisTicks(start, start + span).map(({ time, label }) => (
        <span key={time} style={{ left: `${((time - start) / span) * 100}%` }}>
          {label}
        </span>
      ))}
    </div>
  );
}

function bounded({ lane, block }: Cursor, of: Blocks): Cursor {
  return {
    lane: Math.min(Math.max(lane, 0), of.lanes.length - 1),
    block: Math.min(Math.max(block, 0), of.blocks - 1),
  };
}

/** The bucket that a block begins with, counted from the start of the stretch. */
export function firstBucket(of: Blocks, block: number): number {
  return Math.floor((block * of.buckets) / of.blocks);
}

/** The instant that a block begins at. */
export function edge(of: Blocks, block: number): string {
  return instantOf(seconds(of.start ?? "") + firstBucket(of, block) * of.bucket_s);
}

export function laneName(entity: Record<string, unknown>): string {
  const values = Object.values(entity).map((value) => (value === null ? "null" : String(value)));
  return values.length ? values.join(" · ") : "all rows";
}

function describe(of: Blocks, { lane, block }: Cursor): string {
  const found = of.lanes[lane];
  if (!found) return "";
  const total = firstBucket(of, block + 1) - firstBucket(of, block);
  const held = found.held[block] ?? 0;
  const hot = found.unflushed[block] ?? 0;
  const parts = [
    total > held ? `${counted(total - held, "bucket")} missing` : "",
    held ? `${counted(held, "bucket")} held` : "",
    hot ? `${count(hot)} of them not flushed yet` : "",
  ];
  const when = `${clock(edge(of, block))} to ${clock(edge(of, block + 1))} UTC`;
  return `${laneName(found.entity)}, ${when}: ${parts.filter(Boolean).join(", ")}`;
}

function drawBlocks(canvas: HTMLCanvasElement, of: Blocks, cursor: Cursor | null): void {
  const width = canvas.clientWidth;
  const height = of.lanes.length * LANE_PX;
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  if (!context) return;
  context.scale(ratio, ratio);
  const paint = { cold: colour("cold-fill"), hot: colour("hot-fill"), missing: colour("missing") };
  const full = LANE_PX - GAP_PX;
  for (const [row, lane] of of.lanes.entries()) {
    const top = row * LANE_PX;
    for (let block = 0; block < of.blocks; block += 1) {
      const left = Math.round((block * width) / of.blocks);
      const wide = Math.round(((block + 1) * width) / of.blocks) - left;
      const gap = wide > 4 ? 1 : 0;
      const total = firstBucket(of, block + 1) - firstBucket(of, block);
      const hot = lane.unflushed[block] ?? 0;
      const held = lane.held[block] ?? 0;
      const level = levelOf(held, total, full);
      const warm = held === hot ? level : Math.round((level * hot) / (held || 1));
      context.fillStyle = paint.missing;
      context.fillRect(left, top, wide - gap, full);
      context.fillStyle = paint.cold;
      context.fillRect(left, top + full - level, wide - gap, level);
      context.fillStyle = paint.hot;
      context.fillRect(left, top + full - level, wide - gap, hot ? Math.max(3, warm) : 0);
    }
  }
  if (cursor) {
    const left = Math.round((cursor.block * width) / of.blocks);
    const wide = Math.round(((cursor.block + 1) * width) / of.blocks) - left;
    context.strokeStyle = colour("ink");
    context.lineWidth = 2;
    context.strokeRect(left + 0.5, cursor.lane * LANE_PX + 1, Math.max(3, wide - 1), full - 2);
  }
}

/** A block looks full only if no bucket is missing, and empty only if all are. */
export function levelOf(held: number, total: number, full: number): number {
  if (held === 0) return 0;
  if (held >= total) return full;
  return Math.min(full - 5, Math.max(4, Math.round((held / total) * full)));
}
