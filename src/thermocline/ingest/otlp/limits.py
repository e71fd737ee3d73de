"""The limits of one OpenTelemetry item, beyond which parts of it are truncated or dropped."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Limits of one item. Larger parts are truncated or dropped, counted and reported."""

    attributes_max: int = 1_024
    key_bytes_max: int = 1_024
    value_bytes_max: int = 65_536
    body_bytes_max: int = 1 << 20
    nesting_max: int = 16
