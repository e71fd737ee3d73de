"""PromQL over a lake: one call for an answer at a time, one for an answer over a range.

In:   a lake, an expression, times in milliseconds
Out:  an `Answer`

The evaluation runs in the calling thread. What it reads comes from the lake's query workers, within
the time that is left until the deadline; without workers it is read in this process.
"""

import threading
import time as clock
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from thermocline.errors import Overloaded, QueryCancelled, QueryTimeout
from thermocline.lake import Lake
from thermocline.promql.evaluate import (
    Answer,
    EvaluationLimits,
    evaluate_instant,
    evaluate_range,
)
from thermocline.promql.lake_source import LakeSource

TIMEOUT_S_DEFAULT = 60.0
NODE_ROWS_MAX = 20_000_000


@dataclass(slots=True)
class SampleBudget:
    """The rows that all evaluations of a node may hold in memory together."""

    rows_max: int = NODE_ROWS_MAX
    rows: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, rows: int) -> None:
        """Count rows that are read; `Overloaded` when all evaluations hold too many."""
        with self._lock:
            if self.rows and self.rows + rows > self.rows_max:
                raise Overloaded(
                    "the queries that run hold more samples than the node's limit",
                    hint="try again in a moment, or select fewer series",
                    rows_max=self.rows_max,
                    retry_after_s=1,
                )
            self.rows += rows

    def give_back(self, rows: int) -> None:
        """Count rows that are no longer held."""
        with self._lock:
            self.rows -= rows


@contextmanager
def open_source(
    lake: Lake,
    *,
    timeout_s: float = TIMEOUT_S_DEFAULT,
    limits: EvaluationLimits | None = None,
    budget: SampleBudget | None = None,
) -> Iterator[tuple[LakeSource, EvaluationLimits]]:
    """Give the samples of a lake, and the limits with a deadline that begins now."""
    chosen = limits or EvaluationLimits()
    bound = replace(chosen, deadline_s=min(clock.monotonic() + timeout_s, chosen.deadline_s))
    reading = _Reading(lake, bound, budget or SampleBudget())
    try:
        yield LakeSource(reading.ask, lake.tables(), rows_max=bound.samples_max), bound
    finally:
        reading.budget.give_back(reading.rows)


def evaluate_instant_on(
    lake: Lake, text: str, time_ms: int, *, timeout_s: float = TIMEOUT_S_DEFAULT
) -> Answer:
    """Return the value of an expression over a lake's metrics at one time."""
    with open_source(lake, timeout_s=timeout_s) as (source, limits):
        return evaluate_instant(source, text, time_ms, limits)


def evaluate_range_on(
    lake: Lake,
    text: str,
    start_ms: int,
    end_ms: int,
    step_ms: int,
    *,
    timeout_s: float = TIMEOUT_S_DEFAULT,
) -> Answer:
    """Return the value of an expression over a lake's metrics at each step."""
    with open_source(lake, timeout_s=timeout_s) as (source, limits):
        return evaluate_range(source, text, start_ms, end_ms, step_ms, limits)


@dataclass(slots=True)
class _Reading:
    """What one evaluation reads of a lake, within its deadline and the node's budget."""

    lake: Lake
    limits: EvaluationLimits
    budget: SampleBudget
    rows: int = 0

    def ask(self, text: str, parameters: list[object], rows_max: int) -> pa.Table:
        """Return the answer of a query; `Overloaded` when it has more rows than `rows_max`."""
        batches = []
        rows = 0
        reader = self._open(text, parameters)
        try:
            for batch in reader:
                if self.limits.is_stopped():
                    raise QueryCancelled("the query was stopped", hint="send it again")
                rows += batch.num_rows
                if rows > rows_max:
                    raise Overloaded(
                        "the query reads more rows than the limit",
                        hint="use a shorter range, or select fewer series",
                        rows_max=rows_max,
                    )
                self.budget.take(batch.num_rows)
                self.rows += batch.num_rows
                batches.append(batch)
        finally:
            reader.close()
        return pa.Table.from_batches(batches, reader.schema)

    def _open(self, text: str, parameters: list[object]) -> pa.RecordBatchReader:
        left_s = self.limits.deadline_s - clock.monotonic()
        if left_s <= 0:
            raise QueryTimeout("the query did not end before its deadline", hint="ask for less")
        pool = self.lake.node.pool
        if pool is None:
            return self.lake.sql_reader(text, parameters)
        return self.lake.answer(text, parameters, timeout_s=min(left_s, pool.timeout_s))
