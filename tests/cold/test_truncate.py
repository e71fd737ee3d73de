"""Truncation of the log: it begins at a base, and everything that is kept reads as before."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import thermocline as tc
from thermocline.cold.care.expunge import expunge
from thermocline.cold.care.fsck import fsck
from thermocline.cold.care.pin import pin_version
from thermocline.cold.care.truncate import truncate_log
from thermocline.cold.care.vacuum import expire_versions, vacuum
from thermocline.cold.segment.row_digest import digest_rows
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.errors import Corruption, NotFound
from thermocline.format.layout import Version

JUNE_US = 1_717_200_000_000_000


def rows(first, count=3):
    times = pa.array(
        [JUNE_US + (first + n) * 1_000_000 for n in range(count)], pa.timestamp("us", "UTC")
    )
    return pa.table({"ts": times, "host": [f"h{n}" for n in range(count)], "n": list(range(count))})


@pytest.fixture
def table(tmp_path):
    made = tc.TimeSeriesTable.create(
        tmp_path / "t", time_column="ts", bucket="1h", entity_columns=["host"], overlap="allow"
    )
    for part in range(20):
        made.append(rows(part * 10))
    made.delete("n = 1")
    return made


def cut(table, oldest, **options):
    expire_versions(table.cold, Version(oldest), "vacuum")
    return truncate_log(table.cold, commits_min=1, **options)


def reopened(table):
    return tc.TimeSeriesTable.open(table.root())


def content(table, at=None):
    return digest_rows(table.cold.read(table.cold.state(at), None))


def log_names(table):
    return sorted(path.name for path in (table_path(table) / "_log").iterdir())


def table_path(table):
    return Path(table.root())


def test_kept_versions_read_as_before_and_earlier_ones_have_expired(table):
    before = {at: content(table, at) for at in (12, 15, 22)}
    held = table.coverage()
    assert cut(table, 12).first == 12
    for opened in (table, reopened(table)):
        assert {at: content(opened, at) for at in before} == before
        assert opened.coverage().equals(held)
        assert opened.history().column("version").to_pylist()[-1] == 12
        with pytest.raises(NotFound, match="expired"):
            opened.to_arrow(at=11)
        with pytest.raises(NotFound, match="expired"):
            opened.to_arrow(at="2024-01-01")
        with pytest.raises(NotFound, match="expired"):
            opened.cold.log.commit(5)
        assert opened.fsck().is_sound
    assert not [name for name in log_names(table) if name < f"{12:020d}" and name != "CURRENT"]


def test_a_truncated_log_is_written_and_truncated_again(table):
    cut(table, 10)
    again = reopened(table)
    again.append(rows(900))
    before = content(again)
    assert cut(again, 20).first == 20
    assert content(reopened(table)) == before
    assert [name for name in log_names(table) if "base" in name] == [f"{20:020d}.base.parquet"]
    assert reopened(table).fsck().is_sound


def test_few_commits_are_not_worth_a_base(table):
    expire_versions(table.cold, Version(12), "vacuum")
    assert truncate_log(table.cold).first == 1


def test_a_version_that_a_reader_has_pinned_keeps_its_log(table):
    before = content(table, 8)
    with pin_version(table.cold, Version(8)):
        state = table.cold.state(8)
        assert cut(table, 15).first == 8
        vacuum(table.cold, grace_s=0, dry_run=False, allow_short_grace=True)
        assert digest_rows(table.cold.read(state, None)) == before
    assert cut(table, 15).first > 8


def test_a_process_that_read_an_old_version_last_reads_the_newest_next(table):
    idle = reopened(table)
    assert idle.version() == 22
    for part in range(5):
        table.append(rows(2_000 + part * 10))
    cut(table, 26)
    idle.cold.log._head_checked_s -= 60
    assert idle.version() == table.version()
    assert content(idle) == content(table)


def test_without_CURRENT_or_with_an_old_one_the_log_opens(table):
    current = table_path(table) / "_log" / "CURRENT"
    old = current.read_bytes()
    table.append(rows(500))
    table.append(rows(600))
    cut(table, 23)
    before = content(table)
    for data in (None, b"torn", old):
        current.unlink(missing_ok=True)
        if data is not None:
            current.write_bytes(data)
        assert content(reopened(table)) == before


def test_a_commit_that_is_missing_after_the_base_is_damage(table):
    cut(table, 12)
    (table_path(table) / "_log" / f"{15:020d}.json").unlink()
    with pytest.raises(Corruption):
        reopened(table).to_arrow(at=16)
    assert not _fsck(table).is_sound


def test_a_damaged_base_is_named_and_nothing_else_is_answered(table):
    cut(table, 12)
    path = table_path(table) / "_log" / f"{12:020d}.base.parquet"
    data = bytearray(path.read_bytes())
    for place in range(0, len(data), 3):
        data[place] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(Corruption, match="base"):
        reopened(table).to_arrow()
    assert any("base" in found.path for found in _fsck(table).findings)


def test_D01_a_flipped_byte_of_the_base_is_harmless_or_named(table):
    cut(table, 12)
    path = table_path(table) / "_log" / f"{12:020d}.base.parquet"
    whole, right = path.read_bytes(), content(table)
    errors = []
    for place in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            assert content(reopened(table)) == right
        except Corruption as error:
            errors.append(error)
            assert [found.path for found in _fsck(table).findings] == [f"_log/{path.name}"]
    assert len(errors) > 10
    assert {one.facts["path"] for one in errors} == {f"_log/{path.name}"}


def _fsck(table):
    return fsck(ColdTable(LocalStorage(table.root())))


def test_commits_that_a_crash_left_before_the_base_go_the_next_time(table, tmp_path):
    shutil.copytree(table.root(), tmp_path / "copy")
    cut(table, 12)
    for version in (3, 7):
        name = f"{version:020d}.json"
        shutil.copy(tmp_path / "copy" / "_log" / name, table_path(table) / "_log" / name)
    before = content(reopened(table))
    (table_path(table) / "_log" / "CURRENT").unlink()
    assert content(reopened(table)) == before
    assert reopened(table).fsck().is_sound
    truncate_log(table.cold)
    assert f"{7:020d}.json" not in log_names(table)


def test_words_are_removed_from_the_base_too(table):
    cut(table, 12)
    base = table_path(table) / "_log" / f"{12:020d}.base.parquet"
    expunge(table.cold, ["h2"])
    assert base.exists()
    held = table.cold.log.base()
    assert not any("h2" in str(segment.stats) for segment in held.segments)
    assert reopened(table).fsck().is_sound


def test_rows_stay_after_many_rounds_of_care(table):
    for part in range(30):
        table.append(rows(5_000 + part * 10))
        if part % 7 == 0:
            table.compact()
            cut(table, table.version())
    before = content(table)
    assert content(reopened(table)) == before
    assert reopened(table).fsck().is_sound
    assert len(log_names(table)) < 20
