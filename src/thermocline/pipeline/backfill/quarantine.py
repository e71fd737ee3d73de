"""Stores bad rows of a backfill in a table where a person can inspect them.

In:   bad rows, with their file, line and column, the reason and their text
Out:  rows in `<table>_quarantine`, a table beside the backfilled one

- The same bad rows of the same batch are stored once, even if the batch runs several times.
- A quarantine is a table like any other: SQL reads it, and retention and deletes empty it.
"""

import hashlib
from collections.abc import Sequence

import orjson
import pyarrow as pa

from thermocline.cold.change.append import AppendOptions
from thermocline.cold.table import ColdTable
from thermocline.errors import Invalid
from thermocline.format.bucket import Bucket
from thermocline.format.instant import NS_PER_US
from thermocline.format.log.action import TableSpec
from thermocline.ingest.files.bad_rows import BadRow
from thermocline.names import is_table_name
from thermocline.pipeline.run.workspace import JobWorkspace

QUARANTINE_SUFFIX = "_quarantine"
SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("batch", pa.string()),
        pa.field("file", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("raw", pa.string()),
        pa.field("column_name", pa.string()),
    ]
)


def quarantine_name(table: str) -> str:
    """Return the name of a table's quarantine; `Invalid` when it would be too long."""
    name = table + QUARANTINE_SUFFIX
    if not is_table_name(name):
        hint = "use a shorter name for the table, or on_bad='fail'"
        raise Invalid("the name of the table's quarantine is too long", hint=hint, name=name)
    return name


def quarantine_rows(
    site: JobWorkspace, table: str, batch: str, bad: Sequence[BadRow]
) -> ColdTable | None:
    """Store the bad rows of a batch once, durable when this returns.

    Returns their table; None if there is no bad row.
    """
    if not bad:
        return None
    rows = [[one.file, one.line, one.reason, one.raw] for one in bad]
    digest = hashlib.sha256(orjson.dumps(sorted(rows, key=str))).hexdigest()[:16]
    kept = site.ensure_table(quarantine_name(table), _spec())
    now_us = kept.log.now() // NS_PER_US
    # Order matters: the digest above omits the column, so that this finds a batch whose bad rows
    # an older version of this package stored.
    rows = [[*row, one.column] for row, one in zip(rows, bad, strict=True)]
    columns = [
        pa.array([now_us] * len(bad), pa.int64()).cast(SCHEMA.field("time").type),
        pa.array([batch] * len(bad), pa.string()),
        *(
            pa.array([row[place] for row in rows], SCHEMA.field(place + 2).type)
            for place in range(5)
        ),
    ]
    data = pa.Table.from_arrays(columns, schema=SCHEMA)
    # A quarantine that an older version made gets the column `column_name` now.
    options = AppendOptions(overlap="allow", evolve=True, txn=(f"backfill:{batch}:{digest}", 1))
    kept.append(data.to_reader(), options)
    return kept


def _spec() -> TableSpec:
    return TableSpec("", "time", Bucket(3_600), overlap="allow")
