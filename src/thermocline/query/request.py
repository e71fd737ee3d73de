"""What a pool tells a worker: settings once, then one request a query. Values, no behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Settings:
    """What a worker is told when it starts; `folder` is for spilled rows alone."""

    memory_bytes: int
    spill_bytes: int
    threads: int
    folder: str = ""


@dataclass(frozen=True, slots=True)
class TableNote:
    """A table that may be named: where it is, and whether it has hot rows to ask for."""

    name: str
    root: str
    storage_options: Mapping[str, str] | None = field(repr=False)
    has_hot: bool


@dataclass(frozen=True, slots=True)
class Request:
    """One query; `tables` is None when they are those of the request before."""

    query: str
    params: Any
    timeout_s: float
    tables: tuple[TableNote, ...] | None
