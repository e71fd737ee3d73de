"""What the golden files of format version 1 say, as values. The bytes in `v1/` never change."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from thermocline.format.bucket import Bucket
from thermocline.format.coverage import Buckets, Coverage
from thermocline.format.instant import TimeNs
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    AddSegment,
    Expire,
    Mark,
    Segment,
    SetDeletes,
    SetMark,
    SetTable,
    SetTxn,
    TableSpec,
    removal,
)
from thermocline.format.log.commit import Commit
from thermocline.format.log.commit_note import NoteFlush, NoteHole
from thermocline.format.schema import Schema, TableColumn
from thermocline.hot.wal.folder import JournalIdentity, Watermark
from thermocline.hot.wal.frame import (
    CODEC_NONE,
    KIND_ROWS,
    UNSALTED_VERSION,
    FileHeader,
    FrameHeader,
    Lsn,
)
from thermocline.hot.wal.repair.damage import Damage

JUNE_NS = 1_717_200_000_000_000_000
"""2024-06-01T00:00:00Z."""

SPEC = TableSpec(
    table_id="7461626c6530303030303030303030",
    time_column="ts",
    bucket=Bucket(900),
    entity_columns=("symbol", "venue"),
    overlap="replace",
    timezone="Europe/Berlin",
    retention="90d",
    entities_max=5_000,
    extra={"comment": "of a newer version", "layout": {"by": ["hour"]}},
)
PLAIN_SPEC = TableSpec("0123456789abcdef0123456789abcdef", "ts", Bucket(3_600), ("symbol",))

KINDS = {
    "ts": pa.timestamp("us", tz="UTC"),
    "symbol": pa.string(),
    "venue": pa.dictionary(pa.int32(), pa.string()),
    "close": pa.float64(),
    "small": pa.int8(),
    "price": pa.decimal128(18, 4),
    "day": pa.date32(),
    "at": pa.time64("ns"),
    "took": pa.duration("ms"),
    "key": pa.binary(16),
    "raw": pa.large_binary(),
    "tags": pa.map_(pa.string(), pa.string()),
    "sizes": pa.list_(pa.field("item", pa.int32(), nullable=False)),
    "pair": pa.list_(pa.int16(), 2),
    "inner": pa.struct([("a", pa.bool_()), ("b", pa.large_list(pa.float16()))]),
}
SCHEMA = Schema(
    tuple(
        TableColumn(place, name, kind, nullable=name != "ts")
        for place, (name, kind) in enumerate(KINDS.items(), start=1)
    ),
    next_id=20,
)

SEGMENT = Segment(
    segment_id="5e90000000000000000000000000000a",
    path="data/2024/06/01/00/5e90000000000000000000000000000a.parquet",
    ts_min=TimeNs(JUNE_NS),
    ts_max=TimeNs(JUNE_NS + 3_599_999_999_999),
    row_count=1_000,
    file_size=65_536,
    checksum="crc32c:1234abcd",
    coverage_path="_coverage/segments/c0e0000000000000000000000000000a.roar",
    coverage_checksum="crc32c:00c0ffee",
    schema_id=1,
)
FULL_SEGMENT = Segment(
    segment_id="5e90000000000000000000000000000b",
    path="data/1969/12/31/23/5e90000000000000000000000000000b.parquet",
    ts_min=TimeNs(-1),
    ts_max=TimeNs(-1),
    row_count=4_294_967_296,
    file_size=9_007_199_254_740_993,
    checksum="crc32c:ffffffff",
    coverage_path="_coverage/segments/c0e0000000000000000000000000000b.roar",
    coverage_checksum="crc32c:00000000",
    schema_id=2,
    level=3,
    stats={"2": ("AAPL", "\u00c9cu"), "5": (-128, 127)},
    absent=(9, 11),
    stored={"5": "int8", "3": {"dictionary": "string", "index": "int32", "ordered": False}},
    deletes="OjAAAAEAAAAAAAIAEAAAAAEABwAJAA==",
    deleted_count=3,
    extra={"bloom": {"path": "_index/x"}, "sorted_by": ["ts", "symbol"]},
)
FULLER_SEGMENT = replace(
    FULL_SEGMENT,
    coverage_path="_coverage/segments/c0e0000000000000000000000000000c.roar",
    coverage_checksum="crc32c:0badcafe",
    deletes="OjAAAAEAAAAAAAMAEAAAAAEABwAJAAoA",
    deleted_count=4,
)

CREATE = Commit(
    Version(1),
    Version(0),
    "11111111111111111111111111111111",
    TimeNs(JUNE_NS),
    "create",
    (SetTable(PLAIN_SPEC, 0, Schema()),),
)
APPEND = Commit(
    Version(2),
    Version(1),
    "22222222222222222222222222222222",
    TimeNs(JUNE_NS + 1_500_000),
    "append",
    (
        SetTable(SPEC, 1, SCHEMA),
        AddSegment(SEGMENT),
        AddSegment(FULL_SEGMENT),
        SetTxn("nightly load", 41),
    ),
    {"segments": 2, "rows": 4_294_968_296, "replaced": 0},
)
EVERY_ACTION = Commit(
    Version(3),
    Version(2),
    "33333333333333333333333333333333",
    TimeNs(JUNE_NS + 2_000_000_001),
    "everything",
    (
        SetTable(SPEC, 2, Schema(SCHEMA.columns[:4], 20)),
        SetDeletes(FULLER_SEGMENT, 3, "crc32c:00000000"),
        removal(SEGMENT),
        SetMark("hot", Mark(9_007_199_254_740_993)),
        SetTxn("nightly load", 42),
        Expire(Version(2)),
        NoteHole("hot", 40, 44, TimeNs(JUNE_NS), None),
    ),
    {"note": "Gr\u00fc\u00dfe", "ratio": 0.5},
)
ENTITY_SPEC = TableSpec(
    table_id="656e7469746965733030303030303030",
    time_column="_written_at",
    bucket=Bucket(86_400),
    overlap="allow",
    features=("entities",),
    extra={"key": ["_id"], "entity_type": "order"},
)
FLUSH = Commit(
    Version(4),
    Version(3),
    "44444444444444444444444444444444",
    TimeNs(JUNE_NS + 3_000_000_000),
    "export",
    (
        SetTable(ENTITY_SPEC, 2, Schema(SCHEMA.columns[:4], 20)),
        AddSegment(replace(SEGMENT, stats={"2": ("order-1", "order-9")})),
        NoteFlush(
            "8a1c7f0e-5d0b-4a3c-9e6f-0123456789ab",
            12,
            TimeNs(JUNE_NS + 2_900_000_000),
            "AgAAAAAAAAAAAAAAOjAAAAIAAAAAAAIADwAAABgAAAAeAAAAAQACAAMAQEIAAQAAOjAAAAEAAAAAAAAAEAAA"
            "AAAA",
        ),
    ),
    {"keys": 3, "rows": 2, "changes": 5},
)
FLUSH_CHANGES = [1, 2, 3, 1_000_000, 1_099_511_627_776]
COMMITS = {"create": CREATE, "append": APPEND, "every_action": EVERY_ACTION, "flush": FLUSH}


def _buckets(*stretches: tuple[int, int]) -> Buckets:
    parts = [np.arange(first, end, dtype=np.int64) for first, end in stretches]
    return Buckets.from_numbers(np.concatenate(parts) if parts else np.empty(0, dtype=np.int64))


PLAIN_COVERAGE = Coverage(3_600, _buckets((-2, 3), (477_000, 477_100), (477_101, 477_102)), {})
ENTITY_COVERAGE = Coverage(
    900,
    _buckets((-70_000, 70_000), (1_908_000, 1_908_004)),
    {
        '["NVDA","XNAS"]': _buckets((-70_000, 70_000)),
        '["\u00c9cu",null]': _buckets((1_908_000, 1_908_001), (1_908_003, 1_908_004)),
        "[null,null]": _buckets((1_908_001, 1_908_003)),
    },
)
TABLE_COVERAGE = ENTITY_COVERAGE.with_digest(0xFEDC_BA98_7654_3210)
COVERAGES = {"plain": PLAIN_COVERAGE, "entities": ENTITY_COVERAGE, "table": TABLE_COVERAGE}

PIN = {"version": 3, "until_ns": JUNE_NS + 24 * 3_600 * 10**9}
CURRENT = {"version": 9}

JOURNAL_ID = bytes.fromhex("10111213141516171819101112131415")
IDENTITY = JournalIdentity(JOURNAL_ID, 6)
WATERMARK = Watermark(
    JOURNAL_ID, bytes.fromhex("20212223242526272829202122232425"), Lsn(41), Lsn(40), 7, 150
)
JOURNAL_HEADER = FileHeader(JOURNAL_ID, 7, Lsn(41), 7, 16_777_300, UNSALTED_VERSION)
JOURNAL_PAYLOAD = b"rows of it"
JOURNAL_FRAME = FrameHeader(
    KIND_ROWS,
    CODEC_NONE,
    Lsn(41),
    7,
    Lsn(40),
    JUNE_NS,
    bytes.fromhex("0123456789abcdef0123456789abcdef"),
    1,
    len(JOURNAL_PAYLOAD),
    len(JOURNAL_PAYLOAD),
    UNSALTED_VERSION,
)
HOLE = Damage(
    first_lsn=41,
    last_lsn=43,
    file="00000000000000000007.wal",
    offset=64,
    size_bytes=8_192,
    why="a frame's checksum differs",
    after_ns=JUNE_NS,
    before_ns=None,
    tables=("0123456789abcdef0123456789abcdef",),
    are_tables_known=False,
)
JOURNAL_ROWS = {41: [1, None], 42: [7] * 1_000}

# The whole table: what each of its versions holds, as (close, volume) by hour and symbol.

OPERATIONS = [
    "create",
    "append",
    "append",
    "delete",
    "rename column",
    "append",
    "append",
    "restore",
    "append",
]
FIRST = [(0, "NVDA", 10.0, None), (1, "NVDA", 11.0, None), (0, "AMD", 20.0, None)]
SECOND = [(2, "NVDA", 12.0, 100), (3, "AMD", 23.0, 200)]
ROWS = {
    1: [],
    2: FIRST,
    3: FIRST + SECOND,
    4: [FIRST[0], FIRST[2], *SECOND],
    5: [FIRST[0], FIRST[2], *SECOND],
    6: [(0, "NVDA", 99.0, 9), FIRST[2], *SECOND],
    7: [(0, "NVDA", 99.0, 9), FIRST[2], *SECOND, (5, "AMD", 25.0, 7)],
    8: [FIRST[0], FIRST[2], *SECOND],
    9: [FIRST[0], FIRST[2], *SECOND, (-1, "AMD", 19.0, 1)],
}
HELD = {
    9: {"NVDA": {0, 2}, "AMD": {-1, 0, 3}},
    4: {"NVDA": {0, 2}, "AMD": {0, 3}},
    2: {"NVDA": {0, 1}, "AMD": {0}},
}
