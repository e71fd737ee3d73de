"""Holds a version's files while a Spark job may read them.

In:   a version, and for how long it may be read
Out:  a pin in the table's folder

- Spark plans a read in a process that ends before the read begins, and tells nobody when a frame
  is needed no more. So a pin is not let go of: it ends by itself, at the end of its lease.
- The leases of reads of one version within one hour are one file, however many there are.
- The lease is counted by the clock of the machine that plans, never by a worker's.
"""

from contextlib import suppress

from thermocline.errors import ThermoclineError
from thermocline.format import layout
from thermocline.format.instant import NS_PER_S
from thermocline.format.layout import Version
from thermocline.lake.pin import put_pin
from thermocline.lake.table import Table

HOUR_S = 3_600


def hold(table: Table, version: Version, lease_s: int) -> None:
    """Keep the files of a version until the lease ends; `NotFound` when it has expired already."""
    now_s = table.log.now() // NS_PER_S
    hour = -(-(now_s + lease_s) // HOUR_S)
    path = layout.pin_path(f"spark-{version}-{hour}")
    with suppress(ThermoclineError):  # where nothing can be written, vacuum's grace protects
        put_pin(table.storage, path, version, hour * HOUR_S * NS_PER_S)
    # Order matters: a vacuum that did not see the pin has let the version expire by now.
    if version < table.log.head().oldest:
        table.log.state(version)  # raises, and says that it has expired
