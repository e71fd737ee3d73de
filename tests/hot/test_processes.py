"""Real processes that own a lake: killed, stopped, doubled; and readers beside them."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

import thermocline as tc
from hot.killing import bad, kill_cycles, resend
from hot.ledger import TABLES, Ledger
from hot.processes import BUSY, Load, make_tables, read_once, rows_of, start, wait_for
from thermocline.errors import Conflict

KILLS = 20
FAILED_CALLS = 6


@pytest.fixture
def place(tmp_path):
    """Where a lake and the ledger beside it are, as keywords for a process."""
    return {"root": str(tmp_path / "lake"), "ledger": str(tmp_path / "ledger")}


@pytest.fixture
def run():
    """Start processes that are killed when the test ends."""
    started = []

    def begin(job, **keywords):
        started.append(start(job, **keywords))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def noted(ledger, kind):
    """Return every line noted under names of this kind."""
    return [line for path in ledger.folder.glob(f"{kind}-*") for line in ledger.lines(path.name)]


def assert_sound(root, ledger):
    """Check what every test promises at its end: all is there once, and the tables are whole."""
    with tc.connect(root, read_only=True) as lake:
        verdict = ledger.check(lake)
        assert verdict.acked, "nothing was acknowledged; the test proves nothing"
        assert not verdict.bad(), verdict
        for name in TABLES:
            assert [f for f in lake.table(name).fsck().findings if not f.is_harmless] == []
    assert noted(ledger, "short") == []
    assert noted(ledger, "trouble") == []


@pytest.mark.slow
def test_W01_W02_W03_W16_W22_F01_F02_F03_a_lake_killed_with_9_again_and_again_is_exact(tmp_path):
    seed = int(time.time())
    counts = kill_cycles(tmp_path, KILLS, seed)
    assert bad(counts) == {}, (seed, counts)
    assert counts["kills"] == KILLS
    assert counts["acked"] > KILLS, "too little was acknowledged to prove anything"
    assert counts["recovered"], "no kill left rows for a replay"


def test_W01_the_checker_sees_a_row_that_is_lost_doubled_halved_or_invented(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    with tc.connect(tmp_path / "lake") as lake:
        make_tables(lake)
        for writer in range(2):
            lake.table(TABLES[writer]).write(rows_of(0, writer, 1, 4))
            ledger.intend(0, writer, 1, 4)
            ledger.acknowledge(0, writer, 1, 4)
        assert not ledger.check(lake).bad()
        lake.table("logs").write(rows_of(0, 0, 2, 3))
        assert ledger.check(lake).dup == 2
        ledger.intend(0, 1, 5, 9)
        lake.table("metrics").write(rows_of(0, 1, 5, 5))
        assert ledger.check(lake).halves == 1
        lake.table("metrics").write(rows_of(7, 3, 1, 1))
        assert ledger.check(lake).strange == 1
        ledger.intend(0, 0, 5, 6)
        ledger.acknowledge(0, 0, 5, 6)
        assert ledger.check(lake).lost == 2
        ledger.note("seen-else", "0 1 9")
        assert ledger.check(lake).dirty == 4


def test_F06_the_reader_sees_an_answer_that_is_short(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    with tc.connect(tmp_path / "lake") as lake:
        make_tables(lake)
        for writer in range(2):
            lake.table(TABLES[writer]).write(rows_of(0, writer, 1, 4))
            ledger.intend(0, writer, 1, 4)
            ledger.acknowledge(0, writer, 1, 4)
        assert read_once(lake, ledger, 0, reader="one") == 8
        assert noted(ledger, "short") == []
        ledger.acknowledge(0, 1, 5, 5)
        read_once(lake, ledger, 0, reader="one")
        assert len(noted(ledger, "short")) == 1


@pytest.mark.slow
def test_F06_F08_Q10_readers_here_and_in_another_process_are_exact_during_writes_and_flushes(
    place, run
):
    ledger = Ledger(place["ledger"])
    lake = tc.connect(place["root"], **BUSY)
    make_tables(lake)
    load = Load(lake, ledger, 0)
    load.begin(readers=1, flushers=1)
    beside = [run("follow", cycle=0, name=f"beside-{n}", **place) for n in range(2)]

    def enough():
        own, others = noted(ledger, "reads-own"), noted(ledger, "reads-beside")
        return len(own) >= 30 and len(others) >= 30

    wait_for(enough, timeout_s=120, process=beside[0], what="thirty answers from each side")
    before = [lake.table(name).version() for name in TABLES]
    for process in beside:
        process.kill()
    load.end()
    lake.close()
    assert min(before) > 5, "hardly a flush happened beside the reads"
    assert_sound(place["root"], ledger)


def test_F08_Q10_a_stream_and_a_scan_that_began_before_a_flush_end_with_what_they_began_with(
    tmp_path,
):
    with tc.connect(tmp_path / "lake", flush_age_s=3600) as lake:
        make_tables(lake)
        table = lake.table("logs")
        table.write(rows_of(0, 0, 1, 1000))
        stream = lake.sql_reader("select seq from logs")
        scanned = table.scan(columns=["seq"])
        table.write(rows_of(0, 0, 1001, 1500))
        table.flush()
        table.write(rows_of(0, 0, 1501, 1600))
        lake.flush()
        asked = lake.sql("select count(*) n, count(distinct seq) d from logs").to_pylist()
        assert asked == [{"n": 1600, "d": 1600}]
        for batches in (stream, scanned):
            found = sorted(s for batch in batches for s in batch.column("seq").to_pylist())
            assert found == list(range(1, 1001))


def test_W24_a_second_process_is_told_who_owns_the_lake_and_takes_over_when_that_is_dead(
    place, run
):
    ledger = Ledger(place["ledger"])
    owner = run("hold", **place)
    wait_for(lambda: ledger.lines(f"held-{owner.pid}"), process=owner)
    with pytest.raises(Conflict, match=rf"another process .*process={owner.pid}\b") as refused:
        tc.connect(place["root"])
    assert refused.value.facts["process"] == str(owner.pid)
    assert "reading only" in refused.value.hint
    second = run("hold", **place)
    assert second.wait(60) == 0
    told, process = json.loads(ledger.lines(f"held-{second.pid}")[0])
    assert process == str(owner.pid)
    assert str(owner.pid) in told
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    with tc.connect(place["root"]) as lake:
        assert lake.table("logs").write(rows_of(0, 0, 1, 2)) == 2
        with pytest.raises(Conflict, match=rf"process={os.getpid()}\b"):
            tc.connect(place["root"])
    tc.connect(place["root"]).close()


def test_W24_of_processes_that_make_a_lake_at_once_one_becomes_its_owner(place, run):
    ledger = Ledger(place["ledger"])
    rivals = [run("hold", **place) for _ in range(3)]
    wait_for(lambda: len(noted(ledger, "held")) == 3, what="three answers")
    answers = {rival.pid: ledger.lines(f"held-{rival.pid}")[0] for rival in rivals}
    owners = [pid for pid, answer in answers.items() if answer == "owner"]
    assert len(owners) == 1, answers
    for pid, answer in answers.items():
        assert pid in owners or json.loads(answer)[1] in {str(owners[0]), ""}


FORKING = """
import os, sys, thermocline as tc
lake = tc.connect(sys.argv[1], flush_age_s=3600)
table = lake.create_table("logs", time_column="ts", bucket="1h")
table.write([{"ts": "2024-06-01", "seq": 1}])
child = os.fork()
if not child:
    refused = 0
    for use in (
        lambda: table.write([{"ts": "2024-06-01", "seq": 9}]),
        lambda: lake.sql("select * from logs"),
        lambda: table.to_arrow(),
        lambda: lake.flush(),
    ):
        try:
            use()
        except tc.ThermoclineError as error:
            refused += "forked" in str(error)
    lake.close()
    sys.exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
for seq in range(2, 6):
    table.write([{"ts": "2024-06-01", "seq": seq}])
lake.close(flush=False)
"""


def test_W24_a_forked_process_neither_writes_nor_closes_the_lake_of_the_one_that_owns_it(tmp_path):
    root = str(tmp_path / "lake")
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING, root], check=True, timeout=60)
    with tc.connect(root) as lake:
        assert lake.sql("select seq from logs order by seq").column("seq").to_pylist() == [
            *range(1, 6)
        ]


@pytest.mark.slow
def test_W25_an_owner_that_is_stopped_keeps_the_lake_and_goes_on_exactly(place, run):
    ledger = Ledger(place["ledger"])
    owner = run("work", cycle=0, **place)
    wait_for(lambda: "ready" in ledger.lines("state-0"), process=owner)
    with tc.connect(place["root"], read_only=True) as beside:
        wait_for(lambda: len(ledger.last(0, "a")) == 4 and min(ledger.last(0, "a").values()))
        for pause in range(4):
            time.sleep(0.13 * pause)
            os.kill(owner.pid, signal.SIGSTOP)
            # The signal is sent, not obeyed yet: threads run on until the kernel reaches them.
            os.waitid(os.P_PID, owner.pid, os.WSTOPPED | os.WNOWAIT)
            with pytest.raises(Conflict, match=f"process={owner.pid}"):
                tc.connect(place["root"])
            acked = ledger.last(0, "a")
            time.sleep(0.3)
            assert ledger.last(0, "a") == acked
            assert read_once(beside, ledger, 0, reader="beside") >= sum(acked.values())
            os.kill(owner.pid, signal.SIGCONT)
            wait_for(
                lambda: all(ledger.last(0, "a")[w] > acked[w] for w in acked),  # noqa: B023
                process=owner,
                what="more answers",
            )
    owner.kill()
    owner.wait()
    with tc.connect(place["root"]) as lake:
        resend(lake, ledger)
    assert_sound(place["root"], ledger)


def can_trace():
    """Tell whether calls of a process can be made to fail from outside."""
    probe = ["strace", "-o", "/dev/null", "-e", "inject=fsync:error=EIO", "true"]
    return shutil.which("strace") is not None and subprocess.run(probe, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["traced", "wrapped"])
@pytest.mark.parametrize(
    ("call", "error", "first", "step"),
    [
        pytest.param("fdatasync", "EIO", 12, 9, id="W07-fdatasync"),
        pytest.param("fsync", "EIO", 12, 7, id="W07-W19-fsync"),
        pytest.param("pwrite64", "ENOSPC", 5, 8, id="W10-pwrite64"),
    ],
)
def test_W07_W10_W19_calls_that_fail_in_a_real_process_lose_nothing_that_was_answered(
    place, run, call, error, first, step, way
):
    ledger = Ledger(place["ledger"])
    with tc.connect(place["root"]) as lake:
        make_tables(lake)
    how = {"fault": [call, getattr(errno, error), first, step]}
    if way == "traced" and can_trace():
        tracer = ["strace", "-f", "-qq", "-o", f"{place['ledger']}/calls", "-e", f"trace={call}"]
        how = {"before": [*tracer, "-e", f"inject={call}:error={error}:when={first}+{step}"]}
    running = run("work", cycle=0, load={"readers": 0, "flushers": 0}, **how, **place)
    wait_for(lambda: "ready" in ledger.lines("state-0"), process=running)

    def failed():
        return sum("(INJECTED)" in line for line in ledger.lines("calls"))

    with tc.connect(place["root"], read_only=True) as beside:
        for least in range(FAILED_CALLS):
            before = sum(ledger.last(0, "a").values())
            wait_for(
                lambda: sum(ledger.last(0, "a").values()) > before + 4 and failed() > least,  # noqa: B023
                process=running,
                what="more failed calls, and more answers after them",
            )
            read_once(beside, ledger, 0, reader="beside", is_prefix=False)
    os.kill(int(ledger.lines("pid-0")[0]), signal.SIGKILL)
    running.wait(60)
    with tc.connect(place["root"]) as lake:
        assert not ledger.check(lake).bad()
        resend(lake, ledger)
    assert_sound(place["root"], ledger)
