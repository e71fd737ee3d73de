"""Work by the number: one task of Spark each, and what each returned, in the driver.

In:   a function of a number, and how many there are
Out:  what it returned for each

- Spark gives the results of one attempt of each task, whatever was retried or ran twice.
- Only what the function carries goes out, and only what it returns comes back: no rows.
- Made of the frame's own calls, so that it runs through Spark Connect as well.
"""

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from thermocline.pipeline.failure import told_of
from thermocline.pipeline.session import without_warnings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REPORT = "report binary"


def run_tasks(spark: "SparkSession", work: Callable[[int], Any], count: int) -> list[Any]:
    """Let the workers do work 0, 1, 2 ... in a task each; return what it returned, in any order.

    What a worker raised is raised here, as an error of this package.
    """
    frame = spark.range(0, count, 1, count)
    try:
        with without_warnings():
            reports = frame.mapInArrow(partial(_task, work), _REPORT).collect()
    except Exception as error:
        raise told_of(error) from error
    return [pickle.loads(row.report) for row in reports]  # noqa: S301  our own workers


def _task(
    work: Callable[[int], Any], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield pa.RecordBatch.from_pydict({"report": [pickle.dumps(work(number))]})
