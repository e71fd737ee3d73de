"""A lake in an object store: names, tables and logs there, the journal on the node's disk."""

from datetime import UTC, datetime, timedelta

import pytest

import thermocline as tc
from fixtures.served import ServedNode
from thermocline.errors import Conflict, Invalid, NotFound, ThermoclineError, Unavailable
from thermocline.format import layout
from thermocline.node import Node

START = datetime(2026, 1, 1, tzinfo=UTC)


def ticks(count, first=0):
    return [
        {"ts": START + timedelta(seconds=n), "sensor": f"s{n % 3}", "value": float(n)}
        for n in range(first, first + count)
    ]


def values(lake, table="readings"):
    rows = lake.sql(f"select value from {table} order by value")["value"].to_pylist()
    return [int(one) for one in rows]


@pytest.fixture
def place(s3, tmp_path):
    """A function that opens a lake in a fresh place of the store; each name is a data folder."""
    opened = []

    def open_lake(node="a", *, endpoint=None, **settings):
        options = {**s3.options, "endpoint": endpoint or s3.endpoint}
        lake = tc.connect(
            s3.url.replace("/prices", "/lake"),
            data=tmp_path / node,
            storage_options=options,
            flush_age_s=3_600,
            **settings,
        )
        opened.append(lake)
        return lake

    yield open_lake
    for lake in opened:
        lake.close(flush=False)


def make_table(lake, name="readings"):
    return lake.create_table(name, time_column="ts", bucket="1h", entity_columns=["sensor"])


def test_rows_are_read_once_hot_and_cold_and_after_a_process_without_a_flush(place, tmp_path):
    lake = place()
    table = make_table(lake)
    table.write(ticks(3))
    assert values(lake) == [0, 1, 2], "hot rows"
    table.flush()
    table.write(ticks(2, 3))
    assert values(lake) == [0, 1, 2, 3, 4], "cold rows and hot rows"
    lake.close(flush=False)
    again = place()
    assert values(again) == [0, 1, 2, 3, 4], "the journal has the rows that were not flushed"
    assert again.root().startswith("s3://")
    assert {one.name for one in (tmp_path / "a").iterdir()} <= {"journal", "cache"}


def test_queries_in_worker_processes_read_the_store_too(place):
    lake = place(query_workers=1)
    table = make_table(lake)
    table.write(ticks(3))
    table.flush()
    table.write(ticks(1, 3))
    assert values(lake) == [0, 1, 2, 3]
    assert lake.sql("select count(*) as n from readings")["n"].to_pylist() == [4]


def test_N09_a_process_that_cannot_reach_the_hot_rows_of_another_says_so(place):
    lake = place("a")
    make_table(lake).write(ticks(1))
    for other in (place("b"), place("c", read_only=True)):
        with pytest.raises(Unavailable, match="cannot be reached"):
            values(other)
        found = other.sql("select value from readings", mode="best_effort")
        assert found.num_rows == 0
        assert "may be missing" in other.table("readings").info()["warning"]
        other.close()
    assert values(lake) == [0]
    lake.close()
    assert values(place("c", read_only=True)) == [0], "it has flushed and left"


def test_tables_and_tenants_have_their_verbs_in_a_store(s3, tmp_path):
    options = {**s3.options, "endpoint": s3.endpoint}
    with Node(str(tmp_path / "a"), lake=s3.url, storage_options=options) as node:
        lake = node.create_tenant("acme")
        make_table(lake).write(ticks(2))
        make_table(node.lake(), "other")
        lake.rename_table("readings", "renamed")
        lake.copy_table("renamed", "copied")
        lake.drop_table("renamed")
        assert lake.tables() == ["copied"]
        assert values(lake, "copied") == [0, 1]
        lake.undrop_table("renamed")
        assert values(lake, "renamed") == [0, 1]
        lake.drop_table("renamed")
        purged = lake.vacuum_dropped(dry_run=False, grace="0s", allow_short_grace=True)
        assert purged == ["renamed"]
        with pytest.raises(Conflict, match="this name"):
            make_table(lake, "COPIED")
    with Node(str(tmp_path / "a"), lake=s3.url, storage_options=options) as node:
        assert node.tenants() == ["default", "acme"]
        assert node.lake("acme").tables() == ["copied"]
        assert node.lake().tables() == ["other"]
        with pytest.raises(NotFound):
            node.lake("acme").table("other")


def test_N02_a_name_and_a_commit_whose_answers_were_lost_are_there_once(place, proxy):
    place().close()
    lake = place(endpoint=proxy.endpoint)
    proxy.breaks("PUT", "/names/", times=1)
    table = make_table(lake)
    table.write(ticks(2))
    flushed = table.version() + 1
    fault = proxy.breaks("PUT", layout.commit_path(flushed), times=1)
    table.flush()
    assert not fault.times, "the answer of the commit was lost"
    assert table.version() == flushed
    assert values(lake) == [0, 1]


def test_N02_a_tenant_whose_answer_was_lost_is_there_once(s3, proxy, tmp_path):
    options = {**s3.options, "endpoint": proxy.endpoint}
    with Node(str(tmp_path / "a"), lake=s3.url, storage_options=options) as node:
        proxy.breaks("PUT", "/tenants/names/", times=1)
        node.create_tenant("acme")
        assert node.tenants() == ["default", "acme"]
        with pytest.raises(Conflict):
            node.create_tenant("acme")


def test_N03_writes_go_on_while_the_store_fails_and_flushes_end_when_it_is_back(place, proxy):
    lake = place(endpoint=proxy.endpoint)
    table = make_table(lake)
    table.write(ticks(1))
    fault = proxy.breaks("PUT", "/", times=1_000, heard=False, status=403)
    with pytest.raises(ThermoclineError):
        table.flush()
    table.write(ticks(1, 1))
    fault.times = 0
    assert values(lake) == [0, 1]
    table.flush()
    assert values(lake) == [0, 1]
    assert table.info()["hot_rows"] == 0


def test_D10_a_local_copy_with_a_flipped_byte_is_fetched_again(place, tmp_path, monkeypatch):
    monkeypatch.setattr("thermocline.cold.storage.objects.READ_WHOLE_BYTES_MAX", 0)
    lake = place()
    table = make_table(lake)
    table.write(ticks(100))
    table.flush()
    assert len(values(lake)) == 100
    lake.close()
    (copy,) = (tmp_path / "a" / "cache").glob("*.parquet")
    data = bytearray(copy.read_bytes())
    data[len(data) // 2] ^= 1
    copy.write_bytes(data)
    assert values(place()) == list(range(100))


def test_a_folder_that_nodes_share_is_a_place_for_a_lake_too(tmp_path):
    with tc.connect(tmp_path / "shared", data=tmp_path / "a") as lake:
        make_table(lake).write(ticks(2))
    assert not (tmp_path / "shared" / "journal").exists()
    with tc.connect(tmp_path / "shared", data=tmp_path / "a") as lake:
        assert values(lake) == [0, 1]
    with tc.connect(tmp_path / "shared", read_only=True) as lake:
        assert values(lake) == [0, 1]


def test_options_of_a_store_are_refused_for_a_folder(tmp_path):
    for data in (None, tmp_path / "a"):
        with pytest.raises(Invalid, match="takes no options"):
            tc.connect(tmp_path / "lake", data=data, storage_options={"region": "x"})


def count_logs(node):
    status, answer, _ = node.ask("/api/v1/query", {"sql": "select count(*) as n from logs"})
    assert status == 200, answer
    return answer["rows"][0]["n"]


def test_a_served_node_has_its_lake_in_the_store_and_its_journal_on_its_disk(s3, tmp_path):
    lake = s3.url.replace("/prices", "/served")
    environment = {
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": s3.options["region"],
        "AWS_ACCESS_KEY_ID": s3.options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": s3.options["secret_access_key"],
    }

    how = {"environment": environment}
    with ServedNode(tmp_path / "a", "--lake", lake, "--set", "flush_age_s=1s", **how) as node:
        node.ready()
        assert node.send_log(1)[0] == 200
        assert count_logs(node) == 1
        assert node.ask("/api/v1/tables/logs/flush", {})[0] == 200
        assert node.send_log(2)[0] == 200
        node.process.kill()
        node.wait()
    assert not (tmp_path / "a" / "tables").exists()
    with ServedNode(tmp_path / "b", "--lake", lake, **how) as other:
        other.ready()
        assert other.ask("/api/v1/query", {"sql": "select * from logs"})[0] == 503
        with ServedNode(tmp_path / "a", "--lake", lake, **how) as node:
            node.ready()
            assert count_logs(node) == count_logs(other) == 2
            assert other.send_log(3)[0] == 200
            assert count_logs(node) == count_logs(other) == 3
            assert node.stop() == 0
        assert count_logs(other) == 3, "it has flushed and left"
