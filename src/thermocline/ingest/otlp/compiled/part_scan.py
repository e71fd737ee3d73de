"""The scan that counts a request's parts, compiled.

In:   a signal, the bytes of a request, the limits
Out:  whether its parts are within the limits
"""

from typing import cast

from thermocline.errors import BodyTooLarge
from thermocline.ingest.inflate import Data
from thermocline.ingest.otlp.compiled.numba_support import compile_native
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.part_count import Scan, check_parts, count_parts

scan_parts = cast("Scan", compile_native(count_parts))


def is_within_limits(signal: str, data: Data, limits: DecodeLimits) -> bool:
    """Tell whether the official library may build this request."""
    try:
        check_parts(signal, data, limits, scan_parts)
    except BodyTooLarge:
        return False
    return True
