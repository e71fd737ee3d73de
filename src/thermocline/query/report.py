"""What a query was read from: of each table the version, how fresh it is, rows of each tier.

In:   nothing; filled in while a query is prepared
Out:  frozen values that go with an answer

- Rows are counted before conditions are looked at: those in files and hot parts that the query
  could not leave out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table as a query read it; it holds all that was acknowledged or committed at `as_of`.

    `warning` says what it may lack, and is empty when it lacks nothing.
    """

    version: int
    as_of: str
    hot_rows: int = 0
    cold_rows: int = 0
    files: int = 0
    files_pruned: int = 0
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What a query was read from, by the table's name."""

    tables: Mapping[str, TableReport] = field(default_factory=dict)
