"""Encodes a query's parameters, and times, as JSON for the API.

In:   Python values, as for `Lake.sql`
Out:  JSON values; `{"type": ..., "value": ...}` for types that JSON lacks
"""

import math
import uuid
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from thermocline.errors import Invalid
from thermocline.format.argument import PARAMETER_DEPTH_MAX, check_parameters, plain_scalar
from thermocline.format.instant import Nanoseconds, format_instant, to_instant


def wire_params(params: Any) -> list[Any] | dict[str, Any] | None:
    """Return parameters as JSON; `Invalid` for a value that cannot be encoded."""
    given = check_parameters(params, "params")
    if given is None:
        return None
    if isinstance(given, dict):
        return {name: wire_value(value) for name, value in given.items()}
    return [wire_value(value) for value in given]


def wire_value(value: Any, depth: int = 0) -> Any:
    """Return one value as JSON."""
    if depth > PARAMETER_DEPTH_MAX:
        raise Invalid(
            "a parameter is nested too deeply", hint="flatten it", depth_max=PARAMETER_DEPTH_MAX
        )
    if type(value).__module__.partition(".")[0] in ("numpy", "pandas"):
        from thermocline.query.sql.constant import of_library

        value = of_library(value, "params")
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, Nanoseconds):
        text = format_instant(value.time_ns)
        return {"type": "timestamp", "value": text if value.has_zone else text.removesuffix("Z")}
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        words = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return {"type": "float", "value": words}
    for kind, name, write in _FORMS:
        if isinstance(value, kind):
            return {"type": name, "value": write(value)}
    if isinstance(value, Sequence):
        return [wire_value(one, depth + 1) for one in value]
    raise Invalid(
        "a parameter's type cannot be sent to the node",
        hint="use numbers, texts, times and lists of them",
        type=type(value).__name__,
    )


_FORMS: tuple[tuple[type | tuple[type, ...], str, Any], ...] = (
    (datetime, "timestamp", lambda value: value.isoformat()),  # before date, which it is
    (date, "date", lambda value: value.isoformat()),
    (time, "time", lambda value: value.isoformat()),
    (timedelta, "duration", lambda value: value // timedelta(microseconds=1)),
    (Decimal, "decimal", str),
    ((bytes, bytearray, memoryview), "binary", lambda value: bytes(value).hex()),
    (uuid.UUID, "uuid", str),
)


def wire_time(value: object) -> str | None:
    """Return an instant as text; None stays None.

    A whole number is sent as its digits: what it counts depends on the table's index.
    """
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return format_instant(to_instant(value))


def wire_at(value: object) -> int | str | None:
    """Return a version or an instant."""
    value = plain_scalar(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    return wire_time(value)
