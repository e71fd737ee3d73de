"""The table functions `rate`, `increase`, `delta` and `irate` in a query, answered from a view.

In:   the evaluated arguments of a call; the view of its table; conditions of the query on the call
Out:  an Arrow table, one row for each series and window

- Conditions of the query on `ts`, `series_id` and the labels restrict which samples are read. The
  query applies them again, so they never change the answer: the samples of the lookback before
  the first window are read too, and the labels are the same for all samples of a series.
- Samples are read without labels, in slices of time. Labels are read afterwards, near the time at
  which each series was last seen, where few rows hold them all.
- A label that the query does not mention is not read.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from thermocline.errors import Invalid
from thermocline.format.bucket import parse_duration_s
from thermocline.format.instant import NS_PER_S
from thermocline.format.log.state import TableState
from thermocline.query.series.buckets import BUCKET
from thermocline.query.series.evaluate import (
    DELTA,
    INCREASE,
    IRATE,
    RATE,
    SeriesFunction,
    SeriesResult,
    TimeSlice,
    add_labels,
    evaluate_series,
)
from thermocline.query.sql.constant import ConstantValue
from thermocline.query.sql.engine_types import (
    Shape,
    engine_type,
    quote_identifier,
    quote_text,
    shape_of,
)
from thermocline.query.sql.plan import Constraint, time_window

LABELS = (
    "metric",
    "unit",
    "type",
    "service_name",
    "host_name",
    "scope_name",
    "attributes",
    "resource",
)
LOOKBACK_S_DEFAULT = 300
SLICE_ROWS = 300_000
SLICE_ROWS_WITH_BUCKETS = 40_000
_LABEL_SPAN_NS = 120 * NS_PER_S
_LABEL_ROUNDS = 4
_MONTH = timedelta(days=28)
_BUCKET_COLUMNS = (
    "bounds",
    "bucket_counts",
    "scale",
    "zero_count",
    "zero_threshold",
    "positive_offset",
    "positive_counts",
    "negative_offset",
    "negative_counts",
)
_TIME = pa.timestamp("us", tz="UTC")
_VALUES = {
    RATE: (("increase", pa.float64()), ("rate", pa.float64())),
    INCREASE: (("increase", pa.float64()), ("rate", pa.float64())),
    DELTA: (("delta", pa.float64()),),
    IRATE: (("rate", pa.float64()),),
}

ReadRows = Callable[[TimeSlice, Callable[[str], str]], pa.Table]
"""Reads the rows of a slice: its second argument makes the query of a FROM item."""


@dataclass(frozen=True, slots=True)
class SeriesCall:
    """One call with its arguments: what to compute, of which table, with which labels."""

    table: str
    function: SeriesFunction
    schema: pa.Schema
    labels: tuple[str, ...]

    @property
    def shape(self) -> Shape:
        """The columns of the call by which the query may restrict what is read."""
        whole = shape_of(self.schema)
        usable = {"ts", "series_id", *self.labels}
        columns = {name: one if name in usable else None for name, one in whole.columns.items()}
        return Shape(columns, whole.types)


def parse_call(
    name: str, values: Sequence[ConstantValue], table: str, state: TableState
) -> SeriesCall:
    """Return the call with these arguments on a table; `Invalid` when it cannot be computed."""
    window_ns = parse_width(values[1], "window")
    if len(values) > 2:
        lookback_ns = parse_width(values[2], "lookback")
    else:
        lookback_ns = max(window_ns, LOOKBACK_S_DEFAULT * NS_PER_S)
    columns = {column.name: column.type for column in state.schema.columns}
    is_histogram = "value" not in columns and "count" in columns
    _check_columns(state, columns, table)
    if is_histogram and name == DELTA:
        raise Invalid(
            "delta is a function of gauges, and this table has histograms",
            hint="use rate or increase",
            table=table,
        )
    labels = tuple(label for label in LABELS if label in columns)
    fields = [("ts", _TIME), *((label, pa.string()) for label in labels)]
    fields += [("series_id", pa.int64()), ("samples", pa.int64()), *_VALUES[name]]
    if is_histogram and name != IRATE:
        fields += [("sum_increase", pa.float64()), ("histogram", pa.list_(BUCKET))]
    function = SeriesFunction(name, window_ns, lookback_ns, is_histogram, is_histogram)
    return SeriesCall(table, function, pa.schema(fields), labels)


def parse_width(value: ConstantValue, argument: str) -> int:
    """Return the nanoseconds of a width: a text such as '5m' or an interval."""
    found = value.value
    if isinstance(found, timedelta) and found >= _MONTH:
        raise Invalid(
            "an interval of four weeks or more may mean months, which have no fixed length",
            hint="write the days as a text: '30d'",
            argument=argument,
        )
    seconds = parse_duration_s(found, argument)
    if seconds < 1:
        raise Invalid("a width must be at least 1 second", hint="write '1m'", argument=argument)
    return seconds * NS_PER_S


def _check_columns(state: TableState, columns: dict[str, pa.DataType], table: str) -> None:
    lacking = [name for name in ("series_id",) if name not in columns]
    if "value" not in columns and "count" not in columns:
        lacking.append("value")
    is_whole = kinds.is_integer(columns.get("series_id", pa.int64()))
    if lacking or not is_whole or not state.spec.bucket.is_time:
        raise Invalid(
            "this table has no series of samples",
            hint="use metric_points or metric_histograms, or a table with a time column, an"
            " integer column series_id and a column value",
            table=table,
            lacking=lacking,
        )


def wants(mentioned: frozenset[str] | None, name: str) -> bool:
    """Tell whether a query that mentions these columns may need one of this name."""
    return mentioned is None or name in mentioned


def source_columns(call: SeriesCall, state: TableState) -> frozenset[str]:
    """Return the lower-case names of the columns that samples and labels are read from."""
    names = {"series_id", "start_ns", "value", "temporality", "type", "is_monotonic", "ts_ns"}
    names |= {"count", "sum", *_BUCKET_COLUMNS, *call.labels}
    known = {column.name for column in state.schema.columns}
    return frozenset((names & known) | {state.spec.time_column.lower()})


def find_slices(
    call: SeriesCall,
    pieces: Sequence[tuple[int, int, int]],
    constraints: Sequence[Constraint],
    *,
    wants_buckets: bool,
) -> tuple[list[TimeSlice], int | None]:
    """Return the slices to read, in order, and the first window that gets rows.

    `pieces` are first time, last time and number of rows of everything that may be read.
    """
    function = call.function
    low, high = time_window("ts", [constraints])
    first = None if low is None else function.window_of(low)
    low_ns = None if first is None else function.start_of(first)
    end_ns = None if high is None else function.start_of(function.window_of(high) + 1)
    read_from = None if low_ns is None else low_ns - function.lookback_ns
    inside = [
        (max(begin, read_from) if read_from is not None else begin, end, rows)
        for begin, end, rows in pieces
        if (read_from is None or end >= read_from) and (end_ns is None or begin < end_ns)
    ]
    if not inside:
        return [], first
    limit = SLICE_ROWS_WITH_BUCKETS if wants_buckets else SLICE_ROWS
    start = min(begin for begin, _, _ in inside)
    last = (max(end for _, end, _ in inside) // 1_000 + 1) * 1_000
    end = last if end_ns is None else min(last, end_ns)
    cuts = _cut_times(function, inside, start, limit)
    edges = [start, *(cut for cut in cuts if start < cut < end), end]
    found = [TimeSlice(a, b) for a, b in itertools.pairwise(edges) if a < b]
    return found, first


def _cut_times(
    function: SeriesFunction, pieces: Sequence[tuple[int, int, int]], start: int, limit: int
) -> list[int]:
    """Return the times at which about `limit` rows have passed since the time before."""
    parts: list[tuple[int, int]] = []
    for begin, end, rows in pieces:
        count = -(-rows // limit)
        width = (end - begin) // max(count, 1)
        parts += [(begin + place * width, rows // count) for place in range(count)]
    parts.sort()
    cuts, passed = [start], 0
    for begin, rows in parts:
        if passed and passed + rows > limit:
            aligned = function.start_of(function.window_of(begin))
            cut = aligned if aligned > cuts[-1] else begin // 1_000 * 1_000
            if cut > cuts[-1]:
                cuts.append(cut)
                passed = 0
        passed += rows
    return cuts[1:]


def answer_call(
    call: SeriesCall,
    state: TableState,
    slices: Sequence[TimeSlice],
    windows_from: int | None,
    constraints: Sequence[Constraint],
    mentioned: frozenset[str] | None,
    read: ReadRows,
) -> pa.Table:
    """Return the rows of a call, with null in the columns that the query does not mention."""
    wants_buckets = call.function.wants_buckets and wants(mentioned, "histogram")
    function = SeriesFunction(
        call.function.name,
        call.function.window_ns,
        call.function.lookback_ns,
        call.function.is_histogram,
        wants_buckets,
    )
    conditions = _conditions(constraints)
    time = _time_sql(state)
    chosen = _sample_columns(call, state, wants_buckets=wants_buckets)

    def read_samples(part: TimeSlice) -> pa.Table:
        def text(item: str) -> str:
            inside = _between(state, time, part.low_ns, part.high_ns)
            where = " AND ".join([*inside, *conditions, *_sample_conditions(call, state)])
            return f"SELECT {chosen} FROM {item} WHERE {where}"  # noqa: S608  # quoted names

        return read(part, text)

    result = evaluate_series(function, slices, read_samples, windows_from)
    labels = [label for label in call.labels if wants(mentioned, label)]
    found = result.rows
    if labels and found.num_rows:
        table = _read_labels(call, state, result, slices, labels, conditions, read)
        found = add_labels(result, table, labels)
    columns = [
        found.column(field.name).cast(field.type)
        if field.name in found.column_names
        else pa.nulls(found.num_rows, field.type)
        for field in call.schema
    ]
    return pa.table(columns, schema=call.schema)


def _sample_columns(call: SeriesCall, state: TableState, *, wants_buckets: bool) -> str:
    known = {column.name for column in state.schema.columns}
    time = quote_identifier(state.spec.time_column)
    value = "count" if call.function.is_histogram else "value"
    found = [
        "series_id::BIGINT AS series_id",
        f"coalesce(ts_ns, epoch_ns({time})) AS time_ns"
        if "ts_ns" in known
        else f"epoch_ns({time}) AS time_ns",
        "coalesce(start_ns, 0)::BIGINT AS start_ns" if "start_ns" in known else "0 AS start_ns",
        f"{quote_identifier(value)}::DOUBLE AS value",
        "coalesce(temporality = 'delta', false) AS is_delta"
        if "temporality" in known
        else "false AS is_delta",
    ]
    found[2] = found[2].replace("0 AS", "0::BIGINT AS")
    if call.function.is_histogram:
        found.append('"sum"::DOUBLE AS "sum"' if "sum" in known else 'NULL::DOUBLE AS "sum"')
        if wants_buckets:
            found += [quote_identifier(name) for name in _BUCKET_COLUMNS if name in known]
    return ", ".join(found)


def _sample_conditions(call: SeriesCall, state: TableState) -> list[str]:
    known = {column.name for column in state.schema.columns}
    value = quote_identifier("count" if call.function.is_histogram else "value")
    found = ["series_id IS NOT NULL", f"{value} IS NOT NULL"]
    if call.function.is_histogram:
        return found
    found.append(f"NOT isnan({value}::DOUBLE)")
    if {"type", "is_monotonic"} <= known:
        counter = "(type = 'sum' AND coalesce(is_monotonic, false))"
        found.append(f"NOT {counter}" if call.function.name == DELTA else counter)
    return found


def _conditions(constraints: Sequence[Constraint]) -> list[str]:
    """Return the conditions on labels and series, as SQL on the columns of the table."""
    found = []
    for one in constraints:
        name = quote_identifier(one.column)
        if one.column == "ts":
            continue
        if one.values is not None:
            found.append(f"{name} IN ({', '.join(_literal(value) for value in one.values)})")
            continue
        if one.low is not None:
            found.append(f"{name} {'>=' if one.low_inclusive else '>'} {_literal(one.low)}")
        if one.high is not None:
            found.append(f"{name} {'<=' if one.high_inclusive else '<'} {_literal(one.high)}")
    return found


def _literal(value: Any) -> str:
    return quote_text(value) if isinstance(value, str) else str(int(value))


def label_constraints(constraints: Sequence[Constraint]) -> list[Constraint]:
    """Return the constraints that hold for samples as well: all but those on the window."""
    return [one for one in constraints if one.column != "ts"]


def _time_sql(state: TableState) -> str:
    return quote_identifier(state.spec.time_column)


def _between(state: TableState, time: str, low_ns: int, high_ns: int) -> list[str]:
    """Return the conditions for times of a slice; its edges are whole microseconds."""
    kind = engine_type(state.schema.column(state.spec.time_column).type)
    has_zone = kind in ("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS")
    function = "make_timestamptz" if has_zone else "make_timestamp"
    low, high = (f"{function}({edge // 1_000})::{kind}" for edge in (low_ns, high_ns))
    return [f"{time} >= {low}", f"{time} < {high}"]


def _read_labels(
    call: SeriesCall,
    state: TableState,
    result: SeriesResult,
    slices: Sequence[TimeSlice],
    labels: Sequence[str],
    conditions: Sequence[str],
    read: ReadRows,
) -> pa.Table:
    """Return the labels of every series of a result, one row each."""
    time = _time_sql(state)
    chosen = ", ".join(f"any_value({quote_identifier(one)}) AS {one}" for one in labels)
    ids, last_seen = result.series.ids, result.series.last_seen_ns
    remaining = {ids[number]: seen for number, seen in last_seen.items()}
    parts: list[pa.Table] = []
    span = _LABEL_SPAN_NS
    for turn in range(_LABEL_ROUNDS):
        newest = max(remaining.values())
        low = newest - span if turn < _LABEL_ROUNDS - 1 else slices[0].low_ns
        part = TimeSlice(low // 1_000 * 1_000, newest // 1_000 * 1_000 + 1_000)
        inside = _between(state, time, part.low_ns, part.high_ns)
        where = " AND ".join([*inside, *conditions, *_sample_conditions(call, state)])

        def text(item: str, where: str = where) -> str:
            wanted = f"series_id::BIGINT AS series_id, {chosen}"
            return f"SELECT {wanted} FROM {item} WHERE {where} GROUP BY 1"  # noqa: S608  # quoted

        found = read(part, text)
        parts.append(found)
        for series_id in found.column("series_id").to_pylist():
            remaining.pop(series_id, None)
        if not remaining:
            break
        span *= 8
    return pa.concat_tables(parts)
