// What a query read: how many rows were hot and cold, how long it took, how many files it opened
// and how many it skipped.
import { clock, count, counted, duration, size } from "../format";
import type { Outcome } from "./run";

export function Report({ outcome }: { outcome: Outcome }) {
  const tables = Object.entries(outcome.tables);
  const sum = (of: "hot_rows" | "cold_rows" | "files" | "files_pruned") =>
    tables.reduce((total, [, one]) => total + one[of], 0);
  const hot = sum("hot_rows");
  const cold = sum("cold_rows");
  const files = sum("files");
  const pruned = sum("files_pruned");
  return (
    <section class="report" aria-label="What the query read">
      <dl>
        <div>
          <dt>Rows</dt>
          <dd data-test="rows">
            {count(outcome.rows.count)}
            {outcome.isTruncated && <em class="badge warm">first rows only</em>}
          </dd>
        </div>
        <div>
          <dt>Time</dt>
          <dd>{duration(outcome.seconds)}</dd>
        </div>
        <div>
          <dt>Received</dt>
          <dd>{size(outcome.bytes)}</dd>
        </div>
        <div>
          <dt>Files read</dt>
          <dd>
            {count(files)} <small>and {count(pruned)} pruned</small>
          </dd>
        </div>
      </dl>
      {tables.length > 0 && <TierBar hot={hot} cold={cold} />}
      <ul class="read quiet small">
        {tables.map(([name, one]) => (
          <li key={name}>
            <b>{name}</b> version {count(one.version)}, as of {clock(one.as_of)} UTC
            {one.warning && <em class="badge warm">{one.warning}</em>}
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The shares of hot and cold rows; the smaller one is always visible. */
export function TierBar({ hot, cold }: { hot: number; cold: number }) {
  const total = hot + cold;
  const part = total ? Math.min(0.985, Math.max(0.015, hot / total)) : 0;
  const shown = hot && cold ? part : hot ? 1 : 0;
  return (
    <div class="tiers">
      <div
        class={`tierbar ${total ? "" : "none"}`}
        role="img"
        aria-label={`${counted(hot, "hot row")}, ${counted(cold, "cold row")}`}
      >
        <span class="hot" style={{ width: `${shown * 100}%` }} />
      </div>
      <p class="small">
        <span class="key hot">hot {count(hot)}</span>
        <span class="key cold">cold {count(cold)}</span>
      </p>
    </div>
  );
}
