// A result as lines: the user chooses the column of the x axis and the columns of the y axis.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { change } from "../route";
import { counted } from "../format";
import { Pick } from "../show/listing";
import { Empty } from "../show/state";
import { onTheme } from "../theme";
import type { Rows } from "./arrow";
import { COLOURS, type Drawing, drawn } from "./plot";
import { SERIES_MAX, drawingOf, isRepeated, tellingOf } from "./series";

const LINES_MAX = 6;
const NO_SERIES = "none";
const BETWEEN = " · ";

interface ChartAsked {
  rows: Rows;
  x: string;
  y: string;
  by: string;
}

export function Chart({ rows, x, y, by }: ChartAsked) {
  const places = rows.names.map((_, place) => place);
  const drawable = places.filter((place) => rows.isNumeric(place) || rows.isTime(place));
  const across = places.find((place) => rows.names[place] === x && drawable.includes(place))
    ?? drawable.find((place) => rows.isTime(place)) ?? drawable[0];
  const upward = drawable.filter((place) => place !== across && rows.isNumeric(place));
  const wanted = y ? y.split("\u001f") : [];
  const named = upward.filter((place) => wanted.includes(rows.names[place] ?? ""));
  const up = (y ? named : upward.slice(0, 1)).slice(0, LINES_MAX);
  const labels = places.filter((place) => !drawable.includes(place));
  const telling = useMemo(() => {
    if (across === undefined || !labels.length) return [];
    const found = tellingOf(rows, [labels, ...labels.map((place) => [place])]);
    return found ?? (isRepeated(rows.numbers(across)) ? labels : []);
  }, [rows, across]);
  if (across === undefined || !upward.length) {
    return (
      <Empty title="Nothing to draw">
        <p>A chart needs one column of times or numbers for the x axis, and columns of numbers for the y axis.</p>
      </Empty>
    );
  }
  const name = (place: number) => rows.names[place] ?? "";
  // The labels that rows share divide them into series, unless the user chooses other columns.
  const others = upward.filter((place) => !up.includes(place));
  const series = new Map<string, number[]>([
    [NO_SERIES, []],
    ...[...labels, ...others].map((place): [string, number[]] => [name(place), [place]]),
    ...(labels.length ? [[labels.map(name).join(BETWEEN), labels] as [string, number[]]] : []),
  ]);
  const chosen = series.has(by) ? by : telling.map(name).join(BETWEEN) || NO_SERIES;
  const seriesBy = series.get(chosen) ?? [];
  const toggle = (place: number) => {
    const next = up.includes(place) ? up.filter((one) => one !== place) : [...up, place];
    change({ y: next.map(name).join("\u001f") });
  };
  return (
    <div class="chart">
      <div class="chartbar">
        <Pick
          label="Across"
          of={drawable.map(name)}
          chosen={name(across)}
          choose={(chosen) => change({ x: chosen })}
        />
        <fieldset class="lines">
          <legend>Up</legend>
          {upward.map((place) => (
            <label key={place}>
              <input
                type="checkbox"
                checked={up.includes(place)}
                disabled={!up.includes(place) && up.length >= LINES_MAX}
                onChange={() => toggle(place)}
              />
              {!seriesBy.length && <Swatch place={up.indexOf(place)} />}
              {name(place)}
            </label>
          ))}
        </fieldset>
        {series.size > 1 && (
          <Pick
            label="Series"
            of={[...series.keys()]}
            chosen={chosen}
            choose={(one) => change({ by: one })}
          />
        )}
      </div>
      <Canvas rows={rows} across={across} up={up} by={seriesBy} />
    </div>
  );
}

function Legend({ of }: { of: Drawing }) {
  return (
    <p class="legend small">
      {of.lines.map((line, place) => (
        <span key={line.name}>
          <Swatch place={place} /> {line.name}
        </span>
      ))}
      {of.series > SERIES_MAX && (
        <span class="quiet">
          the first {SERIES_MAX} of {counted(of.series, "series", "series")}, by name
        </span>
      )}
    </p>
  );
}

function Swatch({ place }: { place: number }) {
  if (place < 0) return null;
  return <span class={`swatch ${COLOURS[place % COLOURS.length]}`} aria-hidden="true" />;
}

interface CanvasAsked {
  rows: Rows;
  across: number;
  up: number[];
  by: number[];
}

function Canvas({ rows, across, up, by }: CanvasAsked) {
  const host = useRef<HTMLDivElement>(null);
  const [pointed, put] = useState<number | null>(null);
  const [points, putPoints] = useState(0);
  const drawing = useMemo<Drawing>(
    () => drawingOf(rows, { across, up, by }),
    [rows, across, up.join(), by.join()],
  );
  useEffect(() => {
    const element = host.current;
    if (!element) return;
    let plot = drawn(element, drawing, put);
    putPoints(plot.points);
    const redraw = () => {
      plot.destroy();
      plot = drawn(element, drawing, put);
    };
    const size = new ResizeObserver(() => plot.resize(element.clientWidth, element.clientHeight));
    size.observe(element);
    const stop = onTheme(redraw);
    return () => {
      stop();
      size.disconnect();
      plot.destroy();
    };
  }, [drawing]);
  const names = drawing.lines.map((line) => line.name).join(", ");
  return (
    <>
      <div
        class="canvas"
        ref={host}
        role="img"
        aria-label={`${names || "Nothing"} by ${rows.names[across]}, ${counted(points, "point")}`}
        data-points={points}
        data-lines={drawing.lines.length}
      />
      {by.length > 0 && <Legend of={drawing} />}
      <p class="reading quiet small">{reading(drawing, pointed, rows.names[across] ?? "")}</p>
    </>
  );
}

function reading(drawing: Drawing, place: number | null, across: string): string {
  if (place === null) return `${counted(drawing.x.length, "point")} across; drag to zoom in, double-click to zoom out`;
  const x = drawing.x[place] ?? NaN;
  const at = drawing.isTime && !Number.isNaN(x) ? new Date(x).toISOString() : String(x);
  const here = drawing.lines.filter((line) => line.values[place] !== undefined);
  const values = here.map((line) => `${line.name} ${line.values[place] ?? "null"}`);
  return `${across} ${at}: ${values.join(", ")}`;
}
