"""Erasure beside a running node, by several names of one person, and with steps that failed."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from fixtures.served import ServedNode
from hot.processes import wait_for
from spark.test_erase import ALICE, HOW, SPEC, WORD, append, plant, rows, rows_in_journal, said
from thermocline import connect
from thermocline.cold.care.expunge import ExpungeReport
from thermocline.cold.care.vacuum import vacuum
from thermocline.cold.change.delete import match_every_row
from thermocline.cold.table import ColdTable
from thermocline.disk import OsDisk
from thermocline.errors import Invalid, NotFound, Overloaded
from thermocline.format import layout
from thermocline.format.log.conflict import TimeWindow
from thermocline.hot.wal.folder import file_path, read_identity
from thermocline.pipeline.erase import job as erasing
from thermocline.pipeline.erase.job import erase
from thermocline.pipeline.erase.search import search_remains
from thermocline.pipeline.erase.subject import SUBJECTS_MAX, Subject, distinct_subjects
from thermocline.pipeline.run.workspace import JobWorkspace

CALM = ("--grpc", "off", "--set", "flush_age_s=1h")
MAIL = "ada@mail.example"
MAILED = Subject("mail", MAIL)


def grepped(folder, *words):
    """Return the files that have a word in their bytes."""
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return [path for path in files if any(word.encode() in path.read_bytes() for word in words)]


def letters(mail, hours):
    """Return rows that name a person by another column."""
    return rows(hours, "x").drop_columns(["person"]).append_column("mail", pa.array([mail] * 2))


def test_a_running_node_has_nothing_of_the_subject_anywhere_when_the_certificate_is_written(
    tmp_path,
):
    folder = tmp_path / "data"
    with ServedNode(folder, *CALM) as node:
        url = f"http://127.0.0.1:{node.ready().port('api')}"
        with connect(url) as lake:
            for name, column in (("pulse", "person"), ("letters", "mail"), ("other", "person")):
                lake.create_table(name, time_column="ts", bucket="1m", entity_columns=[column])
            lake.table("pulse").write(rows(range(3), WORD))
            lake.table("pulse").flush()
            assert rows_in_journal(folder) == 0
            lake.table("pulse").write(rows(range(3, 5), WORD))
            lake.table("pulse").write(rows(range(4), "bob"))
            lake.table("letters").write(letters(MAIL, [1, 2]))
            lake.table("other").write(rows([1], "bob"))
            assert rows_in_journal(folder) == 9
            with JobWorkspace(folder, url=url) as site:
                found = {(one.table, one.path) for one in search_remains(site, ALICE, MAILED).found}
                assert {("pulse", "journal"), ("letters", "journal")} <= found
                certificate = erase(site, [ALICE, MAILED], HOW)
            assert certificate.is_complete, certificate.lines()
            assert {one.table: one.rows for one in certificate.tables} == {"pulse": 5, "letters": 2}
            assert rows_in_journal(folder) == 0
            assert grepped(folder, WORD, MAIL) == []
            assert said(folder) == []
            assert node.process.poll() is None
            # The node goes on as if nothing had happened.
            lake.table("pulse").write(rows([9], "bob"))
            asked = "select person, count(*) as n from pulse group by 1"
            assert lake.sql(asked).to_pylist() == [{"person": "bob", "n": 5}]
        assert node.stop() == 0
    with connect(folder) as lake:
        assert lake.sql(asked).to_pylist() == [{"person": "bob", "n": 5}]


def test_tables_that_are_written_without_pause_keep_nothing_of_the_subject(tmp_path):
    folder = tmp_path / "data"
    names, written, is_over = ("pulse", "other"), [], threading.Event()

    def keep_writing(url):
        with connect(url) as lake:
            while not is_over.is_set():
                for name in names:
                    written.append(lake.table(name).write(rows([len(written)], "bob")))

    with ServedNode(folder, *CALM) as node, ThreadPoolExecutor(1) as pool:
        url = f"http://127.0.0.1:{node.ready().port('api')}"
        with connect(url) as lake:
            for name in names:
                lake.create_table(name, time_column="ts", bucket="1m", entity_columns=["person"])
            lake.table("pulse").write(rows(range(3), WORD))
            writing = pool.submit(keep_writing, url)
            try:
                wait_for(lambda: len(written) > 2)
                before = len(written)
                with JobWorkspace(folder, url=url) as site:
                    certificate = erase(site, ALICE, HOW)
                wait_for(lambda: len(written) > before)
            finally:
                is_over.set()
            writing.result()
            assert certificate.is_complete, certificate.lines()
            assert grepped(folder, WORD) == []
            counted = "select (select count(*) from pulse) + (select count(*) from other) as n"
            assert lake.sql(counted).to_pylist() == [{"n": sum(written)}]
        assert node.stop() == 0


def test_one_whom_several_columns_name_is_erased_by_all_of_them_in_one_paper(tmp_path):
    folder = plant(tmp_path / "lake")
    with JobWorkspace(folder) as site:
        post = site.ensure_table("letters", replace(SPEC, entity_columns=("mail",)))
        append(post, letters(MAIL, [1, 2]))
        append(post, letters("bob@mail.example", [1, 2]))
        both = site.ensure_table("visits", replace(SPEC, entity_columns=()))
        columns = {"mail": [MAIL, "bob@mail.example", MAIL], "person": ["x", WORD, WORD]}
        append(both, pa.table({"ts": rows(range(3), "x")["ts"], **columns}))
        append(both, pa.table({"ts": rows([5], "x")["ts"], "mail": ["kept"], "person": ["kept"]}))
        certificate = erase(site, [ALICE, MAILED, ALICE], HOW)
        assert certificate.is_complete, certificate.lines()
        body = json.loads(json.dumps(certificate.json()))
        assert (body["column"], body["subject"]) == ("person", ALICE.digest)
        assert body["others"] == [{"column": "mail", "subject": MAILED.digest}]
        assert sum(line.startswith("subject ") for line in certificate.lines()) == 2
        by_name = {one.table: one.rows for one in certificate.tables}
        assert (by_name["visits"], by_name["letters"]) == (3, 2)
        assert pa.Table.from_batches(both.read(both.state(), ["mail"]))["mail"].to_pylist() == [
            "kept"
        ]
    assert said(folder) == []
    assert grepped(folder, MAIL) == []


def test_subjects_that_are_none_or_too_many_or_of_no_column_are_refused(tmp_path):
    with pytest.raises(Invalid):
        distinct_subjects([])
    with pytest.raises(Overloaded):
        distinct_subjects([Subject("person", number) for number in range(SUBJECTS_MAX + 1)])
    with JobWorkspace(plant(tmp_path / "lake")) as site:
        before = {name: site.table(name).state().version for name in site}
        with pytest.raises(NotFound) as caught:
            erase(site, [ALICE, Subject("persn", WORD)], HOW)
        assert caught.value.facts["column"] == "persn"
        assert {name: site.table(name).state().version for name in site} == before


def test_an_erasure_that_forgets_nothing_is_not_complete(tmp_path, monkeypatch):
    nothing = lambda table, *_: ExpungeReport(table.state().version, 0, 0, 0, 0, ())  # noqa: E731
    monkeypatch.setattr(erasing, "expunge", nothing)
    with JobWorkspace(plant(tmp_path / "lake")) as site:
        certificate = erase(site, ALICE, HOW)
    assert not certificate.is_complete
    left = {(one.table, one.what) for one in certificate.searched.found}
    for name in ("pulse", "pulse_hourly", "pulse_quarantine"):
        assert (name, "older versions have not expired") in left
    assert "NOT complete: run it again" in certificate.lines()


def test_old_versions_without_their_files_are_found_by_whoever_searches_later(
    tmp_path, monkeypatch
):
    folder = plant(tmp_path / "lake")
    with monkeypatch.context() as patch, JobWorkspace(folder) as site:
        patch.setattr(
            "thermocline.cold.care.expunge.expire_versions", lambda table, *_: table.state()
        )
        erase(site, ALICE, HOW)
    with JobWorkspace(folder) as site:
        found = [one for one in search_remains(site, ALICE).found if one.table == "pulse"]
        assert [(one.path, one.is_mention) for one in found] == [(layout.LOG_FOLDER, False)]
        assert not erase(site, ALICE, HOW).is_complete


def test_versions_that_a_vacuum_let_expire_are_no_trace(tmp_path):
    folder = plant(tmp_path / "lake")
    with JobWorkspace(folder) as site:
        table = ColdTable(site.table("notes").storage)
        table.delete(match_every_row, (), TimeWindow())
        vacuum(table, grace_s=0, dry_run=False, allow_short_grace=True)
        assert table.storage.size(table.log.commit(2).actions[-1].segment.path) is None
        assert erase(site, ALICE, HOW).is_complete


def test_files_of_the_journal_that_nobody_reads_are_told_of(tmp_path):
    folder = plant(tmp_path / "lake")
    with JobWorkspace(folder) as site:
        assert erase(site, ALICE, HOW).is_complete
        journal = folder / "journal"
        oldest = read_identity(OsDisk(), str(journal)).oldest
        trimmed = Path(file_path(str(journal), oldest - 1))
        aside = journal / "quarantine" / "00000000000000000007.frame"
        aside.parent.mkdir()
        for path in (trimmed, journal / ".half.tmp"):
            path.write_bytes(b"whatever")
            assert [one.path for one in search_remains(site, ALICE).found] == [path.name]
            assert erase(site, ALICE, HOW).is_complete  # whoever owns the journal removes them
            assert not path.exists()
        aside.write_bytes(b"whatever")
        (left,) = erase(site, ALICE, HOW).searched.found
        assert (left.path, left.is_mention) == (f"quarantine/{aside.name}", False)
        aside.unlink()
        assert erase(site, ALICE, HOW).is_complete
