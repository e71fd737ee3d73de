"""Remote write 1.0 and 2.0 to rows of `metric_points`.

In:   the bytes of a request, inflated; limits
Out:  a batch with a row for each sample; `Invalid` when the request is malformed

- A series keeps its name and its labels: `metric` is its name, `attributes` are its other labels.
  `job` and `instance` are `service.name` and `service.instance.id` of its resource. The scope
  `prometheus.remote_write` says so to readers.
- The type is `unknown`, so that a series is the same one whether its metadata came or not. The
  metadata of 2.0 is in `description` and `metric_metadata`.
- A stale marker is a point without a value, with the flag for it.
- Native histograms are refused, and exemplars and the metadata of 1.0 are not stored; all are
  counted.
- The columns of a series are made once and kept by its labels, for a bounded number of series.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from thermocline.errors import BodyTooLarge, Invalid
from thermocline.ingest.inflate import Data
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.metrics import NO_RECORDED_VALUE, series_id
from thermocline.ingest.otlp.origin import digest
from thermocline.ingest.otlp.outcome import DecodedRequest, Tally
from thermocline.ingest.otlp.tables import METRIC_POINTS, WORD
from thermocline.ingest.otlp.value import dump
from thermocline.ingest.otlp.varint import LENGTH, read_varint
from thermocline.ingest.prometheus.scan_request import (
    BYTES,
    FIXED,
    NUMBER,
    Fields,
    Numbers,
    list_fields,
)

SCOPE = "prometheus.remote_write"
TYPE = "unknown"
SERIES_KEPT_MAX = 100_000
LABELS_MAX = 256
STALE_BITS = 0x7FF0_0000_0000_0002
_NAME = "__name__"
_NS_PER_MS = 1_000_000
_TIME_MS_MAX = (1 << 63) // _NS_PER_MS - 1
_TYPES = (
    "", "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset",
)  # fmt: skip

NATIVE = "native histograms, which are not supported"
EXEMPLAR = "exemplars, which are not stored"
METADATA_1 = "metadata of remote write 1.0, which is not stored"
BAD_LABELS = "labels that are not valid"
BAD_TIME = "a time beyond int64 nanoseconds"


@dataclass(frozen=True, slots=True)
class SeriesColumns:
    """The columns that all samples of a series share; `fault` says why it is refused."""

    metric: str
    attributes: str
    resource: str
    service: str | None
    series_id: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class _Scanned:
    """What a scan found: the label fields of the series, and the samples as columns."""

    raw: bytes
    series: int
    labels: Fields
    metadata: Fields
    symbols: Fields
    sample_series: Numbers
    times_ms: Numbers
    bits: Numbers


_kept: dict[tuple[int, bytes] | tuple[str, ...], SeriesColumns] = {}


def decode_remote_write(data: Data, version: int, limits: DecodeLimits) -> DecodedRequest:
    """Return the rows of a request of version 1 or 2."""
    tally = Tally("metrics")
    found = _scan(bytes(data), version, limits, tally)
    described = [("", "", "")] * found.series
    if version == 1:
        series = _columns_1(found)
    else:
        symbols = _read_symbols(found)
        series = _columns_2(found, symbols)
        described = _describe(found, symbols)
    batch = _batch(found, series, described, tally)
    tally.accepted = batch.num_rows
    return tally.outcome({METRIC_POINTS.name: batch} if batch.num_rows else {})


def _scan(raw: bytes, version: int, limits: DecodeLimits, tally: Tally) -> _Scanned:
    """Return the places of the parts of a request; count what is not stored."""
    data = np.frombuffer(raw, np.uint8)

    def fields_of(starts: Numbers, ends: Numbers) -> Fields:
        found = list_fields(data, starts, ends, fields_max=limits.values_max)
        if found is None:
            raise _make_error("it is not a request of this version, or it ends too early")
        if len(found) > limits.values_max:
            raise _too_large(len(found), limits)
        return found

    whole = fields_of(np.zeros(1, np.int64), np.full(1, len(raw), np.int64))
    series = whole.of(1 if version == 1 else 5, BYTES)
    inner = fields_of(series.values, series.ends)
    samples = inner.of(2, BYTES)
    if len(series) + len(samples) > limits.items_max:
        raise _too_large(len(series) + len(samples), limits)
    leaves = fields_of(samples.values, samples.ends)
    columns = [np.zeros(len(samples), np.int64) for _ in range(2)]
    for column, part in zip(columns, (leaves.of(1, FIXED), leaves.of(2, NUMBER)), strict=True):
        column[part.messages] = part.values
    histograms, exemplars = (
        inner.of(4 if version == 1 else 3, BYTES),
        inner.of(3 if version == 1 else 4, BYTES),
    )
    if len(histograms):
        tally.reject(NATIVE, "", len(histograms))
    if len(exemplars):
        tally.note(EXEMPLAR, len(exemplars))
    if version == 1 and len(whole.of(3, BYTES)):
        tally.note(METADATA_1, len(whole.of(3, BYTES)))
    return _Scanned(
        raw,
        len(series),
        inner.of(1, BYTES),
        inner.of(5, BYTES),
        whole.of(4, BYTES),
        samples.messages,
        columns[1],
        columns[0],
    )


def _too_large(items: int, limits: DecodeLimits) -> BodyTooLarge:
    return BodyTooLarge(
        "the request has more series and samples than the limit",
        hint="send smaller batches",
        items=items,
        items_max=limits.items_max,
    )


def _make_error(why: str) -> Invalid:
    return Invalid("the body is not a remote-write request", hint="see docs/promql.md", why=why)


def _columns_1(found: _Scanned) -> list[SeriesColumns]:
    """Return the columns of each series of 1.0.

    The key of a series is the length of its first label and the bytes up to the end of its last:
    labels follow each other, so both say what all its labels are.
    """
    labels, raw = found.labels, found.raw
    firsts = np.searchsorted(labels.messages, np.arange(found.series + 1))
    starts, ends = labels.values.tolist(), labels.ends.tolist()
    columns = []
    for first, last in itertools.pairwise(firsts.tolist()):
        if first == last:
            columns.append(SeriesColumns("", "", "", None, 0, BAD_LABELS))
            continue
        key = (ends[first] - starts[first], raw[starts[first] : ends[last - 1]])
        held = _kept.get(key)
        if held is None:
            pairs = [_strings(raw[starts[at] : ends[at]]) for at in range(first, last)]
            is_text = None not in pairs
            held = _keep(key, [pair for pair in pairs if pair is not None] if is_text else None)
        columns.append(held)
    return columns


def _columns_2(found: _Scanned, symbols: list[str]) -> list[SeriesColumns]:
    """Return the columns of each series of 2.0, whose labels are references to symbols."""
    data = np.frombuffer(found.raw, np.uint8)
    references, offsets = _unpack(data, found.labels)
    if len(references) and int(references.max()) >= len(symbols):
        raise _make_error("a reference is beyond the symbols")
    texts = [symbols[one] for one in references.tolist()]
    columns = [SeriesColumns("", "", "", None, 0, BAD_LABELS)] * found.series
    places = found.labels.messages.tolist()
    if len(set(places)) < len(places):
        raise _make_error("a series has its labels in several parts")
    for place, (first, last) in zip(places, itertools.pairwise(offsets.tolist()), strict=True):
        key = tuple(texts[first:last])
        held = _kept.get(key)
        if held is None:
            is_paired = len(key) % 2 == 0
            pairs = list(zip(key[::2], key[1::2], strict=True)) if is_paired else None
            held = _keep(key, pairs)
        columns[place] = held
    return columns


def _unpack(data: Any, packed: Fields) -> tuple[Numbers, Numbers]:
    """Return the numbers of packed fields in one column, and where those of each begin."""
    lengths = packed.ends - packed.values
    starts = np.cumsum(lengths) - lengths
    at = np.arange(int(lengths.sum())) + np.repeat(packed.values - starts, lengths)
    bytes_of = data[at].astype(np.int64)
    is_last = bytes_of < 128
    closing = np.flatnonzero(is_last)
    opening = np.concatenate(([0], closing[:-1] + 1)) if len(closing) else closing
    ends = starts + lengths
    if (lengths > 0).any() and not is_last[ends[lengths > 0] - 1].all():
        raise _make_error("the labels of a series end too early")
    within = np.arange(len(at)) - np.repeat(opening, closing - opening + 1)
    if len(within) and within.max() > 4:
        raise _make_error("a reference is too long")
    shifted = (bytes_of & 127) << (7 * within)
    numbers = np.add.reduceat(shifted, opening) if len(opening) else shifted
    before = np.concatenate(([0], np.cumsum(is_last)))
    return numbers, before[np.append(starts, len(at))]


def _keep(key: Any, labels: list[tuple[str, str]] | None) -> SeriesColumns:
    """Return the columns of a series, and keep them by its key."""
    made = _make_columns(labels)
    if len(_kept) >= SERIES_KEPT_MAX:
        _kept.clear()
    _kept[key] = made
    return made


def _make_columns(labels: list[tuple[str, str]] | None) -> SeriesColumns:
    """Return the columns of a series; None are labels that are not text."""
    given = dict(labels or ())
    name = given.pop(_NAME, "")
    if labels is None or not name or len(given) + 1 != len(labels) or len(labels) > LABELS_MAX:
        return SeriesColumns(name, "", "", None, 0, BAD_LABELS)
    job, instance = given.pop("job", ""), given.pop("instance", "")
    resource: dict[str, str] = {}
    if job:
        resource["service.name"] = job
    if instance:
        resource["service.instance.id"] = instance
    attributes = dump({key: value for key, value in given.items() if value})
    resource_text = dump(resource)
    identity = digest(resource_text, SCOPE, "", "", "", name, TYPE, "", "", "None")
    return SeriesColumns(
        name, attributes, resource_text, job or None, series_id(identity, digest(attributes))
    )


def _strings(message: bytes) -> tuple[str, str] | None:
    """Return fields 1 and 2 of a message, texts; None when they are not text."""
    texts = ["", ""]
    place = 0
    while place < len(message):
        tag, place = read_varint(message, place)
        size, place = read_varint(message, place)
        if tag & 7 != LENGTH or place + size > len(message):
            return None
        if tag >> 3 in (1, 2):
            try:
                texts[(tag >> 3) - 1] = message[place : place + size].decode()
            except UnicodeDecodeError:
                return None
        place += size
    return texts[0], texts[1]


def _read_symbols(found: _Scanned) -> list[str]:
    spans = zip(found.symbols.values.tolist(), found.symbols.ends.tolist(), strict=True)
    try:
        return [found.raw[start:end].decode() for start, end in spans]
    except UnicodeDecodeError as error:
        raise _make_error("a symbol is not UTF-8") from error


def _describe(found: _Scanned, symbols: list[str]) -> list[tuple[str, str, str]]:
    """Return type, help and unit of each series of 2.0."""
    known: dict[bytes, tuple[str, str, str]] = {}
    described = [("", "", "")] * found.series
    fields = found.metadata
    for place, start, end in zip(
        fields.messages.tolist(), fields.values.tolist(), fields.ends.tolist(), strict=True
    ):
        region = found.raw[start:end]
        if region not in known:
            known[region] = _description(region, symbols)
        described[place] = known[region]
    return described


def _description(region: bytes, texts: list[str]) -> tuple[str, str, str]:
    fields = {1: 0, 3: 0, 4: 0}
    place = 0
    while place < len(region):
        tag, place = read_varint(region, place)
        if tag & 7 != 0:
            raise _make_error("metadata has a field of an unknown kind")
        value, place = read_varint(region, place)
        fields[tag >> 3] = value
    if max(fields[3], fields[4]) >= max(1, len(texts)):
        raise _make_error("a reference is beyond the symbols")
    kind = _TYPES[fields[1]] if fields[1] < len(_TYPES) else ""
    help_text, unit = (texts[fields[one]] if fields[one] else "" for one in (3, 4))
    return kind, help_text, unit


def _batch(
    found: _Scanned,
    series: list[SeriesColumns],
    described: list[tuple[str, str, str]],
    tally: Tally,
) -> pa.RecordBatch:
    """Return the rows of the samples that are not refused."""
    of, times_ms, bits = found.sample_series, found.times_ms, found.bits
    is_good = (times_ms >= -_TIME_MS_MAX) & (times_ms <= _TIME_MS_MAX)
    if not is_good.all():
        tally.reject(BAD_TIME, "", int((~is_good).sum()))
    faulty = np.array([bool(one.fault) for one in series], dtype=bool)
    if faulty.any():
        bad = faulty[of]
        if (bad & is_good).any():
            tally.reject(BAD_LABELS, "", int((bad & is_good).sum()))
        is_good &= ~bad
    if not is_good.all():
        of, times_ms, bits = of[is_good], times_ms[is_good], bits[is_good]
    is_stale = bits == STALE_BITS
    times_ns = times_ms * _NS_PER_MS
    values = bits.view(np.float64)
    flags = np.where(is_stale, NO_RECORDED_VALUE, 0)
    ids = np.array([one.series_id for one in series], np.int64)
    texts = {one: _metadata_text(one) for one in set(described)}
    metadata = [texts[one] for one in described]
    columns: dict[str, pa.Array] = {
        "ts": pa.array(times_ns // 1_000).cast(METRIC_POINTS.schema.field("ts").type),
        "ts_ns": pa.array(times_ns),
        "service_name": _words([one.service for one in series], of),
        "resource": _words([one.resource for one in series], of),
        "scope_name": _words([SCOPE] * len(series), of),
        "metric": _words([one.metric for one in series], of),
        "description": _words([text or None for _, text, _ in described], of),
        "type": _words([TYPE] * len(series), of),
        "metric_metadata": _words(metadata, of),
        "series_id": pa.array(ids[of] if len(ids) else ids),
        "attributes": _words([one.attributes for one in series], of),
        "flags": pa.array(flags.astype(np.int64)),
        "value": pa.array(values, mask=is_stale),
        "resource_dropped_attributes": pa.array(np.zeros(len(of), np.int64)),
        "scope_dropped_attributes": pa.array(np.zeros(len(of), np.int64)),
        "scope_attributes": _words(["{}"] * len(series), of),
    }
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(len(of), field.type)
        for field in METRIC_POINTS.schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=METRIC_POINTS.schema)


def _metadata_text(described: tuple[str, str, str]) -> str | None:
    kind, _, unit = described
    given = {"prometheus.type": kind, "prometheus.unit": unit}
    return dump({key: text for key, text in given.items() if text}) if kind or unit else None


def _words(texts: Sequence[str | None], of: Any) -> pa.Array:
    """Return the text of each sample's series, as a dictionary."""
    words = pa.array(texts, pa.string()).dictionary_encode().cast(WORD)
    return words.take(pa.array(of))
