"""Keeps a version's files while a Spark job may read them.

In:   a version, and how long it may be read
Out:  a pin in the table's folder

- Spark plans a read in a process that ends before the read begins, and does not report when a frame
  is no longer needed. So no process removes the pin: it ends with its lease.
- All reads of one version that end within the same hour share one pin file.
- The clock of the planning machine counts the lease, never a worker's clock.
"""

from contextlib import suppress

from thermocline.cold.care.pin import put_pin
from thermocline.cold.table import ColdTable
from thermocline.errors import ThermoclineError
from thermocline.format import layout
from thermocline.format.instant import NS_PER_S
from thermocline.format.layout import Version

HOUR_S = 3_600


def hold_version(table: ColdTable, version: Version, lease_s: int) -> None:
    """Keep the files of a version until the lease ends; `NotFound` if the version has expired."""
    now_s = table.log.now() // NS_PER_S
    hour = -(-(now_s + lease_s) // HOUR_S)
    path = layout.pin_path(f"spark-{version}-{hour}")
    with suppress(ThermoclineError):  # where nothing can be written, vacuum's grace protects
        put_pin(table.storage, path, version, hour * HOUR_S * NS_PER_S)
    # Order matters: a vacuum that did not see the pin has let the version expire by now.
    if version < table.log.head().oldest:
        table.log.state(version)  # raises `NotFound`: it has expired
