"""The limits of one OpenTelemetry item and of one request."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Limits of one item and of one request.

    Larger parts of an item are truncated or dropped, counted and reported. A request with more
    parts than `items_max`, `values_max` or (in JSON) `json_values_max` is refused before anything
    is built from it.
    """

    attributes_max: int = 1_024
    key_bytes_max: int = 1_024
    value_bytes_max: int = 65_536
    body_bytes_max: int = 1 << 20
    nesting_max: int = 16
    items_max: int = 1 << 17
    values_max: int = 1 << 20
    json_values_max: int = 1 << 21
