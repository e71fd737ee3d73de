"""What the golden files of `index/` say, as values: features that tables of format 1 may need.

`index/` has the structures of an integer index, of calendar buckets, of unique rows and of
metadata; everything else is as `golden_v1` has it. The bytes never change.
"""

from dataclasses import replace

import golden_v1 as v1
import numpy as np
import pyarrow as pa

from thermocline.format.bucket import UINT64, Bucket
from thermocline.format.coverage import Buckets, Coverage
from thermocline.format.instant import TimeNs
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    AddSegment,
    Segment,
    SetDeletes,
    SetTable,
    TableSpec,
    removal,
)
from thermocline.format.log.commit import Commit
from thermocline.format.schema import Schema, TableColumn
from thermocline.format.writer_settings import WriterSettings

BLOCKS = TableSpec(
    table_id="626c6f636b7330303030303030303030",
    time_column="height",
    bucket=Bucket(1_000, UINT64),
    entity_columns=("chain",),
    features=("integer_index", "unique", "uuid_json"),
    is_unique=True,
    writer=WriterSettings("gzip", level=9, dictionary=False),
)
MONTHS = TableSpec(
    table_id="6d6f6e74687330303030303030303030",
    time_column="ts",
    bucket=Bucket(3, "month"),
    features=("long_buckets",),
)
COLUMNS = Schema(
    (
        TableColumn(1, "height", pa.uint64(), nullable=False, metadata=(("unit", "block"),)),
        TableColumn(2, "chain", pa.string()),
        TableColumn(3, "id", pa.uuid()),
        TableColumn(5, "document", pa.json_()),
    ),
    next_id=6,
    metadata=(("source", "node 7"), ("Größe", "ja")),
)
SEGMENT = Segment(
    segment_id="5e90000000000000000000000000000a",
    path="data/0a/5e90000000000000000000000000000a.parquet",
    ts_min=TimeNs(7),
    ts_max=TimeNs(2**64 - 1),
    row_count=3,
    file_size=4_096,
    checksum="crc32c:1234abcd",
    coverage_path="_coverage/segments/c0e0000000000000000000000000000a.roar",
    coverage_checksum="crc32c:00c0ffee",
    schema_id=0,
    stats={"2": ("btc", "eth")},
    is_time=False,
)
HIDDEN = replace(SEGMENT, deletes="OjAAAAEAAAAAAAIAEAAAAAEABwAJAA==", deleted_count=3)


def _commit(version: int, operation: str, *actions: object) -> Commit:
    txn_id = str(version) * 32
    return Commit(Version(version), Version(version - 1), txn_id, v1.JUNE_NS, operation, actions)


COMMITS = {
    "blocks": _commit(1, "create", SetTable(BLOCKS, 0, COLUMNS)),
    "months": _commit(1, "create", SetTable(MONTHS, 0, Schema())),
    "upsert": _commit(
        2,
        "upsert",
        SetDeletes(HIDDEN, 0, SEGMENT.coverage_checksum),
        AddSegment(replace(SEGMENT, segment_id="5e90000000000000000000000000000b")),
        removal(SEGMENT),
    ),
}
_HELD = Buckets.from_numbers(
    np.array([BLOCKS.bucket.number_of(value) for value in (7, 5_000, 2**64 - 1)])
)
COVERAGE = Coverage(BLOCKS.bucket.code, _HELD, {'["btc"]': _HELD})
