"""The lease of a worker that rewrites segments: it pins the inputs and tags the output files.

In:   a version whose segments are rewritten
Out:  `_pins/<tag>....json`: a reader's pin that also names the worker's process, the tag of its
      files, and its share of the usual amount of work

- The pin keeps the inputs from being vacuumed while they are read.
- A dead worker cannot clean up. The next worker finds its pin, removes the files with its tag, and
  takes a smaller share, because the same amount of work could kill it too.
- A worker is dead if its process is gone (same host) or its lease expired. A worker never commits
  after its lease expires, so cleanup cannot remove committed files.
"""

import os
import socket
import time as clock
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from thermocline.cold.care.pin import put_pin, read_pin
from thermocline.cold.change.commit_staged import new_tag, sweep_staged
from thermocline.cold.segment.stage import new_id
from thermocline.cold.storage.storage import StoredFile
from thermocline.cold.table import ColdTable
from thermocline.errors import Conflict, Corruption, NotFound, OutcomeUnknown, ThermoclineError
from thermocline.format import layout
from thermocline.format.instant import NS_PER_S
from thermocline.format.layout import Version
from thermocline.format.log.action import AddSegment, SetDeletes

WORK_LEASE_S = 6 * 3_600
SHARE_MAX = 64


@dataclass(frozen=True, slots=True)
class WorkLease:
    """A running piece of work. `share` is n for 1/n of the usual amount of work."""

    tag: str
    share: int
    deadline_s: float

    def check_lease(self) -> None:
        """Raise `Conflict` when the lease has expired: other workers may then remove the files."""
        if clock.monotonic() > self.deadline_s:
            raise Conflict(
                "the work took longer than its lease",
                hint="do less work at once",
                lease_s=WORK_LEASE_S,
            )


@contextmanager
def lease_work(table: ColdTable, version: Version, job: str, share: int = 1) -> Iterator[WorkLease]:
    """Pin a version while the block works on it, and give the work a new tag.

    If the block fails, the files with its tag that no version names are removed.
    """
    # The deadline leaves half an hour of the lease for a commit that is running when it is checked.
    deadline_s = clock.monotonic() + WORK_LEASE_S - 1_800
    tag = new_tag()
    path = layout.pin_path(new_id(tag))
    until = table.log.now() + WORK_LEASE_S * NS_PER_S
    body = {"job": job, "mark": tag, "share": share}
    whose = {"host": socket.gethostname(), "pid": os.getpid()}
    put_pin(table.storage, path, version, until, **body, **whose)
    try:
        if version < table.log.head().oldest:
            table.log.state(version)  # raises: the version has expired
        yield WorkLease(tag, share, deadline_s)
    except OutcomeUnknown:
        raise  # the log may yet name what was written
    except BaseException:
        # Crash here: the next worker finds the pin and removes the files.
        with suppress(ThermoclineError):
            sweep_staged(table, tag, _list_committed_since(table, version))
        raise
    finally:
        with suppress(ThermoclineError):
            table.storage.delete(path)


def sweep_dead_work(table: ColdTable, job: str) -> int:
    """Remove the files of dead workers of this job; return the share for the next worker.

    The share is 1 when no worker died, otherwise twice the largest share of a dead worker.
    """
    share = 1
    for stored in table.storage.list(layout.PINS_FOLDER):
        found = _read_dead_work(table, stored, job)
        if found is None:
            continue
        tag, theirs, version = found
        sweep_staged(table, tag, _list_committed_since(table, version))
        table.storage.delete(stored.path)
        share = max(share, min(theirs * 2, SHARE_MAX))
    return share


def _read_dead_work(table: ColdTable, stored: StoredFile, job: str) -> tuple[str, int, int] | None:
    """Return tag, share and version of a dead worker of this job; None for any other pin."""
    try:
        pin = read_pin(table.storage, stored.path)
        if pin.get("job") != job:
            return None
        tag, share, until = str(pin["mark"]), int(pin["share"]), int(pin["until_ns"])
        host, pid, version = str(pin["host"]), int(pin["pid"]), int(pin["version"])
    except (NotFound, Corruption, ValueError, TypeError, KeyError):
        return None
    is_over = table.log.now() > until
    is_here = host == socket.gethostname()
    if is_over or (is_here and not _is_running(pid)):
        return tag, share, version
    return None


def _list_committed_since(table: ColdTable, version: int) -> set[str]:
    """Return the paths that later versions have added, whether they are still live or not."""
    named: set[str] = set()
    for later in range(version + 1, table.log.head().version + 1):
        for action in table.log.commit(later).actions:
            if isinstance(action, AddSegment | SetDeletes):
                named |= {*action.segment.paths}
    return named


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
