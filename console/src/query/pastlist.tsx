// The list of past queries, to run one again.
import { useState } from "preact/hooks";
import { clock, counted, duration } from "../format";
import { forgetAll, past } from "./past";

export function PastList({ choose }: { choose: (sql: string) => void }) {
  const [found, put] = useState(past);
  return (
    <section class="card past" aria-label="Past queries">
      {found.length === 0 && <p class="quiet">None yet. They stay in this browser.</p>}
      <ul>
        {found.map((one) => (
          <li key={one.sql}>
            <button type="button" class="quiet" onClick={() => choose(one.sql)}>
              <code>{one.sql}</code>
              <span class="small">
                {clock(one.at).slice(0, 16)} UTC, {duration(one.seconds)},{" "}
                {one.rows === null ? "failed" : counted(one.rows, "row")}
              </span>
            </button>
          </li>
        ))}
      </ul>
      {found.length > 0 && (
        <button
          type="button"
          onClick={() => {
            forgetAll();
            put([]);
          }}
        >
          Forget them
        </button>
      )}
    </section>
  );
}
