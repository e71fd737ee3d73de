// The spans of a trace in the order of a waterfall: each below its parent, by start.

export interface Span {
  span_id: string;
  parent_span_id: string | null;
  service_name: string | null;
  name: string;
  kind: string | null;
  status_code: string | null;
  status_message: string | null;
  /** Since the first span of the trace began. */
  start_ms: number;
  ms: number | null;
  ts: string;
  attributes: string | null;
  resource: string | null;
  events: { name: string; attributes: string | null }[] | null;
}

export interface PlacedSpan {
  span: Span;
  depth: number;
}

/**
 * Place each span once. A span whose parent has not arrived is placed like a root, and so is one
 * whose ancestors form a ring.
 */
export function placedSpans(spans: Span[]): PlacedSpan[] {
  const ids = new Set(spans.map((span) => span.span_id));
  const below = new Map<string, Span[]>();
  const roots: Span[] = [];
  for (const span of [...spans].sort((one, other) => one.start_ms - other.start_ms)) {
    const parent = span.parent_span_id;
    if (!parent || !ids.has(parent) || parent === span.span_id) roots.push(span);
    else below.set(parent, [...(below.get(parent) ?? []), span]);
  }
  const placed: PlacedSpan[] = [];
  const seen = new Set<Span>();
  const place = (first: Span) => {
    const waiting: PlacedSpan[] = [{ span: first, depth: 0 }];
    for (let next = waiting.pop(); next; next = waiting.pop()) {
      if (seen.has(next.span)) continue;
      seen.add(next.span);
      placed.push(next);
      const children = below.get(next.span.span_id) ?? [];
      for (const span of children.toReversed()) waiting.push({ span, depth: next.depth + 1 });
    }
  };
  roots.forEach(place);
  spans.filter((span) => !seen.has(span)).forEach(place);
  return placed;
}

export function lengthOf(spans: Span[]): number {
  return Math.max(...spans.map((span) => span.start_ms + (span.ms ?? 0)), Number.MIN_VALUE);
}
