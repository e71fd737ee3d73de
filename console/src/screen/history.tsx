// History: every version of a table, a query at any of them, and what changed between two.
import { useEffect, useState } from "preact/hooks";
import { part } from "../api";
import { useAsk } from "../ask";
import { clock, count, counted, size } from "../format";
import { type Params, type Place, addressOf, change } from "../route";
import { Figures, Listing } from "../show/listing";
import { Asked, Empty } from "../show/state";
import { OfTable } from "./pickers";
import { type Row, RowTable } from "./preview";
import { asOf, name } from "./sql";
import type { Commit, Diff, Rows, TableBrief } from "./shape";

const COMMITS = 500;
const SHOWN_MAX = 100;
const ROWS_MAX = 100;
const MOVED_MS = 200;

export function HistoryScreen({ place }: { place: Place }) {
  return (
    <OfTable title="History" screen="history" chosen={place.parts[0]}>
      {(table) => <OneTable key={table.name} table={table} params={place.params} />}
    </OfTable>
  );
}

function OneTable({ table, params }: { table: TableBrief; params: Params }) {
  const ask = useAsk<Rows<Commit>>(`tables/${part(table.name)}/history`, {
    params: { limit: String(COMMITS) },
  });
  return (
    <Asked ask={ask}>
      {(answer) =>
        answer.rows.length ? (
          <div class="stack">
            <TimeTravel table={table} commits={answer.rows} params={params} />
            <Difference table={table} commits={answer.rows} params={params} />
            <Commits commits={answer.rows} params={params} isMore={answer.is_truncated} />
          </div>
        ) : (
          <Empty title="No commits" />
        )
      }
    </Asked>
  );
}

interface OfCommits {
  table: TableBrief;
  commits: Commit[];
  params: Params;
}

function versionIn(text: string | undefined, commits: Commit[]): number {
  const newest = commits[0]?.version ?? 1;
  const oldest = commits.at(-1)?.version ?? 1;
  const wanted = Number(text || newest);
  return Number.isFinite(wanted) ? Math.min(newest, Math.max(oldest, wanted)) : newest;
}

function TimeTravel({ table, commits, params }: OfCommits) {
  const newest = commits[0]?.version ?? 1;
  const oldest = commits.at(-1)?.version ?? 1;
  const chosen = versionIn(params["version"], commits);
  const [version, put] = useState(chosen);
  const first = `select count(*) as rows, min(${name(table.time_column)}) as first, max(${name(table.time_column)}) as last\nfrom ${name(table.name)}`;
  const sql = params["sql"] ?? first;
  const [text, putText] = useState(sql);
  useEffect(() => put(chosen), [chosen]);
  useEffect(() => {
    const timer = setTimeout(() => {
      if (version !== chosen) change({ version: version === newest ? "" : String(version) });
    }, MOVED_MS);
    return () => clearTimeout(timer);
  }, [version]);
  const asked = asOf(sql, table.name, chosen);
  const ask = useAsk<Rows<Row>>("query", { body: { sql: asked, rows_max: ROWS_MAX } });
  const commit = commits.find((one) => one.version === version);
  return (
    <section class="card travel" aria-labelledby="travel">
      <h2 id="travel">Time travel</h2>
      <label class="slider">
        <span>
          Version <output class="number">{count(version)}</output>
          {commit && (
            <span class="quiet small">
              {clock(commit.time)} UTC, {commit.operation}
            </span>
          )}
        </span>
        <input
          type="range"
          min={oldest}
          max={newest}
          value={version}
          onInput={(event) => put(Number(event.currentTarget.value))}
        />
      </label>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          change({ sql: text === first ? "" : text });
        }}
      >
        <label class="field">
          <span>Query to run at this version</span>
          <textarea
            rows={3}
            spellcheck={false}
            value={text}
            onInput={(event) => putText(event.currentTarget.value)}
          />
        </label>
        <p class="buttons">
          <button type="submit">Run</button>
          <a href={addressOf("query", [], { sql: asked })}>Open in the editor</a>
        </p>
      </form>
      <Asked ask={ask}>{(answer) => <RowTable label="Rows at this version" answer={answer} />}</Asked>
      <p class="small quiet">A version contains the rows that were committed then. Hot rows are not in any version yet.</p>
    </section>
  );
}

function Difference({ table, commits, params }: OfCommits) {
  const newest = commits[0]?.version ?? 1;
  const to = versionIn(params["new"], commits);
  const from = versionIn(params["old"] || String(Math.max(1, newest - 1)), commits);
  const ask = useAsk<Diff>(`tables/${part(table.name)}/diff`, {
    params: { old: String(from), new: String(to) },
  });
  const versions = commits.map((one) => one.version);
  return (
    <section class="card" aria-labelledby="difference">
      <h2 id="difference">Difference</h2>
      <p class="row">
        <Version label="From" of={versions} chosen={from} choose={(v) => change({ old: String(v) })} />
        <Version label="To" of={versions} chosen={to} choose={(v) => change({ new: String(v) })} />
      </p>
      <Asked ask={ask}>
        {(diff) => (
          <>
            <Figures
              of={[
                ["Rows", signed(diff.rows)],
                ["Size", `${diff.size_bytes < 0 ? "−" : "+"}${size(Math.abs(diff.size_bytes))}`],
                ["Buckets", `+${count(diff.buckets_gained)} −${count(diff.buckets_lost)}`],
                [
                  "Segments",
                  `+${count(diff.added.length)} −${count(diff.removed.length)}`,
                  `${count(diff.changed.length)} changed`,
                ],
              ]}
            />
            {diff.columns.length > 0 && (
              <p>
                Columns: <code>{diff.columns.join(", ")}</code>
              </p>
            )}
          </>
        )}
      </Asked>
    </section>
  );
}

interface VersionAsked {
  label: string;
  of: number[];
  chosen: number;
  choose: (version: number) => void;
}

function Version({ label, of, chosen, choose }: VersionAsked) {
  return (
    <label class="pick">
      <span>{label}</span>
      <select
        value={String(chosen)}
        onChange={(event) => choose(Number(event.currentTarget.value))}
      >
        {of.map((one) => (
          <option key={one} value={String(one)}>
            version {count(one)}
          </option>
        ))}
      </select>
    </label>
  );
}

function Commits({ commits, params, isMore }: { commits: Commit[]; params: Params; isMore: boolean }) {
  const chosen = versionIn(params["version"], commits);
  const shown = commits.slice(0, SHOWN_MAX);
  return (
    <section class="card" aria-labelledby="versions">
      <h2 id="versions">Versions</h2>
      <Listing
        label="Versions"
        rows={shown}
        keyOf={(one) => one.version}
        isPicked={(one) => one.version === chosen}
        fields={[
          {
            name: "Version",
            isNumber: true,
            show: (one) => (
              <button
                type="button"
                class="link"
                aria-label={`Travel to version ${one.version}`}
                onClick={() => change({ version: String(one.version) })}
              >
                {count(one.version)}
              </button>
            ),
          },
          { name: "Time, UTC", show: (one) => clock(one.time) },
          { name: "Operation", show: (one) => one.operation },
          {
            name: "Rows",
            isNumber: true,
            show: (one) => signed(one.rows_added - one.rows_removed),
          },
          {
            name: "Segments",
            isNumber: true,
            show: (one) => signed(one.segments_added - one.segments_removed),
          },
        ]}
      />
      {(isMore || commits.length > shown.length) && (
        <p class="small quiet">
          The newest {counted(shown.length, "version")}; the slider reaches back {count(commits.length)}.
        </p>
      )}
    </section>
  );
}

function signed(value: number): string {
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${count(Math.abs(value))}`;
}
