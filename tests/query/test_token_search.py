"""Searches for words give the same rows with token sidecars as without them."""

import random
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.lake import JUNE_US
from thermocline.cold.care.fsck import fsck
from thermocline.cold.compact.plan import CompactionLimits
from thermocline.cold.compact.rewrite import compact, merge_here
from thermocline.errors import Invalid
from thermocline.format import layout
from thermocline.format.log.action import Mark
from thermocline.format.tokens import tokens_of
from thermocline.hot.wal.buffer import TableBuffer
from thermocline.hot.wal.frame import Lsn
from thermocline.query.session import Session
from thermocline.query.sql import plan, token_search
from thermocline.query.sql.engine_types import quote_text
from thermocline.table import TimeSeriesTable

HOUR_US = 3_600_000_000
WORDS = [
    "disk",
    "Disk",
    "fail",
    "failure",
    "k",
    "\u212a",
    "ß",
    "é",
    "42",
    "4",
    "日本",
    "sda_1",
    "%",
    "“a”",
]
GAPS = [" ", "  ", "-", "_", ", ", "\n", "", "="]
SEARCHES = {
    "has_token": "has_token({0}, {1})",
    "has_phrase": "has_phrase({0}, {1})",
    "like": "{0} like {1}",
    "contains": "contains({0}, {1})",
    "starts": "starts_with({0}, {1})",
    "ends": "suffix({0}, {1})",
    "=": "{0} = {1}",
}


def some_text(chance) -> str | None:
    if chance.random() < 0.1:
        return None
    parts = [chance.choice(WORDS) + chance.choice(GAPS) for _ in range(chance.randrange(0, 5))]
    return "".join(parts)


def some_rows(chance, hour: int) -> pa.Table:
    count = chance.randrange(20, 40)
    return pa.table(
        {
            "ts": pa.array(
                [JUNE_US + hour * HOUR_US + n for n in range(count)], pa.timestamp("us")
            ),
            "text": pa.array([some_text(chance) for _ in range(count)], pa.string()),
            # Gives each file the bytes of which its sidecar may take a share.
            "ballast": pa.array([chance.randbytes(40) for _ in range(count)], pa.binary()),
        }
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two tables with the same rows, one of them indexed: deleted, renamed, compacted, hot rows."""
    session = Session(threads=2)
    for name, indexed in (("t", ["text"]), ("plain", [])):
        chance = random.Random(7)
        table = TimeSeriesTable.create(
            tmp_path_factory.mktemp("tokens") / name,
            time_column="ts",
            bucket="1h",
            overlap="allow",
            token_columns=indexed,
        )
        for hour in range(14):
            table.append(some_rows(chance, hour))
        table.delete("has_token(text, 'fail') and ts < '2024-06-01 03:00:00'")
        first_two = [one.segment_id for one in table.cold.state().segments][:2]
        compact(table.cold, first_two, merge_here, CompactionLimits(), lambda *_: None)
        table.rename_column("text", "body")
        table.append(some_rows(chance, 15).rename_columns(["ts", "body", "ballast"]))
        hot = TableBuffer("journal", Mark(0))
        rows = some_rows(chance, 16).rename_columns(["ts", "body", "ballast"])
        rows = rows.cast(table.schema())
        hot.add(Lsn(1), table.cold.state().schema_id, rows.to_batches()[0], rows.nbytes)
        session.register_view(name, table.cold, hot.snapshot)
        session.tables_of_test = {**getattr(session, "tables_of_test", {}), name: table}
    with session:
        yield session


def found(session, table, condition):
    text = f"select ts, ballast from {table} where {condition} order by ts, ballast"
    rows, report = session.read(text)
    return rows.read_all().to_pylist(), report.tables[table]


NEEDLES = st.lists(
    st.sampled_from([*WORDS, *GAPS, "%", "_", "isk", "ailur", "zebra"]), max_size=4
).map("".join)


@settings(max_examples=150, deadline=timedelta(seconds=60))
@given(st.sampled_from(sorted(SEARCHES)), NEEDLES)
def test_a_search_finds_the_same_rows_with_and_without_sidecars(world, search, needle):
    if search == "has_token":
        needle = next(iter(tokens_of(needle)), "disk")
    if search == "has_phrase" and not tokens_of(needle):
        needle += "disk"
    condition = SEARCHES[search].format("body", quote_text(needle))
    indexed, report = found(world, "t", condition)
    expected, unpruned = found(world, "plain", condition)
    assert indexed == expected
    assert report.files <= unpruned.files


def test_a_word_that_no_row_has_is_answered_without_a_file(world):
    for condition in (
        "has_token(body, 'zebra')",
        "has_phrase(body, 'disk zebra')",
        "body like '% zebra %'",
        "body = 'zebra'",
    ):
        rows, report = found(world, "t", condition)
        assert (rows, report.files) == ([], 0), condition
    # Not a token in these: the text may have `zebras`.
    assert found(world, "t", "body like '%zebra%'")[1].files > 0
    assert found(world, "t", "not has_token(body, 'zebra')")[1].files > 0
    assert found(world, "t", "has_token(body, 'zebra') or ts is null")[1].files > 0


def test_a_needle_may_be_a_parameter(world):
    rows, report = world.read("select ts from t where has_token(body, ?)", ["zebra"])
    assert (rows.read_all().num_rows, report.tables["t"].files) == (0, 0)


def every_token(fragments):
    return [token for fragment, _, _ in fragments for token in tokens_of(fragment)]


def test_the_wrong_design_that_asks_for_cut_tokens_loses_rows(world, monkeypatch):
    condition = "body like '%ailur%'"
    expected = found(world, "plain", condition)[0]
    assert expected
    monkeypatch.setattr(token_search, "bounded_tokens", every_token)
    lost = found(world, "t", f"{condition} and 1 = 1")[0]
    assert len(lost) < len(expected)


def test_the_wrong_design_that_keeps_the_case_loses_rows(world, monkeypatch):
    condition = "has_token(body, 'DISK')"
    expected = found(world, "plain", condition)[0]

    def hash_exact(operator, needle):
        return (hash(needle) & 0xFFFFFFFFFFFFFFFF,)

    monkeypatch.setattr(plan, "hash_needle", hash_exact)
    assert len(found(world, "t", f"{condition} and 2 = 2")[0]) < len(expected)


@pytest.mark.parametrize(
    ("text", "token", "answer"),
    [
        ("disk failure on sda", "FAILURE", True),
        ("disk failures on sda", "failure", False),
        ("user_id=42", "id", True),
        ("a\nb", "b", True),
        ("\u212a", "k", False),
        ("ÄRGER", "ärger", False),
        ("ärger", "äRGER", True),
        ("日本 a", "日本", True),
        ("日本語", "日本", False),
        ("", "a", False),
    ],
)
def test_has_token_finds_whole_tokens_and_ignores_the_case_of_ascii(world, text, token, answer):
    asked = world.sql("select has_token($1, $2) t, has_phrase($1, $2) p", [text, token])
    assert asked.to_pylist() == [{"t": answer, "p": answer}]


@pytest.mark.parametrize(
    ("phrase", "answer"),
    [
        ("a b c", True),
        ("A-b,C", True),
        ("a c", False),
        ("b c d", True),
        ("c d e", False),
        ("d", True),
    ],
)
def test_has_phrase_finds_tokens_that_follow_each_other(world, phrase, answer):
    asked = world.sql("select has_phrase('x. a  b/c (d)', $1) p", [phrase])
    assert asked.to_pylist() == [{"p": answer}]


def test_null_is_found_in_no_text_and_no_text_in_null(world):
    asked = world.sql(
        "select has_token(null, 'a') a, has_token('a', null) b, has_phrase(null, 'a') c"
    )
    assert asked.to_pylist() == [{"a": None, "b": None, "c": None}]


@pytest.mark.parametrize(
    "call", ["has_token(body, 'a b')", "has_token(body, '')", "has_phrase(body, ' - ')"]
)
def test_a_needle_without_the_tokens_it_needs_is_refused(world, call):
    with pytest.raises(Invalid, match=r"has_token takes exactly one|has_phrase takes a text"):
        world.sql(f"select count(*) from t where {call}")


def test_a_lost_or_damaged_sidecar_costs_a_read_and_no_row(world, caplog):
    table = world.tables_of_test["t"]
    session = Session(threads=1)
    session.register_tstable("t", table.root())
    wanted = "select count(body) n from t where has_phrase(body, 'disk failure')"
    before = session.sql(wanted).to_pylist()
    paths = [one.tokens_path for one in table.cold.state().segments if one.tokens_path]
    assert len(paths) > 10
    root = table.root()
    kept = {path: Path(root, path).read_bytes() for path in paths[:2]}
    try:
        flipped = bytearray(kept[paths[0]])
        flipped[-6] ^= 255
        Path(root, paths[0]).write_bytes(flipped)
        table.cold.storage.delete(paths[1])
        assert session.sql(wanted + " and 3 = 3").to_pylist() == before
        assert "is not used" in caplog.text
        kinds = {(one.kind, one.path) for one in fsck(table.cold).findings}
        assert kinds == {("tokens", paths[0]), ("tokens", paths[1])}
    finally:
        for path, data in kept.items():
            Path(root, path).write_bytes(data)
    session.close()
    assert fsck(table.cold).is_sound


def test_a_vacuum_keeps_the_sidecars_of_live_segments_and_removes_the_others(tmp_path):
    chance = random.Random(3)
    table = TimeSeriesTable.create(
        tmp_path / "t", time_column="ts", bucket="1h", overlap="allow", token_columns="text"
    )
    for hour in range(3):
        table.append(some_rows(chance, hour))
    old = {one.tokens_path for one in table.cold.state().segments}
    wanted = [one.segment_id for one in table.cold.state().segments]
    compact(table.cold, wanted, merge_here, CompactionLimits(), lambda *_: None)
    (left,) = table.cold.state().segments
    assert left.tokens_path not in {"", *old}
    assert left.tokens_size <= left.file_size * 0.15
    table.vacuum(dry_run=False, grace="0s", allow_short_grace=True)
    stored = {one.path for one in table.cold.storage.list(layout.TOKENS_FOLDER)}
    assert stored == {left.tokens_path}
    assert fsck(table.cold).findings == ()


def test_only_columns_of_texts_are_indexed(tmp_path):
    table = TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h", overlap="allow")
    table.append(some_rows(random.Random(1), 0))
    assert not any(one.tokens_path for one in table.cold.state().segments)
    for wrong in ("ts", "missing", ["text", "text"]):
        with pytest.raises(Invalid):
            table.set_token_columns(wrong)
    table.set_token_columns("text")
    table.append(some_rows(random.Random(1), 1))
    assert sum(bool(one.tokens_path) for one in table.cold.state().segments) == 1
    table.drop_column("text")
    assert table.spec().token_columns == ()
