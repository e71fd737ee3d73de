// Tables: their list; and for one table its figures, schema, newest rows, and snippets.
import { useAsk } from "../ask";
import { part } from "../api";
import { clock, count, counted, share, size } from "../format";
import { type Place, addressOf, change } from "../route";
import { Code } from "../show/copy";
import { Figures, Listing, Tabs } from "../show/listing";
import { Asked, Empty } from "../show/state";
import { TierBar } from "../query/report";
import { Preview } from "./preview";
import { name } from "./sql";
import { snippets } from "./snippet";
import type { TableBrief, TableInfo } from "./shape";

export function TablesScreen({ place }: { place: Place }) {
  const [table] = place.parts;
  return table === undefined ? <Tables /> : <OneTable name={table} place={place} />;
}

function Tables() {
  const ask = useAsk<{ tables: TableBrief[] }>("tables");
  return (
    <>
      <header class="title">
        <h1>Tables</h1>
      </header>
      <Asked ask={ask}>{({ tables }) => (tables.length ? <List of={tables} /> : <NoTables />)}</Asked>
    </>
  );
}

export function NoTables() {
  return (
    <Empty title="No tables yet">
      <p>
        The node creates the tables of OpenTelemetry with their first rows. Create others with{" "}
        <a href="api/docs">the API</a>, Python or the command line.
      </p>
    </Empty>
  );
}

function List({ of }: { of: TableBrief[] }) {
  return (
    <section class="card">
      <Listing
        label="Tables"
        rows={of}
        keyOf={(table) => table.name}
        fields={[
          {
            name: "Table",
            show: (table) => <a href={addressOf("tables", [table.name])}>{table.name}</a>,
          },
          { name: "Rows", isNumber: true, show: (table) => count(table.rows + table.hot_rows) },
          { name: "Hot", isNumber: true, show: (table) => count(table.hot_rows) },
          { name: "Version", isNumber: true, show: (table) => count(table.version) },
          { name: "Time", show: (table) => <code>{table.time_column}</code> },
          { name: "Bucket", show: (table) => table.bucket },
        ]}
      />
    </section>
  );
}

function OneTable({ name: table, place }: { name: string; place: Place }) {
  const ask = useAsk<TableInfo>(`tables/${part(table)}`);
  return (
    <>
      <header class="title">
        <p class="crumb">
          <a href="#/tables">Tables</a>
        </p>
        <h1>{table}</h1>
        <nav class="also" aria-label="Screens of this table">
          <a href={addressOf("query", [], { sql: `select *\nfrom ${name(table)}\nlimit 1000` })}>
            Query
          </a>
          <a href={addressOf("coverage", [table])}>Coverage</a>
          <a href={addressOf("history", [table])}>History</a>
        </nav>
      </header>
      <Asked ask={ask}>{(info) => <Info of={info} place={place} />}</Asked>
    </>
  );
}

function Info({ of, place }: { of: TableInfo; place: Place }) {
  const texts = snippets(of, location.origin);
  const language = place.params["in"] && place.params["in"] in texts ? place.params["in"] : "Python";
  return (
    <div class="stack">
      <section class="card" aria-label="Rows and coverage">
        <Figures
          of={[
            ["Rows", count(of.rows + of.hot_rows), `${count(of.hot_rows)} of them hot`],
            ["Size", size(of.size_bytes), counted(of.segments, "segment")],
            ["Version", count(of.version), `${clock(of.committed).slice(0, 19)} UTC`],
            ["Newest", of.end ? clock(of.end).slice(0, 16) : "nothing yet", of.end ? "end of its bucket, UTC" : ""],
            [
              "Coverage",
              of.buckets ? share(of.ratio) : "none",
              `${count(of.buckets_held)} of ${counted(of.buckets, "bucket")} of ${of.bucket}`,
            ],
            [
              "Entities",
              of.entity_columns.length ? count(of.entities) : "none",
              of.entity_columns.join(", "),
            ],
          ]}
        />
        <TierBar hot={of.hot_rows} cold={of.rows} />
      </section>
      <section class="card" aria-labelledby="schema">
        <h2 id="schema">Schema</h2>
        {of.columns.length ? (
          <Listing
            label="Columns"
            rows={of.columns}
            keyOf={(column) => column.name}
            fields={[
              { name: "Column", show: (column) => <code>{column.name}</code> },
              { name: "Type", show: (column) => column.type },
              { name: "Nulls", show: (column) => (column.nullable ? "allowed" : "none") },
              { name: "Role", show: (column) => role(of, column.name) },
            ]}
          />
        ) : (
          <p class="quiet">The first rows decide the columns of this table.</p>
        )}
        <p class="small quiet">
          Overlap {of.overlap}; retention {of.retention ?? "keeps all rows"}; clock times without a
          zone are {of.timezone ?? "UTC"}.
        </p>
      </section>
      <Preview table={of.name} timeColumn={of.time_column} isEmpty={!of.columns.length} />
      <section class="card" aria-labelledby="reach">
        <h2 id="reach">Query it from other programs</h2>
        <Tabs
          label="Language"
          names={Object.fromEntries(Object.keys(texts).map((one) => [one, one]))}
          chosen={language}
          choose={(chosen) => change({ in: chosen })}
        />
        <Code text={texts[language] ?? ""} label={`${language} snippet`} />
      </section>
    </div>
  );
}

function role(table: TableInfo, column: string) {
  if (column === table.time_column) return <em class="badge">time</em>;
  if (table.entity_columns.includes(column)) return <em class="badge">entity</em>;
  return "";
}
