// Metrics: a list, and one metric over time by an expression of PromQL.
import { useAsk } from "../ask";
import { counted } from "../format";
import { lazy } from "../query/lazy";
import { type Params, type Place, addressOf, change } from "../route";
import { Listing, Tabs } from "../show/listing";
import { Asked } from "../show/state";
import { WithData } from "./first";
import type { Matrix } from "./matrix";
import { Search, Typed } from "./search";
import { RangePick, type Stretch, stepOf, useRange } from "./stretch";

const POINTS_MAX = 300;
const LISTED_MAX = 500;
const STEPS_IN_WINDOW = 4;

const MatrixLines = lazy(async () => (await import("./matrixlines")).MatrixLines);

interface Answer<Data> {
  data: Data;
}

interface Metric {
  name: string;
  type: string;
  unit: string;
  help: string;
}

type Metadata = Record<string, { type: string; unit: string; help: string }[]>;

export function MetricsScreen({ place }: { place: Place }) {
  const [metric] = place.parts;
  return (
    <WithData signal="metrics" tables={["metric_points", "metric_histograms"]}>
      {() => <Metrics chosen={metric} params={place.params} />}
    </WithData>
  );
}

function Metrics({ chosen, params }: { chosen: string | undefined; params: Params }) {
  const ask = useAsk<Answer<Metadata>>("prom/api/v1/metadata");
  return (
    <Asked ask={ask}>
      {({ data }) => {
        const metrics = Object.entries(data)
          .flatMap(([name, found]) => (found[0] ? [{ name, ...found[0] }] : []))
          .sort((one, other) => (one.name < other.name ? -1 : 1));
        if (chosen === undefined) return <List of={metrics} wanted={params["q"] ?? ""} />;
        const unknown = { name: chosen, type: "unknown", unit: "", help: "" };
        return <OneMetric of={metrics.find((one) => one.name === chosen) ?? unknown} params={params} />;
      }}
    </Asked>
  );
}

function List({ of, wanted }: { of: Metric[]; wanted: string }) {
  const found = of.filter((one) => one.name.toLowerCase().includes(wanted.toLowerCase()));
  return (
    <>
      <header class="title">
        <h1>Metrics</h1>
      </header>
      <Search label="Search metrics" found={(typed) => change(typed)}>
        <Typed label="Part of the name" name="q" value={wanted} />
      </Search>
      <section class="card" aria-labelledby="metrics">
        <h2 id="metrics">
          {counted(found.length, "metric")}
          {found.length > LISTED_MAX && <span class="quiet small">the first {LISTED_MAX} by name</span>}
        </h2>
        <Listing
          label="Metrics"
          rows={found.slice(0, LISTED_MAX)}
          keyOf={(one) => one.name}
          fields={[
            { name: "Metric", show: (one) => <a href={addressOf("metrics", [one.name])}>{one.name}</a> },
            { name: "Type", show: (one) => one.type },
            { name: "Unit", show: (one) => one.unit },
            { name: "Description", show: (one) => one.help },
          ]}
        />
      </section>
    </>
  );
}

function OneMetric({ of, params }: { of: Metric; params: Params }) {
  const table = of.type === "histogram" ? "metric_histograms" : "metric_points";
  const range = useRange(params, table);
  const step_s = range.stretch ? stepOf(range.stretch, POINTS_MAX) : 0;
  const ways = waysOf(of, step_s);
  const way = params["way"] && params["way"] in ways ? params["way"] : (Object.keys(ways)[0] ?? "");
  const text = params["expr"] || ways[way] || of.name;
  return (
    <>
      <header class="title">
        <p class="crumb">
          <a href="#/metrics">Metrics</a>
        </p>
        <h1>{of.name}</h1>
        <RangePick range={range} />
      </header>
      {of.help && <p class="quiet">{of.help}</p>}
      <Tabs
        label="What to draw"
        names={Object.fromEntries(Object.keys(ways).map((one) => [one, one]))}
        chosen={params["expr"] ? "" : way}
        choose={(one) => change({ way: one, expr: "" })}
      />
      <Search label="Draw an expression" verb="Draw" found={(typed) => change(typed)}>
        <Typed label="PromQL" name="expr" value={text} />
      </Search>
      {range.stretch && <Drawn text={text} stretch={range.stretch} step_s={step_s} />}
    </>
  );
}

function Drawn({ text, stretch, step_s }: { text: string; stretch: Stretch; step_s: number }) {
  const ask = useAsk<Answer<{ result: Matrix }>>("prom/api/v1/query_range", {
    params: {
      query: text,
      start: String(stretch.start / 1000),
      end: String(stretch.end / 1000),
      step: String(step_s),
    },
  });
  return (
    <section class="card" aria-label="Chart">
      <Asked ask={ask}>
        {({ data }) =>
          data.result.length ? (
            <MatrixLines matrix={data.result} />
          ) : (
            <p class="quiet">No sample in this stretch of time matches.</p>
          )
        }
      </Asked>
    </section>
  );
}

/** Expressions that answer the usual questions about a metric of this type. */
function waysOf({ name, type }: Metric, step_s: number): Record<string, string> {
  const window = `${Math.max(60, STEPS_IN_WINDOW * step_s)}s`;
  if (type === "counter") {
    return {
      "Rate by job": `sum by (job) (rate(${name}[${window}]))`,
      "Rate of each series": `rate(${name}[${window}])`,
      Total: name,
    };
  }
  if (type === "histogram") {
    const quantile = (q: number) =>
      `histogram_quantile(${q}, sum by (le) (rate(${name}_bucket[${window}])))`;
    return {
      "95th percentile": quantile(0.95),
      Median: quantile(0.5),
      "Rate by job": `sum by (job) (rate(${name}_count[${window}]))`,
    };
  }
  return { "Each series": name, "Mean by job": `avg by (job) (${name})`, "Largest by job": `max by (job) (${name})` };
}
