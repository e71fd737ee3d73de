"""A piece of work on a table that is under way: what it reads is kept, and what it leaves is found.

In:   a version that is read to write segments anew, and the mark of what is written
Out:  `_pins/<mark>....json`: a reader's pin that also says who works, on what share of the whole

- The pin keeps the inputs from being vacuumed while they are read.
- A worker that died cannot clean up. Whoever comes next finds its pin, removes the files of its
  mark, and takes a smaller share: what was too much once would be too much again.
- Somebody counts as dead when its process is not there, on this machine, or when its lease has
  ended. Nobody commits after the end of its own lease, so no file of a commit is ever swept.
"""

import os
import socket
import time as clock
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from thermocline.errors import Conflict, Corruption, NotFound, OutcomeUnknown, ThermoclineError
from thermocline.format import layout
from thermocline.format.action import AddSegment, SetDeletes
from thermocline.format.instant import NS_PER_S
from thermocline.format.layout import Version
from thermocline.lake.pin import put_pin, read_pin
from thermocline.lake.shipped import new_mark, sweep
from thermocline.lake.stage import new_id
from thermocline.lake.storage import Stored
from thermocline.lake.table import Table

WORK_LEASE_S = 6 * 3_600
SHARE_MAX = 64


@dataclass(frozen=True, slots=True)
class Work:
    """Work under way. `share` is into how many parts the usual amount of it was divided."""

    mark: str
    share: int
    deadline_s: float

    def check_lease(self) -> None:
        """Raise `Conflict` when the work has taken so long that others may have swept it."""
        if clock.monotonic() > self.deadline_s:
            raise Conflict(
                "the work took longer than its lease", hint="do less at once", lease_s=WORK_LEASE_S
            )


@contextmanager
def working(table: Table, version: Version, job: str, share: int = 1) -> Iterator[Work]:
    """Keep a version while the block works on it, under a mark of its own.

    When the block fails, the files that bear its mark and are in no version are removed.
    """
    # Half an hour of the lease is left for a commit that is under way when it is looked at.
    deadline_s = clock.monotonic() + WORK_LEASE_S - 1_800
    mark = new_mark()
    path = layout.pin_path(new_id(mark))
    until = table.log.now() + WORK_LEASE_S * NS_PER_S
    body = {"job": job, "mark": mark, "share": share}
    whose = {"host": socket.gethostname(), "pid": os.getpid()}
    put_pin(table.storage, path, version, until, **body, **whose)
    try:
        if version < table.log.head().oldest:
            table.log.state(version)  # raises, and says that it has expired
        yield Work(mark, share, deadline_s)
    except OutcomeUnknown:
        raise  # the log may yet name what was written
    except BaseException:
        # Crash here: whoever comes next does the same, by the pin that is left.
        with suppress(ThermoclineError):
            sweep(table, mark, _committed_since(table, version))
        raise
    finally:
        with suppress(ThermoclineError):
            table.storage.delete(path)


def swept(table: Table, job: str) -> int:
    """Remove what works of this kind left that died; return the share that the next should take.

    That is 1 when none died, and twice the share of the one that had the largest.
    """
    share = 1
    for stored in table.storage.list(layout.PINS_FOLDER):
        found = _dead(table, stored, job)
        if found is None:
            continue
        mark, theirs, version = found
        sweep(table, mark, _committed_since(table, version))
        table.storage.delete(stored.path)
        share = max(share, min(theirs * 2, SHARE_MAX))
    return share


def _dead(table: Table, stored: Stored, job: str) -> tuple[str, int, int] | None:
    """Return mark, share and version of a work that died; None for what is no such work."""
    try:
        pin = read_pin(table.storage, stored.path)
        if pin.get("job") != job:
            return None
        mark, share, until = str(pin["mark"]), int(pin["share"]), int(pin["until_ns"])
        host, pid, version = str(pin["host"]), int(pin["pid"]), int(pin["version"])
    except (NotFound, Corruption, ValueError, TypeError, KeyError):
        return None
    is_over = table.log.now() > until
    is_here = host == socket.gethostname()
    if is_over or (is_here and not _is_running(pid)):
        return mark, share, version
    return None


def _committed_since(table: Table, version: int) -> set[str]:
    """Return the paths that versions after this one have brought in, live now or not any more."""
    named: set[str] = set()
    for later in range(version + 1, table.log.head().version + 1):
        for action in table.log.commit(later).actions:
            if isinstance(action, AddSegment | SetDeletes):
                named |= {action.segment.path, action.segment.coverage_path}
    return named


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
