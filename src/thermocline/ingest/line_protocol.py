"""InfluxDB's line protocol to rows of `metric_points`.

In:   lines `measurement,tag=value field=1.5,other=2i time`, the unit of times
Out:  a batch with a row for each field that is a number or a boolean

- The metric is measurement and field with `_` between them, a gauge. Tags are attributes;
  `service.name` or `service` and `host` are also the columns for them. The scope is `influx`.
- Lines end at a line feed alone. A text between quotes may hold one, and is no line.
- A field that is a text is refused by name and counted, and so is a line that is malformed: the
  other lines are accepted.
- A line without a time has the time of its arrival.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from thermocline.errors import BodyTooLarge
from thermocline.ingest.inflate import Data
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.metrics import series_id
from thermocline.ingest.otlp.origin import digest
from thermocline.ingest.otlp.outcome import DecodedRequest, Tally
from thermocline.ingest.otlp.tables import METRIC_POINTS, WORD
from thermocline.ingest.otlp.value import dump

UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
SCOPE = "influx"
TYPE = "gauge"
SERIES_KEPT_MAX = 50_000
_INT_MAX = (1 << 63) - 1
TEXT_FIELD = "a field that is a text"
BAD_LINE = "a line that is not line protocol"
BAD_TIME = "a time beyond int64 nanoseconds"
BAD_NUMBER = "an integer beyond int64"
BAD_DOUBLE = "a number beyond a double"

_LINE = re.compile(
    r"^((?:\\.|[^\\ ])+) +((?:\"(?:\\.|[^\"\\])*\"|\\.|[^\\\" ])+)(?: +(-?\d{1,20}))?\s*$",
    re.DOTALL,
)
_WHOLE_LINE = re.compile(  # the text of a field may go on over several lines
    r"(?:(?:\\[^\n]|[^\\ \n])+ +(?:=\"(?:\\.|[^\"\\])*\"|\\[^\n]|[^\\\n])*)?[^\n]*", re.DOTALL
)
_COMMA = re.compile(r"((?:\"(?:\\.|[^\"\\])*\"|\\.|[^\\\",])+)(?:,|$)", re.DOTALL)
_PAIR = re.compile(r"^((?:\\.|[^\\=])+)=(.+)$", re.DOTALL)
_ESCAPED = re.compile(r"\\([,= \"\\])")
_BOOLEANS = {
    **dict.fromkeys(("t", "T", "true", "True", "TRUE"), 1.0),
    **dict.fromkeys(("f", "F", "false", "False", "FALSE"), 0.0),
}
_NUMBER = re.compile(r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$")
_INTEGER = re.compile(r"^-?\d{1,20}[iu]$")


@dataclass(frozen=True, slots=True)
class _Tags:
    """The columns that a measurement with its tags gives to its rows."""

    measurement: str
    attributes: str
    service: str | None
    host: str | None


_kept_tags: dict[str, _Tags | None] = {}


@dataclass(frozen=True, slots=True)
class _Point:
    """One field of one line."""

    tags: _Tags
    metric: str
    value: float
    value_int: int | None
    time_ns: int


def decode_lines(data: Data, unit_ns: int, arrived_ns: int, limits: DecodeLimits) -> DecodedRequest:
    """Return the rows of lines; `BodyTooLarge` when there are more than the limit."""
    tally = Tally("metrics")
    points: list[_Point] = []
    for line in _split_lines(bytes(data).decode(errors="surrogateescape")):
        if not line.strip() or line.startswith("#"):
            continue
        _add_line(points, line, unit_ns, arrived_ns, tally)
        if len(points) > limits.items_max:
            raise BodyTooLarge(
                "the request has more values than the limit",
                hint="send smaller batches",
                items_max=limits.items_max,
            )
    tally.accepted = len(points)
    return tally.outcome({METRIC_POINTS.name: _batch(points)} if points else {})


def _split_lines(text: str) -> Iterator[str]:
    """Yield the lines; only a text between quotes may contain a line feed."""
    if '"' not in text:
        yield from text.split("\n")
        return
    for found in _WHOLE_LINE.finditer(text):
        yield found[0]


def _add_line(points: list[_Point], line: str, unit_ns: int, arrived_ns: int, tally: Tally) -> None:
    found = _LINE.match(line)
    tags = _find_tags(found[1]) if found else None
    if found is None or tags is None or not _is_text(line):
        tally.reject(BAD_LINE, line.encode(errors="replace").decode()[:50])
        return
    time_ns = arrived_ns if found[3] is None else int(found[3]) * unit_ns
    if abs(time_ns) > _INT_MAX:
        tally.reject(BAD_TIME, tags.measurement)
        return
    parts = list(_COMMA.finditer(found[2]))
    if sum(len(one[0]) for one in parts) < len(found[2]):
        tally.reject(BAD_LINE, tags.measurement)  # nothing between two commas
        return
    for part in (one[1] for one in parts):
        pair = _PAIR.match(part)
        if pair is None:
            tally.reject(BAD_LINE, part[:50])
            continue
        name, text = _unescape(pair[1]), pair[2]
        metric = f"{tags.measurement}_{name}"
        value = _read_value(text)
        if isinstance(value, str):
            tally.reject(value, metric)
        else:
            points.append(_Point(tags, metric, float(value[0]), value[1], time_ns))


def _read_value(text: str) -> tuple[float, int | None] | str:
    """Return a field's value, and the exact integer if it is one; or why it is refused."""
    if text[:1] == '"':
        return TEXT_FIELD
    if _INTEGER.match(text):
        whole = int(text[:-1])
        return BAD_NUMBER if abs(whole) > _INT_MAX else (float(whole), whole)
    if _NUMBER.match(text):
        return BAD_DOUBLE if math.isinf(float(text)) else (float(text), None)
    return (_BOOLEANS[text], None) if text in _BOOLEANS else BAD_LINE


def _is_text(line: str) -> bool:
    return line.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in line)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(r"\1", text) if "\\" in text else text


def _find_tags(head: str) -> _Tags | None:
    """Return the measurement and tags of a line's beginning; None when they are malformed."""
    if head not in _kept_tags:
        if len(_kept_tags) >= SERIES_KEPT_MAX:
            _kept_tags.clear()
        _kept_tags[head] = _make_tags(head)
    return _kept_tags[head]


def _make_tags(head: str) -> _Tags | None:
    measurement, *rest = _COMMA.findall(head.replace('"', '\\"'))
    tags: dict[str, str] = {}
    for one in rest:
        pair = _PAIR.match(one)
        if pair is None or pair[1] in tags:
            return None
        tags[_unescape(pair[1])] = _unescape(pair[2])
    service = tags.get("service.name") or tags.get("service")
    return _Tags(_unescape(measurement), dump(tags), service, tags.get("host"))


def _batch(points: list[_Point]) -> pa.RecordBatch:
    times = np.array([one.time_ns for one in points], np.int64)
    resources = [
        dump({"service.name": one.tags.service} if one.tags.service else {}) for one in points
    ]
    ids = [
        _series_id(resource, one.metric, one.tags.attributes)
        for resource, one in zip(resources, points, strict=True)
    ]
    columns = {
        "ts": pa.array(times // 1_000).cast(METRIC_POINTS.schema.field("ts").type),
        "ts_ns": pa.array(times),
        "service_name": pa.array([one.tags.service for one in points], WORD),
        "host_name": pa.array([one.tags.host for one in points], WORD),
        "resource": pa.array(resources, WORD),
        "scope_name": pa.array([SCOPE] * len(points), WORD),
        "scope_attributes": pa.array(["{}"] * len(points), WORD),
        "metric": pa.array([one.metric for one in points], WORD),
        "type": pa.array([TYPE] * len(points), WORD),
        "series_id": pa.array(ids, pa.int64()),
        "attributes": pa.array([one.tags.attributes for one in points], WORD),
        "flags": pa.array(np.zeros(len(points), np.int64)),
        "value": pa.array([one.value for one in points], pa.float64()),
        "value_int": pa.array([one.value_int for one in points], pa.int64()),
        "resource_dropped_attributes": pa.array(np.zeros(len(points), np.int64)),
        "scope_dropped_attributes": pa.array(np.zeros(len(points), np.int64)),
    }
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(len(points), field.type)
        for field in METRIC_POINTS.schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=METRIC_POINTS.schema)


def _series_id(resource: str, metric: str, attributes: str) -> int:
    identity = digest(resource, SCOPE, "", "", "{}", metric, TYPE, "", "", "None")
    return series_id(identity, digest(attributes))
