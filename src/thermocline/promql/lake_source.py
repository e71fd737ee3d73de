"""Reads the series and samples of a lake's metric tables for an evaluation.

In:   a function that answers SQL; matchers, a stretch of time
Out:  samples by Prometheus' names and labels; lists of series

- Series are chosen in the catalogue `metric_series`, by metric and then by label. Only their
  samples are read, by the gate, workers and limits of every query; hot rows are among them.
- A number is the series of its metric. An explicit histogram is the series `_count`, `_sum` and
  `_bucket`, a summary `_count`, `_sum` and one for each quantile.
- An exponential histogram has `_count` and `_sum`. Its buckets change their bounds, so they are not
  series: a query of them has a warning that names the metric.
- A point without a recorded value ends its series: it is a stale marker.
- A sum of delta temporality is added up from the first sample that the query reads.
- Times are truncated to milliseconds. Of two samples of a series at one time the last one counts.
- `target_info` has a sample every 150 s while its resource is seen.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from thermocline.errors import NotFound, Overloaded
from thermocline.promql.labels import BUCKET_BOUND, NAME, Labels, Matcher, make_labels, match_values
from thermocline.promql.notes import Notes, go_number
from thermocline.promql.source import matching_places
from thermocline.promql.translate import (
    REMOTE_WRITE_SCOPE,
    TARGET_INFO,
    metric_name,
    series_labels,
    target_info_labels,
)
from thermocline.promql.values import STALE, Bools, Floats, Ints, SampleSet, empty_samples

POINTS, HISTOGRAMS = "metric_points", "metric_histograms"
SERIES_MAX = 100_000
SERIES_IN_TEXT_MAX = 2_000
METRICS_IN_TEXT_MAX = 500
TARGET_INFO_STEP_MS = 150_000
SUFFIXES = ("_count", "_sum", "_bucket")
_NS_PER_MS = 1_000_000
_KEY_BITS = 62
_METRIC = "metric, type, unit, temporality, is_monotonic, scope_name"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TIME_MIN_MS = -62_135_596_800_000
_TIME_MAX_MS = 253_402_300_799_000

AskSql = Callable[[str, list[object], int], pa.Table]
"""Answers SQL with parameters by at most so many rows; `Overloaded` when there are more."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as the tables have it."""

    table: str
    metric: str
    kind: str
    unit: str | None
    temporality: str | None
    is_monotonic: bool | None
    scope: str | None

    @property
    def name(self) -> str:
        """Its name in Prometheus, without the suffixes of a histogram's parts."""
        if self.scope == REMOTE_WRITE_SCOPE:
            return self.metric
        return metric_name(
            self.metric, self.unit, is_counter=self.is_counter, is_gauge=self.kind == "gauge"
        )

    @property
    def is_counter(self) -> bool:
        """Whether it is a sum that only grows."""
        return self.kind == "sum" and bool(self.is_monotonic)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all its series."""
        if self.table == POINTS:
            return (self.name,)
        parts = [self.name + suffix for suffix in SUFFIXES]
        if self.kind == "summary":
            return (self.name, *parts[:2])
        return tuple(parts)

    @property
    def prometheus_type(self) -> str:
        """Its type in Prometheus' metadata."""
        if self.kind in ("histogram", "exponential_histogram"):
            return "histogram"
        if self.kind == "summary":
            return "summary"
        if self.is_counter:
            return "counter"
        return "unknown" if self.kind == "unknown" else "gauge"


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Series of a table that an evaluation reads: their ids, labels and temporality."""

    metrics: list[Metric]
    ids: Ints
    labels: list[Labels]
    of_metric: list[Metric]


class LakeSource:
    """The metric tables of one lake, as series of samples."""

    def __init__(self, ask: AskSql, tables: Sequence[str], *, rows_max: int = 20_000_000) -> None:
        """`tables` are the names of the lake's tables; `rows_max` limits the rows of one read."""
        self._ask = ask
        self._tables = [name for name in (POINTS, HISTOGRAMS) if name in tables]
        self._rows_max = rows_max

    def select(
        self,
        alternatives: Sequence[Sequence[Matcher]],
        first_ms: int,
        last_ms: int,
        notes: Notes,
    ) -> SampleSet:
        """Return the samples of a stretch of time of each series that matches."""
        first_ms = max(_TIME_MIN_MS, min(first_ms, _TIME_MAX_MS))
        last_ms = max(_TIME_MIN_MS, min(last_ms, _TIME_MAX_MS))
        parts: list[_Part] = []
        for metric in self.metrics(first_ms, last_ms, _names_of(alternatives)):
            parts += self._read_metric(metric, alternatives, first_ms, last_ms, notes)
        if _may_match(alternatives, TARGET_INFO):
            parts += self._read_target_info(alternatives, first_ms, last_ms)
        return _join(parts)

    def metrics(
        self,
        first_ms: int,
        last_ms: int,
        fits: "Callable[[Sequence[str]], list[bool]] | None" = None,
    ) -> list[list[Metric]]:
        """Return the metrics seen in a stretch of time, those of one table and kind together."""
        groups: dict[tuple[str, str], list[Metric]] = {}
        for table in self._tables:
            rows = self._ask_table(
                _catalog_text(f"DISTINCT {_METRIC}", table),
                [_instant(first_ms), _instant(last_ms)],
                SERIES_MAX,
            )
            found = [Metric(table, *row.values()) for row in rows.to_pylist()]
            if fits is not None:
                names = [name for one in found for name in one.names]
                fitting = dict(zip(names, fits(names), strict=True))
                found = [one for one in found if any(fitting[name] for name in one.names)]
            for one in found:
                groups.setdefault((table, one.kind), []).append(one)
        return list(groups.values())

    def _ask_table(self, text: str, parameters: list[object], rows_max: int) -> pa.Table:
        try:
            return self._ask(text, parameters, rows_max)
        except NotFound:
            return pa.table({})  # the table was dropped since the names were read

    def _read_metric(
        self,
        metrics: list[Metric],
        alternatives: Sequence[Sequence[Matcher]],
        first_ms: int,
        last_ms: int,
        notes: Notes,
    ) -> list["_Part"]:
        """Return the samples of metrics of one table and kind."""
        every = self._list(metrics, first_ms, last_ms)
        kept, labels = _keep_possible(
            every.labels, alternatives, is_part=metrics[0].table != POINTS
        )
        if not kept:
            return []
        chosen = _Chosen(
            metrics, every.ids[kept], labels, [every.of_metric[place] for place in kept]
        )
        rows = self._read_rows(chosen, len(kept) < len(every.ids), first_ms, last_ms)
        if not rows.num_rows:
            return []
        if metrics[0].table == POINTS:
            return [_points(chosen, rows)]
        return list(_histogram_parts(chosen, rows, alternatives, notes))

    def _list(self, metrics: list[Metric], first_ms: int, last_ms: int) -> _Chosen:
        """Return all series of these metrics that were seen in a stretch of time."""
        table = metrics[0].table
        condition, parameters = _metric_condition(metrics)
        rows = self._ask_table(
            _catalog_text(f"series_id, {_METRIC}, attributes, resource", table, condition),
            [_instant(first_ms), _instant(last_ms), *parameters],
            SERIES_MAX,
        )
        known = {one: one for one in metrics}
        ids: list[int] = []
        labels: list[Labels] = []
        of_metric: list[Metric] = []
        for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            metric = known.get(Metric(table, *row[1:7]))
            if metric is not None:
                ids.append(row[0])
                labels.append(series_labels(metric.name, row[7], row[8], metric.scope))
                of_metric.append(metric)
        return _Chosen(metrics, np.array(ids, np.int64), labels, of_metric)

    def _read_rows(
        self,
        chosen: _Chosen,
        is_restricted: bool,
        first_ms: int,
        last_ms: int,
    ) -> pa.Table:
        """Return the rows of these series, sorted by series and time, each time once."""
        condition, parameters = _metric_condition(chosen.metrics)
        if is_restricted and len(chosen.ids) <= SERIES_IN_TEXT_MAX:
            condition += f" AND series_id IN ({', '.join(map(str, chosen.ids.tolist()))})"
        table = chosen.metrics[0].table
        columns = "value" if table == POINTS else _HISTOGRAM_COLUMNS
        rows = self._ask_table(
            f"SELECT series_id, ts_ns, {columns} FROM {table}"  # noqa: S608  numbers and names of ours
            f" WHERE ts >= ? AND ts < ?{condition}",
            [_instant(first_ms), _instant(last_ms + 1), *parameters],
            self._rows_max,
        )
        if not rows.num_rows:
            return rows
        return _sort_rows(chosen, rows)

    def _read_target_info(
        self, alternatives: Sequence[Sequence[Matcher]], first_ms: int, last_ms: int
    ) -> list["_Part"]:
        labels: list[Labels] = []
        numbers: list[Ints] = []
        times: list[Ints] = []
        for text, first_seen, last_seen in self._resources(first_ms, last_ms):
            found = target_info_labels(text)
            if found is None or not matching_places([found], alternatives):
                continue
            begin_ms = max(first_ms, first_seen // TARGET_INFO_STEP_MS * TARGET_INFO_STEP_MS)
            end_ms = min(last_ms, last_seen)
            when = np.append(np.arange(begin_ms, end_ms, TARGET_INFO_STEP_MS), end_ms)
            when = when[(when >= first_ms) & (when <= end_ms)].astype(np.int64)
            numbers.append(np.full(len(when), len(labels), np.int64))
            times.append(when)
            labels.append(found)
        if not labels:
            return []
        number, time = np.concatenate(numbers), np.concatenate(times)
        return [_Part(labels, number, time, np.ones(len(time)))]

    def _resources(self, first_ms: int, last_ms: int) -> Iterator[tuple[str, int, int]]:
        for table in self._tables:
            rows = self._ask_table(
                _catalog_text(
                    "resource, epoch_ms(min(first_seen)) AS a, epoch_ms(max(last_seen)) AS b",
                    table,
                    " AND resource IS NOT NULL GROUP BY resource",
                ),
                [_instant(first_ms), _instant(last_ms)],
                SERIES_MAX,
            )
            for row in rows.to_pylist():
                yield row["resource"], row["a"], row["b"]

    def list_series(
        self,
        alternatives: Sequence[Sequence[Matcher]],
        first_ms: int,
        last_ms: int,
        notes: Notes,
    ) -> list[Labels]:
        """Return the labels of each series that matches and was seen in a stretch of time."""
        found: set[Labels] = set()
        for metrics in self.metrics(first_ms, last_ms, _names_of(alternatives)):
            every = self._list(metrics, first_ms, last_ms)
            if metrics[0].table == POINTS:
                found.update(every.labels[at] for at in matching_places(every.labels, alternatives))
                continue
            parts = self._part_labels(every, alternatives, first_ms, last_ms, notes)
            found.update(parts[at] for at in matching_places(parts, alternatives))
        if _may_match(alternatives, TARGET_INFO):
            for text, _, _ in self._resources(first_ms, last_ms):
                labels = target_info_labels(text)
                if labels is not None and matching_places([labels], alternatives):
                    found.add(labels)
        return sorted(found)

    def _part_labels(
        self,
        every: _Chosen,
        alternatives: Sequence[Sequence[Matcher]],
        first_ms: int,
        last_ms: int,
        notes: Notes,
    ) -> list[Labels]:
        """Return the labels of the parts of histograms; bounds are read from their newest rows."""
        kind = every.metrics[0].kind
        found = [
            _add_suffix(labels, suffix) for labels in every.labels for suffix in ("_count", "_sum")
        ]
        if kind == "exponential_histogram":
            _warn_of_buckets(every.metrics, alternatives, notes)
            return found
        condition, parameters = _metric_condition(every.metrics)
        column = "quantiles" if kind == "summary" else "bounds"
        rows = self._ask_table(
            f"SELECT series_id, arg_max({column}, ts_ns) AS {column} FROM {HISTOGRAMS}"  # noqa: S608
            f" WHERE ts >= ? AND ts < ? AND {column} IS NOT NULL{condition} GROUP BY 1",
            [_instant(first_ms), _instant(last_ms + 1), *parameters],
            SERIES_MAX,
        )
        listed = (
            dict(zip(*(one.to_pylist() for one in rows.columns), strict=True))
            if rows.num_rows
            else {}
        )
        for series_id, labels in zip(every.ids.tolist(), every.labels, strict=True):
            held = listed.get(series_id)
            if held is None:
                continue
            if kind == "summary":
                found += [
                    make_labels([*labels, ("quantile", go_number(one["quantile"]))]) for one in held
                ]
                continue
            named = _add_suffix(labels, "_bucket")
            found += [
                make_labels([*named, (BUCKET_BOUND, go_number(bound))])
                for bound in (*held, float("inf"))
            ]
        return found


_HISTOGRAM_COLUMNS = "count, sum, bounds, bucket_counts, quantiles"


@dataclass(frozen=True, slots=True)
class _Part:
    """Samples of series by number, sorted by it and then by time."""

    labels: list[Labels]
    numbers: Ints
    times_ms: Ints
    values: Floats


def _sort_rows(chosen: _Chosen, rows: pa.Table) -> pa.Table:
    """Return the rows of the chosen series by series and time, each time once.

    Number and time are one column while they are sorted: that takes a fifth of the time of two.
    """
    places = pc.index_in(rows.column("series_id"), value_set=pa.array(chosen.ids))
    codes = places.combine_chunks().fill_null(-1).to_numpy(zero_copy_only=False)
    times = rows.column("ts_ns").to_numpy() // _NS_PER_MS
    numbers = _numbers(chosen.labels)[codes]
    first_ms = int(times.min())
    bits = (int(times.max()) - first_ms).bit_length()
    if bits + len(chosen.ids).bit_length() > _KEY_BITS:
        raise Overloaded(
            "the query reads too many series over too long a time", hint="use a shorter range"
        )
    keys = (numbers << bits) | (times - first_ms)
    is_sorted = bool((keys[1:] > keys[:-1]).all())
    order = None
    if (codes < 0).any():
        order = np.flatnonzero(codes >= 0)
        order = order[np.argsort(keys[order], kind="stable")]
    elif not is_sorted:
        order = np.argsort(keys, kind="stable")
    found = rows.drop_columns(["series_id", "ts_ns"])
    if order is not None:
        keys = keys[order]
        is_last = np.append(keys[1:] != keys[:-1], np.ones(min(1, len(keys)), dtype=bool))
        if not is_last.all():
            order, keys = order[is_last], keys[is_last]
        found = found.take(pa.array(order))
    return found.append_column("number", pa.array(keys >> bits)).append_column(
        "time_ms", pa.array((keys & ((1 << bits) - 1)) + first_ms)
    )


def _catalog_text(columns: str, table: str, rest: str = "") -> str:
    """Return a query of the series that were seen in a stretch of time."""
    seen = "last_seen >= ? AND first_seen <= ?"
    return f"SELECT {columns} FROM metric_series('{table}') WHERE {seen}{rest}"  # noqa: S608


def _instant(time_ms: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(milliseconds=max(_TIME_MIN_MS, min(time_ms, _TIME_MAX_MS)))


def _metric_condition(metrics: list[Metric]) -> tuple[str, list[object]]:
    names = sorted({one.metric for one in metrics})
    if len(names) > METRICS_IN_TEXT_MAX:
        return "", []
    return f" AND metric IN ({', '.join('?' * len(names))})", list(names)


def _names_of(
    alternatives: Sequence[Sequence[Matcher]],
) -> Callable[[Sequence[str]], list[bool]]:
    """Return the function that tells which names of metrics may match."""

    def fits(names: Sequence[str]) -> list[bool]:
        found = [False] * len(names)
        for matchers in alternatives:
            here = [True] * len(names)
            for one in matchers:
                if one.name == NAME:
                    pairs = zip(here, match_values(one, names), strict=True)
                    here = [a and b for a, b in pairs]
            found = [a or b for a, b in zip(found, here, strict=True)]
        return found

    return fits


def _may_match(alternatives: Sequence[Sequence[Matcher]], name: str) -> bool:
    return _names_of(alternatives)([name])[0]


def _keep_possible(
    labels: list[Labels], alternatives: Sequence[Sequence[Matcher]], *, is_part: bool
) -> tuple[list[int], list[Labels]]:
    """Return which series may match; of a histogram, whatever its parts are called."""
    ignored = {NAME, BUCKET_BOUND, "quantile"} if is_part else set()
    asked = [[one for one in matchers if one.name not in ignored] for matchers in alternatives]
    kept = matching_places(labels, asked)
    return kept, [labels[place] for place in kept]


def _numbers(labels: list[Labels]) -> Ints:
    """Return one number for each set of labels, in the order of their first places."""
    seen: dict[Labels, int] = {}
    return np.array([seen.setdefault(one, len(seen)) for one in labels], np.int64)


def _distinct(labels: list[Labels]) -> list[Labels]:
    return list(dict.fromkeys(labels))


def _deltas(chosen: _Chosen) -> Bools:
    """Return for each number whether its series is of delta temporality."""
    numbers = _numbers(chosen.labels)
    found = np.zeros(int(numbers.max()) + 1 if len(numbers) else 0, dtype=bool)
    for number, metric in zip(numbers.tolist(), chosen.of_metric, strict=True):
        found[number] = metric.temporality == "delta"
    return found


def _accumulate(values: Floats, numbers: Ints, are_deltas: Bools) -> Floats:
    """Return values with those of delta temporality added up within their series."""
    if not are_deltas.any():
        return values
    chosen = are_deltas[numbers] & ~np.isnan(values)
    added = np.where(chosen, values, 0.0)
    starts = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
    total = np.concatenate([np.cumsum(part) for part in np.split(added, starts[1:])])
    return np.where(chosen, total, values)


def _column(rows: pa.Table, name: str) -> Floats:
    """Return a column of numbers; null is a stale marker."""
    column = rows.column(name).combine_chunks().cast(pa.float64())
    values = column.fill_null(0.0).to_numpy(zero_copy_only=False).copy()
    if column.null_count:
        values[column.is_null().to_numpy(zero_copy_only=False)] = STALE
    return values


def _points(chosen: _Chosen, rows: pa.Table) -> _Part:
    numbers = rows.column("number").to_numpy()
    values = _accumulate(_column(rows, "value"), numbers, _deltas(chosen))
    return _Part(_distinct(chosen.labels), numbers, rows.column("time_ms").to_numpy(), values)


def _add_suffix(labels: Labels, suffix: str) -> Labels:
    return make_labels((name, value + suffix if name == NAME else value) for name, value in labels)


def _histogram_parts(
    chosen: _Chosen,
    rows: pa.Table,
    alternatives: Sequence[Sequence[Matcher]],
    notes: Notes,
) -> Iterator[_Part]:
    """Yield the series of the parts of histograms or summaries that match."""
    kind = chosen.metrics[0].kind
    deltas = _deltas(chosen)
    numbers, times = rows.column("number").to_numpy(), rows.column("time_ms").to_numpy()
    for suffix, column in (("_count", "count"), ("_sum", "sum")):
        labels = [_add_suffix(one, suffix) for one in _distinct(chosen.labels)]
        values = _accumulate(_column(rows, column), numbers, deltas)
        yield from _matching(_Part(labels, numbers, times, values), alternatives)
    if kind == "exponential_histogram":
        _warn_of_buckets(chosen.metrics, alternatives, notes)
    elif kind == "summary":
        yield from _matching(_quantile_part(chosen, rows), alternatives)
    elif any(_may_match(alternatives, f"{one.name}_bucket") for one in chosen.metrics):
        yield from _matching(_bucket_part(chosen, rows, deltas), alternatives)


def _warn_of_buckets(
    metrics: list[Metric], alternatives: Sequence[Sequence[Matcher]], notes: Notes
) -> None:
    for one in metrics:
        if _may_match(alternatives, f"{one.name}_bucket"):
            notes.warn(
                f'the exponential histogram "{one.name}" has no series of buckets; ask for'
                " histogram_quantile in SQL"
            )


def _matching(part: _Part, alternatives: Sequence[Sequence[Matcher]]) -> Iterator[_Part]:
    kept = matching_places(part.labels, alternatives)
    if not kept:
        return
    if len(kept) == len(part.labels):
        yield part
        return
    to = np.full(len(part.labels), -1, np.int64)
    to[kept] = np.arange(len(kept))
    moved = to[part.numbers]
    here = moved >= 0
    yield _Part(
        [part.labels[place] for place in kept], moved[here], part.times_ms[here], part.values[here]
    )


def _explode(
    chosen: _Chosen,
    rows: pa.Table,
    keys: Floats,
    of_row: Ints,
    values: Floats,
    name: str,
    suffix: str,
) -> _Part:
    """Return the series of a label with these values; there is one for each number and key."""
    numbers, times = rows.column("number").to_numpy()[of_row], rows.column("time_ms").to_numpy()
    distinct, codes = np.unique(keys, return_inverse=True)
    pairs, number = np.unique(numbers * len(distinct) + codes, return_inverse=True)
    if len(pairs) > SERIES_MAX:
        raise Overloaded(
            "the query reads more series than the limit",
            hint="select fewer histograms",
            series_max=SERIES_MAX,
        )
    base = [_add_suffix(one, suffix) for one in _distinct(chosen.labels)]
    texts = [go_number(float(key)) for key in distinct]
    labels = [
        make_labels([*base[pair // len(distinct)], (name, texts[pair % len(distinct)])])
        for pair in pairs.tolist()
    ]
    order = np.lexsort((times[of_row], number))
    return _Part(labels, number[order], times[of_row][order], values[order])


def _lists(column: pa.ChunkedArray) -> tuple[pa.Array, Ints, Ints]:
    """Return the flat values of a column of lists, the row of each, and the rows' lengths."""
    lists = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    flat = pc.list_flatten(lists)
    return (
        flat,
        np.repeat(np.arange(len(lengths), dtype=np.int64), lengths),
        lengths.astype(np.int64),
    )


def _bucket_part(chosen: _Chosen, rows: pa.Table, deltas: Bools) -> _Part:
    """Return the cumulative buckets of explicit histograms."""
    counts, of_row, lengths = _lists(rows.column("bucket_counts"))
    bounds, bound_row, bound_lengths = _lists(rows.column("bounds"))
    keys = np.full(len(of_row), np.inf)
    starts = np.cumsum(lengths) - lengths
    inside = (
        np.arange(len(bound_row), dtype=np.int64)
        - (np.cumsum(bound_lengths) - bound_lengths)[bound_row]
    )
    keys[starts[bound_row] + inside] = bounds.to_numpy(zero_copy_only=False)
    total = np.cumsum(counts.to_numpy(zero_copy_only=False).astype(np.int64))
    before = np.concatenate((np.zeros(1, np.int64), total))[starts]
    values = (total - before[of_row]).astype(np.float64)
    # A histogram without buckets has its count as the last bucket, and an end ends all of them.
    without = np.flatnonzero(lengths == 0)
    of_row = np.concatenate([of_row, without])
    keys = np.concatenate([keys, np.full(len(without), np.inf)])
    values = np.concatenate([values, _column(rows, "count")[without]])
    part = _explode(chosen, rows, keys, of_row, values, BUCKET_BOUND, "_bucket")
    if not deltas.any():
        return part
    names = {labels: place for place, labels in enumerate(_distinct(chosen.labels))}
    of_part = np.array([deltas[names[_without_bound(labels)]] for labels in part.labels])
    return _Part(
        part.labels, part.numbers, part.times_ms, _accumulate(part.values, part.numbers, of_part)
    )


def _without_bound(labels: Labels) -> Labels:
    """Return the labels of the histogram that a bucket belongs to."""
    return make_labels(
        (name, value.removesuffix("_bucket") if name == NAME else value)
        for name, value in labels
        if name != BUCKET_BOUND
    )


def _quantile_part(chosen: _Chosen, rows: pa.Table) -> _Part:
    flat, of_row, _ = _lists(rows.column("quantiles"))
    keys = pc.struct_field(flat, "quantile").to_numpy(zero_copy_only=False)
    values = pc.struct_field(flat, "value").to_numpy(zero_copy_only=False)
    return _explode(chosen, rows, keys, of_row, values, "quantile", "")


def _join(parts: list[_Part]) -> SampleSet:
    """Return all parts as one set of series, sorted by series and time, each time once."""
    parts = [part for part in parts if len(part.times_ms)]
    if not parts:
        return empty_samples()
    seen: dict[Labels, int] = {}
    moved = []
    for part in parts:
        to = np.array([seen.setdefault(one, len(seen)) for one in part.labels], np.int64)
        moved.append(to[part.numbers])
    numbers = np.concatenate(moved)
    times = np.concatenate([part.times_ms for part in parts])
    values = np.concatenate([part.values for part in parts])
    step = np.diff(numbers)
    if not ((step > 0) | ((step == 0) & (np.diff(times) > 0))).all():
        order = np.lexsort((times, numbers))
        numbers, times, values = numbers[order], times[order], values[order]
        is_last = np.append((np.diff(numbers) != 0) | (np.diff(times) != 0), True)
        numbers, times, values = numbers[is_last], times[is_last], values[is_last]
    offsets = np.searchsorted(numbers, np.arange(len(seen) + 1)).astype(np.int64)
    return SampleSet(list(seen), offsets, times, values, [False] * len(seen))
