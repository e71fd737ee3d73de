// Logs: a search, how many there are over time by severity, and the newest lines.
import { useState } from "preact/hooks";
import { useAsk } from "../ask";
import { clock, counted } from "../format";
import { type Params, type Place, addressOf, change } from "../route";
import { literal } from "../screen/sql";
import type { Rows } from "../screen/shape";
import { Pick } from "../show/listing";
import { Asked } from "../show/state";
import { Attributes } from "./attributes";
import { Bars, type Bar } from "./bars";
import { WithData } from "./first";
import { Search, Typed } from "./search";
import { RangePick, type Stretch, stepOf, useRange, within } from "./stretch";

const LINES_MAX = 200;
const BARS_MAX = 60;
const FOLLOW_MS = 3_000;
const AROUND_MS = 60_000;
const LEVELS: Record<string, number> = { any: 0, info: 9, warn: 13, error: 17 };
const MILLISECONDS = "2026-01-01 00:00:00.000".length;
const KINDS = ["error", "warn", "info", "other"];

interface LogLine {
  ts: string;
  severity_text: string | null;
  severity_number: number | null;
  service_name: string | null;
  body: string | null;
  trace_id: string | null;
  attributes: string | null;
  resource: string | null;
}

export function LogsScreen({ place }: { place: Place }) {
  return (
    <WithData signal="logs" tables={["logs"]}>
      {() => <Logs params={place.params} />}
    </WithData>
  );
}

function Logs({ params }: { params: Params }) {
  const range = useRange(params, "logs");
  const around = Date.parse(params["around"] ?? "");
  const stretch = Number.isNaN(around)
    ? range.stretch
    : { start: around - AROUND_MS, end: around + AROUND_MS };
  const isFollowing = params["follow"] === "1";
  const level = params["level"] && params["level"] in LEVELS ? params["level"] : "any";
  const where = stretch ? whereOf(params, stretch, LEVELS[level] ?? 0, isFollowing) : "";
  const sql = [
    "select ts, severity_text, severity_number, service_name, body, trace_id, attributes, resource",
    `from logs\n${where}\norder by ts desc, ts_ns desc\nlimit ${LINES_MAX}`,
  ].join("\n");
  const ask = useAsk<Rows<LogLine>>(where ? "query" : null, { body: { sql } }, isFollowing ? FOLLOW_MS : 0);
  return (
    <>
      <header class="title">
        <h1>Logs</h1>
        {Number.isNaN(around) ? (
          <RangePick range={range} />
        ) : (
          <button type="button" onClick={() => change({ around: "" })}>
            Leave the minute around {clock(params["around"] ?? "").slice(11, 19)}
          </button>
        )}
        <button type="button" aria-pressed={isFollowing} onClick={() => change({ follow: isFollowing ? "" : "1" })}>
          {isFollowing ? "Stop following" : "Follow"}
        </button>
      </header>
      <Search label="Search logs" found={(typed) => change(typed)}>
        <Typed label="Whole words, in any case" name="q" value={params["q"]} />
        <Typed label="Service" name="service" value={params["service"]} />
        <Typed label="Trace id" name="trace" value={params["trace"]} />
        <Pick label="At least" of={Object.keys(LEVELS)} chosen={level} choose={(one) => change({ level: one })} />
      </Search>
      <div class="stack">
        {stretch && <Histogram where={where} stretch={stretch} />}
        <Asked ask={ask}>{(answer) => <Lines of={answer.rows} sql={sql} />}</Asked>
      </div>
    </>
  );
}

function Histogram({ where, stretch }: { where: string; stretch: Stretch }) {
  const step_s = stepOf(stretch, BARS_MAX);
  const sql = [
    `select epoch(time_bucket(interval '${step_s} seconds', ts)) as at,`,
    "  case when severity_number >= 17 then 'error' when severity_number >= 13 then 'warn'",
    "    when severity_number >= 9 then 'info' else 'other' end as kind,",
    `  count(*) as n\nfrom logs\n${where}\ngroup by all`,
  ].join("\n");
  const ask = useAsk<Rows<Bar>>("query", { body: { sql } });
  return (
    <section class="card" aria-label="Lines over time">
      <Asked ask={ask} of="the node for the counts">
        {(answer) => <Bars of={answer.rows} kinds={KINDS} stretch={stretch} step_s={step_s} noun="line" />}
      </Asked>
    </section>
  );
}

function Lines({ of, sql }: { of: LogLine[]; sql: string }) {
  const [opened, open] = useState<number | null>(null);
  return (
    <section class="card" aria-labelledby="lines">
      <h2 id="lines">
        {of.length === LINES_MAX ? `The newest ${LINES_MAX} lines` : counted(of.length, "line")}
        <a class="small" href={addressOf("query", [], { sql })}>
          as SQL
        </a>
      </h2>
      {of.length ? (
        <ol class="loglines">
          {of.map((line, place) => (
            <li key={place}>
              <button
                type="button"
                class="line"
                aria-expanded={opened === place}
                onClick={() => open(opened === place ? null : place)}
              >
                <time>{clock(line.ts).slice(0, MILLISECONDS)}</time>
                <Level of={line} />
                <span class="quiet">{line.service_name ?? ""}</span>
                <span class="body">{line.body ?? ""}</span>
              </button>
              {opened === place && <About of={line} />}
            </li>
          ))}
        </ol>
      ) : (
        <p class="quiet">No line in this stretch of time matches.</p>
      )}
    </section>
  );
}

function Level({ of }: { of: LogLine }) {
  const kind = (of.severity_number ?? 0) >= 13 ? "warm" : "cold";
  return <em class={`badge ${kind}`}>{of.severity_text || severityName(of.severity_number)}</em>;
}

/** The name that OpenTelemetry gives to a number of severity. */
function severityName(severity: number | null): string {
  if (!severity) return "unset";
  const names = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"];
  return names[Math.floor((severity - 1) / 4)] ?? String(severity);
}

function About({ of }: { of: LogLine }) {
  return (
    <div class="about">
      <p class="row small">
        <a href={addressOf("logs", [], { around: of.ts })}>All lines of the minute before and after</a>
        {of.trace_id && <a href={addressOf("traces", [of.trace_id])}>Its trace</a>}
      </p>
      <Attributes title="Attributes" json={of.attributes} />
      <Attributes title="Resource" json={of.resource} />
    </div>
  );
}

/** Followed lines may be newer than the moment at which the stretch was chosen. */
function whereOf(params: Params, stretch: Stretch, severity: number, isFollowing: boolean): string {
  const { q, service, trace } = params as Record<string, string | undefined>;
  const conditions = [
    isFollowing ? `ts >= ${literal(new Date(stretch.start).toISOString())}` : within(stretch),
    ...(q ? [`has_phrase(body, ${literal(q)})`] : []),
    ...(service ? [`service_name = ${literal(service)}`] : []),
    ...(trace ? [`trace_id = unhex(${literal(trace)})`] : []),
    ...(severity ? [`severity_number >= ${severity}`] : []),
  ];
  return `where ${conditions.join("\n  and ")}`;
}
