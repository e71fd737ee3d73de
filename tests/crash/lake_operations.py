"""A lake on a simulated disk: lives that are recorded call by call, and what each must keep.

    Promise   what may be read at a moment: rows that must be there, requests that may be
    Life      a process that works on a lake until it ends; every call it makes is a `Moment`
    Looker    what a start would find on a volume, read once for each different folder

A life is played once. The disk before each of its changing calls is a moment at which the process
may be killed or the power may go, with the promise as it stood then. A cut after call k is the cut
before call k + 1 with the same promise or a stronger one, so that these are all there are.

Rows are known by number, and no number is given twice: a row that is lost or read twice shows.
"""

import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc

from fixtures.lake import HOUR_US, JUNE_US
from fixtures.sim_disk import SimDisk
from fixtures.sim_fault import MUTATING
from fixtures.sim_node import File, Keeping
from fixtures.sim_volume import Volume
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.segment.parquet import read_rows
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.config import LakeSettings, WalSettings
from thermocline.errors import OutcomeUnknown, ThermoclineError
from thermocline.format.instant import parse_instant
from thermocline.hot.wal.payload import decode_rows
from thermocline.hot.wal.reader import JournalReader
from thermocline.lake import Lake
from thermocline.node import open_lake

ROOT = "/lake"
JOURNAL = f"{ROOT}/journal"
TABLES = ("prices", "trades")
NEVER_S = 1e9
FILE_BYTES_MAX = 2_500
NOW_NS = parse_instant("2024-07-01")

WRITEBACK_SHARE = 0.7

Step = tuple[str, str, int]


# --- opening ---------------------------------------------------------------------------------


def settings(**wal: object) -> LakeSettings:
    """Return settings under which nothing happens by the clock, and journal files are small."""
    options = {"file_bytes_max": FILE_BYTES_MAX, "write_wait_s": 0.05, **wal}
    return LakeSettings(WalSettings(**options), flush_age_s=NEVER_S, flush_look_s=NEVER_S)


def opened(disk: SimDisk, **options: object) -> Lake:
    """Return the lake as a new process meets it; its calls come in one order."""
    ticks = count(NOW_NS, 10**9)
    lake = open_lake(ROOT, settings(), disk=disk, now_ns=lambda: next(ticks), **options)
    in_one_order(lake)
    return lake


def in_one_order(lake: Lake) -> None:
    """Let segments and their sidecars be written one after the other."""
    for name in lake.tables():
        lake.table(name).cold._workers = 1


def abandon(lake: Lake) -> None:
    """End the threads of a lake whose process is dead, without a call to its disk."""
    node = lake.node
    node._is_closing = node._is_closed = True
    node._wake.set()
    if node._clock is not None:
        node._clock.join()
    if node._tier is not None:
        node._tier.group.stop()


def make(disk: SimDisk) -> Lake:
    """Make a lake with two tables, one by symbol."""
    lake = opened(disk)
    for name in TABLES:
        entities = ["symbol"] if name == "prices" else []
        lake.create_table(name, time_column="ts", bucket="1h", entity_columns=entities)
    in_one_order(lake)
    return lake


@cache
def _made() -> Volume:
    disk = SimDisk(["/"])
    lake = make(disk)
    for name in TABLES:
        lake.table(name).cold.adopt_columns(rows([0]).schema, evolve=False)
    lake.close()
    write_back(disk)
    return disk.freeze()


def made_disk() -> SimDisk:
    """Return a disk with a lake of two empty tables."""
    return SimDisk.thaw(_made())


def write_back(disk: SimDisk) -> None:
    """Make everything on a disk durable, as a kernel does when it has time."""
    volume = disk._volume
    for inode, node in list(volume.nodes.items()):
        if isinstance(node, File) and not node.is_durable:
            volume.settle(inode, Keeping.DURABLE)
    volume._keep(set(range(len(volume.pending))))


def rows(numbers: Sequence[int]) -> pa.Table:
    """Return rows with these numbers, in two hours, so that one flush makes two files."""
    times = [JUNE_US + (number % 2) * HOUR_US + number for number in numbers]
    return pa.table(
        {
            "ts": pa.array(times, pa.timestamp("us")),
            "symbol": pa.array([f"S{number % 3}" for number in numbers]),
            "number": pa.array(numbers, pa.int64()),
        }
    )


def numbers_of(data: pa.Table | pa.RecordBatch) -> list[int]:
    """Return the numbers in rows, as they come."""
    return data.column("number").to_pylist() if data.schema.names else []


def read(lake: Lake) -> dict[str, list[int]]:
    """Return the numbers that a reader of the lake finds."""
    return {name: numbers_of(lake.table(name).to_arrow()) for name in lake.tables()}


# --- what must hold --------------------------------------------------------------------------


@dataclass(frozen=True)
class Promise:
    """What a reading may hold: all of `must`, and of each request in `may` all or nothing."""

    must: frozenset[tuple[str, int]] = frozenset()
    may: tuple[frozenset[tuple[str, int]], ...] = ()

    def broken_by(self, found: dict[str, list[int]]) -> str | None:
        """Return how a reading breaks the promise, or None."""
        listed = [(name, number) for name, numbers in found.items() for number in numbers]
        held = frozenset(listed)
        if len(held) != len(listed):
            return f"twice: {sorted({one for one in listed if listed.count(one) > 1})}"
        if not self.must <= held:
            return f"lost: {sorted(self.must - held)}"
        rest = held - self.must
        for request in self.may:
            if rest & request not in (frozenset(), request):
                return f"half a request: {sorted(rest & request)} of {sorted(request)}"
            rest -= request
        return f"never written, refused or deleted: {sorted(rest)}" if rest else None

    def check(self, found: dict[str, list[int]], *more: object) -> None:
        """Assert that a reading keeps the promise."""
        broken = self.broken_by(found)
        assert broken is None, (broken, *more)

    def settled(self, found: dict[str, list[int]]) -> "Promise":
        """Return the promise once somebody may have seen this reading."""
        return Promise(frozenset((name, n) for name, numbers in found.items() for n in numbers))

    def asked(self, request: frozenset[tuple[str, int]]) -> "Promise":
        """Return the promise while a request is under way, to write rows or to delete them."""
        return Promise(self.must - request, (*self.may, request))

    def answered(self, request: frozenset[tuple[str, int]], *, is_there: bool) -> "Promise":
        """Return the promise once a request is known to have happened, or not to have."""
        may = tuple(one for one in self.may if one != request)
        return Promise(self.must | request if is_there else self.must, may)


@dataclass(frozen=True)
class Moment:
    """The disk before one changing call of a life, and what was promised by then."""

    volume: Volume
    boot: int
    promise: Promise
    call: tuple[str, str]

    def disk(self) -> SimDisk:
        """Return the disk as the next process finds it after a kill at this moment."""
        disk = SimDisk.thaw(self.volume)
        disk._boot = self.boot
        return disk

    def cuts(self, limit: int, seed: int) -> Iterator[SimDisk]:
        """Yield up to `limit` different disks that a power cut at this moment may leave."""
        yield from self.disk().crash_states(limit, seed=seed)


class Life:
    """A process that works on a lake; `moments` has the disk before each of its changing calls."""

    def __init__(
        self,
        disk: SimDisk,
        promise: Promise | None = None,
        *,
        numbers: Iterator[int] | None = None,
        is_recorded: bool = True,
        open_lake=opened,
    ) -> None:
        self.disk = disk
        self.promise = promise or Promise()
        self.numbers = numbers or count(1)
        self.moments: list[Moment] = []
        self.errors: list[ThermoclineError] = []
        self._open = open_lake
        if is_recorded:
            disk.hooks = self._note
        self.lake = open_lake(disk)
        # What this start found may be read from now on, and must stay.
        self.promise = self.promise.settled(read(self.lake))

    def _note(self, operation: str, path: str) -> None:
        if operation in MUTATING:
            self.moments.append(
                Moment(self.disk.freeze(), self.disk._boot, self.promise, (operation, path))
            )

    def play(self, steps: Sequence[Step], rng: random.Random | None = None) -> None:
        """Take the steps one by one; errors of this package are noted.

        With `rng` the kernel writes back all it has before most of the steps, as it does after
        some seconds. What is pending then is young, and power cuts differ where it matters.
        """
        for verb, name, rows_count in steps:
            if rng is not None and rng.random() < WRITEBACK_SHARE:
                write_back(self.disk)
            try:
                getattr(self, verb)(name, rows_count)
            except ThermoclineError as error:
                self.errors.append(error)

    def end(self) -> list[Moment]:
        """End the process as it is, and return its moments with the one after the last call."""
        self._note("sync", "the end")
        self.disk.hooks = None
        abandon(self.lake)
        return self.moments

    def _request(self, name: str, how_many: int) -> tuple[list[int], frozenset[tuple[str, int]]]:
        numbers = [next(self.numbers) for _ in range(how_many)]
        return numbers, frozenset((name, number) for number in numbers)

    def write(self, name: str, how_many: int) -> None:
        """Write rows through the journal."""
        numbers, request = self._request(name, how_many)
        self._asked(request, lambda: self.lake.table(name).write(rows(numbers)), is_there=True)

    def append(self, name: str, how_many: int) -> None:
        """Commit rows past the journal, as another process does."""
        numbers, request = self._request(name, how_many)
        table = self._beside(name)
        data = rows(numbers).to_reader()
        self._asked(
            request, lambda: table.append(data, AppendOptions(overlap="allow")), is_there=True
        )

    def _beside(self, name: str) -> ColdTable:
        return ColdTable(LocalStorage(self.lake.table(name).root(), self.disk), workers=1)

    def delete(self, name: str, how_many: int) -> None:
        """Delete the oldest rows of a table, flushed first as a user's delete does."""
        table = self.lake.table(name)
        table.flush()
        gone = sorted(number for one, number in self.promise.must if one == name)[:how_many]
        request = frozenset((name, number) for number in gone)
        wanted = pa.array(gone, pa.int64())
        if not gone:
            return
        self._asked(
            request,
            lambda: table.cold.delete(
                lambda batch: pc.is_in(batch.column("number"), wanted), ["number"]
            ),
            is_there=False,
        )

    def _asked(self, request, act, *, is_there: bool) -> None:
        self.promise = self.promise.asked(request)
        try:
            act()
        except OutcomeUnknown:
            raise
        except ThermoclineError:
            self.promise = self.promise.answered(request, is_there=not is_there)
            raise
        self.promise = self.promise.answered(request, is_there=is_there)

    def flush(self, name: str, how_many: int = 0) -> None:
        """Flush one table."""
        self.lake.table(name).flush()

    def flush_all(self, name: str = "", how_many: int = 0) -> None:
        """Flush all tables."""
        self.lake.flush()

    def look(self, name: str = "", how_many: int = 0) -> None:
        """Read everything and hold it against the promise; what was seen must stay."""
        found = read(self.lake)
        self.promise.check(found)

    def close(self, name: str = "", how_many: int = 0) -> None:
        """Close the lake."""
        self.lake.close()

    def leave(self, name: str = "", how_many: int = 0) -> None:
        """Close the lake with its rows hot."""
        self.lake.close(flush=False)

    def reopen(self, name: str = "", how_many: int = 0) -> None:
        """Close the lake and open it again."""
        self.lake.close(flush=False)
        self.lake = self._open(self.disk)


STORY: tuple[Step, ...] = (
    ("write", "prices", 2),
    ("write", "trades", 1),
    ("write", "prices", 1),
    ("flush", "prices", 0),
    ("write", "prices", 2),
    ("write", "trades", 2),
    ("flush_all", "", 0),
    ("write", "trades", 1),
    ("reopen", "", 0),
    ("write", "prices", 1),
    ("close", "", 0),
)


def random_story(rng: random.Random) -> list[Step]:
    """Return steps by chance: mostly writes and flushes, of both tables."""
    verbs = ["write", "flush", "flush_all", "append", "delete", "reopen"]
    steps: list[Step] = [("write", rng.choice(TABLES), 1)]
    for _ in range(rng.randint(6, 9)):
        verb = rng.choices(verbs, [10, 4, 1, 1, 1, 1])[0]
        steps.append((verb, rng.choice(TABLES), rng.randint(1, 3)))
    ends = [("close", "", 0), ("leave", "", 0), ("flush_all", "", 0)]
    return [*steps, rng.choice(ends)]


# --- what a start would find -----------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What a start finds: numbers by table, and how the journal ends."""

    numbers: dict[str, list[int]]
    outline: tuple[object, ...]


class Looker:
    """Reads lakes by their files: log and segments, and the frames that no mark has passed.

    What is in one folder is read once for each different content of it. That keeps a hundred
    thousand volumes affordable; the whole lake is opened only for those that differ in outcome.
    """

    def __init__(self, lake_disk: SimDisk) -> None:
        lake = opened(lake_disk.clone())
        self._roots = {name: lake.table(name).root() for name in TABLES}
        self._names = {lake.table(name).hot().table_id: name for name in TABLES}
        abandon(lake)
        self._hashes: dict[int, tuple[object, int]] = {}
        self._sorted: dict[int, tuple[object, list[tuple[str, int]]]] = {}
        self._segments: dict[tuple[str, int], list[int]] = {}
        self._tables: dict[tuple[str, int], tuple[dict[str, int], list[int]]] = {}
        self._journals: dict[int, tuple[str, list[tuple[str, int, list[int]]], tuple]] = {}
        self._payloads: dict[bytes, list[int]] = {}

    def looks(self, disk: SimDisk) -> tuple[int, dict[str, int]]:
        """Return a number for the whole tree, and one for each folder that is read by itself."""
        volume = disk._volume
        parts = {
            path: self._look(volume, volume.find(path)) for path in (*self._roots.values(), JOURNAL)
        }
        return hash(tuple(parts.values())), parts

    def _look(self, volume: Volume, inode: int) -> int:
        node = volume.nodes[inode]
        if isinstance(node, File):
            known = self._hashes.get(id(node))
            if known is None:
                known = self._hashes[id(node)] = (node, hash(node.visible))
            return known[1]
        names = self._sorted.get(id(node))
        if names is None:
            names = self._sorted[id(node)] = (node, sorted(node.names.items()))
        return hash(tuple((name, self._look(volume, inode)) for name, inode in names[1]))

    def found(self, disk: SimDisk, parts: dict[str, int] | None = None) -> Found:
        """Return what a start would find on a disk; errors of the lake are raised."""
        parts = parts or self.looks(disk)[1]
        key = hash((parts[JOURNAL], disk._boot))
        if key not in self._journals:
            self._journals[key] = self._journal(disk)
        source, frames, outline = self._journals[key]
        numbers: dict[str, list[int]] = {}
        for name, root in self._roots.items():
            if (name, parts[root]) not in self._tables:
                self._tables[name, parts[root]] = self._table(disk, root)
            marks, cold = self._tables[name, parts[root]]
            mark = marks.get(source, 0)
            outline = (*outline, mark)
            hot = [n for table, lsn, held in frames if table == name and lsn > mark for n in held]
            numbers[name] = [*cold, *hot]
        return Found(numbers, outline)

    def _table(self, disk: SimDisk, root: str) -> tuple[dict[str, int], list[int]]:
        table = ColdTable(LocalStorage(root, disk), workers=1)
        state = table.state()
        found: list[int] = []
        for segment in state.segments:
            volume = disk._volume
            key = (repr(segment), self._look(volume, volume.find(f"{root}/{segment.path}")))
            if key not in self._segments:
                table.storage.check(segment.path, segment.file_size, segment.checksum)
                read = read_rows(table.storage, state, segment, ["number"])
                self._segments[key] = [n for rows in read for n in numbers_of(rows.batch)]
            found += self._segments[key]
        return dict(state.marks), found

    def _journal(self, disk: SimDisk) -> tuple[str, list[tuple[str, int, list[int]]], tuple]:
        reader = JournalReader(disk, JOURNAL)
        frames = []
        for frame in reader.frames():
            if frame.payload not in self._payloads:
                self._payloads[frame.payload] = numbers_of(
                    decode_rows(frame.header, frame.payload).batch
                )
            name = self._names[frame.header.table_id]
            frames.append((name, frame.header.lsn, self._payloads[frame.payload]))
        tail = reader.tail
        outline = (len(frames), tail.cut_bytes > 0, len(tail.unproved), tail.leftover is not None)
        return uuid.UUID(bytes=reader.identity.journal_id).hex, frames, outline


def proven(disk: SimDisk, promise: Promise) -> None:
    """Prove a lake: open, read, write, flush, open again; fsck finds nothing but orphans."""
    life = Life(disk, promise, numbers=count(10**6), is_recorded=False)
    promise.check(read(life.lake))
    for name in TABLES:
        life.write(name, 2)
    life.look()
    life.flush_all()
    life.look()
    life.write("prices", 1)
    life.reopen()
    life.look()
    for name in TABLES:
        checked = life.lake.table(name).fsck()
        assert checked.is_sound, checked.findings
    life.close()
    assert disk.handles == [], "left open"
