"""What a pool sends to a worker: settings once, then one request for each query. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker gets when it starts; `folder` is only for spilled rows."""

    memory_bytes: int
    spill_bytes: int
    threads: int
    folder: str = ""


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A table that a query may name: where it is, and whether it has hot rows to request."""

    name: str
    root: str
    storage_options: Mapping[str, str] | None = field(repr=False)
    has_hot: bool


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """One query; `tables` is None when they are the same as in the previous request."""

    query: str
    params: Any
    timeout_s: float
    tables: tuple[TableLocation, ...] | None
