"""Several nodes on one lake: each answers exactly, with the hot rows of all others."""

import json
import signal
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import thermocline as tc
from fixtures.served import ServedNode
from thermocline.backup.backup import backup
from thermocline.errors import Conflict, Corruption, Unavailable, Unsupported
from thermocline.format.log.action import Mark
from thermocline.hot.tier import HotPart, HotSnapshot
from thermocline.peers.registry import SourceRegistry
from thermocline.peers.wire import decode_snapshot, encode_snapshot, name_part

QUIET = ("--grpc", "off", "--set", "flush_age_s=1h", "--set", "care_every_s=0")
START = datetime(2026, 1, 1, tzinfo=UTC)


def start(tmp_path, name, *words):
    return ServedNode(tmp_path / name, "--lake", str(tmp_path / "lake"), *QUIET, *words)


@pytest.fixture
def nodes(tmp_path):
    """Two nodes that serve one lake, with a table that both write."""
    with start(tmp_path, "a") as a:
        a.ready()
        with start(tmp_path, "b") as b:
            b.ready()
            with client(a) as lake:
                lake.create_table("m", time_column="ts", bucket="1h")
            yield a, b


def client(node):
    return tc.connect(f"http://127.0.0.1:{node.port('api')}")


def rows_of(name, *numbers):
    """Return rows as Arrow: for values of Python the client asks the node for the table first."""
    times = pa.array([START + timedelta(seconds=n) for n in numbers], pa.timestamp("us", "UTC"))
    return pa.table({"ts": times, "node": [name] * len(numbers), "n": list(numbers)})


def write(node, name, *numbers):
    with client(node) as lake:
        assert lake.table("m").write(rows_of(name, *numbers)) == len(numbers)


def read(node, **more):
    """Return the numbers in the table, in order, or the error."""
    status, answer, _ = node.ask("/api/v1/query", {"sql": "select n from m order by n", **more})
    if status != 200:
        return status, answer
    return [row["n"] for row in answer["rows"]]


def test_every_node_answers_with_the_hot_rows_of_all_and_none_twice(nodes, tmp_path):
    a, b = nodes
    write(a, "a", 1, 2)
    write(b, "b", 3)
    assert read(a) == read(b) == [1, 2, 3], "hot rows of both"
    assert a.ask("/api/v1/tables/m/flush", {})[0] == 200
    write(a, "a", 4)
    assert read(a) == read(b) == [1, 2, 3, 4], "a flush moved the rows of one"
    with tc.connect(tmp_path / "lake", data=tmp_path / "reader", read_only=True) as reader:
        found = reader.sql("select n from m order by n")["n"].to_pylist()
        assert found == [1, 2, 3, 4], "a process without a journal asks the nodes"
        assert reader.table("m").info()["hot_rows"] == 2


def test_N09_a_node_that_is_gone_fails_strict_queries_by_name_and_marks_others(nodes, tmp_path):
    a, b = nodes
    write(a, "a", 1)
    write(b, "b", 2)
    b.process.kill()
    b.wait()
    status, answer = read(a)
    assert status == 503
    assert "cannot be reached" in json.dumps(answer)
    status, answer, _ = a.ask("/api/v1/query", {"sql": "select n from m", "mode": "best_effort"})
    assert (status, answer["rows"]) == (200, [{"n": 1}])
    assert "may be missing" in answer["report"]["tables"]["m"]["warning"]
    write(a, "a", 3)
    with start(tmp_path, "b") as again:
        again.ready()
        assert read(a) == read(again) == [1, 2, 3], "its journal has what it acknowledged"
        assert again.stop() == 0
    assert read(a) == [1, 2, 3], "a node that stops flushes, and leaves"


def test_N06_a_paused_node_is_waited_for_or_named_and_loses_nothing(nodes):
    a, b = nodes
    write(b, "b", 1)
    b.send(signal.SIGSTOP)
    try:
        status, answer, _ = a.ask(
            "/api/v1/query", {"sql": "select n from m", "mode": "best_effort"}
        )
        assert status == 200
        assert "may be missing" in answer["report"]["tables"]["m"]["warning"]
    finally:
        b.send(signal.SIGCONT)
    assert read(a) == [1]


def test_N11_no_key_and_no_wrong_token_opens_the_hot_rows_of_a_node(nodes):
    a, _ = nodes
    write(a, "a", 1)
    table_id = a.ask("/api/v1/tables/m")[1].get("table_id", "0" * 32)
    for path in ("/api/v1/node/hot", "/api/v1/node/flush"):
        assert a.ask(path, {"table": table_id})[0] == 404


def test_changes_of_rows_reach_the_hot_rows_of_every_node(nodes, tmp_path):
    a, b = nodes
    write(a, "a", 1, 2)
    write(b, "b", 3, 4)
    with client(a) as lake:
        lake.table("m").delete("n in (2, 3)")
        assert read(a) == read(b) == [1, 4]
        for change in (lambda: lake.drop_table("m"), lambda: lake.rename_table("m", "other")):
            with pytest.raises(Conflict, match="only node"):
                change()
    assert read(b) == [1, 4]


def test_N01_a_resend_with_its_key_to_another_node_is_stored_once(nodes, tmp_path):
    a, b = nodes
    rows = rows_of("a", 1)
    with client(a) as first, client(b) as second:
        for lake in (first, second, first):
            assert lake.table("m").write(rows, request_id="once") == 1
        assert read(a) == read(b) == [1]
        a.process.kill()
        a.wait()
        with pytest.raises(Unavailable):
            second.table("m").write(rows, request_id="unknown-where")
        assert second.table("m").write(rows_of("b", 2)) == 1, "without a key it goes on"


def test_N05_a_copy_of_a_journal_stops_the_node_that_it_was_copied_from(tmp_path):
    lake = tc.connect(tmp_path / "lake", data=tmp_path / "a")
    table = lake.create_table("m", time_column="ts", bucket="1h")
    source = lake.tier.source
    registry = SourceRegistry(lake._catalog.storage, lake._catalog.lake_id)
    first = registry.newest()
    assert [(one.source, one.number, one.has_left) for one in first] == [(source, 1, False)]
    registry.claim(source, "http://elsewhere")
    table.write([{"ts": START}])
    with pytest.raises(Conflict, match="taken this journal over"):
        table.flush()
    lake.close(flush=False)
    assert registry.newest()[0].url == "http://elsewhere", "a fenced owner changes nothing"


def test_a_backup_that_would_lack_journals_is_refused(tmp_path):
    tc.connect(tmp_path / "lake", data=tmp_path / "a").close()
    with pytest.raises(Unsupported, match="several nodes"):
        backup(str(tmp_path / "lake"), str(tmp_path / "copy"))


def test_N08_no_node_joins_while_a_table_is_dropped(tmp_path):
    with tc.connect(tmp_path / "lake", data=tmp_path / "a") as lake:
        lake.create_table("m", time_column="ts", bucket="1h")
        refused = pytest.raises(Conflict, match="only node")
        with lake.node.others.alone("drop a table"), refused:
            tc.connect(tmp_path / "lake", data=tmp_path / "b")
        refused = pytest.raises(Conflict, match="only node")
        with tc.connect(tmp_path / "lake", data=tmp_path / "b"), refused:
            lake.drop_table("m")
        lake.drop_table("m")
        lake.undrop_table("m")


def test_N08_a_source_registers_before_its_first_row_and_leaves_after_its_last(tmp_path):
    lake = tc.connect(tmp_path / "lake", data=tmp_path / "a")
    registry = SourceRegistry(lake._catalog.storage, lake._catalog.lake_id)
    table = lake.create_table("m", time_column="ts", bucket="1h")
    table.write([{"ts": START}])
    assert [one.has_left for one in registry.newest()] == [False]
    lake.close(flush=False)
    assert [one.has_left for one in registry.newest()] == [False], "its journal has a row"
    with tc.connect(tmp_path / "lake", data=tmp_path / "b") as other:
        with pytest.raises(Unavailable, match="cannot be reached"):
            other.sql("select * from m")
        tc.connect(tmp_path / "lake", data=tmp_path / "a").close()
        assert other.sql("select * from m").num_rows == 1
    assert [one.has_left for one in registry.newest()] == [True, True]


def test_only_parts_that_the_reader_lacks_are_sent_and_damage_is_found():
    parts = tuple(
        HotPart(Mark(mark), 1, pa.record_batch({"n": pa.array(range(mark))}), 8 * mark, {"k": mark})
        for mark in (1_000, 2_000)
    )
    snapshot = HotSnapshot("s", Mark(3), parts)
    whole = encode_snapshot(snapshot, ())
    assert decode_snapshot(whole, {}) == snapshot
    known = {name_part(parts[0]): parts[0]}
    less = encode_snapshot(snapshot, known)
    assert len(less) < len(whole)
    assert decode_snapshot(less, known) == snapshot
    for wrong in (whole[:-1], whole + b"x", b"", whole[:3]):
        with pytest.raises(Corruption):
            decode_snapshot(wrong, {})
    with pytest.raises(Corruption):
        decode_snapshot(less, {})
