"""Real processes on a real disk: every commit present, none twice, whoever is killed."""

import multiprocessing
import os
import signal
import time

import pytest

from fixtures.lake import closes, rows, spec
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable

WRITERS, APPENDS = 4, 50
spawn = multiprocessing.get_context("spawn")


def write_many(root, writer, appends, policy):
    table = ColdTable(LocalStorage(root))
    for number in range(appends):
        value = writer * 1_000 + number
        table.append(rows([value]).to_reader(), AppendOptions(overlap=policy))


def write_for_ever(root, writer, ledger):
    table = ColdTable(LocalStorage(root))
    with open(ledger, "a") as answered:
        for number in range(100_000):
            value = writer * 10_000 + number
            table.append(rows([value]).to_reader(), AppendOptions(overlap="allow"))
            answered.write(f"{value}\n")
            answered.flush()


@pytest.mark.parametrize("policy", ["reject", "allow"])
def test_T01_four_processes_append_fifty_times_each_and_every_commit_is_there_once(
    tmp_path, policy
):
    root = str(tmp_path / "prices")
    ColdTable(LocalStorage(root)).create(spec())
    writers = [
        spawn.Process(target=write_many, args=(root, writer, APPENDS, policy))
        for writer in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(240)
        assert writer.exitcode == 0
    table = ColdTable(LocalStorage(root))
    expected = [float(w * 1_000 + n) for w in range(WRITERS) for n in range(APPENDS)]
    assert closes(table) == sorted(expected)
    assert table.state().version == 1 + WRITERS * APPENDS
    assert [f for f in fsck(table).findings if not f.is_harmless] == []


def test_T02_writers_killed_with_9_at_any_moment_lose_nothing_they_were_answered(tmp_path):
    root, ledgers = str(tmp_path / "prices"), [str(tmp_path / f"{n}.ledger") for n in range(2)]
    ColdTable(LocalStorage(root)).create(spec(overlap="allow"))
    for round_ in range(4):
        writers = [
            spawn.Process(target=write_for_ever, args=(root, round_ * 2 + n, ledgers[n]))
            for n in range(2)
        ]
        for writer in writers:
            writer.start()
        wait_for_more(ledgers)
        time.sleep(0.05 * round_)
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
        found = closes(ColdTable(LocalStorage(root)))
        answered = {float(line) for ledger in ledgers for line in lines_of(ledger)}
        assert answered <= set(found), "an answered append is lost"
        assert len(found) == len(set(found)), "an append is there twice"
    assert answered, "nobody was answered; the test proves nothing"
    table = ColdTable(LocalStorage(root))
    assert [f for f in fsck(table).findings if not f.is_harmless] == []
    table.append(rows([1], "AFTER").to_reader(), AppendOptions())


def wait_for_more(ledgers):
    before = [len(lines_of(ledger)) for ledger in ledgers]
    give_up = time.monotonic() + 180
    while any(len(lines_of(ledger)) < n + 3 for ledger, n in zip(ledgers, before, strict=True)):
        assert time.monotonic() < give_up, "no writer gets anywhere"
        time.sleep(0.02)


def lines_of(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [line for line in file.read().split("\n")[:-1] if line]
