"""Checkpoints: the state of one version as a Parquet file, so that opening a table is fast.

In:   a `TableState`
Out:  `_log/<version>.checkpoint.parquet`, and the same state read back

    column      what
    segment_id  the id
    ts_min_us   first time, rounded down
    ts_max_us   last time, rounded up
    segment     the segment's JSON, as in `AddSegment`

The rest of the state is JSON in the file's key-value metadata under `thermocline`, with its CRC32C
under `thermocline.crc32c`. The JSON contains the CRC32C of each column's values, because Parquet's
footer alone has no checksum.

- A checkpoint is of exactly one version and no commit names it: it may be missing, torn or removed
  at any time, and then the log is replayed instead.
- A checkpoint names its commit (`txn_id`). The log compares that with its own commits, so a
  checkpoint of another table, or of a version that was lost, is ignored.
- The JSON of a segment is decoded only when that segment is needed. If the file is then damaged or
  has been removed, the log is replayed instead.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from thermocline.cold.storage.storage import Storage
from thermocline.errors import ThermoclineError, Unsupported
from thermocline.format import instant, layout
from thermocline.format.instant import NS_PER_US
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    Mark,
    Segment,
    decode_segment,
    decode_spec,
    encode_segment,
    encode_spec,
)
from thermocline.format.log.commit import FORMAT_VERSION
from thermocline.format.log.commit_note import decode_hole, encode_hole
from thermocline.format.log.state import SegmentSet, TableState, Totals
from thermocline.format.schema import decode_schema, encode_schema
from thermocline.format.sealed_json import crc32c

ROWS_PER_GROUP = 4_096

logger = logging.getLogger(__name__)

_STATE_KEY, _CHECKSUM_KEY = b"thermocline", b"thermocline.crc32c"
_COLUMNS = pa.schema(
    [
        pa.field("segment_id", pa.string(), nullable=False),
        pa.field("ts_min_us", pa.int64(), nullable=False),
        pa.field("ts_max_us", pa.int64(), nullable=False),
        pa.field("segment", pa.binary(), nullable=False),
    ]
)


class CheckpointColumns:
    """The segments of a checkpoint file; each column is read when first asked for."""

    def __init__(
        self,
        storage: Storage,
        path: str,
        checksums: Mapping[str, Sequence[str]],
        replay: Callable[[], Iterable[Segment]],
    ) -> None:
        self._storage = storage
        self._path = path
        self._checksums = checksums
        self._replay = replay
        self._groups: dict[int, list[bytes]] = {}

    @cached_property
    def _replayed_columns(self) -> pa.Table:
        """The columns rebuilt from the log: the same rows in the same order."""
        logger.warning("checkpoint %s cannot be used; replaying the log instead", self._path)
        return _to_columns(self._replay())

    @cached_property
    def ids(self) -> list[str]:
        """The segments' ids, in the order of the rows."""
        ids: list[str] = self._read_column("segment_id").to_pylist()
        return ids

    @cached_property
    def ts_min_us(self) -> npt.NDArray[np.int64]:
        """The first time of each segment, rounded down."""
        return self._read_column("ts_min_us").to_numpy()

    @cached_property
    def ts_max_us(self) -> npt.NDArray[np.int64]:
        """The last time of each segment, rounded up."""
        return self._read_column("ts_max_us").to_numpy()

    def segments(self, rows: Iterable[int]) -> list[Segment]:
        """Return the segments of these rows, in their order."""
        found = []
        for row in rows:
            group, place = divmod(row, ROWS_PER_GROUP)
            if group not in self._groups:
                self._groups[group] = self._read_group(group)
            found.append(decode_segment(orjson.loads(self._groups[group][place])))
        return found

    def _read_group(self, group: int) -> list[bytes]:
        stored = self._checksums["segment"][group : group + 1]
        column = self._read("segment", stored, lambda f: f.read_row_group(group, ["segment"]))
        if column is None:
            column = self._replayed_columns.column("segment").slice(
                group * ROWS_PER_GROUP, ROWS_PER_GROUP
            )
        json: list[bytes] = column.to_pylist()
        return json

    def _read_column(self, name: str) -> pa.ChunkedArray:
        column = self._read(name, self._checksums[name], lambda file: file.read([name]))
        return self._replayed_columns.column(name) if column is None else column

    def _read(
        self, name: str, stored: Sequence[str], look: Callable[[pq.ParquetFile], pa.Table]
    ) -> pa.ChunkedArray | None:
        """Return a column, or None when it is missing or damaged."""
        try:
            with self._storage.open_input(self._path) as source:
                column = look(pq.ParquetFile(source)).column(name)
            is_as_written = column.type == _COLUMNS.field(name).type and (
                _group_checksums(column) == list(stored)
            )
            return column if is_as_written else None
        except (pa.ArrowException, OSError, LookupError, TypeError, ValueError, ThermoclineError):
            return None


def write_checkpoint(storage: Storage, state: TableState) -> None:
    """Write the checkpoint of a state unless it exists. When this returns it is durable."""
    path = layout.checkpoint_path(state.version)
    if storage.size(path) is None:
        storage.put_new(path, encode_checkpoint(state))


def encode_checkpoint(state: TableState) -> bytes:
    """Return the bytes of the checkpoint of a state."""
    columns = _to_columns(state.segments)
    checksums = {name: _group_checksums(columns.column(name)) for name in columns.column_names}
    json = orjson.dumps({**_encode_rest(state), "checksums": checksums})
    columns = columns.replace_schema_metadata(
        {_STATE_KEY: json, _CHECKSUM_KEY: crc32c(json).encode()}
    )
    sink = pa.BufferOutputStream()
    pq.write_table(
        columns,
        sink,
        row_group_size=ROWS_PER_GROUP,
        compression="zstd",
        use_dictionary=False,
    )
    return sink.getvalue().to_pybytes()


def _to_columns(segments: Iterable[Segment]) -> pa.Table:
    ordered = sorted(segments, key=lambda segment: (segment.ts_min, segment.segment_id))
    return pa.table(
        [
            [segment.segment_id for segment in ordered],
            [segment.ts_min // NS_PER_US for segment in ordered],
            [-(-segment.ts_max // NS_PER_US) for segment in ordered],
            [orjson.dumps(encode_segment(segment)) for segment in ordered],
        ],
        schema=_COLUMNS,
    )


def _group_checksums(column: pa.ChunkedArray) -> list[str]:
    """Return the CRC32C of each row group's values: integers as 8 bytes, others as lines."""
    groups = [column.slice(at, ROWS_PER_GROUP) for at in range(0, len(column), ROWS_PER_GROUP)]
    if pa.types.is_integer(column.type):
        return [crc32c(group.to_numpy().astype("<i8").tobytes()) for group in groups]
    return [crc32c(b"\n".join(group.cast(pa.binary()).to_pylist())) for group in groups]


def _encode_rest(state: TableState) -> dict[str, Any]:
    totals = state.totals
    return {
        "format": FORMAT_VERSION,
        "version": state.version,
        "time": instant.format_instant(state.time),
        "table": encode_spec(state.spec),
        "schema_id": state.schema_id,
        "schemas": {str(key): encode_schema(schema) for key, schema in state.schemas.items()},
        "totals": [totals.segments, totals.rows, totals.size_bytes, f"{totals.digest:016x}"],
        "marks": dict(state.marks),
        "txns": dict(state.txns),
        "oldest": state.oldest,
        **({"holes": [encode_hole(hole) for hole in state.holes]} if state.holes else {}),
        **({"requests": list(state.requests.items())} if state.requests else {}),
        **({"txn_id": state.txn_id} if state.txn_id else {}),
        **({"clock_steps": list(state.clock_steps)} if state.clock_steps else {}),
    }


def read_checkpoint(
    storage: Storage,
    version: Version,
    replay: Callable[[], Iterable[Segment]],
    path: str | None = None,
) -> TableState | None:
    """Return the state of a checkpoint, or None when it is missing or damaged.

    `replay` returns the same segments from the log alone, in case the file proves to be damaged.
    `path` is that of a base, which has the form of a checkpoint.
    """
    path = path or layout.checkpoint_path(version)
    try:
        with storage.open_input(path) as source:
            metadata = pq.read_metadata(source).metadata or {}
        json = metadata[_STATE_KEY]
        if metadata[_CHECKSUM_KEY].decode() != crc32c(json):
            return None
        return _decode_rest(storage, orjson.loads(json), version, replay, path)
    except Unsupported:
        raise
    except (ThermoclineError, pa.ArrowException, OSError, KeyError, ValueError, TypeError):
        return None


def _decode_rest(
    storage: Storage,
    rest: dict[str, Any],
    version: Version,
    replay: Callable[[], Iterable[Segment]],
    path: str,
) -> TableState | None:
    if rest["format"] > FORMAT_VERSION or rest["version"] != version:
        return None
    segments, rows, size_bytes, digest = rest["totals"]
    return TableState(
        version,
        instant.parse_instant(rest["time"]),
        decode_spec(rest["table"]),
        int(rest["schema_id"]),
        {int(key): decode_schema(schema) for key, schema in rest["schemas"].items()},
        SegmentSet(CheckpointColumns(storage, path, rest["checksums"], replay)),
        Totals(segments, rows, size_bytes, int(digest, 16)),
        {source: Mark(mark) for source, mark in rest["marks"].items()},
        dict(rest["txns"]),
        Version(int(rest["oldest"])),
        tuple(decode_hole(hole) for hole in rest.get("holes", ())),
        {str(key): int(rows) for key, rows in rest.get("requests", ())},
        str(rest.get("txn_id", "")),
        tuple(Version(int(version)) for version in rest.get("clock_steps", ())),
    )
