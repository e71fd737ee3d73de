// A grid that creates elements only for visible rows. The arrow keys move the active cell.
import { useMemo, useRef, useState } from "preact/hooks";
import { count } from "../format";
import { addressOf } from "../route";
import { copyText } from "../show/copy";
import type { Rows } from "./arrow";
import { type Scale, scaleOf, useWindow } from "./window";

const ROW_PX = 27;
const HEAD_PX = 46;
const CHARACTER_PX = 7.9;
const PADDING_PX = 26;
const WIDTH_MIN_PX = 76;
const WIDTH_MAX_PX = 420;
const SAMPLE_ROWS = 200;
const TEXT_MAX = 1_000;
const TRACE_COLUMN = "trace_id";
const TRACE_ID = /^[0-9a-f]{32}$/;

export function Grid({ rows }: { rows: Rows }) {
  const box = useRef<HTMLDivElement>(null);
  const [cell, putCell] = useState<[row: number, column: number]>([0, 0]);
  const widths = useMemo(() => widthsOf(rows), [rows]);
  const numberPx = Math.max(44, count(rows.count).length * 7.5 + 20);
  const inside = (box.current?.clientHeight ?? 400) - HEAD_PX;
  const scale = scaleOf(rows.count, ROW_PX, inside);
  const down = useWindow(box, { count: scale.slots, estimateSize: () => ROW_PX, overscan: 12 });
  const across = useWindow(box, {
    count: widths.length,
    estimateSize: (place) => widths[place] ?? WIDTH_MIN_PX,
    overscan: 3,
    horizontal: true,
  });
  const shift = scale.shift(down.scrollOffset ?? 0);
  const columns = across.getVirtualItems();
  const widthPx = numberPx + across.getTotalSize();

  const move = (row: number, column: number) => {
    const next: [number, number] = [
      Math.min(Math.max(row, 0), rows.count - 1),
      Math.min(Math.max(column, 0), widths.length - 1),
    ];
    putCell(next);
    if (box.current) bringIntoSight(box.current, next[0], scale, inside / ROW_PX);
    across.scrollToIndex(next[1], { align: "auto" });
  };
  const pressed = (event: KeyboardEvent) => {
    const [row, column] = cell;
    const page = Math.max(1, Math.floor(inside / ROW_PX) - 1);
    const isFar = event.ctrlKey || event.metaKey;
    if (isFar && event.key === "c" && !getSelection()?.toString()) {
      void copyText(rows.text(column, row) ?? "");
      return;
    }
    const moves: Record<string, [number, number]> = {
      ArrowDown: [row + 1, column],
      ArrowUp: [row - 1, column],
      ArrowRight: [row, column + 1],
      ArrowLeft: [row, column - 1],
      PageDown: [row + page, column],
      PageUp: [row - page, column],
      Home: [isFar ? 0 : row, 0],
      End: [isFar ? rows.count - 1 : row, widths.length - 1],
    };
    const to = moves[event.key];
    if (!to) return;
    event.preventDefault();
    move(...to);
  };
  const style = { width: `${widthPx}px` };
  return (
    <div
      class="grid"
      ref={box}
      role="grid"
      tabIndex={0}
      aria-label="Result"
      aria-rowcount={rows.count + 1}
      aria-colcount={widths.length + 1}
      aria-activedescendant={rows.count ? `cell-${cell[0]}-${cell[1]}` : undefined}
      onKeyDown={pressed}
    >
      <div class="head" role="row" aria-rowindex={1} style={style}>
        <span role="columnheader" class="rownumber" style={{ width: `${numberPx}px` }}>
          <span class="offscreen">Row</span>
        </span>
        {columns.map(({ index, start, size }) => (
          <span
            key={index}
            role="columnheader"
            aria-colindex={index + 2}
            class={rows.isNumeric(index) ? "number" : ""}
            style={{ left: `${numberPx + start}px`, width: `${size}px` }}
          >
            <b title={rows.names[index]}>{rows.names[index]}</b>
            <i>{rows.types[index]}</i>
          </span>
        ))}
      </div>
      <div role="rowgroup" class="body" style={{ ...style, height: `${down.getTotalSize()}px` }}>
        {down.getVirtualItems().map(({ index: slot, start: top }) => {
          const row = slot + shift;
          if (row >= rows.count) return null;
          return (
            <div
              key={slot}
              role="row"
              aria-rowindex={row + 2}
              class={row % 2 ? "odd" : ""}
              style={{ transform: `translateY(${top}px)`, width: `${widthPx}px` }}
            >
              <span role="rowheader" class="rownumber" style={{ width: `${numberPx}px` }}>
                {count(row + 1)}
              </span>
              {columns.map(({ index, start, size }) => (
                <Cell
                  key={index}
                  id={`cell-${row}-${index}`}
                  text={rows.text(index, row)}
                  isNumber={rows.isNumeric(index)}
                  isTrace={rows.names[index] === TRACE_COLUMN && TRACE_ID.test(rows.text(index, row) ?? "")}
                  isActive={row === cell[0] && index === cell[1]}
                  column={index + 2}
                  left={numberPx + start}
                  width={size}
                  pick={() => putCell([row, index])}
                />
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}

interface CellAsked {
  id: string;
  text: string | null;
  isNumber: boolean;
  /** The text is the id of a trace: a link leads to it. */
  isTrace: boolean;
  isActive: boolean;
  column: number;
  left: number;
  width: number;
  pick: () => void;
}

function Cell({ id, text, isNumber, isTrace, isActive, column, left, width, pick }: CellAsked) {
  const kinds = [isNumber && "number", isActive && "active", text === null && "null"];
  return (
    <span
      id={id}
      role="gridcell"
      aria-colindex={column}
      aria-selected={isActive}
      class={kinds.filter(Boolean).join(" ")}
      style={{ left: `${left}px`, width: `${width}px` }}
      title={text !== null && text.length * CHARACTER_PX > width ? text.slice(0, TEXT_MAX) : ""}
      onMouseDown={pick}
    >
      {text === null ? "null" : isTrace ? <a href={addressOf("traces", [text])}>{text}</a> : text.slice(0, TEXT_MAX)}
    </span>
  );
}

/** Scroll as little as possible to show a row, if this many rows are visible at once. */
function bringIntoSight(box: HTMLElement, row: number, scale: Scale, inSight: number): void {
  const first = scale.rowAt(box.scrollTop);
  if (row < first) box.scrollTop = scale.offsetOf(row);
  else if (row + 1 > first + inSight) box.scrollTop = scale.offsetOf(row + 1 - inSight);
}

function widthsOf(rows: Rows): number[] {
  const sampled = Math.min(rows.count, SAMPLE_ROWS);
  return rows.names.map((name, column) => {
    let longest = Math.max(name.length + 1, (rows.types[column]?.length ?? 0) * 0.85);
    for (let row = 0; row < sampled; row += 1) {
      longest = Math.max(longest, rows.text(column, row)?.length ?? 4);
    }
    const width = longest * CHARACTER_PX + PADDING_PX;
    return Math.round(Math.min(WIDTH_MAX_PX, Math.max(WIDTH_MIN_PX, width)));
  });
}
