// The screen Query: the editor, its buttons, and the answer.
import { lazy } from "./lazy";
import { useEffect, useRef, useState } from "preact/hooks";
import { problemOf } from "../api";
import { useAsk } from "../ask";
import { count, duration, size } from "../format";
import { useKey } from "../key";
import { type Place, change, here } from "../route";
import { Copy } from "../show/copy";
import { Tabs } from "../show/listing";
import { Empty, Failed, sentence } from "../show/state";
import { FORMATS, type DownloadFormat, download } from "./download";
import type { Editor, Words } from "./editor";
import { PastList } from "./pastlist";
import { lineOf, placeOfByte } from "./place";
import { Report } from "./report";
import { type Outcome, ROWS_FIRST, type RunState, cancel, lastSql, run, runState, useRun } from "./run";

const Grid = lazy(() => import("./grid").then((found) => found.Grid));
const Chart = lazy(() => import("./chart").then((found) => found.Chart));
const FIRST_SQL = "select *\nfrom ";
const TYPED_MS = 300;
const ADDRESS_CHARACTERS_MAX = 50_000;

export function QueryScreen({ place }: { place: Place }) {
  const state = useRun();
  const key = useKey();
  const words = useAsk<Words>("words");
  const editor = useRef<Editor | null>(null);
  const known = useRef<Words | undefined>(undefined); // the editor may load after the words
  known.current = words.value;
  const [isPastOpen, putPastOpen] = useState(false);
  const sql = place.params["sql"] ?? "";
  const isWhole = place.params["rows"] === "all";
  const start = () => {
    const text = editor.current?.text() ?? here().params["sql"] ?? "";
    if (!text.trim()) return;
    typed(text);
    void run(text, here().params["rows"] === "all");
  };
  useEffect(() => {
    // A shared link and a reloaded page also run their query.
    if (sql.trim() && lastSql() !== sql) void run(sql, isWhole);
  }, []);
  useEffect(() => {
    const state = runState();
    const status = state.kind === "failed" ? state.problem.status : 0;
    if (status === 401 || status === 403) start(); // the user may have entered the missing key
  }, [key]);
  useEffect(() => {
    if (words.value) editor.current?.words(words.value);
  }, [words.value]);
  useEffect(() => marked(editor.current, state), [state]);
  const isRunning = state.kind === "running";
  return (
    <div class="query">
      <h1 class="offscreen">Query</h1>
      <section class="card editorcard" aria-label="Editor">
        <EditorHost
          text={sql || FIRST_SQL}
          start={start}
          ready={(made) => {
            editor.current = made;
            if (known.current) made.words(known.current);
            marked(made, runState());
          }}
        />
        <div class="tools">
          {isRunning ? (
            <button type="button" class="warm" onClick={() => void cancel()}>
              Cancel
            </button>
          ) : (
            <button type="button" class="primary" onClick={start}>
              Run <kbd>Ctrl ↵</kbd>
            </button>
          )}
          <label class="pick">
            <span class="offscreen">How many rows</span>
            <select
              value={isWhole ? "all" : "first"}
              onChange={(event) =>
                change({ rows: event.currentTarget.value === "all" ? "all" : "" })
              }
            >
              <option value="first">First {count(ROWS_FIRST)} rows</option>
              <option value="all">All rows</option>
            </select>
          </label>
          <span class="gap" />
          <button
            type="button"
            class="quiet"
            aria-expanded={isPastOpen}
            onClick={() => putPastOpen(!isPastOpen)}
          >
            Past queries
          </button>
          <Copy
            label="Share"
            quiet
            text={() => {
              typed(editor.current?.text() ?? sql);
              return location.href;
            }}
          />
          <Downloads sql={() => editor.current?.text() ?? sql} />
        </div>
      </section>
      {isPastOpen && (
        <PastList
          choose={(text) => {
            editor.current?.put(text);
            putPastOpen(false);
            editor.current?.focus();
          }}
        />
      )}
      <Result state={state} place={place} start={start} />
    </div>
  );
}

function typed(text: string): void {
  if (here().screen !== "query") return;
  change({ sql: text.length > ADDRESS_CHARACTERS_MAX ? "" : text });
}

interface EditorAsked {
  text: string;
  start: () => void;
  ready: (editor: Editor) => void;
}

function EditorHost({ text, start, ready }: EditorAsked) {
  const host = useRef<HTMLDivElement>(null);
  const run = useRef(start);
  const made = useRef<Editor | null>(null);
  run.current = start;
  useEffect(() => {
    let isGone = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const changed = (next: string) => {
      clearTimeout(timer);
      timer = setTimeout(() => typed(next), TYPED_MS);
    };
    void import("./editor").then(({ mounted }) => {
      if (isGone || !host.current) return;
      made.current = mounted(host.current, { text, changed, run: () => run.current() });
      ready(made.current);
    });
    return () => {
      isGone = true;
      clearTimeout(timer);
      made.current?.destroy();
    };
  }, []);
  useEffect(() => {
    // Back, or another link: the address differs from the text in the editor.
    const shown = made.current?.text();
    if (shown !== undefined && text !== FIRST_SQL && shown !== text && !isTyping(host.current)) {
      made.current?.put(text);
    }
  }, [text]);
  return <div class="editor" ref={host} />;
}

function isTyping(host: HTMLElement | null): boolean {
  return document.activeElement === host;
}

function marked(editor: Editor | null, state: RunState): void {
  if (!editor) return;
  const byte = state.kind === "failed" ? state.problem.facts["position"] : undefined;
  if (state.kind !== "failed" || typeof byte !== "number") {
    editor.mark(null, "");
    return;
  }
  const error = state.problem.facts["error"];
  const message = typeof error === "string" ? error : state.problem.message;
  if (editor.text() === state.sql) editor.mark(placeOfByte(state.sql, byte), message);
}

function Downloads({ sql }: { sql: () => string }) {
  const [label, put] = useState("Download");
  const load = async (format: DownloadFormat) => {
    put("Downloading…");
    try {
      await download(sql(), format);
      put("Download");
    } catch (error) {
      put(`Not downloaded: ${problemOf(error).message}`);
    }
  };
  return (
    <label class="pick">
      <span class="offscreen">Download the whole answer</span>
      <select
        value=""
        onChange={(event) => {
          const format = event.currentTarget.value as DownloadFormat;
          event.currentTarget.value = "";
          void load(format);
        }}
      >
        <option value="">{label}</option>
        {Object.entries(FORMATS).map(([format, name]) => (
          <option key={format} value={format}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}

interface ResultAsked {
  state: RunState;
  place: Place;
  start: () => void;
}

function Result({ state, place, start }: ResultAsked) {
  if (state.kind === "idle") {
    return (
      <Empty title="Run a query">
        <p>
          Type one SELECT. It reads hot and cold rows. Press <kbd>Ctrl ↵</kbd> to run it.
        </p>
      </Empty>
    );
  }
  if (state.kind === "running") return <Running state={state} />;
  if (state.kind === "cancelled") {
    return (
      <Empty title="Cancelled">
        <p>The query was ended after {duration(state.seconds)}.</p>
      </Empty>
    );
  }
  if (state.kind === "failed") return <Wrong state={state} start={start} />;
  const { outcome } = state;
  const view = place.params["view"] === "chart" ? "chart" : "grid";
  return (
    <section class="card result" aria-label="Result">
      <Report outcome={outcome} />
      <div class="resultbar">
        <Tabs
          label="View"
          names={{ grid: "Grid", chart: "Chart" }}
          chosen={view}
          choose={(name) => change({ view: name === "grid" ? "" : name })}
        />
      </div>
      {outcome.rows.count === 0 ? (
        <Empty title="No rows">
          <p>The query ran, and no row matches it.</p>
        </Empty>
      ) : (
        <Shown view={view} outcome={outcome} place={place} />
      )}
    </section>
  );
}

function Shown({ view, outcome, place }: { view: string; outcome: Outcome; place: Place }) {
  if (view === "grid") return <Grid key={outcome.seconds} rows={outcome.rows} />;
  const { x = "", y = "", by = "" } = place.params;
  return <Chart rows={outcome.rows} x={x} y={y} by={by} />;
}

function Running({ state }: { state: Extract<RunState, { kind: "running" }> }) {
  const [now, put] = useState(performance.now());
  useEffect(() => {
    const timer = setInterval(() => put(performance.now()), 100);
    return () => clearInterval(timer);
  }, []);
  return (
    <div class="state" data-state="running">
      <span class="spinner" aria-hidden="true" />
      <p role="status">Running</p>
      <p class="quiet number">
        {duration(Math.max(0, now - state.since) / 1000)}
        {state.bytes > 0 && `, ${size(state.bytes)} received`}
      </p>
    </div>
  );
}

function Wrong({ state, start }: { state: Extract<RunState, { kind: "failed" }>; start: () => void }) {
  const { problem, sql } = state;
  const byte = problem.facts["position"];
  if (typeof byte !== "number") return <Failed problem={problem} again={start} />;
  const [line, column] = lineOf(sql, placeOfByte(sql, byte));
  return (
    <div class="state" role="alert" data-state="error">
      <h2>{sentence(problem.message)}</h2>
      <p>
        Line {line}, column {column}
      </p>
      <pre class="wrong">{String(problem.facts["error"] ?? "")}</pre>
    </div>
  );
}
