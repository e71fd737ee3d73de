// Which rows and columns of a grid are visible. A browser limits an element to some millions of
// pixels, so above `SLOTS_MAX` rows the scroll bar covers fractions of the rows: a slot is a place
// on the screen, and the scroll position decides which row it shows.
import {
  Virtualizer,
  type VirtualizerOptions,
  elementScroll,
  observeElementOffset,
  observeElementRect,
} from "@tanstack/virtual-core";
import { useLayoutEffect, useState } from "preact/hooks";

export const SLOTS_MAX = 400_000;

type Wishes = Pick<
  VirtualizerOptions<HTMLElement, HTMLElement>,
  "count" | "estimateSize" | "overscan" | "horizontal" | "scrollPaddingStart"
>;

/** A virtualizer that redraws the component that uses it. */
export function useWindow(
  element: { current: HTMLElement | null },
  wishes: Wishes,
): Virtualizer<HTMLElement, HTMLElement> {
  const [, redraw] = useState(0);
  const options: VirtualizerOptions<HTMLElement, HTMLElement> = {
    ...wishes,
    getScrollElement: () => element.current,
    observeElementRect,
    observeElementOffset,
    scrollToFn: elementScroll,
    onChange: () => redraw((turn) => turn + 1),
  };
  const [virtualizer] = useState(() => new Virtualizer(options));
  virtualizer.setOptions(options);
  useLayoutEffect(() => virtualizer._didMount(), []);
  useLayoutEffect(() => virtualizer._willUpdate());
  return virtualizer;
}

export interface Scale {
  slots: number;
  /** How many rows precede the row in the first slot at a scroll position. */
  shift(offset: number): number;
  /** The first visible row at a scroll position; may be a fraction of a row. */
  rowAt(offset: number): number;
  /** The scroll position at which a row is the first visible one. */
  offsetOf(row: number): number;
}

export function scaleOf(rows: number, rowPx: number, heightPx: number): Scale {
  const slots = Math.min(rows, SLOTS_MAX);
  const furthest = Math.max(1, slots * rowPx - heightPx);
  const hidden = rows - slots;
  const perPx = 1 / rowPx + hidden / furthest;
  return {
    slots,
    shift: (offset) => Math.round((hidden * Math.min(Math.max(offset, 0), furthest)) / furthest),
    rowAt: (offset) => Math.min(Math.max(offset, 0), furthest) * perPx,
    offsetOf: (row) => Math.min(furthest, Math.max(0, row / perPx)),
  };
}
