// Traces: a search, and one trace as a waterfall.
import { useAsk } from "../ask";
import { clock, count, counted, duration } from "../format";
import { type Params, type Place, addressOf, change, go } from "../route";
import { literal } from "../screen/sql";
import type { Rows } from "../screen/shape";
import { Listing } from "../show/listing";
import { Asked } from "../show/state";
import { Search, Tick, Typed } from "./search";
import { WithData } from "./first";
import { RangePick, type Stretch, useRange, within } from "./stretch";
import { OneTrace } from "./waterfall";

const FOUND_MAX = 100;
const TRACE_ID = /^[0-9a-f]{32}$/i;

interface Trace {
  trace_id: string;
  start: string;
  service: string | null;
  name: string;
  spans: number;
  errors: number;
  ms: number | null;
}

export function TracesScreen({ place }: { place: Place }) {
  const [trace] = place.parts;
  return (
    <WithData signal="traces" tables={["spans"]}>
      {() => (trace === undefined ? <Traces params={place.params} /> : <OneTrace id={trace} />)}
    </WithData>
  );
}

function Traces({ params }: { params: Params }) {
  const range = useRange(params, "spans");
  const sql = range.stretch ? tracesSql(params, range.stretch) : "";
  const ask = useAsk<Rows<Trace>>(sql ? "query" : null, { body: { sql } });
  return (
    <>
      <header class="title">
        <h1>Traces</h1>
        <RangePick range={range} />
      </header>
      <Search label="Search traces" found={found}>
        <Typed label="Name, or a trace id" name="q" value={params["q"]} />
        <Typed label="Service" name="service" value={params["service"]} />
        <Typed label="At least, ms" name="ms" value={params["ms"]} isNumber />
        <Tick label="Errors only" name="errors" isOn={params["errors"] === "1"} />
      </Search>
      <Asked ask={ask}>{(answer) => <Found traces={answer.rows} sql={sql} />}</Asked>
    </>
  );
}

function found(typed: Params): void {
  const id = (typed["q"] ?? "").trim();
  if (TRACE_ID.test(id)) go(addressOf("traces", [id.toLowerCase()]));
  else change(typed);
}

function Found({ traces, sql }: { traces: Trace[]; sql: string }) {
  return (
    <section class="card" aria-labelledby="found">
      <h2 id="found">
        {traces.length === FOUND_MAX ? `The newest ${FOUND_MAX} traces` : counted(traces.length, "trace")}
        <a class="small" href={addressOf("query", [], { sql })}>
          as SQL
        </a>
      </h2>
      {traces.length ? (
        <Listing
          label="Traces"
          rows={traces}
          keyOf={(trace) => trace.trace_id}
          fields={[
            { name: "Start, UTC", show: (trace) => clock(trace.start) },
            { name: "Service", show: (trace) => trace.service ?? "" },
            {
              name: "First span",
              show: (trace) => <a href={addressOf("traces", [trace.trace_id])}>{trace.name || "(no name)"}</a>,
            },
            { name: "Spans", isNumber: true, show: (trace) => count(trace.spans) },
            {
              name: "Errors",
              isNumber: true,
              show: (trace) => (trace.errors ? <em class="badge warm">{count(trace.errors)}</em> : ""),
            },
            { name: "Duration", isNumber: true, show: (trace) => millis(trace.ms) },
          ]}
        />
      ) : (
        <p class="quiet">No trace in this stretch of time matches.</p>
      )}
    </section>
  );
}

/** A length in milliseconds, with microseconds where it is short. */
export function millis(ms: number | null): string {
  if (ms === null) return "";
  return ms < 1 ? `${Math.round(ms * 1000)} µs` : ms < 100 ? `${ms.toFixed(1)} ms` : duration(ms / 1000);
}

/** The newest traces with a span in the stretch that fits the search. */
function tracesSql(params: Params, stretch: Stretch): string {
  const { q, service, ms, errors } = params as Record<string, string | undefined>;
  const conditions = [
    ...(service ? [`bool_or(service_name = ${literal(service)})`] : []),
    ...(q ? [`bool_or(contains(lower(name), lower(${literal(q)})))`] : []),
    ...(Number(ms) > 0 ? [`max(end_ns) - min(ts_ns) >= ${Math.round(Number(ms) * 1e6)}`] : []),
    ...(errors ? ["bool_or(status_code = 'error')"] : []),
  ];
  return [
    "select trace_id, min(ts) as start, arg_min(service_name, ts_ns) as service,",
    "  arg_min(name, ts_ns) as name, count(*) as spans,",
    "  count(*) filter (where status_code = 'error') as errors,",
    "  (max(end_ns) - min(ts_ns)) / 1e6 as ms",
    `from spans\nwhere ${within(stretch)}`,
    "group by trace_id",
    ...(conditions.length ? [`having ${conditions.join("\n  and ")}`] : []),
    `order by start desc\nlimit ${FOUND_MAX}`,
  ].join("\n");
}
