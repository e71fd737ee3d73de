"""Thermocline: a lakehouse that knows which ranges of time it holds.

    import thermocline as tc

    table = tc.TimeSeriesTable.create(table_root="prices", time_column="ts", bucket="1h")
    table.append_parquet("incoming.parquet")
    table.gaps("2024-06-01", "2024-06-08")

    session = tc.Session()
    session.register_tstable("prices", "prices")
    session.sql("select max(close) from prices")

Names are loaded when they are first used, so that importing this package costs nothing.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from thermocline.errors import (
    Conflict,
    Corruption,
    CoverageOverlapError,
    Invalid,
    NotFound,
    Overloaded,
    ThermoclineError,
    Unavailable,
    Unsupported,
)

if TYPE_CHECKING:
    from thermocline.entry_point import connect
    from thermocline.query.session import Session
    from thermocline.table import TimeSeriesTable

__version__ = "0.1.0"

__all__ = [
    "Conflict",
    "Corruption",
    "CoverageOverlapError",
    "Invalid",
    "NotFound",
    "Overloaded",
    "Session",
    "ThermoclineError",
    "TimeSeriesTable",
    "Unavailable",
    "Unsupported",
    "connect",
]

_LAZY = {
    "Session": "thermocline.query.session",
    "TimeSeriesTable": "thermocline.table",
    "connect": "thermocline.entry_point",
}


def __getattr__(name: str) -> Any:
    if name == "spark":  # a separate module, because Spark is optional
        return import_module("thermocline.spark")
    if name == "notebook":
        return import_module("thermocline.show.notebook")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "notebook", "spark"})


if "IPython" in sys.modules:  # elsewhere the import of this package stays free
    import_module("thermocline.show.notebook").start_in_notebook()
