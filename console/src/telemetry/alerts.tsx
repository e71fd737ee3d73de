// Alerts: what fires now, the rules, and the newest changes.
import { useAsk } from "../ask";
import { ago, clock, count, counted } from "../format";
import { addressOf } from "../route";
import type { Rows } from "../screen/shape";
import { Code } from "../show/copy";
import { Figures, Listing } from "../show/listing";
import { Asked, Empty } from "../show/state";

const LOOK_MS = 5_000;
const CHANGES_SQL = [
  "select ts, rule, state, labels, value",
  "from alert_history\nwhere state in ('pending', 'firing', 'resolved', 'cleared')",
  "order by ts desc\nlimit 50",
].join("\n");
const ORDER = ["firing", "error", "pending", "inactive"];
const EXAMPLE = `# errors.toml
[[rules]]
name = "errors"
kind = "sql"
every = "1m"
query = """
select service_name, count(*) as value from logs
where severity_number >= 17 and ts > $now - interval '5 minutes' and ts <= $now
group by service_name having count(*) > 100
"""
webhooks = ["https://hooks.example.com/thermocline"]`;

interface AlertState {
  labels: string;
  state: string;
  since: string;
  value: number | null;
  firing_id: string;
}

interface RuleState {
  name: string;
  kind: string;
  state: string;
  origin: string;
  evaluated: string | null;
  evaluations: number;
  errors: number;
  error?: string;
  alerts?: AlertState[];
}

interface Alerts {
  is_on: boolean;
  rules: RuleState[];
  wrong_rules: Record<string, string>;
  outstanding: number;
  delivered: number;
  dropped: number;
  last_failure: string;
}

interface Change {
  ts: string;
  rule: string;
  state: string;
  labels: string | null;
  value: number | null;
}

export function AlertsScreen() {
  const ask = useAsk<Alerts>("alerts", {}, LOOK_MS);
  return (
    <>
      <header class="title">
        <h1>Alerts</h1>
      </header>
      <Asked ask={ask}>{(found) => (found.rules.length ? <Found of={found} /> : <NoRules />)}</Asked>
    </>
  );
}

function NoRules() {
  return (
    <>
      <Empty title="No rules yet">
        <p>A rule is a query whose rows are alerts, or asks for gaps, for silence, or always fires.</p>
      </Empty>
      <section class="card" aria-labelledby="first">
        <h2 id="first">Set your first rule</h2>
        <Code label="A file with a rule" text={EXAMPLE} />
        <Code label="The command that sets it" text="thermocline alert set LAKE errors.toml" />
      </section>
    </>
  );
}

function Found({ of }: { of: Alerts }) {
  const rules = [...of.rules].sort((one, other) => rank(one) - rank(other) || (one.name < other.name ? -1 : 1));
  const active = rules.flatMap((rule) => (rule.alerts ?? []).map((alert) => ({ rule: rule.name, ...alert })));
  const firing = active.filter((one) => one.state === "firing").length;
  return (
    <div class="stack">
      {!of.is_on && <p class="notice">This node does not evaluate rules. Its settings turn alerts off.</p>}
      {Object.entries(of.wrong_rules).map(([name, why]) => (
        <p key={name} class="notice">
          The rule {name} is skipped: {why}
        </p>
      ))}
      <section class="card" aria-label="Summary">
        <Figures
          of={[
            ["Firing", count(firing)],
            ["Pending", count(active.length - firing)],
            ["Rules", count(rules.length)],
            ["Delivered", count(of.delivered), `${count(of.outstanding)} outstanding, ${count(of.dropped)} dropped`],
          ]}
        />
        {of.last_failure && <p class="small quiet">The last delivery that failed: {of.last_failure}</p>}
      </section>
      <section class="card" aria-labelledby="active">
        <h2 id="active">Now</h2>
        {active.length ? (
          <Listing
            label="Active alerts"
            rows={active}
            keyOf={(one) => one.firing_id}
            fields={[
              { name: "State", show: (one) => <State of={one.state} /> },
              { name: "Rule", show: (one) => one.rule },
              { name: "Labels", show: (one) => <code>{one.labels}</code> },
              { name: "Value", isNumber: true, show: (one) => one.value ?? "" },
              { name: "Since, UTC", show: (one) => clock(one.since).slice(0, 19) },
            ]}
          />
        ) : (
          <p class="quiet">Nothing is pending or firing.</p>
        )}
      </section>
      <section class="card" aria-labelledby="rules">
        <h2 id="rules">{counted(rules.length, "rule")}</h2>
        <Listing
          label="Rules"
          rows={rules}
          keyOf={(rule) => `${rule.origin} ${rule.name}`}
          fields={[
            { name: "State", show: (rule) => <State of={rule.state} /> },
            { name: "Rule", show: (rule) => rule.name },
            { name: "Kind", show: (rule) => rule.kind },
            { name: "Evaluated", show: (rule) => (rule.evaluated ? ago(rule.evaluated, new Date().toISOString()) : "not yet") },
            { name: "Errors", isNumber: true, show: (rule) => (rule.errors ? count(rule.errors) : "") },
            { name: "Last error", show: (rule) => rule.error ?? "" },
          ]}
        />
      </section>
      <Changes />
    </div>
  );
}

function Changes() {
  const ask = useAsk<Rows<Change>>("query", { body: { sql: CHANGES_SQL } }, LOOK_MS);
  if (ask.problem?.status === 404) return null; // no rule has changed its state yet
  return (
    <section class="card" aria-labelledby="changes">
      <h2 id="changes">
        Newest changes
        <a class="small" href={addressOf("query", [], { sql: CHANGES_SQL })}>
          as SQL
        </a>
      </h2>
      <Asked ask={ask}>
        {(answer) => (
          <Listing
            label="Changes"
            rows={answer.rows}
            keyOf={(_, place) => place}
            fields={[
              { name: "Time, UTC", show: (one) => clock(one.ts).slice(0, 19) },
              { name: "State", show: (one) => <State of={one.state} /> },
              { name: "Rule", show: (one) => one.rule },
              { name: "Labels", show: (one) => <code>{one.labels ?? ""}</code> },
              { name: "Value", isNumber: true, show: (one) => one.value ?? "" },
            ]}
          />
        )}
      </Asked>
    </section>
  );
}

function State({ of }: { of: string }) {
  const kind = of === "firing" || of === "error" ? "warm" : "cold";
  return <em class={`badge ${kind}`}>{of}</em>;
}

function rank(rule: RuleState): number {
  return ORDER.indexOf(rule.state);
}
