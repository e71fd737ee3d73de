"""Functions of single values, of time, and of labels.

In:   vectors and numbers for each step
Out:  vectors
"""

from collections.abc import Callable

import numpy as np

from thermocline.errors import Invalid
from thermocline.promql.labels import (
    NAME,
    Labels,
    drop_labels,
    make_labels,
    replace_whole,
    value_of,
)
from thermocline.promql.values import Bools, Floats, Ints, SeriesVector

_DAY_S = 86_400


def _days(seconds: Floats) -> tuple[Bools, "np.ndarray[tuple[int, ...], np.dtype[np.datetime64]]"]:
    known = np.isfinite(seconds) & (np.abs(seconds) < 1e11)
    whole = np.where(known, np.trunc(np.where(known, seconds, 0.0)), 0).astype(np.int64)
    return known, whole.astype("datetime64[s]")


def _date_part(part: Callable[..., Ints]) -> Callable[[Floats], Floats]:
    def compute(seconds: Floats) -> Floats:
        known, times = _days(seconds)
        return np.where(known, part(times).astype(np.float64), np.nan)

    return compute


def _since(times: "np.ndarray", unit: str, whole: str) -> Ints:
    """Return how many units have passed since the beginning of the whole unit."""
    begun = times.astype(f"datetime64[{whole}]").astype("datetime64[s]")
    found: Ints = (times - begun).astype(f"timedelta64[{unit}]").astype(np.int64)
    return found


def _month_lengths(times: "np.ndarray") -> Ints:
    month = times.astype("datetime64[M]")
    found: Ints = ((month + 1).astype("datetime64[D]") - month.astype("datetime64[D]")).astype(
        np.int64
    )
    return found


DATE_FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {
    "minute": _date_part(lambda times: _since(times, "m", "h")),
    "hour": _date_part(lambda times: _since(times, "h", "D")),
    "day_of_month": _date_part(lambda times: _since(times, "D", "M") + 1),
    "day_of_year": _date_part(lambda times: _since(times, "D", "Y") + 1),
    "day_of_week": _date_part(
        lambda times: (times.astype("datetime64[D]").astype(np.int64) + 4) % 7
    ),
    "days_in_month": _date_part(_month_lengths),
    "month": _date_part(lambda times: times.astype("datetime64[M]").astype(np.int64) % 12 + 1),
    "year": _date_part(lambda times: times.astype("datetime64[Y]").astype(np.int64) + 1970),
}


def _sign(values: Floats) -> Floats:
    return np.where(values < 0, -1.0, np.where(values > 0, 1.0, values))


NUMBER_FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "exp": np.exp,
    "ln": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "sqrt": np.sqrt,
    "sgn": _sign,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "deg": np.degrees,
    "rad": np.radians,
}
"""Functions of one value."""


def round_to(values: Floats, nearest: Floats) -> Floats:
    """Return values rounded to a multiple, half of it up."""
    inverse = 1.0 / nearest
    found: Floats = np.floor(values * inverse + 0.5) / inverse
    return found


def clamp(vector: SeriesVector, low: Floats, high: Floats) -> tuple[Floats, Bools]:
    """Return values within limits; there is no value where the limits are in the wrong order."""
    values = np.minimum(np.maximum(vector.values, low), high)
    return values, vector.has & ~(low > high)[None, :]


def label_replace(
    vector: SeriesVector, target: str, template: str, source: str, pattern: str
) -> SeriesVector:
    """Return a vector with a label made of another where the pattern matches all of it."""
    _check_label(target, "label_replace")
    values = [value_of(labels, source) for labels in vector.labels]
    made = replace_whole(values, pattern, template)
    return _with_label(vector, target, made)


def label_join(
    vector: SeriesVector, target: str, separator: str, sources: list[str]
) -> SeriesVector:
    """Return a vector with a label that joins the values of others."""
    _check_label(target, "label_join")
    joined: list[str | None] = [
        separator.join(value_of(labels, name) for name in sources) for labels in vector.labels
    ]
    return _with_label(vector, target, joined)


def _check_label(name: str, function: str) -> None:
    if not name or "\ufffd" in name:  # what is left of bytes that are not UTF-8
        raise Invalid(
            f"invalid destination label name in {function}(): {name}", hint="name the label"
        )


def _with_label(vector: SeriesVector, target: str, made: list[str | None]) -> SeriesVector:
    labels: list[Labels] = []
    drops: list[bool] = []
    names = frozenset({target})
    for before, text, flag in zip(vector.labels, made, vector.drops, strict=True):
        if text is None:
            labels.append(before)
            drops.append(flag)
            continue
        labels.append(make_labels([*drop_labels(before, names), (target, text)]))
        drops.append(flag and target != NAME)
    return SeriesVector(labels, vector.values, vector.has, drops, vector.is_ordered)
