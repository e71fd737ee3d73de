// Jobs: rows that wait for their flush, past runs of the pipeline, and running queries.
import { useState } from "preact/hooks";
import { asked, part, problemOf } from "../api";
import { useAsk } from "../ask";
import { clock, count, duration, size } from "../format";
import { addressOf } from "../route";
import { Listing } from "../show/listing";
import { Asked, sentence } from "../show/state";
import type { JobRun, Jobs, RunningQuery } from "./shape";

const LOOK_MS = 3_000;

export function JobsScreen() {
  const ask = useAsk<Jobs>("jobs", {}, LOOK_MS);
  return (
    <>
      <header class="title">
        <h1>Jobs</h1>
      </header>
      <Asked ask={ask}>
        {(jobs) => (
          <div class="stack">
            <Flushes of={jobs} again={ask.again} />
            <Pipeline of={jobs} />
            <Queries />
          </div>
        )}
      </Asked>
    </>
  );
}

function Flushes({ of, again }: { of: Jobs; again: () => void }) {
  const [status, report] = useState("");
  const flush = async (table: string) => {
    try {
      await asked(`tables/${part(table)}/flush`, { method: "POST" });
      report(`${table} is flushed.`);
    } catch (error) {
      report(sentence(problemOf(error).message));
    }
    again();
  };
  const share = of.hot_bytes_max ? of.hot_bytes / of.hot_bytes_max : 0;
  return (
    <section class="card" aria-labelledby="flushes">
      <h2 id="flushes">Flushes</h2>
      <p>
        <label for="hotroom">Memory of hot rows: </label>
        <span class="number">
          {size(of.hot_bytes)} of {size(of.hot_bytes_max)}
        </span>
      </p>
      <meter id="hotroom" min={0} max={1} high={0.5} value={share}>
        {size(of.hot_bytes)}
      </meter>
      {of.flush_error && (
        <p class="notice" role="alert">
          The last flush failed: {of.flush_error.detail}. {of.flush_error.hint}
        </p>
      )}
      {of.flushes.length > 0 ? (
        <Listing
          label="Flushes"
          rows={of.flushes}
          keyOf={(one) => one.table}
          fields={[
            {
              name: "Table",
              show: (one) => <a href={addressOf("tables", [one.table])}>{one.table}</a>,
            },
            { name: "Hot rows", isNumber: true, show: (one) => count(one.hot_rows) },
            { name: "Memory", isNumber: true, show: (one) => size(one.hot_bytes) },
            {
              name: "Hot for",
              isNumber: true,
              show: (one) => (one.hot_s === null ? "" : duration(one.hot_s)),
            },
            {
              name: "",
              show: (one) => (
                <button
                  type="button"
                  disabled={!one.hot_rows}
                  aria-label={`Flush ${one.table}`}
                  onClick={() => void flush(one.table)}
                >
                  Flush now
                </button>
              ),
            },
          ]}
        />
      ) : (
        <p class="quiet">There are no tables, so nothing is hot.</p>
      )}
      <p class="small quiet" role="status">
        {status}
      </p>
    </section>
  );
}

function Pipeline({ of }: { of: Jobs }) {
  return (
    <section class="card" aria-labelledby="pipeline">
      <h2 id="pipeline">Pipeline</h2>
      {of.runs.length > 0 && (
        <Listing
          label="Jobs of the pipeline that have ended"
          rows={of.runs}
          keyOf={(run, place) => `${run.started_at} ${place}`}
          fields={[
            { name: "Job", show: (run) => run.job },
            {
              name: "Table",
              show: (run) => <a href={addressOf("tables", [run.table])}>{run.table}</a>,
            },
            { name: "State", show: (run) => <State of={run} /> },
            { name: "Started, UTC", show: (run) => clock(run.started_at).slice(0, 19) },
            { name: "Took", isNumber: true, show: (run) => duration(run.took_ms / 1000) },
            {
              name: "Version",
              isNumber: true,
              show: (run) => (run.version === null ? "" : count(run.version)),
            },
            { name: "Result", show: (run) => outcomeOf(run) },
          ]}
        />
      )}
      {of.notes.map((note) => (
        <p key={note} class="small quiet">
          {sentence(note)}.
        </p>
      ))}
    </section>
  );
}

function State({ of }: { of: JobRun }) {
  return <em class={`badge ${of.state === "failed" ? "warm" : "cold"}`}>{of.state}</em>;
}

function outcomeOf(run: JobRun): string {
  if (run.error_message) return run.error_message;
  const numbers = Object.entries(run.numbers);
  return numbers.map(([name, value]) => `${name.replaceAll("_", " ")} ${count(value)}`).join(", ");
}

function Queries() {
  const ask = useAsk<{ queries: RunningQuery[] }>("queries", {}, LOOK_MS);
  const end = async (query: RunningQuery) => {
    try {
      await asked(`queries/${part(query.query_id)}`, { method: "DELETE" });
    } catch {
      // The query had ended already, which the next answer shows.
    }
    ask.again();
  };
  return (
    <section class="card" aria-labelledby="queries">
      <h2 id="queries">Running queries</h2>
      <Asked ask={ask}>
        {({ queries }) =>
          queries.length ? (
            <Listing
              label="Running queries"
              rows={queries}
              keyOf={(one) => one.query_id}
              fields={[
                { name: "Query", show: (one) => <code>{one.query_id}</code> },
                { name: "For", isNumber: true, show: (one) => duration(one.seconds) },
                {
                  name: "",
                  show: (one) => (
                    <button type="button" onClick={() => void end(one)}>
                      End
                    </button>
                  ),
                },
              ]}
            />
          ) : (
            <p class="quiet">No query is running.</p>
          )
        }
      </Asked>
    </section>
  );
}
