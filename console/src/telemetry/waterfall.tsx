// One trace: its spans as bars along the time, and what each says.
import { useMemo, useState } from "preact/hooks";
import { useAsk } from "../ask";
import { clock, counted } from "../format";
import { addressOf } from "../route";
import { literal } from "../screen/sql";
import type { Rows } from "../screen/shape";
import { Asked, Empty } from "../show/state";
import { Attributes } from "./attributes";
import { millis } from "./traces";
import { type PlacedSpan, type Span, lengthOf, placedSpans } from "./tree";

const SPANS_MAX = 2_000;
const COLOURS_MAX = 6;
const INDENT_PX = 14;
const INDENT_MAX = 12;

export function OneTrace({ id }: { id: string }) {
  const sql = traceSql(id);
  const ask = useAsk<Rows<Span>>("query", { body: { sql } });
  return (
    <>
      <header class="title">
        <p class="crumb">
          <a href="#/traces">Traces</a>
        </p>
        <h1 class="mono">{id}</h1>
        <nav class="also" aria-label="More about this trace">
          <a href={addressOf("logs", [], { trace: id, range: "all" })}>Logs</a>
          <a href={addressOf("query", [], { sql })}>as SQL</a>
        </nav>
      </header>
      <Asked ask={ask}>
        {(answer) =>
          answer.rows.length ? (
            <Waterfall spans={answer.rows} />
          ) : (
            <Empty title="No span of this trace is here">
              <p>It may not have arrived yet, or its time is past the retention.</p>
            </Empty>
          )
        }
      </Asked>
    </>
  );
}

function Waterfall({ spans }: { spans: Span[] }) {
  const placed = useMemo(() => placedSpans(spans), [spans]);
  const length = lengthOf(spans);
  const services = [...new Set(placed.map(({ span }) => span.service_name ?? ""))];
  const [opened, open] = useState<string | null>(null);
  const errors = spans.filter((span) => span.status_code === "error").length;
  return (
    <section class="card" aria-labelledby="spans">
      <h2 id="spans">
        {counted(spans.length, "span")} in {millis(length)}
        <span class="quiet small">
          {clock(placed[0]?.span.ts ?? "")} UTC
          {errors ? `; ${counted(errors, "error")}` : ""}
          {spans.length === SPANS_MAX ? `; only the first ${SPANS_MAX} are shown` : ""}
        </span>
      </h2>
      <p class="legend small">
        {services.map((service, place) => (
          <span key={service}>
            <span class={`swatch ${colourOf(place)}`} aria-hidden="true" /> {service || "(no service)"}
          </span>
        ))}
      </p>
      <ol class="waterfall">
        {placed.map((one) => (
          <Bar
            key={one.span.span_id}
            of={one}
            length={length}
            colour={colourOf(services.indexOf(one.span.service_name ?? ""))}
            isOpen={opened === one.span.span_id}
            toggle={() => open(opened === one.span.span_id ? null : one.span.span_id)}
          />
        ))}
      </ol>
    </section>
  );
}

interface BarAsked {
  of: PlacedSpan;
  length: number;
  colour: string;
  isOpen: boolean;
  toggle: () => void;
}

function Bar({ of: { span, depth }, length, colour, isOpen, toggle }: BarAsked) {
  const left = (100 * span.start_ms) / length;
  const width = Math.max((100 * (span.ms ?? 0)) / length, 0.2);
  const isFailed = span.status_code === "error";
  return (
    <li>
      <button type="button" class="span" aria-expanded={isOpen} onClick={toggle}>
        <span class="who" style={{ paddingLeft: `${INDENT_PX * Math.min(depth, INDENT_MAX)}px` }}>
          {isFailed && <em class="badge warm">error</em>} {span.name || "(no name)"}
        </span>
        <span class="lane" aria-hidden="true">
          <span class={`extent ${colour}`} style={{ left: `${Math.min(left, 99.8)}%`, width: `${width}%` }} />
        </span>
        <span class="number">{millis(span.ms)}</span>
      </button>
      {isOpen && <About of={span} />}
    </li>
  );
}

function About({ of }: { of: Span }) {
  return (
    <div class="about">
      <p class="small">
        {of.service_name ?? "no service"} · {of.kind ?? "no kind"} · starts after {millis(of.start_ms)} · span{" "}
        <code>{of.span_id}</code>
        {of.status_code && of.status_code !== "unset" && (
          <>
            {" "}
            · status {of.status_code} {of.status_message ?? ""}
          </>
        )}
      </p>
      <Attributes title="Attributes" json={of.attributes} />
      {(of.events ?? []).map((event, place) => (
        <Attributes key={place} title={`Event ${event.name}`} json={event.attributes} />
      ))}
      <Attributes title="Resource" json={of.resource} />
    </div>
  );
}

function colourOf(place: number): string {
  return `line-${(place % COLOURS_MAX) + 1}`;
}

function traceSql(id: string): string {
  return [
    "select span_id, parent_span_id, service_name, name, kind, status_code, status_message,",
    "  (ts_ns - min(ts_ns) over ()) / 1e6 as start_ms, (end_ns - ts_ns) / 1e6 as ms,",
    "  ts, attributes, resource, events",
    `from spans\nwhere trace_id = unhex(${literal(id)})`,
    `order by ts_ns\nlimit ${SPANS_MAX}`,
  ].join("\n");
}
