"""`publish`: the Iceberg metadata of a table beside its files, for readers without a node.

In:   a table on a disk or in a bucket
Out:  `<table>/metadata/v<version>.metadata.json` and what it names

- Addresses in Iceberg metadata are absolute. If the folder is moved, publishing again writes
  metadata with the new addresses.
- Hot rows are not part of it: they appear after their flush, with the next publish.
"""

from functools import partial
from typing import Any
from urllib.parse import urlsplit

from thermocline.cold.compact.plan import CompactionLimits
from thermocline.cold.compact.rewrite import (
    HERE_BYTES_MAX,
    HERE_LIMITS,
    RewriteProgress,
    compact,
    merge_here,
)
from thermocline.cold.table import ColdTable
from thermocline.errors import Invalid, Unsupported
from thermocline.format.argument import check_count, check_flag, wrong_kind
from thermocline.format.log.action import Segment
from thermocline.format.log.state import TableState
from thermocline.iceberg.columns import check_types
from thermocline.iceberg.data_file import describe_segment
from thermocline.iceberg.publication import Publication, PublishedTable

PUBLISHED_FOLDER = "metadata"
PUBLISHED_PIN = "iceberg-published"
LEASE_S_DEFAULT = 30 * 86_400
LEASE_S_MAX = 10 * 366 * 86_400


def publish(table: Any, *, lease_s: int = LEASE_S_DEFAULT, rewrite: bool = False) -> PublishedTable:
    """Publish the newest version of a table beside its files, and return its metadata.

    Call it again after later commits: it writes only what is new. Vacuum keeps the files of the
    published version for `lease_s`. With `rewrite`, files that Iceberg cannot read as columns of
    the table are rewritten first. `Unsupported` names what Iceberg would show wrongly.
    """
    cold = getattr(table, "cold", table)
    if not isinstance(cold, ColdTable):
        hint = "open it with TimeSeriesTable.open; a node publishes its tables itself"
        raise wrong_kind("not a table of this process", hint, "table", table)
    if check_count(lease_s, "lease_s", 1) > LEASE_S_MAX:
        hint = "publish again before the lease ends"
        raise Invalid("the lease is too long", hint=hint, lease_s=lease_s, lease_s_max=LEASE_S_MAX)
    if check_flag(rewrite, "rewrite"):
        rewrite_files(cold)
    return open_published(cold).publish(lease_s)


def open_published(table: ColdTable) -> Publication:
    """Return the publication beside a table's files; keep it to publish many versions."""
    return Publication(table, PUBLISHED_FOLDER, base_address(table), pin=PUBLISHED_PIN)


def base_address(table: ColdTable) -> str:
    """Return the address of a table's folder as readers without a node see it."""
    root = table.storage.root.rstrip("/")
    return root if urlsplit(root).scheme in ("s3", "gs", "az", "memory") else f"file://{root}"


def rewrite_files(
    table: ColdTable,
    limits: CompactionLimits = HERE_LIMITS,
    tell: RewriteProgress = lambda what, done, total: None,
) -> None:
    """Rewrite every file without the table's field ids and types, within bounded memory.

    The rows stay the same. `Conflict` if other writers change the files first in every try.
    """
    kernel = partial(merge_here, storage=table.storage, loaded_bytes_max=HERE_BYTES_MAX)
    while unfit := _list_unfit(table, table.log.head()):
        # One call takes as many of them as fit into one commit.
        done = compact(table, unfit, kernel, limits, tell, even_one=True)
        if done.version is None:
            return


def _list_unfit(table: ColdTable, state: TableState) -> list[str]:
    found = sorted(state.segments, key=lambda one: (one.ts_min, one.segment_id))
    return [one.segment_id for one in found if not _fits(table, state, one)]


def _fits(table: ColdTable, state: TableState, segment: Segment) -> bool:
    try:
        check_types(segment, state.schemas, state.schema)
        schema = state.schemas[segment.schema_id]
        return describe_segment(table.storage, segment, schema, "")[1].has_ids
    except Unsupported:
        return False
