"""Which version do hot rows go with? Every short history, and the simpler answers that break.

The tier is the real buffer, the right pairing the real one; the log is a list of versions. A
history is writes, the steps of flushes, another writer's commits and one reading in two steps: the
hot half at `begin_read`, the cold half at `end_read`. Right is: every row acknowledged before the
reading began is read exactly once, and none is read twice.
"""

from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from thermocline.format.log.action import Mark
from thermocline.hot.tier import HotSnapshot
from thermocline.hot.wal.buffer import TableBuffer
from thermocline.hot.wal.frame import Lsn
from thermocline.snapshot import parts_not_in

SOURCE = "journal"
STEPS = ("write", "freeze", "commit", "retire", "pipeline", "begin_read", "end_read")
LENGTH_MAX = 10
HISTORIES_MIN = 30_000


@dataclass(frozen=True)
class Version:
    """A version of the lake: all its rows, and the mark of the last flush in it."""

    rows: tuple[str, ...] = ()
    mark: Mark = Mark(0)


@dataclass
class World:
    """A tier and a log in the middle of a history."""

    buffer: TableBuffer = field(default_factory=lambda: TableBuffer(SOURCE, Mark(0)))
    log: list[Version] = field(default_factory=lambda: [Version()])
    acknowledged: list[str] = field(default_factory=list)
    frozen: object = None
    is_committed: bool = False
    flushed_to: int = 0
    hot: HotSnapshot | None = None
    expected: tuple[str, ...] = ()
    flushed_to_then: int = 0

    def may(self, step: str) -> bool:
        """Tell whether a step makes sense now."""
        match step:
            case "freeze":
                return self.frozen is None and bool(self.buffer.snapshot().parts)
            case "commit":
                return self.frozen is not None and not self.is_committed
            case "retire":
                return self.is_committed
            case "begin_read":
                return self.hot is None
            case "end_read":
                return self.hot is not None
        return True

    def take(self, step: str) -> None:
        """Do one step."""
        match step:
            case "write":
                lsn = Lsn(len(self.acknowledged) + 1)
                row = f"w{lsn}"
                batch = pa.RecordBatch.from_arrays([pa.array([row])], ["row"])
                self.buffer.add(lsn, 0, batch, 8)
                self.acknowledged.append(row)
            case "freeze":
                self.frozen = self.buffer.freeze()
            case "commit":
                rows = tuple(row for part in self.frozen.parts for row in rows_of(part.batch))
                self.log.append(Version(self.log[-1].rows + rows, self.frozen.mark))
                self.is_committed = True
            case "retire":
                self.buffer.retire(self.frozen.mark)
                self.flushed_to = len(self.log) - 1
                self.frozen, self.is_committed = None, False
            case "pipeline":
                row = f"p{len(self.log)}"
                self.log.append(Version((*self.log[-1].rows, row), self.log[-1].mark))
                self.acknowledged.append(row)
            case "begin_read":
                self.hot = self.buffer.snapshot()
                self.expected = tuple(self.acknowledged)
                self.flushed_to_then = self.flushed_to


def rows_of(batch):
    return batch.column("row").to_pylist()


def all_hot(hot):
    return [row for part in hot.parts for row in rows_of(part.batch)]


def newest_without_what_arrived(world):
    """The real pairing."""
    newest = world.log[-1]
    parts = parts_not_in(world.hot, {SOURCE: newest.mark})
    return [*newest.rows, *(row for part in parts for row in rows_of(part.batch))]


def latest_version(world):
    return [*world.log[-1].rows, *all_hot(world.hot)]


def version_of_the_tier(world):
    return [*world.log[world.flushed_to_then].rows, *all_hot(world.hot)]


def newest_with_the_tiers_mark(world):
    fitting = [version for version in world.log if version.mark == world.hot.mark]
    return [*fitting[-1].rows, *all_hot(world.hot)]


def harm(world, pairing):
    """Return what is wrong with a reading that ends now, or nothing."""
    read = Counter(pairing(world))
    if any(count > 1 for count in read.values()):
        return "read twice"
    if set(world.expected) - set(read):
        return "lost"
    return ""


def played(history):
    world = World()
    for step in history:
        world.take(step)
    return world


def readings(length_max):
    """Yield every history up to a length that ends where its reading ends."""
    waiting = [()]
    while waiting:
        history = waiting.pop()
        world = played(history)
        for step in STEPS:
            if world.may(step):
                if step == "end_read":
                    yield history, world
                elif len(history) < length_max - 1:
                    waiting.append((*history, step))


def test_F08_every_row_is_read_once_in_every_short_history():
    count = 0
    for history, world in readings(LENGTH_MAX):
        count += 1
        assert harm(world, newest_without_what_arrived) == "", history
    assert count >= HISTORIES_MIN


@pytest.mark.parametrize(
    ("pairing", "history", "expected"),
    [
        (latest_version, "write begin_read freeze commit", "read twice"),
        (version_of_the_tier, "pipeline begin_read", "lost"),
        (newest_with_the_tiers_mark, "write freeze commit pipeline begin_read", "lost"),
    ],
)
def test_simpler_pairings_break_on_their_shortest_history(pairing, history, expected):
    steps = tuple(history.split())
    world = played(steps)
    assert harm(world, pairing) == expected
    assert harm(world, newest_without_what_arrived) == ""
    shortest = min(len(found) for found, then in readings(len(steps) + 1) if harm(then, pairing))
    assert shortest == len(steps)


def test_reading_the_version_before_the_hot_rows_loses_what_a_flush_moved_meanwhile():
    world = played(("write",))
    version = world.log[-1]
    for step in ("freeze", "commit", "retire", "begin_read"):
        world.take(step)
    read = [*version.rows, *all_hot(world.hot)]
    assert set(world.expected) - set(read) == {"w1"}
    assert harm(world, newest_without_what_arrived) == ""
