"""Truncation of the log: removes commits, checkpoints and bases that no kept version needs.

In:   a table whose older versions have expired
Out:  a base of the oldest version that is needed, and the number of files removed before it

- Kept are all versions from `oldest` on, and those that a reader or a worker has pinned.
- Order matters: the base is durable, and was read back from the file and compared with the replayed
  state, before the first commit goes. The expiry was committed before that.
- A crash leaves commits before the base; no reader uses them, and the next truncation removes them.
- The log of an entity table is kept: its exports are followed commit by commit from PostgreSQL.
"""

from dataclasses import dataclass

from thermocline.cold.care.pin import list_pinned_versions
from thermocline.cold.table import ColdTable
from thermocline.format import layout
from thermocline.format.layout import Version
from thermocline.format.log.action import ENTITIES_FEATURE

COMMITS_MIN = 100
"""How many commits must be removable before a new base is worth writing."""


@dataclass(frozen=True, slots=True)
class TruncationReport:
    """The first version whose commit is kept, and the number of files removed."""

    first: Version
    files: int = 0


def truncate_log(table: ColdTable, *, commits_min: int = COMMITS_MIN) -> TruncationReport:
    """Remove the files of the log that no kept version needs.

    Expire versions first, with a vacuum. When this returns, the log begins at `first`: earlier
    versions are `NotFound`, and the history shows later commits only.
    """
    head = table.log.head()
    base = table.log.first_version()
    if ENTITIES_FEATURE in head.spec.features:
        return TruncationReport(base)
    # Order matters: pins are read after the expiry was committed, as vacuum does.
    wanted = Version(min([head.oldest, *list_pinned_versions(table)]))
    if wanted - base >= max(commits_min, 1):
        table.log.write_base(wanted)
        base = wanted
    return TruncationReport(base, _remove_before(table, base))


def _remove_before(table: ColdTable, base: Version) -> int:
    """Remove commits, checkpoints and bases of versions before a base that is durable."""
    if base <= 1:
        return 0
    doomed = []
    for stored in table.storage.list(layout.LOG_FOLDER):
        name = stored.path.rpartition("/")[2]
        for parse in (layout.commit_version, layout.checkpoint_version, layout.base_version):
            version = parse(name)
            if version is not None and version < base:
                doomed.append((version, stored.path))
    for _, path in sorted(doomed):
        table.storage.delete(path)
    return len(doomed)
