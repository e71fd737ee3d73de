"""Lists the fields of protobuf messages as columns, compiled or not.

In:   bytes, and where messages begin and end in them
Out:  for each field its message, its number, its kind, and its value or its place

- The caller lists one level of messages at a time: the request, all its series, all their samples.
  So one short function reads every level.
- It runs twice: the first run counts, the caller allocates, the second fills.
- It indexes arrays only, so it runs as plain Python until `compile_scan` has compiled it.
- Every read is checked against the end of its message.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
NUMBER, FIXED, BYTES = 0, 1, 2
_MALFORMED = -1


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields in the order of the bytes; `values` is a number, or where bytes begin."""

    messages: Numbers
    numbers: Numbers
    kinds: Numbers
    values: Numbers
    ends: Numbers

    def of(self, number: int, kind: int) -> "Fields":
        """Return the fields with a number and a kind."""
        chosen = np.flatnonzero((self.numbers == number) & (self.kinds == kind))
        return Fields(
            self.messages[chosen],
            self.numbers[chosen],
            self.kinds[chosen],
            self.values[chosen],
            self.ends[chosen],
        )

    def __len__(self) -> int:
        return len(self.messages)


def scan_fields(  # noqa: C901  one loop over fields: calls cost more than it does
    data: npt.NDArray[np.uint8],
    starts: Numbers,
    ends: Numbers,
    found: npt.NDArray[np.int64],
) -> int:
    """Count the fields of all messages; write as many as fit; negative when one is malformed."""
    count = 0
    for message in range(len(starts)):
        at, end = int(starts[message]), int(ends[message])
        while at < end:
            tag: Any = np.int64(0)
            value: Any = np.int64(0)
            after = at
            for part in range(2):  # the tag, and the number or length behind it
                if part == 1 and (tag & 7 == 1 or tag & 7 == 5):
                    break
                number: Any = np.int64(0)
                shift = 0
                while True:
                    if at >= end or shift > 63:
                        return _MALFORMED
                    byte = np.int64(data[at])
                    at += 1
                    bits = byte & 127
                    number |= (-(bits & 1) if shift == 63 else bits) << shift
                    if byte < 128:
                        break
                    shift += 7
                if part == 0:
                    tag = number
                else:
                    value = number
            kind = tag & 7
            if kind == 2:
                if value < 0 or value > end - at:
                    return _MALFORMED
                after = at + value
                value = np.int64(at)
            elif kind == 1 or kind == 5:
                after = at + (8 if kind == 1 else 4)
                if after > end:
                    return _MALFORMED
                for place in range(8 if kind == 1 else 0):
                    byte = np.int64(data[at + place])
                    value |= (byte - 256 if place == 7 and byte > 127 else byte) << (8 * place)
            elif kind == 0:
                after = at
            else:
                return _MALFORMED
            if count < len(found):
                found[count, 0] = message
                found[count, 1] = tag >> 3
                found[count, 2] = kind
                found[count, 3] = value
                found[count, 4] = after
            count += 1
            at = after
    return count


_compiled: list[Callable[..., int]] = []


def compile_scan() -> None:
    """Compile the scan; until this returns, it runs as plain Python."""
    from thermocline.ingest.otlp.compiled.numba_support import compile_native

    made = compile_native(scan_fields)
    none = np.zeros(0, np.int64)
    made(np.frombuffer(b"", np.uint8), none, none, np.zeros((0, 5), np.int64))
    _compiled[:] = [made]


def list_fields(
    data: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers, *, fields_max: int
) -> Fields | None:
    """Return the fields of messages; None when one is malformed.

    There may be more than `fields_max` messages' fields to count, but no more are listed.
    """
    scan = _compiled[0] if _compiled else scan_fields
    count = scan(data, starts, ends, np.zeros((0, 5), np.int64))
    if count < 0:
        return None
    found = np.zeros((min(count, fields_max + 1), 5), np.int64)
    scan(data, starts, ends, found)
    columns = np.ascontiguousarray(found.T)
    return Fields(columns[0], columns[1], columns[2], columns[3], columns[4])
