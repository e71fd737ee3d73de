"""Pins: a reader's lease on a version, which vacuum respects across processes.

In:   a version that is being read
Out:  `_pins/<id>.json` with the version and the time the lease ends

- A pin is a hint with an end: a reader that died holds its version no longer than the lease.
- A pin has a checksum. One that is damaged keeps every version while it is young.
- Where no pin can be written (a read-only file system), reading goes on; the grace period of
  vacuum is then what protects it.
- Order matters: the log is read after the pin is written, and vacuum reads the pins after its
  commit landed. One of the two sees the other, so a version is kept or refused, never half gone.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from thermocline.cold.segment.stage import new_id
from thermocline.cold.storage.storage import Storage
from thermocline.cold.table import ColdTable
from thermocline.errors import Corruption, NotFound, ThermoclineError
from thermocline.format import layout
from thermocline.format.instant import NS_PER_S
from thermocline.format.layout import Version
from thermocline.format.sealed_json import seal, unseal

LEASE_S = 24 * 3_600
_UNSEALED = frozenset({"version", "until_ns"})
_UNSEALED_OF_WORK = _UNSEALED | {"job", "mark", "share", "host", "pid"}


def put_pin(storage: Storage, path: str, version: int, until_ns: int, **work: Any) -> None:
    """Write a pin; `work` are the fields of a work that goes on under it."""
    storage.put_hint(path, seal({"version": version, "until_ns": until_ns, **work}))


def read_pin(storage: Storage, path: str) -> dict[str, Any]:
    """Return the fields of a pin; `Corruption` when it is damaged, `NotFound` when it is gone."""
    data = storage.read(path)
    # Older releases wrote pins without a checksum, of readers and of works.
    unsealed = _UNSEALED_OF_WORK if b'"job"' in data else _UNSEALED
    return unseal(data, path, unsealed_fields=unsealed)


class Pin:
    """A version that is kept from being vacuumed until it is released, or its lease ends.

    `NotFound` when the version has expired meanwhile. Any thread may release it, more than once.
    """

    def __init__(self, table: ColdTable, version: Version, lease_s: int = LEASE_S) -> None:
        self._storage = table.storage
        self._path = layout.pin_path(new_id())
        until = table.log.now() + lease_s * NS_PER_S
        with suppress(ThermoclineError):
            put_pin(table.storage, self._path, version, until)
        try:
            if version < table.log.head().oldest:
                table.log.state(version)  # raises: the version has expired
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Remove the pin."""
        with suppress(ThermoclineError):
            self._storage.delete(self._path)


@contextmanager
def pin_version(table: ColdTable, version: Version, lease_s: int = LEASE_S) -> Iterator[Version]:
    """Keep the files of a version from being vacuumed while the block runs, as `Pin` does."""
    pin = Pin(table, version, lease_s)
    try:
        yield version
    finally:
        pin.release()


def list_pinned_versions(table: ColdTable) -> set[Version]:
    """Return the versions with a running lease; remove leases that have ended."""
    now, found = table.log.now(), set()
    for stored in table.storage.list(layout.PINS_FOLDER):
        try:
            pin = read_pin(table.storage, stored.path)
            version, until = int(pin["version"]), int(pin["until_ns"])
        except NotFound:
            continue
        except (Corruption, ValueError, TypeError, KeyError):
            # Could not find out which version is meant: as long as the file is young, keep all.
            version, until = 1, stored.modified_ns + LEASE_S * NS_PER_S
        if until > now:
            found.add(Version(version))
        else:
            table.storage.delete(stored.path)
    return found
