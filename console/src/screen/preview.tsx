// The newest rows of a table, as text.
import { useAsk } from "../ask";
import { clock } from "../format";
import { Listing } from "../show/listing";
import { Asked } from "../show/state";
import { name } from "./sql";
import type { Rows } from "./shape";

const ROWS = 20;

export type Row = Record<string, unknown>;

export function Preview(of: { table: string; timeColumn: string; isEmpty: boolean }) {
  const order = `order by ${name(of.timeColumn)} desc`;
  const sql = `select * from ${name(of.table)} ${order} limit ${ROWS}`;
  const ask = useAsk<Rows<Row>>(of.isEmpty ? null : "query", { body: { sql } });
  if (of.isEmpty) return null;
  return (
    <section class="card" aria-labelledby="preview">
      <h2 id="preview">Newest rows</h2>
      <Asked ask={ask}>{(answer) => <RowTable label="Newest rows" answer={answer} />}</Asked>
    </section>
  );
}

export function RowTable({ label, answer }: { label: string; answer: Rows<Row> }) {
  if (!answer.rows.length) return <p class="quiet">No rows.</p>;
  return (
    <Listing
      label={label}
      rows={answer.rows}
      keyOf={(_, place) => place}
      fields={answer.columns.map((column) => ({
        name: column.name,
        isNumber: /int|double|float|decimal/.test(column.type) && !column.type.includes("["),
        show: (row: Row) => <Value of={row[column.name]} type={column.type} />,
      }))}
    />
  );
}

export function Value({ of, type }: { of: unknown; type: string }) {
  if (of === null || of === undefined) return <span class="null">null</span>;
  if (type.startsWith("timestamp")) return <>{clock(String(of))}</>;
  return <>{typeof of === "object" ? JSON.stringify(of) : String(of)}</>;
}
