"""What one entity was from a moment on. A value alone: a client has it without a driver.

In:   nothing
Out:  `Revision`
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from thermocline.format.layout import Version


@dataclass(frozen=True, slots=True)
class Revision:
    """One entity from a moment on: its document, or None where it was deleted.

    `version` is the lake's that has it first, committed at `at`; None for what is hot still.
    `ver` is not known of a delete that the lake has.
    """

    ver: int | None
    document: dict[str, Any] | None
    at: datetime
    version: Version | None = None
