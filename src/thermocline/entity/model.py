"""Values that entity tables take and return, without the driver, so that a client can import them.

In:   the name of a read mode
Out:  `ReadMode`; `ScanAnswer`, `FindAnswer`, `EntityRevision`, `ExportResult`
"""

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from thermocline.errors import Invalid
from thermocline.format.layout import Version

if TYPE_CHECKING:
    from thermocline.hot.postgres.store.operation import StoredEntity


class ReadMode(enum.Enum):
    """How to answer when PostgreSQL or the lake is down."""

    STRICT = "strict"
    BEST_EFFORT = "best_effort"
    CACHED = "cached"


def mode_of(given: "ReadMode | str") -> ReadMode:
    """Return the mode of this name; `Invalid` for an unknown name."""
    try:
        return ReadMode(given)
    except ValueError as error:
        names = ", ".join(mode.value for mode in ReadMode)
        raise Invalid("unknown read mode", hint=f"use one of {names}", mode=given) from error


@dataclass(frozen=True, slots=True)
class ScanAnswer:
    """Rows with every commit before `as_of`, unless `warning` says what is missing.

    `warning` is empty for an exact answer. `version` is the lake's, None if it was not read.
    """

    rows: pa.Table
    as_of: datetime
    version: Version | None
    warning: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether the rows have every commit before the read."""
        return not self.warning

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as an Arrow stream."""
        return self.rows.__arrow_c_stream__(requested_schema)


@dataclass(frozen=True, slots=True)
class FindAnswer:
    """One entity, or None if it does not exist; `as_of` and `warning` are those of `ScanAnswer`."""

    entity: "StoredEntity | None"
    as_of: datetime
    warning: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether this is the last commit of the entity before the read."""
        return not self.warning


@dataclass(frozen=True, slots=True)
class EntityRevision:
    """One entity from the time `at` on: its document, or None if it was deleted.

    `version` is the first lake version with it; None if it is not exported yet, or if a later
    change was exported with it. `op` is created, updated or deleted, `key` the id of the key that
    wrote it, `request_id` the request. Changes from before changes were recorded have only what
    exports carried: they have no `op`, `at` is the export's time, and a delete has no `ver`.
    """

    ver: int | None
    document: dict[str, Any] | None
    at: datetime
    version: Version | None = None
    op: str | None = None
    key: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class PropertyChange:
    """One property that differs between two versions: its JSON pointer and both values.

    A value is None where the property is missing; `is_added` and `is_removed` tell this from null.
    """

    pointer: str
    old: Any
    new: Any
    is_added: bool = False
    is_removed: bool = False


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of one export: its lake version, and the numbers of keys, rows and changes."""

    version: Version
    as_of: datetime
    keys: int
    rows: int
    changes: int
