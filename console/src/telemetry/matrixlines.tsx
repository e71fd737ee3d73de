// A matrix of Prometheus' API on a canvas. Loaded with the drawing library, when a chart is shown.
import { useMemo } from "preact/hooks";
import { Lines } from "../query/lines";
import { type Matrix, drawingOfMatrix } from "./matrix";

export function MatrixLines({ matrix }: { matrix: Matrix }) {
  const drawing = useMemo(() => drawingOfMatrix(matrix), [matrix]);
  return (
    <div class="chart">
      <Lines drawing={drawing} across="time" hasLegend />
    </div>
  );
}
