"""Erasure: a subject is planted in every place there is, and must be found in none afterwards."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.postgres import postgres_dsn, postgres_run, postgres_server, postgres_template
from fixtures.wal import calm
from thermocline import connect
from thermocline.cold.care.expunge import expunge
from thermocline.cold.care.fsck import fsck
from thermocline.cold.care.pin import pin_version
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.change.delete import match_every_row
from thermocline.cold.compact.rewrite import merge_here
from thermocline.cold.segment.row_digest import digest_rows
from thermocline.cold.segment.stage import Stage
from thermocline.cold.table import ColdTable
from thermocline.disk import OsDisk
from thermocline.errors import Invalid, NotFound
from thermocline.format.bucket import Bucket
from thermocline.format.log.action import TableSpec
from thermocline.format.log.conflict import TimeWindow
from thermocline.hot.wal.repair.survey import inspect
from thermocline.node import open_lake
from thermocline.pipeline.erase import job as erasing
from thermocline.pipeline.erase.certificate import write_certificate
from thermocline.pipeline.erase.job import Erasure, erase
from thermocline.pipeline.erase.search import search_remains
from thermocline.pipeline.erase.subject import Subject
from thermocline.pipeline.run.workspace import JobWorkspace

__all__ = ["postgres_dsn", "postgres_run", "postgres_server", "postgres_template"]

JUNE_US = 1_717_200_000_000_000
HOUR_US = 3_600_000_000
ALICE = Subject("person", "alice-4711")
WORD = "alice-4711"
HOW = Erasure(merge_here, by="a test")
SPEC = TableSpec("", "ts", Bucket(60), ("person",), "allow")


def rows(hours, person):
    """Return one row an hour."""
    hours = list(hours)
    times = pa.array([JUNE_US + hour * HOUR_US for hour in hours], pa.timestamp("us", "UTC"))
    values = [float(hour) for hour in hours]
    return pa.table({"ts": times, "person": [person] * len(hours), "pulse": values})


def append(table, *parts, **options):
    return table.append(pa.concat_tables(parts).to_reader(), AppendOptions(**options))


def plant(folder):
    """Make a lake that has the subject in every place there is."""
    with connect(folder) as lake:
        lake.create_table("pulse", time_column="ts", bucket="1m", entity_columns=["person"])
    with JobWorkspace(folder) as site:
        pulse = ColdTable(site.table("pulse").storage, checkpoint_every=3)
        append(pulse, rows(range(3), WORD), rows(range(3), "bob"))
        append(pulse, rows(range(3, 6), "bob"))
        append(pulse, rows([50], WORD))
        gone = rows([50], WORD)["ts"][0].value * 1_000
        # Rows that no newer version has, in files that only the old ones name.
        pulse.delete(match_every_row, (), TimeWindow(gone))
        append(pulse, rows([7], "carol"), requests={f"sent-by-{WORD}": 1})
        # A file that no version names, of a writer that died long ago.
        stage = Stage(pulse.storage)
        stage.write_table(rows([9], WORD), pulse.state().schema, pulse.state().spec)
        for path in (stage.staged[0].path, stage.staged[0].coverage_path):
            os.utime(Path(pulse.storage.root) / path, (1, 1))
        declared = {"rollup": {"source": "pulse", "every": "1h"}}
        hourly = site.ensure_table("pulse_hourly", replace(SPEC, extra=declared))
        append(hourly, rows([0], WORD), rows([0], "bob"))
        overall = site.ensure_table(
            "pulse_overall", replace(SPEC, entity_columns=(), extra=declared)
        )
        append(overall, rows([0], "all").drop_columns(["person"]))
        aside = site.ensure_table("pulse_quarantine", replace(SPEC, entity_columns=()))
        raw = [f'{{"person": "{WORD}", "pulse": "high"}}', '{"person": "bob"}']
        times = rows([0, 1], "x")["ts"]
        append(aside, pa.table({"ts": times, "line": [1, 2], "row": raw}))
        other = site.ensure_table("notes", replace(SPEC, entity_columns=()))
        append(other, pa.table({"ts": times, "text": ["seen by bob", "nothing"]}))
    with connect(folder) as lake:
        lake.table("pulse").write(rows([8], WORD))
        lake.table("pulse").write(rows([8], "bob"))
        lake.close(flush=False)
    return folder


def said(folder):
    """Return the files of a lake that say the word, by reading all of each."""
    found = []
    for path in Path(folder).rglob("*"):
        if not path.is_file() or "erasures" in path.parts:
            continue
        data = path.read_bytes()
        if path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            data += repr(file.read().to_pylist()).encode()
            data += (
                repr(file.metadata.metadata).encode() + repr(file.schema_arrow.metadata).encode()
            )
        if WORD.encode() in data:
            found.append(str(path.relative_to(folder)))
    return found


def rows_in_journal(folder):
    return sum(table.rows for table in inspect(OsDisk(), str(folder / "journal")).tables.values())


@pytest.fixture(scope="module")
def erased(tmp_path_factory):
    """A lake before and after: its folder, what was said before, and the certificate."""
    folder = plant(tmp_path_factory.mktemp("erase") / "lake")
    before = said(folder)
    hot = rows_in_journal(folder)
    with JobWorkspace(folder) as site:
        searched = search_remains(site, ALICE)
        certificate = erase(site, ALICE, HOW)
        path = write_certificate(site, certificate)
    return folder, before, hot, searched, certificate, path


def test_the_subject_was_in_every_kind_of_file_before(erased):
    _, before, hot, searched, _, _ = erased
    for part in ("data/", "_coverage/segments/", "_coverage/table/", ".checkpoint.parquet"):
        assert any(part in path for path in before), part
    assert any(path.endswith(".json") and "_log" in path for path in before)
    assert hot == 2
    found = {(one.table, one.path.split("/")[0]) for one in searched.found}
    assert ("pulse", "journal") in found
    assert {table for table, _ in found} == {"pulse", "pulse_hourly", "pulse_quarantine"}


def test_nothing_says_the_word_afterwards(erased):
    folder, _, _, _, certificate, _ = erased
    assert said(folder) == []
    assert rows_in_journal(folder) == 0
    assert certificate.searched.found == ()
    assert certificate.is_complete


def test_every_other_row_is_there_still(erased):
    folder = erased[0]
    with connect(folder) as lake:
        found = lake.sql("select person, count(*) from pulse group by 1 order by 1").to_pylist()
        assert [tuple(row.values()) for row in found] == [("bob", 7), ("carol", 1)]
        assert lake.sql("select count(*) from pulse_hourly").to_pylist() == [{"count_star()": 1}]
        assert lake.sql("select line from pulse_quarantine").to_pylist() == [{"line": 2}]
        assert lake.sql("select count(*) from notes").to_pylist() == [{"count_star()": 2}]


def test_the_tables_are_sound_and_their_coverage_is_that_of_what_is_left(erased):
    with JobWorkspace(erased[0]) as site:
        for name in site:
            table = site.table(name)
            assert not [found for found in fsck(table).findings if not found.is_harmless]
        _, coverage = ColdTable(site.table("pulse").storage).coverage()
        assert sorted(coverage.entities) == ['["bob"]', '["carol"]']


def test_older_versions_cannot_be_read_any_more(erased):
    with JobWorkspace(erased[0]) as site:
        with pytest.raises(NotFound):
            site.table("pulse").state(2)
        assert len(list(site.table("pulse").commits())) == site.table("pulse").state().version


def test_the_certificate_says_what_was_done_and_names_nobody(erased):
    folder, _, _, _, certificate, path = erased
    written = (folder / path).read_text()
    assert WORD not in written
    body = json.loads(written)
    assert body["is_complete"]
    assert (body["by"], body["column"]) == ("a test", "person")
    by_name = {table["table"]: table for table in body["tables"]}
    assert set(by_name) == {"pulse", "pulse_hourly", "pulse_quarantine"}
    assert by_name["pulse"]["rows"] == 4
    assert by_name["pulse"]["commits"] > 0
    assert by_name["pulse"]["checkpoints"] > 0
    assert by_name["pulse"]["segments"] > 0
    assert all(content.count(":") == 1 for content in by_name["pulse"]["content"])
    assert body["recomputed"] == ["pulse_overall"]
    assert body["searched"]["files"] > 0
    assert body["not_covered"]
    lines = "\n".join(certificate.lines())
    assert WORD not in lines
    assert "complete" in lines


def test_a_second_erasure_finds_nothing_to_do(erased):
    with JobWorkspace(erased[0]) as site:
        versions = {name: site.table(name).state().version for name in site}
        again = erase(site, ALICE, HOW)
        assert again.tables == []
        assert again.is_complete
        assert {name: site.table(name).state().version for name in site} == versions


def nothing(*_, **__):
    return None


def left_when(monkeypatch, folder, **skipped):
    """Erase with steps left out; return what the certificate says is left."""
    for name, instead in skipped.items():
        monkeypatch.setattr(erasing, name, instead)
    with JobWorkspace(folder) as site:
        certificate = erase(site, ALICE, HOW)
    assert not certificate.is_complete
    return [one.path for one in certificate.searched.found]


def test_hot_rows_that_were_not_flushed_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(JobWorkspace, "flush", nothing)
    assert "journal" in left_when(monkeypatch, plant(tmp_path / "lake"))


def test_rows_that_are_only_hidden_are_found(tmp_path, monkeypatch):
    left = left_when(
        monkeypatch, plant(tmp_path / "lake"), _purge_segments=lambda *_, **__: (0, [])
    )
    assert any(path.startswith("data/") for path in left)


def test_rows_set_aside_are_found(tmp_path, monkeypatch):
    folder = plant(tmp_path / "lake")
    monkeypatch.setattr(erasing, "is_quarantine", lambda name: False)
    with JobWorkspace(folder) as site:
        found = erase(site, ALICE, HOW).searched.found
    assert [(one.table, one.is_mention) for one in found] == [("pulse_quarantine", True)]


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ("expire_versions", "_log"),
        ("_remove_files", "data/"),
        ("_redact_commit", "_log/0000"),
        ("_rewrite_checkpoints", ".checkpoint.parquet"),
        ("_remove_shortcuts", "_coverage/table/"),
    ],
)
def test_what_a_step_of_forgetting_leaves_is_found(tmp_path, monkeypatch, step, kind):
    instead = {
        "expire_versions": lambda table, *_: table.state(),
        "_remove_files": lambda *_: (0, 0),
        "_redact_commit": lambda *_: False,
        "_rewrite_checkpoints": lambda *_: 0,
        "_remove_shortcuts": nothing,
    }[step]
    monkeypatch.setattr(f"thermocline.cold.care.expunge.{step}", instead)
    folder = plant(tmp_path / "lake")
    with JobWorkspace(folder) as site:
        pulse = ColdTable(site.table("pulse").storage)
        pulse.index.write_shortcut(pulse.state(2))
        certificate = erase(site, ALICE, HOW)
        if step == "expire_versions":
            # Their files are gone, and no reader is told: an old version looks as if it were there.
            assert site.table("pulse").state(2).version == 2
    assert not certificate.is_complete
    assert any(kind in one.path for one in certificate.searched.found)


def test_a_reader_of_an_old_version_delays_it_and_the_certificate_says_so(tmp_path):
    folder = plant(tmp_path / "lake")
    with JobWorkspace(folder) as site:
        table = site.table("pulse")
        old = table.state(2)
        before = digest_rows(table.read(old, None))
        with pin_version(table, old.version):
            certificate = erase(site, ALICE, HOW)
            assert digest_rows(table.read(old, None)) == before
        assert not certificate.is_complete
        assert [one.pinned for one in certificate.tables if one.table == "pulse"] == [(2,)]
        assert any("readers pin" in line for line in certificate.lines())
        assert erase(site, ALICE, HOW).is_complete
    assert said(folder) == []


def test_files_of_a_writer_under_way_are_not_taken(tmp_path):
    folder = plant(tmp_path / "lake")
    with JobWorkspace(folder) as site:
        table = site.table("pulse")
        stage = Stage(table.storage)
        stage.write_table(rows([30], "dave"), table.state().schema, table.state().spec)
        erase(site, ALICE, HOW)
        assert table.storage.size(stage.staged[0].path) is not None


def test_a_crash_between_any_two_steps_is_finished_by_running_it_again(tmp_path, monkeypatch):
    folder = plant(tmp_path / "lake")

    class Died(Exception):
        pass

    def dies(*_, **__):
        raise Died

    for place in ("_purge_segments", "expunge", "search_remains"):
        with monkeypatch.context() as patch, JobWorkspace(folder) as site:
            patch.setattr(erasing, place, dies)
            with pytest.raises(Died):
                erase(site, ALICE, HOW)
    with JobWorkspace(folder) as site:
        assert erase(site, ALICE, HOW).is_complete
    assert said(folder) == []


def test_a_number_names_a_subject_too_in_its_column_alone(tmp_path):
    connect(tmp_path / "lake").close()
    with JobWorkspace(tmp_path / "lake") as site:
        table = site.ensure_table("visits", replace(SPEC, entity_columns=("person",)))
        for person in (7, 8, 70):
            numbers = pa.array([person] * 3, pa.int64())
            append(table, rows(range(3), "x").set_column(1, "person", numbers))
        found = search_remains(site, Subject("person", "7")).found
        assert {one.path.split("/")[0] for one in found} == {"data", "_coverage", "_log"}
        assert erase(site, Subject("person", "7"), HOW).is_complete
        left = pa.Table.from_batches(table.read(table.state(), ["person"]))
        assert sorted({*left["person"].to_pylist()}) == [8, 70]


def test_a_column_that_was_renamed_is_searched_under_both_names(tmp_path):
    connect(tmp_path / "lake").close()
    with JobWorkspace(tmp_path / "lake") as site:
        table = site.ensure_table("visits", replace(SPEC, entity_columns=()))
        append(table, rows(range(3), WORD), rows(range(3), "bob"))
        table.alter("rename", lambda s, c: (s, c.rename_column("person", "patient")))
        assert erase(site, ALICE, HOW).is_complete
        assert digest_rows(table.read(table.state(), None)).rows == 3
    assert said(tmp_path / "lake") == []


@pytest.mark.parametrize(("column", "value"), [("", "x"), ("person", ""), ("person", True)])
def test_a_subject_that_names_nobody_is_refused(column, value):
    with pytest.raises(Invalid):
        Subject(column, value)


def test_forgetting_keeps_the_log_readable_from_its_first_commit(tmp_path):
    folder = plant(tmp_path / "lake")
    with JobWorkspace(folder) as site:
        table = site.table("pulse")
        before = digest_rows(table.read(table.state(), None))
        expunge(table, [WORD])
        again = ColdTable(table.storage)
        assert digest_rows(again.read(again.state(), None)) == before
        assert not [found for found in fsck(again).findings if not found.is_harmless]


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "x-hot": True}, "email": {"type": "string"}},
    "required": ["name"],
}


@pytest.mark.parametrize("by_key", [True, False])
def test_an_entity_is_erased_from_postgres_and_from_the_lake(tmp_path, postgres_dsn, by_key):
    settings = replace(calm(), postgres=postgres_dsn, export_age_s=1e9, export_changes=10**9)
    folder = tmp_path / "lake"
    with open_lake(folder, settings) as lake:
        people = lake.register("people", PERSON)
        people.create({"name": WORD, "email": f"{WORD}@example.com"}, WORD)
        people.create({"name": "bob"}, "bob")
        people.export()
        people.patch(WORD, {"email": f"new-{WORD}@example.com"})
        people.export()
        people.patch(WORD, {"email": "hot"})
    subject = Subject("_id", WORD) if by_key else Subject("name", WORD)
    with JobWorkspace(folder, settings=settings) as site:
        before = search_remains(site, subject)
        assert before.found
        certificate = erase(site, subject, HOW)
        assert certificate.is_complete, certificate.lines()
        assert certificate.tables[0].keys == 1
        assert certificate.tables[0].revisions == 4  # three writes, and the erasure's delete
        assert certificate.json()["tables"][0]["revisions"] == 4
        store = site.entities().table("people").store

        def traces(connection):
            query = (
                "select count(*) from change union all select count(*) from gone where id = %(id)s "
                "union all select count(*) from revision "
                "where revision::text like '%%' || %(id)s || '%%'"
            )
            return [row[0] for row in connection.execute(query, {"id": WORD}).fetchall()]

        assert store.pool.run(store.tenant, traces) == [0, 0, 0]
    assert said(folder / "tables") == []
    with open_lake(folder, settings) as lake:
        people = lake.entity("people")
        assert people.read(WORD) is None
        assert people.read("bob").document == {"name": "bob"}
        assert people.history("bob")[-1].document == {"name": "bob"}
        people.create({"name": "bob too"}, "b2")
        people.export()
        assert lake.sql("select count(*) as n from people").to_pylist() == [{"n": 2}]
