// Freshness: how far the rows of each table have come, from acknowledged to compacted.
import { useAsk } from "../ask";
import { ago, clock, count, counted, duration, seconds } from "../format";
import { addressOf } from "../route";
import { Asked } from "../show/state";
import { NoTables } from "./tables";
import type { Freshness, TableFreshness } from "./shape";

const LOOK_MS = 5_000;
const DURABLE: Record<string, string> = {
  always: "before the answer",
  interval: "at the next interval",
  os: "when the system writes it",
};

export function FreshnessScreen() {
  const ask = useAsk<Freshness>("freshness", {}, LOOK_MS);
  return (
    <>
      <header class="title">
        <h1>Freshness</h1>
        {ask.value && <p class="quiet small">as of {clock(ask.value.as_of).slice(0, 19)} UTC</p>}
      </header>
      <Asked ask={ask}>
        {(found) =>
          found.tables.length ? (
            <div class="stack">
              {found.tables.map((one) => (
                <Table key={one.table} of={one} now={found.as_of} sync={found.sync} />
              ))}
            </div>
          ) : (
            <NoTables />
          )
        }
      </Asked>
    </>
  );
}

interface Stage {
  name: string;
  value: string;
  note: string;
  kind: "live" | "hot" | "cold" | "none";
}

/** A time to the second. */
function until(instant: string): string {
  return clock(instant).slice(0, 19);
}

function stages(of: TableFreshness, now: string, sync: string): Stage[] {
  const newest = of.newest ? until(of.newest) : "no rows yet";
  const taken = of.newest ? "hot" : "none";
  const lag = of.newest && of.newest_cold ? seconds(of.newest) - seconds(of.newest_cold) : 0;
  return [
    { name: "Live", kind: of.newest ? "live" : "none", value: newest, note: "what the next query sees" },
    {
      name: "Acknowledged",
      kind: taken,
      value: newest,
      note: counted(of.hot_rows + of.cold_rows, "row"),
    },
    { name: "Durable", kind: taken, value: newest, note: DURABLE[sync] ?? sync },
    {
      name: "Flushed",
      kind: of.newest_cold ? "cold" : "none",
      value: of.newest_cold ? until(of.newest_cold) : "nothing yet",
      note: of.flushed
        ? `${ago(of.flushed.at, now)}, version ${count(of.flushed.version)}` +
          (lag > 0 ? `; ${duration(lag)} behind` : "")
        : `${counted(of.hot_rows, "row")} to come`,
    },
    {
      name: "Compacted",
      kind: of.compacted ? "cold" : "none",
      value: of.compacted ? ago(of.compacted.at, now) : "not yet",
      note: of.compacted ? `version ${count(of.compacted.version)}` : "",
    },
  ];
}

function Table({ of, now, sync }: { of: TableFreshness; now: string; sync: string }) {
  const waiting =
    of.hot_rows && of.hot_s !== null
      ? `${counted(of.hot_rows, "row")} hot for ${duration(of.hot_s)}`
      : of.hot_rows
        ? `${counted(of.hot_rows, "row")} hot`
        : of.cold_rows
          ? "all rows flushed"
          : "no rows yet";
  return (
    <section class="card fresh" aria-label={of.table}>
      <h2>
        <a href={addressOf("tables", [of.table])}>{of.table}</a>
        <span class="quiet small">{waiting}</span>
      </h2>
      <ol class="stages">
        {stages(of, now, sync).map((stage) => (
          <li key={stage.name} class={stage.kind}>
            <h3>{stage.name}</h3>
            <p class="number">{stage.value}</p>
            <p class="small quiet">{stage.note}</p>
          </li>
        ))}
      </ol>
    </section>
  );
}
