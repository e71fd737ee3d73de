"""Runs a function of a number in Spark's workers, one task for each number.

In:   a function of a number, and the count of numbers
Out:  the function's results, in the driver

- Spark gives the result of one attempt of each task, even if a task was retried or ran twice.
- Only the function's bound values go out, and only its results come back: no rows.
- It uses the frame API only, so that it also runs through Spark Connect.
"""

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from thermocline.pipeline.spark.session import without_warnings
from thermocline.pipeline.spark.spark_errors import translate_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REPORT = "report binary"


def run_tasks(spark: "SparkSession", work: Callable[[int], Any], count: int) -> list[Any]:
    """Let workers call `work` with 0, 1, 2 ..., each in its own task; return the results unordered.

    An error of a worker is raised here, as an error of this package.
    """
    frame = spark.range(0, count, 1, count)
    try:
        with without_warnings():
            reports = frame.mapInArrow(partial(_run_task, work), _REPORT).collect()
    except Exception as error:
        raise translate_error(error) from error
    return [pickle.loads(row.report) for row in reports]  # noqa: S301  our own workers


def _run_task(
    work: Callable[[int], Any], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield pa.RecordBatch.from_pydict({"report": [pickle.dumps(work(number))]})
