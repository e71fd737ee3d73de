// A result as lines: the user chooses the column of the x axis and the columns of the y axis.
import { useMemo } from "preact/hooks";
import { change } from "../route";
import { Pick } from "../show/listing";
import { Empty } from "../show/state";
import type { Rows } from "./arrow";
import { Lines, Swatch } from "./lines";
import type { Drawing } from "./plot";
import { drawingOf, isRepeated, tellingOf } from "./series";

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

interface CanvasAsked {
  rows: Rows;
  across: number;
  up: number[];
  by: number[];
}

function Canvas({ rows, across, up, by }: CanvasAsked) {
  const drawing = useMemo<Drawing>(
    () => drawingOf(rows, { across, up, by }),
    [rows, across, up.join(), by.join()],
  );
  return <Lines drawing={drawing} across={rows.names[across] ?? ""} hasLegend={by.length > 0} />;
}
