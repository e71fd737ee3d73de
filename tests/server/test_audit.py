"""Audit lines: who did what, in a bounded number of files."""

import json
import os
import stat
import threading

from thermocline.server.access.audit import FILES_MAX, REFUSALS_PER_S, Audit


def lines(folder, name="audit.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_an_action_is_a_line_that_says_who_and_what(tmp_path):
    assert Audit(str(tmp_path)).record_action("key created", "abcd1234", tenant="acme", key_id="x")
    (line,) = lines(tmp_path)
    assert line.pop("time").endswith("Z")
    assert line == {"action": "key created", "actor": "abcd1234", "tenant": "acme", "key_id": "x"}


def test_A14_the_audit_file_is_this_users_alone(tmp_path):
    before = os.umask(0)
    try:
        Audit(str(tmp_path)).record_action("x", "y")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600


def test_the_files_are_bounded(tmp_path):
    audit = Audit(str(tmp_path), file_bytes_max=1_000)
    for number in range(200):
        assert audit.record_action("key created", "me", number=number)
    names = {path.name for path in tmp_path.iterdir() if path.suffix == ".jsonl"}
    older = {f"audit.{number}.jsonl" for number in range(1, FILES_MAX + 1)}
    assert names - {"audit.jsonl"} == older
    assert all((tmp_path / name).stat().st_size < 1_200 for name in names)
    kept = [
        line["number"] for name in sorted(older, reverse=True) for line in lines(tmp_path, name)
    ]
    if (tmp_path / "audit.jsonl").exists():
        kept += [line["number"] for line in lines(tmp_path)]
    assert kept == list(range(kept[0], 200))


def test_lines_of_many_writers_are_whole_and_none_is_lost(tmp_path):
    audits = [Audit(str(tmp_path), file_bytes_max=1 << 30) for _ in range(4)]
    threads = [
        threading.Thread(
            target=lambda a=a: [a.record_action("x", "y", n="z" * 300) for _ in range(50)]
        )
        for a in audits
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(tmp_path)) == 200


def test_a_flood_of_refusals_is_counted_not_written(tmp_path):
    now = [100.0]
    audit = Audit(str(tmp_path), now_s=lambda: now[0])
    for _ in range(1_000):
        audit.record_refusal("unauthenticated", "unknown")
    assert len(lines(tmp_path)) == REFUSALS_PER_S
    now[0] += 1
    audit.record_refusal("unauthenticated", "unknown")
    told = lines(tmp_path)
    assert [line.get("more") for line in told[-2:]] == [1_000 - REFUSALS_PER_S, None]


def test_O07_a_line_that_cannot_be_written_stops_nobody(tmp_path):
    reading, writing = os.pipe()
    from thermocline.server.observe.log import EventLog

    log = EventLog(writing)
    assert not Audit(str(tmp_path / "missing"), log).record_action("key created", "me")
    assert log.flush(60)
    assert b"audit line lost" in os.read(reading, 65_536)
    os.close(reading)
    os.close(writing)
