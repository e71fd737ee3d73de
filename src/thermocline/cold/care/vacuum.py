"""Vacuum: removes files that no kept version and no pinned version names.

In:   how long versions are kept
Out:  the files removed, or, by default, those that would be removed

- A file is removed only if no kept version names it (the newest, those within the grace period,
  those under a reader's pin) and it is older than the grace period: files of a writer that has not
  committed yet stay.
- Order matters: old versions are expired by a commit before the first file is removed, so that a
  reader of an old version gets an error, never part of the version. The log and the pins are read
  again after that commit: what was restored or pinned before it stays.
- Running it again after a crash finishes the work.
"""

from collections.abc import Callable
from dataclasses import dataclass

from thermocline.cold.care.pin import list_pinned_versions
from thermocline.cold.log.transaction import CommitPlan, transact
from thermocline.cold.storage.storage import StoredFile
from thermocline.cold.table import ColdTable
from thermocline.errors import Invalid
from thermocline.format import layout
from thermocline.format.instant import NS_PER_S
from thermocline.format.layout import Version
from thermocline.format.log.action import Expire
from thermocline.format.log.state import TableState

GRACE_S_DEFAULT = 7 * 86_400
GRACE_S_MIN = 3_600


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """What a vacuum removed, or would remove."""

    is_dry_run: bool
    oldest: Version
    files: tuple[str, ...]
    size_bytes: int


def vacuum(
    table: ColdTable,
    *,
    grace_s: int = GRACE_S_DEFAULT,
    dry_run: bool = True,
    allow_short_grace: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> VacuumReport:
    """Remove the files that are no longer needed; by default only return which they are.

    `Invalid` for a grace period under an hour, unless it is allowed: a shorter one may remove files
    of running writers and readers.
    """
    check_grace(grace_s, allow_short_grace=allow_short_grace)
    # Order matters: files are listed before the log is read, so that the log names a file that is
    # committed meanwhile, and it does not look like an orphan.
    stored = _list_files(table)
    head = table.log.head()
    cut_off = table.log.now() - grace_s * NS_PER_S
    oldest = _oldest_kept(table, head, cut_off)
    needed = _list_named_paths(table, head, oldest)
    doomed = [item for item in stored if _is_doomed(item, needed, cut_off, oldest)]
    if not dry_run and doomed:
        newest = expire_versions(table, oldest, "vacuum")
        needed = _list_named_paths(table, newest, max(oldest, newest.oldest))
        doomed = [item for item in doomed if item.path not in needed]
        for done, item in enumerate(doomed, start=1):
            table.storage.delete(item.path)
            progress(done, len(doomed))
    size_bytes = sum(item.size_bytes for item in doomed)
    return VacuumReport(dry_run, oldest, tuple(sorted(item.path for item in doomed)), size_bytes)


def check_grace(grace_s: int, *, allow_short_grace: bool) -> None:
    """Raise `Invalid` for a grace period under an hour, unless it is allowed."""
    if grace_s < GRACE_S_MIN and not allow_short_grace:
        raise Invalid(
            "the grace period is too short to be safe",
            hint="use at least 1h; if no writer or reader is running, pass allow_short_grace=True "
            "(--allow-short-grace)",
            grace_s=grace_s,
            grace_s_min=GRACE_S_MIN,
        )


def _list_files(table: ColdTable) -> list[StoredFile]:
    folders = (
        *layout.SEGMENT_FOLDERS,
        layout.TABLE_COVERAGE_FOLDER,
        layout.LOG_FOLDER,
    )
    return [item for folder in folders for item in table.storage.list(folder)]


def _oldest_kept(table: ColdTable, head: TableState, cut_off: int) -> Version:
    """Return the oldest version to keep: the one that was newest at the cut-off, or pinned."""
    # The last version committed at or before the cut-off was the readable one at the cut-off.
    low = max(int(head.oldest), table.log.newest_by(cut_off))
    pins = [version for version in list_pinned_versions(table) if version >= head.oldest]
    return Version(min([low, *pins]))


def _list_named_paths(table: ColdTable, head: TableState, oldest: Version) -> set[str]:
    """Return every path that a kept version names, or an expired version that is pinned."""
    named: set[str] = set()
    kept = table.log.state(oldest)
    for segment in (*kept.segments, *head.segments):
        named |= {*segment.paths}
    has_late_reader = any(version < oldest for version in list_pinned_versions(table))
    first = oldest + 1
    if has_late_reader:
        first = table.log.first_version()
        for segment in () if (base := table.log.base()) is None else base.segments:
            named |= {*segment.paths}
    for version in range(first, head.version + 1):
        for action in table.log.commit(version).actions:
            segment = getattr(action, "segment", None)
            if segment is not None:
                named |= {*segment.paths}
    return named


def _is_doomed(item: StoredFile, needed: set[str], cut_off: int, oldest: Version) -> bool:
    if item.path in needed or item.modified_ns > cut_off:
        return False
    folder, _, name = item.path.rpartition("/")
    if folder == layout.LOG_FOLDER:
        return layout.is_temporary(name)  # commits are kept: they are the history
    if folder == layout.TABLE_COVERAGE_FOLDER:
        version = layout.table_coverage_version(name)
        return version is None or version < oldest
    return True


def expire_versions(table: ColdTable, oldest: Version, operation: str) -> TableState:
    """Expire the versions before `oldest`; return the state after."""

    def plan(state: TableState) -> CommitPlan | None:
        return None if state.oldest >= oldest else CommitPlan(operation, (Expire(oldest),))

    outcome = transact(table.log, plan)
    if outcome.is_committed:
        table.index.write_shortcut(outcome.state)
    return outcome.state
