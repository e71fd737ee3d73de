"""Exports by Spark: one snapshot for all workers, one commit, and what a failure leaves."""

import base64
import contextlib
import logging
import re
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from fixtures.postgres import (
    own_postgres,
    postgres_dsn,
    postgres_run,
    postgres_server,
    postgres_template,
)
from postgres.entity_verbs import ACCOUNT, Died, account, balances, cold_balances, dies
from thermocline import connect
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.export_plan import create_entity_spec
from thermocline.cold.segment.write_target import WriteTarget
from thermocline.config import LakeSettings
from thermocline.errors import Conflict, ThermoclineError
from thermocline.format.schema import Schema
from thermocline.hot.postgres.export.key_range import KeyRange, read_key_range, share_snapshot
from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.store.operation import Operation, OperationKind
from thermocline.pipeline.export import ExportJob, ExportLimits, cut_parts, stage_parts
from thermocline.pipeline.run.job import Task, ignore_progress
from thermocline.pipeline.run.workspace import JobWorkspace
from thermocline.pipeline.spark.session import without_warnings
from thermocline.pipeline.spark.spark_errors import translate_error

__all__ = [
    "own_postgres",
    "postgres_dsn",
    "postgres_run",
    "postgres_server",
    "postgres_template",
]

CALM = {"export_changes": 1_000_000, "export_age_s": 3_600.0}
TASK = Task("export", "account", "asked for")
WAIT_LIMIT_S = 120.0
ACCOUNTS, EACH = 60, 100


@contextlib.contextmanager
def opened_site(folder, dsn):
    """Give a site whose lake has accounts."""
    with connect(folder, postgres=dsn, **CALM) as lake:
        lake.register("account", ACCOUNT)
    with JobWorkspace(folder, settings=LakeSettings(postgres=dsn, **CALM)) as site:
        yield site


@pytest.fixture
def site(tmp_path, postgres_dsn):
    with opened_site(tmp_path / "lake", postgres_dsn) as site:
        yield site


def accounts_of(site):
    return site.entities().table("account")


def key(number):
    return f"a{number:03d}"


def fill(entities, count=ACCOUNTS):
    """Give every account as much money."""
    made = [Operation(OperationKind.CREATE, key(number), account(EACH)) for number in range(count)]
    entities.bulk(made)


def move(entities, source, target, amount=1):
    """Move money from one account to another, in one transaction."""
    held = {one: entities.read(one).document["balance"] for one in (source, target)}
    entities.bulk(
        [
            Operation(OperationKind.REPLACE, source, account(held[source] - amount)),
            Operation(OperationKind.REPLACE, target, account(held[target] + amount)),
        ]
    )


def exported(site, spark, **limits):
    """Export as a job does; return what it did."""
    job = ExportJob(ExportLimits(**({"part_keys": 10, "connections_max": 4} | limits)))
    return job.run(site, TASK, lambda: spark, ignore_progress)


def wait_for(path):
    """Wait until a file is there."""
    end_s = time.monotonic() + WAIT_LIMIT_S
    while not Path(path).exists():
        assert time.monotonic() < end_s, f"{path} never came"
        time.sleep(0.01)


def test_an_export_carries_rows_and_deletes_of_all_parts_in_one_version(site, spark):
    entities = accounts_of(site)
    fill(entities)
    before = entities.table.state().version
    done = exported(site, spark)
    assert done.version == before + 1 == entities.source.head().version
    numbers = (done.numbers["keys"], done.numbers["rows"], done.numbers["changes"])
    assert numbers == (ACCOUNTS, ACCOUNTS, ACCOUNTS)
    assert done.numbers["segments"] == 4
    assert cold_balances(entities) == balances(entities) == {key(n): EACH for n in range(ACCOUNTS)}
    entities.delete(key(7))
    entities.replace(key(8), account(5, owner="\u00e9\U0001f30d", limit="12.50"))
    entities.create(account(9), "z-new")
    assert exported(site, spark, part_keys=1).version == before + 2
    assert cold_balances(entities) == balances(entities)
    assert key(7) not in cold_balances(entities)
    assert entities.source.pressure().changes == 0
    assert not fsck(entities.table).findings
    assert exported(site, None).version is None  # and no session was asked for


def test_the_log_knows_the_first_and_last_key_of_each_segment(site, spark):
    entities = accounts_of(site)
    fill(entities)
    exported(site, spark)
    state = entities.table.state()
    column = str(state.schema.column("_id").id)
    assert sorted(segment.stats[column] for segment in state.segments) == [
        (key(first), key(first + 14)) for first in range(0, ACCOUNTS, 15)
    ]


def test_parts_have_every_key_once_whatever_their_number(site):
    entities = accounts_of(site)
    fill(entities, 7)
    for limits in (ExportLimits(1, 3), ExportLimits(1, 100), ExportLimits(100, 8)):
        with share_snapshot(entities.store) as moment:
            parts = cut_parts(entities, moment, limits)
            rows = [rows for part in parts for _, rows in read_key_range(part)]
        assert pa.concat_tables(rows).column("_id").to_pylist() == [key(n) for n in range(7)]
        assert len(parts) <= limits.connections_max


# One moment.


def transfers(entities, stop):
    """Move money about, until told to stop; more each time, so that no balances come back."""
    number = 0
    while not stop.is_set():
        number += 1
        ends = key(number * 7 % ACCOUNTS), key((number * 13 + 31) % ACCOUNTS)
        move(entities, *ends, amount=number)


def test_twenty_exports_beside_a_writer_that_moves_money_all_sum_right(site, spark):
    entities = accounts_of(site)
    fill(entities)
    stop = threading.Event()
    writer = threading.Thread(target=transfers, args=(entities, stop))
    writer.start()
    try:
        versions = [exported(site, spark, part_keys=1).version for _ in range(20)]
    finally:
        stop.set()
        writer.join()
    assert len(set(versions)) == 20
    assert {sum(cold_balances(entities, at=v).values()) for v in versions} == {ACCOUNTS * EACH}
    assert cold_balances(entities, at=versions[0]) != cold_balances(entities, at=versions[-1])
    assert balances(entities) != cold_balances(entities, at=versions[0])
    assert sum(balances(entities).values()) == ACCOUNTS * EACH


def read_in_turn(parts, folder, is_shared, batches):
    """Read one part; between the first and the second, somebody moves money. For workers."""
    for batch in batches:
        for place in batch.column(0).to_pylist():
            if place:
                wait_for(f"{folder}/moved")
            total = sum(_read(parts[place], is_shared))
            if not place:
                Path(f"{folder}/read").touch()
            yield pa.RecordBatch.from_pydict({"total": [total]})


def _read(part, is_shared):
    if is_shared:
        for _, rows in read_key_range(part):
            yield from rows.column("balance").to_pylist()
        return
    pool = Pool(part.dsn)
    with pool.transaction(part.tenant, is_read_only=True) as connection:
        query = "select h_2 from e_1 where id between %s and %s"
        for row in connection.execute(query, [part.low, part.high]):
            yield row[0]
    pool.close()


@pytest.mark.parametrize(("is_shared", "total"), [(True, 2 * EACH), (False, 2 * EACH + 10)])
def test_parts_of_one_snapshot_sum_right_and_plain_sessions_do_not(
    site, spark, tmp_path, is_shared, total
):
    entities = accounts_of(site)
    fill(entities, 2)

    def mover():
        wait_for(tmp_path / "read")
        move(entities, key(0), key(1), 10)
        (tmp_path / "moved").touch()

    moving = threading.Thread(target=mover)
    moving.start()
    with share_snapshot(entities.store) as moment, without_warnings():
        parts = cut_parts(entities, moment, ExportLimits(1, 2))
        asked = partial(read_in_turn, parts, str(tmp_path), is_shared)
        told = spark.range(0, 2, 1, 2).mapInArrow(asked, "total long").collect()
    moving.join()
    # The control: sessions of their own count the money on its way twice.
    assert sum(row.total for row in told) == total


def test_a_snapshot_that_is_gone_is_refused_and_gives_no_row(site):
    entities = accounts_of(site)
    fill(entities, 2)
    with share_snapshot(entities.store) as moment:
        (part,) = cut_parts(entities, moment, ExportLimits())
    with pytest.raises(ThermoclineError, match="snapshot of this export is gone"):
        list(read_key_range(part))


# What a failure leaves.


def test_P07_a_postgres_killed_while_it_is_read_fails_the_job_whole(
    tmp_path, own_postgres, spark, monkeypatch
):
    with opened_site(tmp_path / "lake", own_postgres.dsn) as site:
        entities = accounts_of(site)
        fill(entities)
        before = entities.table.state().version

        def killed(spark, parts, target):
            own_postgres.kill()
            return stage_parts(spark, parts, target)

        monkeypatch.setattr("thermocline.pipeline.export.stage_parts", killed)
        with pytest.raises(Exception, match=r"server|snapshot|connect"):
            exported(site, spark)
        monkeypatch.undo()
        assert entities.table.state().version == before
        own_postgres.start()
        site.entities().table("account").store.pool.move_to(own_postgres.dsn)
        assert exported(site, spark).version == before + 1
        assert cold_balances(entities) == {key(n): EACH for n in range(ACCOUNTS)}
        assert not fsck(entities.table).findings


def test_P07_a_postgres_started_again_knows_the_snapshot_no_more(
    tmp_path, own_postgres, spark, monkeypatch
):
    with opened_site(tmp_path / "lake", own_postgres.dsn) as site:
        entities = accounts_of(site)
        fill(entities, 4)
        before = entities.table.state().version

        def restarted(spark, parts, target):
            own_postgres.kill()
            own_postgres.start()
            entities.store.pool.move_to(own_postgres.dsn)
            moved = [replace(part, dsn=own_postgres.dsn) for part in parts]
            return stage_parts(spark, moved, target)

        monkeypatch.setattr("thermocline.pipeline.export.stage_parts", restarted)
        with pytest.raises(Exception, match="snapshot of this export is gone"):
            exported(site, spark)
        monkeypatch.undo()
        assert entities.table.state().version == before
        assert exported(site, spark).numbers["rows"] == 4


KILLED = [
    ("claim", False, 0),
    ("claim", True, 0),
    ("commit_export", False, 0),
    ("commit_export", True, 1),
    ("retire", False, 1),
    ("retire", True, 1),
]


@pytest.mark.parametrize(("step", "after", "commits"), KILLED)
def test_P04_P05_an_exporter_that_dies_at_any_step_is_rolled_forward(
    site, spark, step, after, commits
):
    entities = accounts_of(site)
    fill(entities, 6)
    before = entities.table.state().version
    owner = entities.table if step == "commit_export" else entities.source
    dies(owner, step, after=after)
    with pytest.raises(Died):
        exported(site, spark, part_keys=3)
    assert entities.table.state().version == before + commits
    assert balances(entities) == {key(n): EACH for n in range(6)}  # exact, whatever it left
    (task,) = ExportJob().due(site) if (step, after) != ("retire", True) else (None,)
    assert task is None or task.numbers
    exported(site, spark)
    assert cold_balances(entities) == {key(n): EACH for n in range(6)}
    assert entities.source.head().version == entities.table.state().version == before + 1
    assert list(ExportJob().due(site)) == []


def test_P11_an_export_that_another_overtakes_begins_again(site, spark, monkeypatch):
    entities = accounts_of(site)
    fill(entities, 6)
    overtaken = []

    def late(spark, parts, target):
        if not overtaken:
            overtaken.append(entities.export())
            entities.replace(key(0), account(7))
        return stage_parts(spark, parts, target)

    monkeypatch.setattr("thermocline.pipeline.export.stage_parts", late)
    done = exported(site, spark)
    assert done.version == overtaken[0].version + 1
    assert done.numbers["keys"] == 1
    assert cold_balances(entities) == {key(0): 7} | {key(n): EACH for n in range(1, 6)}


def test_an_export_that_is_overtaken_every_time_says_so_and_leaves_no_file(
    site, spark, monkeypatch
):
    entities = accounts_of(site)
    fill(entities, 6)

    def late(spark, parts, target):
        made = stage_parts(spark, parts, target)
        entities.export()
        entities.replace(key(0), account(7))
        return made

    monkeypatch.setattr("thermocline.pipeline.export.stage_parts", late)
    with pytest.raises(Conflict, match="other exports committed first"):
        exported(site, spark)
    named = {segment.path for segment in entities.table.state().segments}
    stored = {one.path for one in entities.table.storage.list("data")}
    removed = {
        s.path
        for v in range(1, entities.table.state().version + 1)
        for s in entities.table.state(v).segments
    }
    assert stored <= named | removed


# The password.


def unpacked(text):
    """Return a text with all of it that is base64 decoded, wherever it begins."""
    packed = re.findall(r"[A-Za-z0-9+/]{40,}", text)
    shifted = [
        one[first : len(one) - (len(one) - first) % 4] for one in packed for first in range(4)
    ]
    return text + "".join(str(base64.b64decode(one)) for one in shifted)


def test_the_password_is_in_no_representation_error_or_log(spark, caplog):
    secret = "s3cr3t-w0rd"
    part = KeyRange(
        f"postgresql://nobody:{secret}@127.0.0.1:1/none",
        Tenant("acme", "tc_acme", "tc_acme"),
        *("account", "00000003-0000001B-1", "a", "b"),
    )
    assert secret not in repr(part)
    target = WriteTarget("/nowhere", create_entity_spec("account"), Schema(), "0")
    caplog.set_level(logging.DEBUG)
    with pytest.raises(Exception, match="PostgreSQL") as failed:
        stage_parts(spark, [part], target)
    assert secret not in unpacked(caplog.text)
    assert secret not in str(failed.value)
    assert str(translate_error(failed.value)).startswith("PostgreSQL is not there")
    with without_warnings():
        frame = spark.range(1).mapInArrow(partial(read_in_turn, [part], "", True), "total long")
    assert secret not in frame._jdf.queryExecution().toString()
    # The control: this is what Spark's own logger tells of what it is sent.
    assert secret in unpacked(caplog.text)
