"""A revision of an entity. Only a value, so that a client can import it without the driver.

In:   nothing
Out:  `Revision`
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from thermocline.format.layout import Version


@dataclass(frozen=True, slots=True)
class EntityRevision:
    """One entity from the time `at` on: its document, or None if it was deleted.

    `version` is the first lake version with it, committed at `at`; None if it is not exported yet.
    `ver` is None for a delete, whose version the lake does not store.
    """

    ver: int | None
    document: dict[str, Any] | None
    at: datetime
    version: Version | None = None
