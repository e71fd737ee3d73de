"""What the golden files of `tokens/` say, as values: a token sidecar, and a commit that names it.

The bytes never change.
"""

import golden_v1 as v1
import pyarrow as pa

from thermocline.format.instant import TimeNs
from thermocline.format.layout import Version
from thermocline.format.log.action import AddSegment, Segment, SetTable, TableSpec
from thermocline.format.log.commit import Commit
from thermocline.format.schema import Schema, TableColumn

TEXTS = ("Disk failure on sda1", None, "disk OK: 日本")
SEGMENT_BYTES = 4_096
COLUMN_ID = 12
HELD = ("disk", "failure", "on", "sda1", "ok", "日本")
DENIED = ("fail", "sda", "Kelvin", "okay")

SPEC = TableSpec(
    table_id="746f6b656e7330303030303030303030",
    time_column="ts",
    bucket=v1.SPEC.bucket,
    token_columns=("body",),
)
COLUMNS = Schema(
    (
        TableColumn(1, "ts", pa.timestamp("us"), nullable=False),
        TableColumn(COLUMN_ID, "body", pa.string()),
    ),
    next_id=13,
)
SEGMENT = Segment(
    segment_id="5e90000000000000000000000000000d",
    path="data/2024/06/01/00/5e90000000000000000000000000000d.parquet",
    ts_min=TimeNs(v1.JUNE_NS),
    ts_max=TimeNs(v1.JUNE_NS + 1_000),
    row_count=3,
    file_size=SEGMENT_BYTES,
    checksum="crc32c:1234abcd",
    coverage_path="_coverage/segments/c0e0000000000000000000000000000d.roar",
    coverage_checksum="crc32c:00c0ffee",
    schema_id=1,
    tokens_path="_tokens/70c0000000000000000000000000000d.bloom",
    tokens_size=30,
    tokens_checksum="crc32c:0badcafe",
)
COMMIT = Commit(
    Version(2),
    Version(1),
    "66666666666666666666666666666666",
    TimeNs(v1.JUNE_NS),
    "append",
    (SetTable(SPEC, 1, COLUMNS), AddSegment(SEGMENT)),
)
