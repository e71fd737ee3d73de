"""Compaction of entities: PostgreSQL and the lake stay one, whatever lands when."""

from dataclasses import replace

import pytest

from fixtures.postgres import postgres_dsn, postgres_run, postgres_server, postgres_template
from fixtures.wal import calm
from thermocline.cold.care.fsck import fsck
from thermocline.cold.compact.plan import CompactionLimits
from thermocline.cold.compact.rewrite import compact, merge_here
from thermocline.node import open_lake
from thermocline.pipeline.compact.job import spark_kernel
from thermocline.pipeline.run.job import ignore_progress

__all__ = ["postgres_dsn", "postgres_run", "postgres_server", "postgres_template"]

ACCOUNT = {
    "type": "object",
    "properties": {"owner": {"type": "string", "x-hot": True}, "cents": {"type": "integer"}},
    "required": ["owner", "cents"],
}


@pytest.fixture
def lake(tmp_path, postgres_dsn):
    """Accounts that were exported five times, the last change of one of them still hot."""
    settings = replace(calm(), postgres=postgres_dsn, export_age_s=1e9, export_changes=10**9)
    with open_lake(tmp_path / "lake", settings) as made:
        account = made.register("account", ACCOUNT)
        for turn in range(5):
            account.create({"owner": f"owner {turn}", "cents": turn}, f"k{turn}")
            if turn:
                account.patch("k0", {"cents": 100 + turn})
            account.export()
        account.patch("k4", {"cents": 9})
        yield made


@pytest.fixture
def cold(lake):
    return lake.entity("account").table


def balances(lake):
    found = lake.sql("select _id, cents from account order by 1").to_pylist()
    return {row["_id"]: row["cents"] for row in found}


def ids(table):
    return [segment.segment_id for segment in table.state().segments]


def test_what_is_read_and_what_was_are_the_same_after_a_compaction(lake, cold):
    before = balances(lake)
    history = lake.entity("account").history("k0")
    done = compact(cold, ids(cold), merge_here, CompactionLimits(), ignore_progress)
    assert done.numbers["segments"] == 1
    assert done.numbers["purged"] == 3  # what k0 was before
    assert balances(lake) == before
    again = lake.entity("account").history("k0")
    assert [(r.ver, r.document) for r in again] == [(r.ver, r.document) for r in history]
    assert lake.entity("account").recover() == cold.state().version


def test_an_export_that_was_frozen_before_a_compaction_lands_after_it(lake, cold):
    account = lake.entity("account")
    claim = account.source.claim

    def compact_first(frozen):
        note = claim(frozen)
        compact(cold, ids(cold), merge_here, CompactionLimits(), ignore_progress)
        return note

    account.source.claim = compact_first
    exported = account.export()
    assert exported.version == cold.state().version
    assert [c.operation for c in cold.commits()][:2] == ["export", "compact"]
    assert balances(lake)["k4"] == 9
    assert not [found for found in fsck(cold).findings if not found.is_harmless]


def test_an_export_that_lands_while_segments_are_merged_is_carried_over(lake, cold):
    account = lake.entity("account")

    def meanwhile(*given):
        made = merge_here(*given)
        account.patch("k1", {"cents": 77})
        account.delete("k2")
        account.export()
        return made

    compact(cold, ids(cold), meanwhile, CompactionLimits(), ignore_progress)
    assert [c.operation for c in cold.commits()][:2] == ["compact", "export"]
    assert balances(lake) == {"k0": 104, "k1": 77, "k3": 3, "k4": 9}
    account.export()
    assert balances(lake) == {"k0": 104, "k1": 77, "k3": 3, "k4": 9}
    assert not [found for found in fsck(cold).findings if not found.is_harmless]


def test_spark_merges_entities_by_their_keys(lake, cold, spark):
    before = balances(lake)
    done = compact(
        cold,
        ids(cold),
        spark_kernel(lambda: spark),
        CompactionLimits(target_rows=2),
        ignore_progress,
    )
    key = str(cold.state().schema.column("_id").id)
    bounds = sorted(segment.stats[key] for segment in cold.state().segments)
    assert bounds == [("k0", "k0"), ("k1", "k2"), ("k3", "k4")]
    assert done.version == cold.state().version
    assert balances(lake) == before
