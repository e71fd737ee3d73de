// The gaps of one entity in a stretch of time, and commands that query or fill them.
import { part } from "../api";
import { useAsk } from "../ask";
import { clock, count, counted } from "../format";
import { addressOf, change } from "../route";
import { Copy } from "../show/copy";
import { Listing } from "../show/listing";
import { Asked } from "../show/state";
import { laneName } from "./heat";
import { backfill, gapSql } from "./sql";
import type { Rows, TableBrief } from "./shape";

const SHOWN_MAX = 100;

interface GapsAsked {
  table: TableBrief;
  entity: Record<string, unknown>;
  start: string;
  end: string;
}

interface Gap {
  start: string;
  end: string;
  buckets: number;
}

export function Gaps({ table, entity, start, end }: GapsAsked) {
  const hasEntity = Object.keys(entity).length > 0;
  const ask = useAsk<Rows<Record<string, unknown>>>(`tables/${part(table.name)}/gaps`, {
    params: { start, end, ...(hasEntity ? { entity: JSON.stringify(entity) } : {}) },
  });
  const stretch = (gap: Gap) => ({
    table: table.name,
    entity,
    start: gap.start,
    end: gap.end,
  });
  return (
    <section class="card" aria-labelledby="missing">
      <h2 id="missing">
        Missing of {laneName(entity)}
        <span class="quiet small">
          {clock(start)} to {clock(end)} UTC
        </span>
      </h2>
      <Asked ask={ask}>
        {(answer) => {
          const gaps = gapsIn(answer);
          if (!gaps.length) return <p>Nothing: every bucket of this stretch is held.</p>;
          return (
            <>
              <Listing
                label="Gaps"
                rows={gaps.slice(0, SHOWN_MAX)}
                keyOf={(gap) => gap.start}
                fields={[
                  { name: "From", show: (gap) => clock(gap.start) },
                  { name: "To", show: (gap) => clock(gap.end) },
                  { name: "Length", isNumber: true, show: (gap) => counted(gap.buckets, "bucket") },
                  {
                    name: "",
                    show: (gap) => (
                      <span class="buttons">
                        <Copy label="Copy as SQL" text={() => gapSql(stretch(gap))} />
                        <Copy label="Copy backfill" text={() => backfill(stretch(gap))} />
                        <a href={addressOf("query", [], { sql: gapSql(stretch(gap)) })}>Query</a>
                      </span>
                    ),
                  },
                ]}
              />
              {gaps.length > SHOWN_MAX && (
                <p class="small quiet">and {count(gaps.length - SHOWN_MAX)} more; zoom in to list them</p>
              )}
            </>
          );
        }}
      </Asked>
      <p class="buttons">
        <button type="button" onClick={() => change({ start, end }, "push")}>
          Zoom in here
        </button>
        <button type="button" onClick={() => change({ entity: "", from: "", to: "" })}>
          Close
        </button>
      </p>
    </section>
  );
}

/** The last three columns are the gap's; the columns before them are the entity's. */
function gapsIn(answer: Rows<Record<string, unknown>>): Gap[] {
  const [start = "", end = "", buckets = ""] = answer.columns.slice(-3).map((one) => one.name);
  return answer.rows.map((row) => ({
    start: String(row[start]),
    end: String(row[end]),
    buckets: Number(row[buckets]),
  }));
}
