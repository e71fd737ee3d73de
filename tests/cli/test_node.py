"""What a command answers about a table in a folder, it answers about the same table on a node."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import thermocline as tc
from fixtures.served import ServedNode
from thermocline.cli.main import run

CSV = "ts,symbol,close\n" + "".join(
    f"2024-06-0{day}T{hour:02d}:00:00Z,{symbol},{hour}.5\n"
    for day, symbol in ((1, "NVDA"), (2, "NVDA"), (1, "AMD"))
    for hour in range(24)
    if hour % 7
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return the address of a node without keys, in a process."""
    node = ServedNode(
        str(tmp_path_factory.mktemp("node") / "data"), "--set", "care_every_s=0"
    ).ready()
    try:
        yield f"http://127.0.0.1:{node.port('api')}"
    finally:
        node.stop()


@pytest.fixture
def call(capfd, tmp_path, monkeypatch):
    """Run a command in a folder of its own; return its code, its answer and its error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def answer(*words):
        code = run([*words])
        out, err = capfd.readouterr()
        return code, out, err

    return answer


def ok(call, *words):
    code, out, err = call(*words)
    assert code == 0, (words, err)
    return out


def program(call, table, node):
    """Use a table by every command that is offered on both; return what each answered."""
    flag = ["--url", node] if node else []
    words = ("--time-column", "ts", "--bucket", "1h", "--entity-column", "symbol")
    ok(call, "table", "create", table, *words, "--overlap", "allow", *flag)
    ok(call, "table", "append", table, "day.csv", *flag)
    said = []

    def ask(*asked):
        said.append((asked[0:2], *call(*asked, *flag)))

    ask("gaps", table, "--json")
    ask("gaps", table, "--no-entities", "--format", "csv")
    ask("gaps", table, "--entity", "AMD", "--fail", "--start", "2024-06-01", "--end", "2024-06-02")
    ask("gaps", table, "--entity", "nobody")
    ask("coverage", table, "--json")
    ask("coverage", table, "--start", "2024-06-01T05:00", "--end", "2024-06-01T09:00")
    ask("table", "columns", "list", table, "--json")
    ask("table", "update", table, "fix.parquet", "--column", "close", "--json")
    ask("table", "delete", table, "--where", "symbol = 'AMD' and close > 20", "--yes")
    ask("table", "delete", table, "--start", "2024-06-02", "--end", "2024-06-02T03:00", "--yes")
    ask("table", "delete", table, "--where", "false", "--yes")
    ask("table", "retain", table)
    ask("table", "set", table, "--retention", "9999d")
    ask("table", "append", table, "bad.csv")
    ask("sql", f"select symbol, count(*), sum(close) from {table} group by all order by 1")
    return said


def plain(said):
    """Return answers without what is of the place: roots, versions and files."""
    found = []
    for words, code, out, err in said:
        text = out
        if out.startswith("{"):
            given = json.loads(out)
            text = {k: v for k, v in given.items() if k not in ("root", "version")}
        else:
            text = out.partition(" (version")[0] + out.partition(")")[2]
        found.append((words[0], code, text, err.partition(" (")[0]))
    return found


def test_every_command_answers_alike_for_a_folder_and_for_a_node(call, served, tmp_path):
    (tmp_path / "day.csv").write_text(CSV)
    (tmp_path / "bad.csv").write_text(CSV + "2024-06-03T00:00:00Z,NVDA,much\n")
    moment = datetime(2024, 6, 1, 3, tzinfo=UTC)
    fixes = [{"ts": moment + timedelta(hours=n), "symbol": "AMD", "close": 99.0} for n in (0, 1)]
    pq.write_table(pa.Table.from_pylist(fixes), tmp_path / "fix.parquet")
    local = plain(program(call, "prices", None))
    remote = plain(program(call, "prices", served))
    assert [one[:2] for one in local] == [one[:2] for one in remote]
    assert local == remote
    assert {code for _, code, _, _ in local} == {0, 2, 3, 10}


def test_files_are_written_to_a_node_once_and_not_at_all_if_a_row_is_bad(call, served, tmp_path):
    (tmp_path / "day.csv").write_text(CSV)
    (tmp_path / "bad.csv").write_text(CSV + "2024-06-03T00:00:00Z,NVDA,much\n")
    url = ("--url", served)
    ok(call, "table", "create", "once", "--time-column", "ts", "--bucket", "1h", *url)
    for _ in range(2):  # the second is a retry of a command whose answer was lost
        ok(call, "table", "append", "once", "day.csv", *url)
    code, _, err = call("table", "append", "once", "bad.csv", *url)
    assert (code, "bad.csv" in err) == (2, True)
    assert ok(call, "sql", "select count(*) from once", *url, "--format", "csv").split() == [
        "count_star()",
        "60",
    ]
    for words in (("table", "append", "once", "day.csv", "--link"), ("sql", "x", "-t", "a=b")):
        assert call(*words, *url)[0] == 2
    told = json.loads(ok(call, "table", "info", "once", "--json", *url))
    assert (told["buckets"], told["columns"][0]["name"]) == (47, "ts")
    assert "symbol" in ok(call, "table", "info", "once", *url)
    assert len(json.loads(ok(call, "table", "history", "once", "--json", *url))["versions"]) >= 2
    assert json.loads(ok(call, "table", "compact", "once", "--json", *url))["root"].startswith(
        "http"
    )
    assert call("table", "vacuum", "once", *url)[0] == 0


def test_a_context_in_use_names_the_node_and_a_path_names_a_folder(call, served, tmp_path):
    with tc.connect(served) as lake:
        lake.create_table("of_node", time_column="ts", bucket="1h")
    words = ("--time-column", "ts", "--bucket", "1h")
    ok(call, "table", "create", "of_folder", *words)
    assert call("table", "info", "of_node")[0] == 3
    ok(call, "context", "save", "local", "--url", served)
    assert ok(call, "table", "info", "of_node", "--context", "local", "--json")
    ok(call, "context", "use", "local")
    told = json.loads(ok(call, "table", "info", "of_node", "--json"))
    assert told["root"] == f"{served}/api/v1/tables/of_node"
    assert call("table", "info", "of_folder")[0] == 3
    assert ok(call, "table", "info", "./of_folder")
    assert json.loads(ok(call, "context", "list", "--json"))["contexts"] == [
        {"name": "local", "current": True, "url": served, "key_file": None}
    ]
    assert "of_node" in ok(call, "sql", "show tables")
    assert call("gaps", "./of_folder", "--context", "local")[0] == 2
    assert call("gaps", "of_node", "--context", "local", "--url", served)[0] == 2
    assert call("gaps", "of_node", "--context", "other")[0] == 3
    ok(call, "context", "use", "--none")
    assert ok(call, "table", "info", "of_folder")
    ok(call, "context", "remove", "local")
    assert call("context", "use", "local")[0] == 3
    (tmp_path / "config" / "thermocline" / "contexts.json").write_text("{")
    assert call("table", "info", "of_folder")[0] == 8
