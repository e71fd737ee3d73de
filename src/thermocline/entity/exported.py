"""The result of an export. Only a value, so that a client can import it without the driver.

In:   nothing
Out:  `Exported`
"""

from dataclasses import dataclass
from datetime import datetime

from thermocline.format.layout import Version


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of one export: its lake version, and the numbers of keys, rows and changes."""

    version: Version
    as_of: datetime
    keys: int
    rows: int
    changes: int
