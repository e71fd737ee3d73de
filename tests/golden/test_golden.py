"""Golden files: what was written once is read for ever, and is still what is written today.

The bytes of Parquet change with the library that writes it, so of those the content is compared.
"""

import re
import shutil
from pathlib import Path

import golden_index as index
import golden_tokens as tokens
import golden_v1 as v1
import golden_v2 as v2
import make_golden
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thermocline.cold.care.fsck import fsck
from thermocline.cold.care.pin import LEASE_S, list_pinned_versions
from thermocline.cold.log.checkpoint import encode_checkpoint, read_checkpoint
from thermocline.cold.segment.parquet import decode_deletes
from thermocline.cold.storage.local import LocalStorage
from thermocline.disk import OsDisk
from thermocline.format.coverage import decode_coverage, entity_values, sidecar_checksum
from thermocline.format.layout import PINS_FOLDER, base_path, checkpoint_path
from thermocline.format.log.change_ids import decode_changes, encode_changes
from thermocline.format.log.commit import decode_commit
from thermocline.format.tokens import decode_head, hash_token
from thermocline.hot.wal.folder import file_path, read_identity, read_watermark
from thermocline.hot.wal.frame import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD, KIND_HOLE
from thermocline.hot.wal.payload import decode_rows
from thermocline.hot.wal.reader import FrameReader, JournalFile, JournalReader
from thermocline.hot.wal.repair.damage import decode_hole
from thermocline.table import TimeSeriesTable

GOLDEN = Path(__file__).parent / "v1"
SALTED = Path(__file__).parent / "v2"
CHAINED = Path(__file__).parent / "chained"
IDENTIFIED = Path(__file__).parent / "identified"
INDEX = Path(__file__).parent / "index"
TOKENS = Path(__file__).parent / "tokens"
JOURNALS = [
    pytest.param(GOLDEN, v1, id="v1"),
    pytest.param(SALTED, v2, id="v2"),
]
FIRST_HOUR = v1.JUNE_NS // (3_600 * 10**9)


@pytest.fixture(params=[GOLDEN, CHAINED, IDENTIFIED], ids=lambda folder: folder.name)
def copied(tmp_path, request):
    """A copy of a golden table, because opening a table may leave hints in it."""
    root = tmp_path / "table"
    shutil.copytree(request.param / "table", root)
    return root


# Readers: for ever.


@pytest.mark.parametrize("name", v1.COMMITS)
def test_a_golden_commit_says_what_it_said(name):
    commit = v1.COMMITS[name]
    found = decode_commit((GOLDEN / f"{name}.commit.json").read_bytes(), commit.version)
    assert found == commit


@pytest.mark.parametrize("name", index.COMMITS)
def test_a_golden_commit_of_another_index_says_what_it_said(name):
    commit = index.COMMITS[name]
    assert decode_commit((INDEX / f"{name}.commit.json").read_bytes(), commit.version) == commit


def test_a_golden_sidecar_of_an_integer_index_says_what_it_said():
    assert decode_coverage((INDEX / "blocks.roar").read_bytes()) == index.COVERAGE


def test_a_golden_token_sidecar_holds_what_it_held():
    data = (TOKENS / "texts.bloom").read_bytes()
    one = decode_head(data, len(data))[tokens.COLUMN_ID]
    found = [one.may_hold(hash_token(token), data.__getitem__) for token in tokens.HELD]
    denied = [one.may_hold(hash_token(token), data.__getitem__) for token in tokens.DENIED]
    assert (found, denied) == ([True] * len(found), [False] * len(denied))
    assert decode_commit((TOKENS / "tokens.commit.json").read_bytes(), 2) == tokens.COMMIT


@pytest.mark.parametrize("name", make_golden.token_structures())
def test_todays_writer_writes_the_golden_bytes_of_tokens(name):
    assert make_golden.token_structures()[name] == (TOKENS / name).read_bytes()


@pytest.mark.parametrize("name", make_golden.index_structures())
def test_todays_writer_writes_the_golden_bytes_of_another_index(name):
    assert make_golden.index_structures()[name] == (INDEX / name).read_bytes()


def test_a_golden_commit_keeps_what_a_newer_version_wrote():
    data = (GOLDEN / "append.commit.json").read_bytes()
    table, _, full, _ = decode_commit(data, 2).actions
    assert table.spec.extra == {"comment": "of a newer version", "layout": {"by": ["hour"]}}
    assert full.segment.extra["bloom"] == {"path": "_index/x"}
    assert list(decode_deletes(full.segment.deletes)) == [1, 7, 9]


def test_a_golden_flush_contains_the_changes_it_contained():
    note = v1.FLUSH.actions[-1]
    assert decode_changes(note.changes).tolist() == v1.FLUSH_CHANGES
    assert encode_changes(v1.FLUSH_CHANGES) == note.changes


@pytest.mark.parametrize("name", v1.COVERAGES)
def test_a_golden_sidecar_says_what_it_said(name):
    found = decode_coverage((GOLDEN / f"{name}.roar").read_bytes())
    assert found == v1.COVERAGES[name]


def test_a_golden_packed_sidecar_says_what_it_said():
    data = (SALTED / "packed.roar").read_bytes()
    assert int.from_bytes(data[4:6], "little") == v2.FORMAT_VERSION
    assert decode_coverage(data) == v2.PACKED_COVERAGE
    assert sidecar_checksum(data) == "crc32c:7d8674ea"


def test_todays_packed_sidecar_has_the_checksum_of_the_golden_one():
    assert sidecar_checksum(make_golden.packed_bytes()) == "crc32c:7d8674ea"


def test_a_golden_checkpoint_is_the_state_it_was(tmp_path):
    state = make_golden.checkpoint_state()
    storage = LocalStorage(str(tmp_path))
    storage.put(checkpoint_path(state.version), (GOLDEN / "checkpoint.parquet").read_bytes())
    found = read_checkpoint(storage, state.version, _never)
    # A base has the form of a checkpoint, and another name.
    storage.put(base_path(state.version), (GOLDEN / "checkpoint.parquet").read_bytes())
    base = read_checkpoint(storage, state.version, _never, base_path(state.version))
    assert encode_checkpoint(base) == encode_checkpoint(found)
    assert list(found.segments) == list(state.segments) == [v1.FULLER_SEGMENT]
    for part in ("version", "time", "spec", "schema_id", "schemas", "totals", "marks", "txns"):
        assert getattr(found, part) == getattr(state, part)
    assert (found.oldest, found.marks, found.txns) == (
        2,
        {"hot": 9_007_199_254_740_993},
        {"nightly load": 42},
    )


def _never():
    raise AssertionError("a golden checkpoint is read without the log")


def test_a_golden_hint_and_a_golden_pin_say_what_they_said():
    assert orjson.loads((GOLDEN / "CURRENT").read_bytes()) == v1.CURRENT
    assert orjson.loads((GOLDEN / "pin.json").read_bytes()) == v1.PIN
    today = orjson.loads((CHAINED / "pin.json").read_bytes())
    assert today.pop("checksum")
    assert today == v1.PIN


@pytest.mark.parametrize("golden", [GOLDEN, CHAINED])
def test_a_golden_pin_holds_its_version_until_its_lease_ends(copied, golden):
    pin = copied / PINS_FOLDER / "abc.json"
    pin.parent.mkdir()
    shutil.copy(golden / "pin.json", pin)
    assert list_pinned_versions(make_golden.opened(copied)) == {3}
    later = make_golden.ColdTable(
        LocalStorage(str(copied)), now_ns=lambda: v1.JUNE_NS + LEASE_S * 10**9 + 1
    )
    assert list_pinned_versions(later) == set()
    assert not pin.exists()


def test_a_golden_hint_opens_the_golden_table(copied):
    for hint in ((GOLDEN / "CURRENT").read_bytes(), b"", b"garbage", None):
        path = copied / "_log" / "CURRENT"
        path.unlink() if hint is None else path.write_bytes(hint)
        assert make_golden.opened(copied).state().version == 9
        assert orjson.loads(path.read_bytes())["version"] == v1.CURRENT["version"]


@pytest.mark.parametrize("version", v1.ROWS)
def test_every_version_of_the_golden_table_has_the_rows_it_had(copied, version):
    table = TimeSeriesTable(make_golden.opened(copied))
    found = table.to_arrow(at=version)
    state = table.cold.state(version)
    assert state.totals.rows == len(v1.ROWS[version])
    if version > 1:
        assert "last" in found.schema.names if version > 4 else "close" in found.schema.names
    assert _told(found) == sorted(v1.ROWS[version], key=str)


def _told(table: pa.Table):
    rows = []
    for row in table.to_pylist():
        hour = int(row["ts"].timestamp()) // 3_600 - FIRST_HOUR
        close = row["last"] if "last" in row else row["close"]
        rows.append((hour, row["symbol"], close, row.get("volume")))
    return sorted(rows, key=str)


@pytest.mark.parametrize("version", v1.HELD)
def test_every_version_of_the_golden_table_covers_what_it_covered(copied, version):
    _, coverage = make_golden.opened(copied).coverage(version)
    held = {
        entity_values(key)[0]: {int(number) - FIRST_HOUR for number in buckets.numbers()}
        for key, buckets in coverage.entities.items()
    }
    assert held == v1.HELD[version]


def test_the_golden_table_is_proven_by_fsck(copied):
    checked = fsck(make_golden.opened(copied))
    kinds = {finding.kind for finding in checked.findings}
    assert checked.is_sound, checked.findings
    assert kinds <= {"orphan"}
    assert (checked.version, checked.rows) == (9, len(v1.ROWS[9]))


def test_the_history_of_the_golden_table_is_what_it_was(copied):
    history = TimeSeriesTable(make_golden.opened(copied)).history()
    assert history.column("operation").to_pylist() == v1.OPERATIONS[::-1]


def test_the_golden_table_can_be_written_on(copied):
    table = TimeSeriesTable(make_golden.opened(copied))
    new = make_golden.rows([(9, "NVDA", 1.0, 2)], "ts", "symbol", "last", "volume")
    assert table.append(new) == 10
    assert table.cold.state().totals.rows == len(v1.ROWS[9]) + 1


def journal_frames(path, header):
    """Return the frames of one file, read as the last of a journal."""
    file = JournalFile(str(path), header, path.stat().st_size, None)
    reading = FrameReader(OsDisk(), file, header.journal_id)
    found = list(reading.frames(header.first_lsn))
    reading.close()
    assert reading.offset == path.stat().st_size
    return found


@pytest.mark.parametrize(("golden", "version"), JOURNALS)
def test_a_golden_journal_is_read_as_a_start_reads_it(golden, version, tmp_path):
    folder = str(tmp_path)
    identity = v1.JournalIdentity(v1.JOURNAL_ID, v1.JOURNAL_HEADER.number)
    Path(file_path(folder, 7)).write_bytes((golden / "rows.wal").read_bytes())
    reader = JournalReader(OsDisk(), folder, identity)
    assert [file.header for file in reader.files] == [version.JOURNAL_HEADER]
    assert [frame.header.lsn for frame in reader.frames()] == [41, 42]


@pytest.mark.parametrize(("golden", "version"), JOURNALS)
def test_a_golden_frame_says_what_it_said(golden, version):
    (frame,) = journal_frames(golden / "journal.wal", version.JOURNAL_HEADER)
    assert (frame.header, frame.payload) == (version.JOURNAL_FRAME, v1.JOURNAL_PAYLOAD)


@pytest.mark.parametrize(
    ("path", "version", "codecs"),
    [
        pytest.param(GOLDEN / "rows.wal", v1, [CODEC_NONE, CODEC_ZSTD], id="v1"),
        pytest.param(SALTED / "rows.wal", v2, [CODEC_NONE, CODEC_ZSTD], id="v2"),
        pytest.param(SALTED / "lz4.wal", v2, [CODEC_LZ4, CODEC_LZ4], id="v2 lz4"),
    ],
)
def test_golden_rows_of_a_journal_are_the_rows_they_were(path, version, codecs):
    frames = journal_frames(path, version.JOURNAL_HEADER)
    rows = {
        frame.header.lsn: decode_rows(frame.header, frame.payload).batch.column("close").to_pylist()
        for frame in frames
    }
    assert rows == v1.JOURNAL_ROWS
    assert [frame.header.codec for frame in frames] == codecs


@pytest.mark.parametrize(("golden", "version"), JOURNALS)
def test_a_golden_hole_says_what_was_lost(golden, version):
    (frame,) = journal_frames(golden / "hole.wal", version.JOURNAL_HEADER)
    assert (frame.header.kind, frame.header.lsn, frame.header.span) == (KIND_HOLE, 41, 3)
    assert decode_hole(frame.payload) == v1.HOLE


def test_a_golden_identity_and_watermark_say_what_they_said(tmp_path):
    for name in ("journal.json", "durable"):
        shutil.copy(GOLDEN / name, tmp_path / name)
    assert read_identity(OsDisk(), str(tmp_path)) == v1.IDENTITY
    assert read_watermark(OsDisk(), str(tmp_path), v1.JOURNAL_ID) == v1.WATERMARK


# Writers: today's bytes are still those of each version.


@pytest.mark.parametrize(
    "name", [name for name in make_golden.structures() if "parquet" not in name]
)
def test_todays_writer_still_writes_the_golden_bytes(name):
    assert make_golden.structures()[name] == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("name", make_golden.salted_structures())
def test_todays_writer_writes_the_golden_bytes_of_salted_files(name):
    assert make_golden.salted_structures()[name] == (SALTED / name).read_bytes()


def test_todays_checkpoint_still_says_what_the_golden_one_says():
    today = pq.read_table(pa.BufferReader(make_golden.structures()["checkpoint.parquet"]))
    golden = pq.read_table(CHAINED / "checkpoint.parquet")
    assert today.equals(golden)
    assert today.schema.metadata[b"thermocline"] == golden.schema.metadata[b"thermocline"]
    assert today.schema.metadata.keys() == golden.schema.metadata.keys()


@pytest.mark.parametrize(("golden", "version"), JOURNALS)
def test_todays_rows_of_a_journal_still_say_what_the_golden_ones_say(golden, version, tmp_path):
    path, header = tmp_path / "rows.wal", version.JOURNAL_HEADER
    path.write_bytes(make_golden.rows_file(header, version.JOURNAL_FRAME))
    for today, frozen in zip(
        journal_frames(path, header), journal_frames(golden / "rows.wal", header), strict=True
    ):
        assert decode_rows(today.header, today.payload).batch.equals(
            decode_rows(frozen.header, frozen.payload).batch
        )
        assert (today.header.lsn, today.header.codec) == (frozen.header.lsn, frozen.header.codec)


def test_every_golden_file_is_made_by_the_generator():
    standing = {path.name for path in GOLDEN.iterdir()}
    assert standing == {*make_golden.structures(), "CURRENT", "pin.json", "rows.wal", "table"}
    salted = {path.name for path in SALTED.iterdir()}
    assert salted == {*make_golden.salted_structures(), "rows.wal", "lz4.wal", "packed.roar"}
    assert {path.name for path in INDEX.iterdir()} == set(make_golden.index_structures())


def test_todays_table_is_still_the_golden_table(tmp_path):
    with make_golden.numbered_ids():
        table = make_golden.build_table(tmp_path / "table")
        assert make_golden.pin_bytes(table) == (CHAINED / "pin.json").read_bytes()
        assert make_golden.hint_bytes(table) == (CHAINED / "CURRENT").read_bytes()
    assert make_golden.retired_bytes() == (CHAINED / "retired.json").read_bytes()
    today, golden = _content(tmp_path / "table"), _content(IDENTIFIED / "table")
    assert today.keys() == golden.keys()
    for name, content in golden.items():
        assert today[name] == content, name


def _content(root: Path):
    """Return every file's content by its name, with new ids told apart only by their order."""
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    log = [name for name in sorted(files) if re.fullmatch(r"_log/\d{20}\.json", name)]
    found = re.findall(rb"\b[0-9a-f]{32}\b", b"".join(files[name].read_bytes() for name in log))
    order = {one.decode(): f"id{place}" for place, one in enumerate(dict.fromkeys(found))}

    def renamed(text: str) -> str:
        return re.sub(r"\b[0-9a-f]{32}\b", lambda match: order[match.group()], text)

    return {renamed(name): _comparable(path, renamed) for name, path in files.items()}


def _comparable(path: Path, renamed):
    if path.name.endswith(".checkpoint.parquet"):
        table = pq.read_table(path)
        segments = [_without_size(renamed(row.decode())) for row in table["segment"].to_pylist()]
        state = orjson.loads(renamed(table.schema.metadata[b"thermocline"].decode()))
        state["totals"] = state["totals"][:2]
        return state, segments, table.select(["ts_min_us", "ts_max_us"]).to_pylist()
    if path.suffix == ".parquet":
        return pq.read_table(path)
    if path.suffix == ".roar":
        return decode_coverage(path.read_bytes()).with_digest(0)
    if path.suffix == ".json":
        return _without_size(renamed(path.read_text()))
    return path.read_bytes()


def _without_size(text: str) -> str:
    """Drop what depends on the bytes of a Parquet file, and the checksum over it."""
    return re.sub(r'"(file_size":\d+|checksum":"crc32c:[0-9a-f]{8}")', "", text)
