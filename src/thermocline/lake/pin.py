"""Pins: a reader's lease on a version, which vacuum respects across processes.

In:   a version that is being read
Out:  `_pins/<id>.json` with the version and the time the lease ends

- A pin is a hint that expires: a dead reader holds its version no longer than the lease.
- If no pin can be written (a read-only file system), the reader goes on, protected only by the
  grace period of vacuum.
- Order matters: a reader reads the log after it wrote the pin, and vacuum reads the pins after its
  commit. At least one sees the other, so a version is kept whole or the reader gets an error.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import orjson

from thermocline.errors import NotFound, ThermoclineError
from thermocline.format import layout
from thermocline.format.instant import NS_PER_S
from thermocline.format.layout import Version
from thermocline.lake.stage import new_id
from thermocline.lake.table import Table

LEASE_S = 24 * 3_600


@contextmanager
def pinned(table: Table, version: Version, lease_s: int = LEASE_S) -> Iterator[Version]:
    """Keep the files of a version from being vacuumed while the block runs.

    `NotFound` when the version has expired meanwhile.
    """
    path = layout.pin_path(new_id())
    until = table.log.now() + lease_s * NS_PER_S
    with suppress(ThermoclineError):
        table.storage.put_hint(path, orjson.dumps({"version": version, "until_ns": until}))
    try:
        if version < table.log.head().oldest:
            table.log.state(version)  # raises: the version has expired
        yield version
    finally:
        with suppress(ThermoclineError):
            table.storage.delete(path)


def pinned_versions(table: Table) -> set[Version]:
    """Return the versions with a running lease; remove leases that have ended."""
    now, found = table.log.now(), set()
    for stored in table.storage.list(layout.PINS_FOLDER):
        try:
            pin = orjson.loads(table.storage.read(stored.path))
            version, until = int(pin["version"]), int(pin["until_ns"])
        except NotFound:
            continue
        except (ValueError, TypeError, KeyError):
            # The pin is unreadable: keep all versions until the file is older than a lease.
            version, until = 1, stored.modified_ns + LEASE_S * NS_PER_S
        if until > now:
            found.add(Version(version))
        else:
            table.storage.delete(stored.path)
    return found
