"""What one export carried. A value alone: a client has it without a driver.

In:   nothing
Out:  `Exported`
"""

from dataclasses import dataclass
from datetime import datetime

from thermocline.format.layout import Version


@dataclass(frozen=True, slots=True)
class Exported:
    """What one export carried: the lake's version that has it, and how much it was."""

    version: Version
    as_of: datetime
    keys: int
    rows: int
    changes: int
