"""What the golden files of format version 2 say, as values. The bytes in `v2/` never change.

Only a journal's files of frames are of version 2; all else is still as version 1 has it.
"""

from dataclasses import replace

import golden_v1 as v1

FORMAT_VERSION = 2
SALT = 0xFEDC_BA98_7654_3210
JOURNAL_HEADER = replace(v1.JOURNAL_HEADER, salt=SALT, version=FORMAT_VERSION)
JOURNAL_FRAME = v1.JOURNAL_FRAME._replace(salt=SALT, version=FORMAT_VERSION)
