"""What the golden files of format version 2 say, as values. The bytes in `v2/` never change.

A journal's files of frames are of version 2, and the sidecar of many entities; all else is still as
version 1 has it.
"""

from dataclasses import replace

import golden_v1 as v1
import numpy as np

from thermocline.format.coverage import Buckets, Coverage, unite_buckets

FORMAT_VERSION = 2
SALT = 0xFEDC_BA98_7654_3210
JOURNAL_HEADER = replace(v1.JOURNAL_HEADER, salt=SALT, version=FORMAT_VERSION)
JOURNAL_FRAME = v1.JOURNAL_FRAME._replace(salt=SALT, version=FORMAT_VERSION)


def _some_buckets(number: int) -> Buckets:
    first = -3 + number % 5
    return Buckets.from_numbers(np.array([first, first + 1, 477_000 + number, 477_002 + number]))


PACKED_ENTITIES = {f'["h\u00e4use-{n:04}",{n % 3}]': _some_buckets(n) for n in range(1_024)}
PACKED_COVERAGE = Coverage(
    3_600, unite_buckets(PACKED_ENTITIES.values()), PACKED_ENTITIES, 0x0123_4567_89AB_CDEF
)
