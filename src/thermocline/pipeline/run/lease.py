"""One job a table at a time: a job takes a lease by creating a file; the lease expires.

    <lake>/leases/<table>/<epoch>.json    the holder, and when the lease expires
    <lake>/leases/<table>/<epoch>.beat    when it expires now; the holder renews it
    <lake>/leases/<table>/<epoch>.end     the holder has released it

In:   a lake, a table's name, the holder's name
Out:  a `Lease` with a unique epoch, or `TableBusy`

- Of several processes, one creates the file of the next epoch and holds the lease. If the holder
  dies, the lease ends after `term_s`, and another process can take the next epoch.
- Each file has a checksum. One that is damaged counts as ended: a lease saves work and no more.
- A lease that ends later than `AHEAD_S_MAX` from now counts as ended, too: its holder's clock was
  wrong, and a holder that died would keep the table for years.
- A holder looks before every commit whether a later epoch exists, and commits nothing if one does.
- The lease saves work; it is not what makes commits right. A holder may be stopped between its
  look and its commit, and clocks of machines differ. That is harmless, because every job's commit
  is right whichever process makes it. The log accepts a rewrite only while the segments it
  replaces are live, a batch only while its number is new, an export only on the version it was
  made against, and a refill only while the windows it read are unchanged.
"""

import threading
import time as clock
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from thermocline.cold.storage.storage import Storage
from thermocline.errors import Conflict, Corruption, NotFound, ThermoclineError
from thermocline.format.instant import NS_PER_S
from thermocline.format.sealed_json import seal, unseal

FOLDER = "leases"
TERM_S = 60.0
AHEAD_S_MAX = 24 * 3_600
BEATS_PER_TERM = 4
EPOCHS_KEPT = 16
_UNSEALED = frozenset({"holder", "job", "until_ns"})
_UNSEALED_BEAT = frozenset({"until_ns"})


class TableBusy(Conflict):
    """Another job has the table's lease now; try again later."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A lease as it is stored; if its holder died, `until_ns` is in the past."""

    epoch: int
    holder: str
    job: str
    until_ns: int
    is_ended: bool


class Lease:
    """The right to work on a table, until the block ends."""

    def __init__(
        self,
        storage: Storage,
        table: str,
        *,
        job: str,
        holder: str,
        term_s: float = TERM_S,
        now_ns: Callable[[], int] = clock.time_ns,
    ) -> None:
        self._storage = storage
        self._folder = f"{FOLDER}/{table.lower()}"
        self._table = table
        self._job = job
        self._holder = holder
        self._term_s = term_s
        self._now_ns = now_ns
        self._released = threading.Event()
        self._renewer: threading.Thread | None = None
        self.epoch = 0

    def __enter__(self) -> "Lease":
        """Take the lease; `TableBusy` if another job has it."""
        found = newest_lease(self._storage, self._table)
        if found is not None and not found.is_ended:
            left_ns = found.until_ns - self._now_ns()
            if 0 < left_ns <= max(AHEAD_S_MAX, self._term_s) * NS_PER_S:
                raise self._busy_error(found)
        self.epoch = 1 if found is None else found.epoch + 1
        taken = {"holder": self._holder, "job": self._job, "until_ns": self._until_ns()}
        if not self._storage.put_new(self._path("json"), seal(taken)):
            raise self._busy_error(newest_lease(self._storage, self._table))
        # A slow process may have counted from an epoch whose successors were already removed.
        self.check()
        self._remove_old_epochs()
        self._renewer = threading.Thread(target=self._renew, name="thermocline-lease", daemon=True)
        self._renewer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lease."""
        self._released.set()
        if self._renewer is not None:
            self._renewer.join()
        with suppress(ThermoclineError):  # otherwise the lease expires
            self._storage.put_new(self._path("end"), b"{}")

    def check(self) -> None:
        """Raise `Conflict` if another job has taken the lease since."""
        newest = newest_lease(self._storage, self._table)
        if newest is not None and newest.epoch > self.epoch:
            raise Conflict(
                "the lease of this table was lost while the job ran; it commits nothing",
                hint="run it again; if the machine stalled, give it more memory and CPU",
                table=self._table,
                epoch=self.epoch,
                newest=newest.epoch,
                holder=newest.holder,
            )

    def _renew(self) -> None:
        while not self._released.wait(self._term_s / BEATS_PER_TERM):
            with suppress(ThermoclineError):  # the next beat tries again
                self._storage.put_hint(self._path("beat"), seal({"until_ns": self._until_ns()}))

    def _until_ns(self) -> int:
        return self._now_ns() + int(self._term_s * NS_PER_S)

    def _path(self, kind: str) -> str:
        return f"{self._folder}/{self.epoch:020d}.{kind}"

    def _remove_old_epochs(self) -> None:
        """Remove the files of old epochs."""
        for stored in list(self._storage.list(self._folder)):
            if _epoch(stored.path) <= self.epoch - EPOCHS_KEPT:
                with suppress(ThermoclineError):
                    self._storage.delete(stored.path)

    def _busy_error(self, found: LeaseState | None) -> TableBusy:
        facts: dict[str, Any] = {} if found is None else {"holder": found.holder, "job": found.job}
        hint = "wait until it ends"
        return TableBusy("another job has this table", hint=hint, table=self._table, **facts)


def newest_lease(storage: Storage, table: str) -> LeaseState | None:
    """Return the newest lease of a table, held, expired or released; None if there was none."""
    folder = f"{FOLDER}/{table.lower()}"
    paths = {stored.path.rpartition("/")[2] for stored in storage.list(folder)}
    epoch = max((_epoch(name) for name in paths if name.endswith(".json")), default=0)
    if not epoch:
        return None
    taken = _read(storage, f"{folder}/{epoch:020d}.json", _UNSEALED)
    beat = _read(storage, f"{folder}/{epoch:020d}.beat", _UNSEALED_BEAT)
    return LeaseState(
        epoch,
        str(taken.get("holder", "")),
        str(taken.get("job", "")),
        max(int(one.get("until_ns", 0)) for one in (taken, beat)),
        f"{epoch:020d}.end" in paths,
    )


def _epoch(path: str) -> int:
    digits = path.rpartition("/")[2].partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def _read(storage: Storage, path: str, unsealed_fields: frozenset[str]) -> dict[str, Any]:
    """Return the fields of a lease's file; nothing when it is damaged or gone."""
    try:
        return unseal(storage.read(path), path, unsealed_fields=unsealed_fields)
    except (NotFound, Corruption):
        return {}  # a hint may be lost, and what is removed is of the past
