"""The commands about a lake: in a folder, over a node's address, and what they refuse."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import thermocline as tc
from fixtures.api import serving
from thermocline.cli.main import run

CONFLICT, NOT_FOUND, INVALID = 4, 3, 2


def answer(capfd, *words):
    """Run a command; return its answer in JSON."""
    assert run([*words, "--json"]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.fixture
def folder(tmp_path):
    """A lake with a table of one hot row."""
    with tc.connect(tmp_path / "lake") as lake:
        table = lake.create_table("prices", time_column="ts", bucket="1h")
        table.write([{"ts": datetime(2024, 6, 1, tzinfo=UTC), "n": 1}])
        lake.close(flush=False)
    return str(tmp_path / "lake")


def use(capfd, place):
    told = [answer(capfd, "lake", "rename", place, "prices", "quotes")]
    told.append(answer(capfd, "lake", "copy", place, "quotes", "copied"))
    told.append(answer(capfd, "lake", "drop", place, "quotes", "--yes"))
    told.append([one["table"] for one in answer(capfd, "lake", "dropped", place)["tables"]])
    told.append(answer(capfd, "lake", "undrop", place, "quotes", "--as", "again"))
    told.append([one["table"] for one in answer(capfd, "lake", "tables", place)["tables"]])
    told.append(answer(capfd, "lake", "drop", place, "again", "--yes"))
    told.append(answer(capfd, "lake", "vacuum", place))
    gone = ("--grace", "0s", "--allow-short-grace", "--yes")
    told.append(answer(capfd, "lake", "vacuum", place, *gone))
    return told


WANTED = [
    {"table": "quotes", "was": "prices"},
    {"table": "copied", "source": "quotes", "rows": 1},
    {"table": "quotes", "rows": 1},
    ["quotes"],
    {"table": "again", "rows": 1},
    ["again", "copied"],
    {"table": "again", "rows": 1},
    {"is_dry_run": True, "tables": []},
    {"is_dry_run": False, "tables": ["again"]},
]


def test_a_folder_and_a_node_answer_the_same(folder, tmp_path, capfd):
    assert use(capfd, folder) == WANTED
    with serving(tmp_path / "node") as served:
        with tc.connect(served.url) as lake:
            table = lake.create_table("prices", time_column="ts", bucket="1h")
            table.write([{"ts": datetime(2024, 6, 1, tzinfo=UTC), "n": 1}])
        capfd.readouterr()
        assert use(capfd, served.url) == WANTED


def test_a_lake_is_created_and_a_table_in_it_by_its_path(tmp_path, capfd):
    place = str(tmp_path / "shop")
    assert answer(capfd, "lake", "create", place) == {"root": place, "created": True}
    assert answer(capfd, "lake", "create", place)["created"] is False
    made = ("--time-column", "ts", "--bucket", "1h", "--column", "ts:timestamp[us]")
    assert run(["table", "create", f"{place}/prices", *made, "--column", "close:float64"]) == 0
    with tc.connect(place) as lake:
        assert lake.tables() == ["prices"]
        lake.table("prices").write([{"ts": datetime(2024, 6, 1), "close": 1.5}])
    assert run(["table", "create", f"{place}/prices", *made]) == CONFLICT


def test_a_lake_that_another_process_has_open_is_a_conflict_with_the_way_out(folder, capfd):
    with tc.connect(folder):
        assert run(["lake", "drop", folder, "prices", "--yes"]) == CONFLICT
        assert "node's address" in capfd.readouterr().err
        assert run(["lake", "tables", folder]) == 0  # reading goes on beside it


@pytest.mark.parametrize(
    ("words", "code", "way_out"),
    [
        (["table", "info", "{0}"], INVALID, "lake tables"),
        (["table", "info", "{0}/nothing"], NOT_FOUND, "tables"),
        (["table", "info", "{1}/prices"], NOT_FOUND, "lake create"),
        (["table", "info", "{1}/no/prices"], NOT_FOUND, "check the path"),
        (["lake", "tables", "{1}"], NOT_FOUND, "lake create"),
        (["lake", "drop", "{0}", "prices"], INVALID, "--yes"),
        (["lake", "create", "{1}"], INVALID, "check the path"),
    ],
)
def test_a_path_that_is_no_lake_or_no_table_is_an_error_with_the_way_out(
    words, code, way_out, folder, tmp_path, capfd
):
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    assert run([word.format(folder, other) for word in words]) == code
    assert way_out in capfd.readouterr().err


def test_commands_that_change_hot_rows_own_the_lake_while_they_run(folder, capfd, tmp_path):
    fixed = tc.connect(folder, read_only=True).table("prices").to_arrow()
    pq.write_table(fixed.set_column(1, "n", pa.array([7])), tmp_path / "fixes.parquet")
    table = f"{folder}/prices"
    changed = answer(capfd, "table", "update", table, str(tmp_path / "fixes.parquet"))
    assert (changed["matched"], changed["inserted"]) == (1, 0)
    assert numbers(folder) == [7]
    answer(capfd, "table", "restore", table, str(changed["version"] - 1))
    assert numbers(folder) == [1]
    with tc.connect(folder):
        assert run(["table", "restore", table, "1"]) == CONFLICT
        assert "call the node" in capfd.readouterr().err
    assert answer(capfd, "table", "delete", table, "--where", "true", "--yes")["rows"] == 1
    assert numbers(folder) == []


def numbers(folder):
    with tc.connect(folder, read_only=True) as lake:
        return lake.sql("select n from prices")["n"].to_pylist()
