"""The tables of a node as Iceberg tables: published on demand into their folders, and kept.

In:   a tenant's lake and the name of a table
Out:  its publication, and the address under which the node serves its files

- The address has no host and no port, so the metadata stays right when these change.
- A bounded number of publications is kept in memory; another one resumes from its files.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from thermocline.iceberg.publication import Publication, PublishedTable
from thermocline.lake import Lake
from thermocline.lake_table import LakeTable
from thermocline.server.iceberg.credentials import CREDENTIALS_S, table_digest

BUCKET = "thermocline"
FOLDER = "_iceberg"
PIN = "iceberg-node"
KEPT_MAX = 256


@dataclass(frozen=True, slots=True)
class ServedTable:
    """A table that the node serves as an Iceberg table."""

    table: LakeTable
    digest: str
    publication: Publication

    def publish(self) -> PublishedTable:
        """Publish the newest version, and keep its files while credentials for them last."""
        return self.publication.publish(2 * CREDENTIALS_S)


class ServedTables:
    """The tables that were asked for. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, ServedTable] = OrderedDict()

    def find(self, lake: Lake, name: str) -> ServedTable:
        """Return a table of a lake; `NotFound` when there is none of this name."""
        table = lake.table(name)
        digest = table_digest(lake.tenant, table.name, table.spec().table_id)
        with self._lock:
            found = self._kept.get(digest)
            if found is None or found.table is not table:
                base = f"s3://{BUCKET}/{lake.tenant}/{table.name}"
                found = ServedTable(table, digest, Publication(table.cold, FOLDER, base, pin=PIN))
            self._kept[digest] = found
            self._kept.move_to_end(digest)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
            return found
