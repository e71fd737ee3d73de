// A drawing on a canvas that follows its size and the theme, with a legend and a reading below it.
import { useEffect, useRef, useState } from "preact/hooks";
import { counted } from "../format";
import { onTheme } from "../theme";
import { COLOURS, type Drawing, drawn } from "./plot";
import { SERIES_MAX } from "./series";

interface LinesAsked {
  drawing: Drawing;
  /** The name of the x axis. */
  across: string;
  hasLegend: boolean;
}

export function Lines({ drawing, across, hasLegend }: LinesAsked) {
  const host = useRef<HTMLDivElement>(null);
  const [pointed, put] = useState<number | null>(null);
  const [points, putPoints] = useState(0);
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
        aria-label={`${names || "Nothing"} by ${across}, ${counted(points, "point")}`}
        data-points={points}
        data-lines={drawing.lines.length}
      />
      {hasLegend && <Legend of={drawing} />}
      <p class="reading quiet small">{reading(drawing, pointed, across)}</p>
    </>
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

export function Swatch({ place }: { place: number }) {
  if (place < 0) return null;
  return <span class={`swatch ${COLOURS[place % COLOURS.length]}`} aria-hidden="true" />;
}

function reading(drawing: Drawing, place: number | null, across: string): string {
  if (place === null) return `${counted(drawing.x.length, "point")} across; drag to zoom in, double-click to zoom out`;
  const x = drawing.x[place] ?? NaN;
  const at = drawing.isTime && !Number.isNaN(x) ? new Date(x).toISOString() : String(x);
  const here = drawing.lines.filter((line) => line.values[place] !== undefined);
  const values = here.map((line) => `${line.name} ${line.values[place] ?? "null"}`);
  return `${across} ${at}: ${values.join(", ")}`;
}
