"""What runs in the processes that are killed, stopped and starved: writers, flushes, readers.

Run as a script it does the job named by its first argument with the keywords of the second (JSON);
`start` does that. A process says on its ledger how far it has got and what went wrong.
"""

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pyarrow as pa

import thermocline as tc
from hot.ledger import TABLES, Ledger, has_columns
from thermocline.config import read_lake_settings
from thermocline.disk import OsDisk
from thermocline.errors import (
    Conflict,
    OutcomeUnknown,
    Overloaded,
    ThermoclineError,
    Unavailable,
)
from thermocline.node import open_lake

JUNE_US = 1_717_200_000_000_000
STEP_US = 40_000_000
WRITERS = 4
OPENINGS_MAX = 20
BUSY = {
    "flush_age_s": 0.15,
    "flush_look_s": 0.05,
    "hot_bytes_max": 256 << 10,
    "file_bytes_max": 8 << 10,
}
COUNTS = " union all ".join(
    f"select writer, count(*) n, min(seq) low, max(seq) high, count(distinct seq) d from {name} "
    "where cycle = $cycle group by writer"
    for name in TABLES
)


def start(job, *, before=(), **keywords):
    """Start a process that does a job; `before` is a command that runs it, such as a tracer."""
    command = [*before, sys.executable, __file__, job, json.dumps(keywords)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def wait_for(is_so, *, timeout_s=60.0, process=None, what="it"):
    """Wait until something is so; fail loudly when it does not come, or the process has ended."""
    end_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end_s, f"{what} did not come within {timeout_s} s"
        assert process is None or process.poll() is None, f"{what}: the process ended"
        time.sleep(0.002)


def rows_of(cycle, writer, first, last):
    """Return the rows of one request."""
    seqs = range(first, last + 1)
    return pa.table(
        {
            "ts": pa.array([JUNE_US + seq * STEP_US for seq in seqs], pa.timestamp("us")),
            "writer": pa.array([writer] * len(seqs), pa.int64()),
            "cycle": pa.array([cycle] * len(seqs), pa.int64()),
            "seq": pa.array(seqs, pa.int64()),
        }
    )


def make_tables(lake):
    """Make the tables that are not there yet; one of them knows entities."""
    for name in TABLES:
        if name not in lake.tables():
            entities = ["writer"] if name == "metrics" else []
            lake.create_table(name, time_column="ts", bucket="1h", entity_columns=entities)


class Load:
    """Writers, a flusher and readers on one lake, until told to stop."""

    def __init__(self, lake, ledger, cycle, *, seed=0):
        self.lake, self.ledger, self.cycle, self.seed = lake, ledger, cycle, seed
        self.stop = threading.Event()
        self.errors = {}
        self._threads = []

    def begin(self, *, writers=WRITERS, readers=1, flushers=1, rows_max=4, tries_s=60.0):
        """Start the threads."""
        jobs = [(self.write, writer, rows_max, tries_s) for writer in range(writers)]
        jobs += [(self.read, reader) for reader in range(readers)]
        jobs += [(self.flush, flusher) for flusher in range(flushers)]
        self._threads = [threading.Thread(target=self._run, args=job, daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()

    def end(self):
        """Stop the threads and wait for them."""
        self.stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a writer or reader hangs"

    def _run(self, job, *arguments):
        try:
            job(*arguments)
        except Exception as error:  # noqa: BLE001  whatever it is, the parent has to hear of it
            if not self.stop.is_set() or not isinstance(error, ThermoclineError):
                self.ledger.note(f"trouble-{threading.get_ident()}", repr(error))

    def write(self, writer, rows_max, tries_s):
        """Write small requests one after another; each is noted before and after."""
        rng = random.Random(self.seed * 100 + writer)
        table = self.lake.table(TABLES[writer % 2])
        first = 1
        while not self.stop.is_set():
            last = first + rng.randrange(rows_max)
            self.ledger.intend(self.cycle, writer, first, last)
            if self._written(table, rows_of(self.cycle, writer, first, last), tries_s):
                self.ledger.acknowledge(self.cycle, writer, first, last)
            first = last + 1

    def _written(self, table, rows, tries_s):
        """Write until it is taken; a definite no is tried again, an unknown outcome is not."""
        end_s = time.monotonic() + tries_s
        while True:
            try:
                table.write(rows, wait_s=1.0)
                return True
            except OutcomeUnknown:
                self._count("OutcomeUnknown")
                return False
            except (Overloaded, Unavailable) as error:
                self._count(type(error).__name__)
                if self.stop.is_set():
                    return False
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.01)

    def _count(self, kind):
        self.errors[kind] = self.errors.get(kind, 0) + 1

    def flush(self, flusher):
        """Flush on demand at random moments, beside the lake's own clock."""
        rng = random.Random(self.seed * 100 + 50 + flusher)
        while not self.stop.wait(rng.uniform(0, 0.2)):
            self.lake.flush(rng.choice([None, *TABLES]))

    def read(self, reader):
        """Ask for exact counts again and again."""
        wait_for(lambda: self.stop.is_set() or has_columns(self.lake), what="a first write")
        while not self.stop.is_set():
            read_once(self.lake, self.ledger, self.cycle, reader=f"own-{os.getpid()}-{reader}")


def read_once(lake, ledger, cycle, *, reader, is_prefix=True):
    """Ask how much each writer has; the answer is all that was answered before, and a prefix.

    Returns how many rows there were; notes a short or impossible answer as trouble.
    """
    acked = ledger.last(cycle, "a")
    answer = lake.sql(COUNTS, {"cycle": cycle}).to_pylist()
    meant = ledger.last(cycle, "i")
    found = {row["writer"]: row for row in answer}
    for writer, least in acked.items():
        row = found.get(writer, {"n": 0, "low": 1, "high": 0, "d": 0})
        whole = not is_prefix or (row["n"] == row["high"] and (row["low"] == 1 or not row["n"]))
        if row["n"] != row["d"] or not whole or not least <= row["high"] <= meant[writer]:
            what = f"acked {least}, meant {meant[writer]}, answered {row}"
            ledger.note(f"short-{reader}", f"cycle {cycle} writer {writer}: {what}")
        if row["n"]:
            ledger.note(f"seen-{reader}", f"{cycle} {writer} {row['high']}")
    ledger.note(f"reads-{reader}", len(found))
    return sum(row["n"] for row in answer)


def opened(root, disk, notes):
    """Open the lake; a disk that fails meanwhile is tried again, as whoever runs a node does."""
    for _ in range(OPENINGS_MAX):
        try:
            return open_lake(root, read_lake_settings(BUSY), disk=disk)
        except Unavailable as error:
            notes.note("refused", str(error))
    raise AssertionError("the lake could not be opened")


def work(root, ledger, cycle, *, check=False, seed=0, fault=None, load=None):
    """Own the lake: write, flush and read until killed."""
    notes = Ledger(ledger)
    disk = None
    if fault is not None:
        disk = FailingDisk(*fault, lambda call: notes.note("calls", f"{call} (INJECTED)"))
    notes.note(f"pid-{cycle}", os.getpid())
    notes.note(f"state-{cycle}", "opening")
    began_s = time.monotonic()
    lake = opened(root, disk, notes)
    took_s = time.monotonic() - began_s
    make_tables(lake)
    notes.note(f"state-{cycle}", f"opened {lake.tier.recovery_report.rows} {took_s:.3f}")
    if check:
        verdict = notes.check(lake)
        if verdict.bad():
            notes.note(f"trouble-check-{cycle}", str(verdict))
    Load(lake, notes, cycle, seed=seed).begin(**(load or {}))
    notes.note(f"state-{cycle}", "ready")
    threading.Event().wait()


def follow(root, ledger, cycle, *, name="follow"):
    """Read the lake beside the process that owns it, until killed."""
    notes = Ledger(ledger)
    lake = tc.connect(root, read_only=True)
    wait_for(lambda: has_columns(lake), what="a first write")
    notes.note(f"state-{name}", "ready")
    while True:
        read_once(lake, notes, cycle, reader=f"{name}-{os.getpid()}")
        for table in TABLES:
            lake.table(table).to_arrow(columns=["seq"])


def hold(root, ledger):
    """Own the lake and do nothing."""
    notes = Ledger(ledger)
    try:
        lake = tc.connect(root)
    except Conflict as error:
        notes.note(f"held-{os.getpid()}", json.dumps([str(error), error.facts["process"]]))
        return
    make_tables(lake)
    notes.note(f"held-{os.getpid()}", "owner")
    threading.Event().wait()


class SlowDisk(OsDisk):
    """The real disk, but every sync of a file takes a while."""

    def __init__(self, delay_s):
        self.delay_s = delay_s

    def create(self, path):
        """Create a file whose sync is slow."""
        writer = super().create(path)
        sync = writer.sync

        def slow():
            time.sleep(self.delay_s)
            sync()

        writer.sync = slow
        return writer


class FailingDisk(OsDisk):
    """The real disk, where calls of one kind fail now and then, without having been made."""

    def __init__(self, call, code, first, step, on_failure):
        self._call, self._code, self._first, self._step = call, code, first, step
        self._on_failure = on_failure
        self._lock, self._count = threading.Lock(), 0

    def _checked(self, call, act):
        def checked(*arguments):
            with self._lock:
                self._count += call == self._call
                place = self._count - self._first
            if call == self._call and place >= 0 and place % self._step == 0:
                self._on_failure(call)
                raise OSError(self._code, os.strerror(self._code))
            return act(*arguments)

        return checked

    def create(self, path):
        """Create a file whose sync may fail."""
        writer = super().create(path)
        writer.sync = self._checked("fdatasync", writer.sync)
        return writer

    def open_slot(self, path):
        """Open a slot whose writes may fail."""
        slot = super().open_slot(path)
        slot.put = self._checked("pwrite64", slot.put)
        return slot

    def sync_folder(self, path):
        """Sync a folder, or fail."""
        self._checked("fsync", super().sync_folder)(path)


JOBS = {"work": work, "follow": follow, "hold": hold}

if __name__ == "__main__":
    JOBS[sys.argv[1]](**json.loads(sys.argv[2]))
