// Which rows and columns of a grid are in sight. A browser makes no element taller than some
// millions of pixels, so past `SLOTS_MAX` rows the scroll bar stands for shares of the rows: a slot
// is a place on the screen, and which row it shows depends on how far the grid is scrolled.
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
  /** How many rows come before the one in the first slot, scrolled this far. */
  shift(offset: number): number;
  /** The row that is the first in sight, scrolled this far; a share of a row counts. */
  rowAt(offset: number): number;
  /** How far to scroll so that a row is the first in sight. */
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
