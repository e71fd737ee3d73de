"""The table function `metric_series`: every series of the metric tables, without a scan of samples.

In:   the view of a metric table; functions that read one segment, and the hot rows
Out:  an Arrow table, one row for each series: labels, first and last time, number of samples

- What a segment says about its series never changes, because a segment and its deleted rows are
  named by the log. It is read once in a process and kept; hot rows are read every time. So the
  answer is exact at every moment, and there is no second record that a crash could leave behind.
- Labels are the same for all samples of a series. They are read from the newest segment that has
  the series, else from the hot rows, and those of few segments are kept as well.
- What is kept has limits: the number of segments, and the number of series of one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from thermocline.errors import Invalid, Overloaded
from thermocline.format.log.action import Segment
from thermocline.format.log.state import TableState
from thermocline.query.cache import LruCache
from thermocline.query.series.evaluate import RESULT_ROWS_MAX
from thermocline.query.sql.engine_types import quote_identifier

CATALOG_TABLES = ("metric_points", "metric_histograms")
SEGMENTS_KEPT_MAX = 512
LABEL_SEGMENTS_KEPT_MAX = 8
SERIES_PER_SEGMENT_KEPT_MAX = 5_000
LABEL_TYPES = {
    "metric": pa.string(),
    "type": pa.string(),
    "unit": pa.string(),
    "temporality": pa.string(),
    "is_monotonic": pa.bool_(),
    "service_name": pa.string(),
    "host_name": pa.string(),
    "scope_name": pa.string(),
    "attributes": pa.string(),
    "resource": pa.string(),
}
_TIME = pa.timestamp("us", tz="UTC")
CATALOG = pa.schema(
    [
        ("series_id", pa.int64()),
        *LABEL_TYPES.items(),
        ("first_seen", _TIME),
        ("last_seen", _TIME),
        ("samples", pa.int64()),
        ("table_name", pa.string()),
    ]
)

MakeText = Callable[[str], str]
ReadPart = Callable[[Segment | None, MakeText], pa.Table]
"""Runs the query that `MakeText` makes of a FROM item on one segment, or on the hot rows."""

_SegmentKey = tuple[str, str, str, int]
_spans: LruCache[_SegmentKey, pa.Table] = LruCache(SEGMENTS_KEPT_MAX)
_labels: LruCache[_SegmentKey, pa.Table] = LruCache(LABEL_SEGMENTS_KEPT_MAX)


@dataclass(frozen=True, slots=True)
class CatalogSource:
    """A metric table to list: its name, where it is, its state, and how to read its parts."""

    name: str
    root: str
    state: TableState
    segments: Sequence[Segment]
    has_hot: bool
    read: ReadPart


def catalog_columns(state: TableState) -> frozenset[str]:
    """Return the lower-case names of the columns that a catalogue is read from."""
    known = {column.name for column in state.schema.columns}
    return frozenset({"series_id", state.spec.time_column.lower(), *(known & LABEL_TYPES.keys())})


def list_series(source: CatalogSource) -> pa.Table:
    """Return one row for each series of a table, in no order."""
    names = {column.name for column in source.state.schema.columns}
    if "series_id" not in names or not source.state.spec.bucket.is_time:
        raise Invalid(
            "this table has no series of samples",
            hint="use metric_points or metric_histograms",
            table=source.name,
        )
    parts: list[tuple[Segment | None, pa.Table]] = [
        (segment, _read_spans(source, segment)) for segment in source.segments
    ]
    if source.has_hot:
        parts.append((None, _read_spans(source, None)))
    parts = [part for part in parts if part[1].num_rows]
    if not parts:
        return CATALOG.empty_table()
    spans = pa.concat_tables([rows for _, rows in parts])
    found = spans.group_by("series_id").aggregate(
        [("first_us", "min"), ("last_us", "max"), ("samples", "sum")]
    )
    if found.num_rows > RESULT_ROWS_MAX:
        raise Overloaded(
            "there are more series than the limit",
            hint="ask metric_points with conditions on ts and metric",
            rows_max=RESULT_ROWS_MAX,
        )
    labels = _find_labels(source, parts, found.column("series_id").combine_chunks())
    columns = {
        "series_id": found.column("series_id"),
        **{name: labels.column(name) for name in LABEL_TYPES},
        "first_seen": found.column("first_us_min").cast(_TIME),
        "last_seen": found.column("last_us_max").cast(_TIME),
        "samples": found.column("samples_sum"),
        "table_name": pa.array([source.name] * found.num_rows, pa.string()),
    }
    return pa.table(columns).cast(CATALOG)


def _read_spans(source: CatalogSource, segment: Segment | None) -> pa.Table:
    """Return first time, last time and number of samples of each series of a part."""
    time = quote_identifier(source.state.spec.time_column)
    chosen = (
        f"series_id::BIGINT AS series_id, epoch_ns(min({time})) // 1000 AS first_us,"
        f" epoch_ns(max({time})) // 1000 AS last_us, count(*) AS samples"
    )
    return _read_kept(source, segment, chosen, _spans)


def _read_kept(
    source: CatalogSource,
    segment: Segment | None,
    chosen: str,
    kept: LruCache[_SegmentKey, pa.Table],
) -> pa.Table:
    """Return these columns of each series of a segment, kept from an earlier query if possible."""
    key = None
    if segment is not None:
        file = f"{segment.segment_id} {segment.checksum}"
        key = (source.root, file, segment.deletes, source.state.schema_id)
        held = kept.get(key)
        if held is not None:
            return held

    def text(item: str) -> str:
        return f"SELECT {chosen} FROM {item} WHERE series_id IS NOT NULL GROUP BY 1"  # noqa: S608

    found = source.read(segment, text)
    if key is not None and found.num_rows <= SERIES_PER_SEGMENT_KEPT_MAX:
        kept.put(key, found)
    return found


def _find_labels(
    source: CatalogSource, parts: Sequence[tuple[Segment | None, pa.Table]], ids: pa.Array
) -> pa.Table:
    """Return the labels of these series, in their order."""
    missing = ids
    found = [_label_schema().empty_table()]
    cold = sorted(
        (part for part in parts if part[0] is not None),
        key=lambda part: part[0].ts_max if part[0] is not None else 0,
        reverse=True,
    )
    for segment, rows in [*cold, *(part for part in parts if part[0] is None)]:
        if not len(missing):
            break
        if not pc.any(pc.is_in(missing, rows.column("series_id"))).as_py():
            continue
        labels = _read_labels(source, segment)
        found.append(labels)
        missing = missing.filter(pc.invert(pc.is_in(missing, labels.column("series_id"))))
    known = pa.concat_tables(found)
    return known.take(pc.index_in(ids, known.column("series_id").combine_chunks()))


def _read_labels(source: CatalogSource, segment: Segment | None) -> pa.Table:
    """Return the labels of each series of a part."""
    known = {column.name for column in source.state.schema.columns}
    labels = [
        f"any_value({quote_identifier(name)}) AS {quote_identifier(name)}"
        for name in LABEL_TYPES
        if name in known
    ]
    chosen = ", ".join(["series_id::BIGINT AS series_id", *labels])
    found = _read_kept(source, segment, chosen, _labels)
    columns = [
        found.column(field.name).cast(field.type)
        if field.name in found.column_names
        else pa.nulls(found.num_rows, field.type)
        for field in _label_schema()
    ]
    return pa.table(columns, schema=_label_schema())


def _label_schema() -> pa.Schema:
    return pa.schema([("series_id", pa.int64()), *LABEL_TYPES.items()])
