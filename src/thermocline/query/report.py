"""What a query read: for each table the version, its freshness, and the rows of each tier.

In:   nothing; filled in while a query is prepared
Out:  frozen values that are returned with an answer

- Rows are counted before conditions apply: all rows in the files and hot parts that pruning kept.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from thermocline.show.scrub import scrub


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table as a query read it: with all rows acknowledged or committed by `as_of`.

    `warning` says which rows may be missing; it is empty when the table is complete.
    """

    version: int
    as_of: str
    hot_rows: int = 0
    cold_rows: int = 0
    files: int = 0
    files_pruned: int = 0
    warning: str = ""


@dataclass(frozen=True, slots=True)
class QueryReport:
    """What a query read, by table name."""

    tables: Mapping[str, TableReport] = field(default_factory=dict)


def public_report(report: QueryReport) -> dict[str, Any]:
    """Return a report for a client of a node: its warnings name no folder."""
    fields = asdict(report)
    for table in fields["tables"].values():
        table["warning"] = scrub(table["warning"])
    return fields
