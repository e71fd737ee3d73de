"""Write the golden files of every format version: the bytes of every persisted structure.

    python tests/golden/make_golden.py folder

The files of a version are frozen once that version is released: a reader test holds them for
ever, and a change that would alter them needs a new format version and a new folder.
"""

import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import golden_index as index
import golden_tokens as tokens
import golden_v1 as v1
import golden_v2 as v2
import pyarrow as pa
import pyarrow.compute as pc

from thermocline.cold.care.pin import pin_version
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.log.checkpoint import encode_checkpoint
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.disk import OsDisk
from thermocline.format.bucket import Bucket
from thermocline.format.coverage import encode_coverage
from thermocline.format.layout import CURRENT_PATH, PINS_FOLDER, Version
from thermocline.format.log.action import Mark, SetTable, TableSpec
from thermocline.format.log.commit import encode_commit
from thermocline.format.log.state import TableState, fold
from thermocline.format.tokens import encode_filters, hash_texts
from thermocline.hot.wal.folder import IDENTITY_NAME, encode_watermark, write_identity
from thermocline.hot.wal.frame import (
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_ZSTD,
    FileHeader,
    FrameHeader,
    Lsn,
    encode_file_header,
    encode_frame,
)
from thermocline.hot.wal.repair.repair import hole_frame
from thermocline.hot.wal.retired_marks import encode_retired

HOUR_US = 3_600_000_000
CHECKPOINT_EVERY = 4
CODEC_NAMES = {CODEC_ZSTD: "zstd", CODEC_LZ4: "lz4_raw"}


@contextmanager
def numbered_ids() -> Iterator[None]:
    """Let new ids be 1, 2, 3 and so on, so that the same steps give the same names."""
    numbers, original = count(1), uuid.uuid4
    uuid.uuid4 = lambda: uuid.UUID(int=next(numbers))
    try:
        yield
    finally:
        uuid.uuid4 = original


def checkpoint_state() -> TableState:
    """Return the state that the golden checkpoint is of."""
    start = v1.Commit(
        Version(1), Version(0), "c1", v1.CREATE.time, "create", (SetTable(v1.SPEC, 0, v1.Schema()),)
    )
    return fold(None, [start, v1.APPEND, v1.EVERY_ACTION])


def structures() -> dict[str, bytes]:
    """Return the bytes of every structure that is written on its own."""
    files = {f"{name}.commit.json": encode_commit(made) for name, made in v1.COMMITS.items()}
    files |= {f"{name}.roar": encode_coverage(made) for name, made in v1.COVERAGES.items()}
    files["checkpoint.parquet"] = encode_checkpoint(checkpoint_state())
    return files | journal_structures()


def index_structures() -> dict[str, bytes]:
    """Return the bytes of the structures that other indexes and buckets need."""
    files = {f"{name}.commit.json": encode_commit(made) for name, made in index.COMMITS.items()}
    return files | {"blocks.roar": encode_coverage(index.COVERAGE)}


def token_structures() -> dict[str, bytes]:
    """Return the bytes of a token sidecar, and of a commit that names one."""
    hashes = hash_texts(pa.array(tokens.TEXTS, pa.string()))
    sidecar = encode_filters({tokens.COLUMN_ID: hashes}, tokens.SEGMENT_BYTES)
    assert sidecar is not None
    return {"texts.bloom": sidecar, "tokens.commit.json": encode_commit(tokens.COMMIT)}


def journal_structures() -> dict[str, bytes]:
    """Return the bytes of a journal: its identity, its watermark, its files."""
    return {
        IDENTITY_NAME: _identity_bytes(),
        "durable": encode_watermark(v1.WATERMARK),
        **journal_files(v1.JOURNAL_HEADER, v1.JOURNAL_FRAME),
    }


def journal_files(file: FileHeader, frame: FrameHeader) -> dict[str, bytes]:
    """Return the bytes of a file with a frame, and of one with a hole, of their version."""
    header = encode_file_header(file)
    return {
        "journal.wal": header + b"".join(encode_frame(v1.JOURNAL_ID, frame, v1.JOURNAL_PAYLOAD)),
        "hole.wal": header + hole_frame(file, v1.HOLE, v1.JUNE_NS),
    }


def _identity_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_identity(OsDisk(), folder, v1.IDENTITY)
        return (Path(folder) / IDENTITY_NAME).read_bytes()


def rows_file(
    file: FileHeader, frame: FrameHeader, codecs: tuple[int, int] = (CODEC_NONE, CODEC_ZSTD)
) -> bytes:
    """Return a journal's file of rows; Arrow and the codecs have a say in its bytes."""
    pieces = [encode_file_header(file)]
    for lsn, codec in zip(v1.JOURNAL_ROWS, codecs, strict=True):
        rows = pa.record_batch({"close": pa.array(v1.JOURNAL_ROWS[lsn], pa.int64())})
        raw = stream_bytes(rows)
        data = pa.Codec(CODEC_NAMES[codec]).compress(raw, asbytes=True) if codec else raw
        header = frame._replace(
            codec=codec,
            lsn=Lsn(lsn),
            durable=Lsn(lsn - 1),
            length=len(data),
            raw_length=len(raw),
        )
        pieces += encode_frame(v1.JOURNAL_ID, header, data)
    return b"".join(pieces)


def stream_bytes(batch: pa.RecordBatch) -> bytes:
    """Return a batch as Arrow's stream format has it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def rows(made: list[tuple[int, str, float, int | None]], *names: str) -> pa.Table:
    """Return rows of hours after June began, of those columns that are named."""
    hours, symbols, closes, volumes = zip(*made, strict=True)
    june_us = v1.JUNE_NS // 1_000
    columns = {
        "ts": pa.array([june_us + hour * HOUR_US for hour in hours], pa.timestamp("us", tz="UTC")),
        "symbol": pa.array(symbols, pa.string()),
        "close": pa.array(closes, pa.float64()),
        "volume": pa.array(volumes, pa.int64()),
    }
    return pa.table(dict(zip(names, columns.values(), strict=False)))


def opened(root: Path) -> ColdTable:
    """Return the table in a folder, with a clock that stands still."""
    return ColdTable(
        LocalStorage(str(root)),
        now_ns=lambda: v1.JUNE_NS,
        checkpoint_every=CHECKPOINT_EVERY,
        workers=1,
    )


def build_table(root: Path) -> ColdTable:
    """Make a small whole table by every kind of change."""
    table = opened(root)
    table.create(TableSpec("", "ts", Bucket(3_600), ("symbol",)))
    old, new = ("ts", "symbol", "close", "volume"), ("ts", "symbol", "last", "volume")
    table.append(_stream(rows(v1.FIRST, *old[:3])), AppendOptions())
    table.append(_stream(rows(v1.SECOND, *old)), AppendOptions(evolve=True))
    table.delete(lambda batch: pc.equal(batch.column("close"), 11.0), ["close"])
    table.alter("rename column", lambda spec, schema: (spec, schema.rename_column("close", "last")))
    table.append(_stream(rows([v1.ROWS[6][0]], *new)), AppendOptions(overlap="replace"))
    table.append(_stream(rows([v1.ROWS[7][-1]], *new)), AppendOptions(txn=("job", 1)))
    table.restore(5)
    table.append(_stream(rows([v1.ROWS[9][-1]], *new)), AppendOptions(txn=("job", 2)))
    return table


def _stream(table: pa.Table) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_stream(table)


def pin_bytes(table: ColdTable) -> bytes:
    """Return the bytes of a pin while it is held."""
    with pin_version(table, Version(v1.PIN["version"])):
        (stored,) = table.storage.list(PINS_FOLDER)
        return table.storage.read(stored.path)


def hint_bytes(table: ColdTable) -> bytes:
    """Return the bytes of the hint that the newest version left."""
    return table.storage.read(CURRENT_PATH)


def retired_bytes() -> bytes:
    """Return the bytes of a journal's marks of tables."""
    return encode_retired(v1.JOURNAL_HEADER.journal_id, {bytes(range(16)): Mark(7)})


def salted_structures() -> dict[str, bytes]:
    """Return the bytes of the structures that version 2 has changed."""
    return journal_files(v2.JOURNAL_HEADER, v2.JOURNAL_FRAME)


def packed_bytes() -> bytes:
    """Return the bytes of a sidecar of many entities; another zstd packs them differently."""
    return encode_coverage(v2.PACKED_COVERAGE)


def write(root: Path) -> None:
    """Write all golden files into folders that must not exist yet, one for each version.

    The table and CURRENT of `v1` were written by a release whose commits do not name the commit
    before them. The table of `chained` was written by a release whose segments have no field ids;
    that of today is in `identified`, and everything else of today is in `chained`.
    """
    folder, salted, chained = root / "v1", root / "v2", root / "chained"
    (root / "index").mkdir(parents=True)
    for name, data in index_structures().items():
        (root / "index" / name).write_bytes(data)
    folder.mkdir()
    salted.mkdir()
    chained.mkdir()
    with numbered_ids():
        table = build_table(root / "identified" / "table")
        (chained / "pin.json").write_bytes(pin_bytes(table))
        (chained / "CURRENT").write_bytes(hint_bytes(table))
    (root / "identified" / "table" / PINS_FOLDER).rmdir()
    (chained / "retired.json").write_bytes(retired_bytes())
    (chained / "checkpoint.parquet").write_bytes(structures()["checkpoint.parquet"])
    rows_v1 = rows_file(v1.JOURNAL_HEADER, v1.JOURNAL_FRAME)
    for name, data in {**structures(), "rows.wal": rows_v1}.items():
        (folder / name).write_bytes(data)
    rows_v2 = rows_file(v2.JOURNAL_HEADER, v2.JOURNAL_FRAME)
    lz4 = rows_file(v2.JOURNAL_HEADER, v2.JOURNAL_FRAME, (CODEC_LZ4, CODEC_LZ4))
    other = {"rows.wal": rows_v2, "lz4.wal": lz4, "packed.roar": packed_bytes()}
    for name, data in {**salted_structures(), **other}.items():
        (salted / name).write_bytes(data)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
