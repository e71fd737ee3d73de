"""Answers in Prometheus' JSON format.

In:   an `Answer` of an evaluation
Out:  the document of `/api/v1/query` and `/api/v1/query_range`, as bytes

- A value is a string, a time a number of seconds with milliseconds. A range is ordered by labels.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson

from thermocline.promql.evaluate import Answer
from thermocline.promql.labels import Labels
from thermocline.promql.notes import Notes, go_number
from thermocline.promql.values import Floats, Ints, SampleSet, Scalar, SeriesVector, Text


def instant_document(answer: Answer, series_max: int = 0) -> bytes:
    """Return the document of an answer at one time; at most `series_max` series if it is not 0."""
    value, seconds = answer.value, int(answer.times_ms[0]) / 1000
    if isinstance(value, Text):
        return _success("string", orjson.dumps([seconds, value.text]), answer.notes)
    if isinstance(value, Scalar):
        found = orjson.dumps([seconds, format_value(float(value.values[0]))])
        return _success("scalar", found, answer.notes)
    if isinstance(value, SampleSet):
        parts = _matrix_of_samples(value)
        return _success("matrix", _join_series(parts, series_max, answer.notes), answer.notes)
    parts = (
        b'{"metric":%b,"value":[%b,"%b"]}'
        % (
            orjson.dumps(dict(labels)),
            orjson.dumps(seconds),
            format_value(float(value.values[place, 0])).encode(),
        )
        for place, labels in enumerate(value.labels)
    )
    return _success("vector", _join_series(parts, series_max, answer.notes), answer.notes)


def range_document(answer: Answer, series_max: int = 0) -> bytes:
    """Return the document of an answer over steps; at most `series_max` series if it is not 0."""
    value = answer.value
    assert not isinstance(value, Text)
    if isinstance(value, Scalar):
        has = np.ones((1, len(answer.times_ms)), dtype=bool)
        value = SeriesVector([()], value.values[None, :], has, [False])
    if isinstance(value, SampleSet):
        parts = _matrix_of_samples(value)
    else:
        parts = _matrix_of_vector(value, answer.times_ms)
    return _success("matrix", _join_series(parts, series_max, answer.notes), answer.notes)


def data_document(data: Any, notes: Notes | None = None) -> bytes:
    """Return the document of a successful request with this data."""
    found = {"status": "success", "data": data}
    if notes is not None and notes.warnings:
        found["warnings"] = list(notes.warnings)
    return orjson.dumps(found)


def error_document(kind: str, message: str) -> bytes:
    """Return the document of a failed request."""
    return orjson.dumps({"status": "error", "errorType": kind, "error": message})


def _success(kind: str, result: bytes, notes: Notes) -> bytes:
    found = b'{"status":"success","data":{"resultType":"%b","result":%b}' % (kind.encode(), result)
    if notes.warnings:
        found += b',"warnings":' + orjson.dumps(list(notes.warnings))
    if notes.infos:
        found += b',"infos":' + orjson.dumps(list(notes.infos))
    return found + b"}"


def _join_series(parts: Iterator[bytes], series_max: int, notes: Notes) -> bytes:
    found: list[bytes] = []
    for part in parts:
        if series_max and len(found) == series_max:
            notes.warnings["results truncated due to limit"] = None
            break
        found.append(part)
    return b"[" + b",".join(found) + b"]"


def _matrix_of_vector(value: SeriesVector, times_ms: Ints) -> Iterator[bytes]:
    times = _times_text(times_ms)
    for place in sorted(range(len(value.labels)), key=value.labels.__getitem__):
        chosen = np.flatnonzero(value.has[place])
        yield _series(
            value.labels[place], [times[at] for at in chosen], value.values[place, chosen]
        )


def _matrix_of_samples(value: SampleSet) -> Iterator[bytes]:
    for place in sorted(range(len(value.labels)), key=value.labels.__getitem__):
        low, high = int(value.offsets[place]), int(value.offsets[place + 1])
        yield _series(
            value.labels[place], _times_text(value.times_ms[low:high]), value.values[low:high]
        )


def _series(labels: Labels, times: Sequence[str], values: Floats) -> bytes:
    cells = ",".join(
        f'[{time},"{format_value(value)}"]'
        for time, value in zip(times, values.tolist(), strict=True)
    )
    return b'{"metric":%b,"values":[%b]}' % (orjson.dumps(dict(labels)), cells.encode())


def _times_text(times_ms: Ints) -> list[str]:
    return [
        str(time // 1000) if time % 1000 == 0 else repr(time / 1000) for time in times_ms.tolist()
    ]


def format_value(value: float) -> str:
    """Return a value as Prometheus writes it, with an exponent from 1e21 and below 1e-6."""
    text = repr(value)
    if text.endswith(".0"):
        return text[:-2]
    if "e" not in text and "n" not in text:
        return text
    size = abs(value)
    if value != value or size == float("inf"):
        return go_number(value)
    if 1e-6 <= size < 1e21:
        return np.format_float_positional(value, trim="-")
    mantissa, _, exponent = text.partition("e")
    number = int(exponent)
    return f"{mantissa.removesuffix('.0')}e{'+' if number > 0 else '-'}{abs(number)}"
