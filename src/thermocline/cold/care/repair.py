"""Repairs a log that has lost commits: reports what is lost, and continues without it.

In:   a table that does not open, because commits are missing, damaged or replaced
Out:  a `LogLoss`: the newest intact version, what is lost, and which rows may still be on the disk

- Restoring the missing files from a copy is always better, and needs no repair.
- `survey` changes nothing. `repair` is for a person who accepts the loss.
- A log is intact up to its first commit that is missing or damaged. Commits after a gap cannot be
  read without it, so a repair goes back to before the gap.
- A table that opens needs no repair, even if a commit is missing: a checkpoint contains its effect.
- Nothing is discarded: commits and checkpoints after the intact part are first copied to
  `_repair/<id>/`. Segments that no version names stay until a vacuum removes them.
- After an interrupted repair the table still does not open; run the repair again.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from thermocline.cold.log.commit_log import check_current
from thermocline.cold.segment.stage import new_id
from thermocline.cold.table import ColdTable
from thermocline.errors import Conflict, Corruption, NotFound, ThermoclineError
from thermocline.format import layout
from thermocline.format.layout import Version
from thermocline.format.log.action import Action, Mark, SetMark
from thermocline.format.log.commit import Commit
from thermocline.format.log.commit_note import NoteHole
from thermocline.format.log.current import Current
from thermocline.format.log.state import TableState, fold


@dataclass(frozen=True, slots=True)
class StraySegment:
    """A segment file that no intact version names; fields are None if its footer is unreadable."""

    path: str
    size_bytes: int
    rows: int | None
    first: str | None
    last: str | None


@dataclass(frozen=True, slots=True)
class LogLoss:
    """What a repair would lose; nothing if `is_needed` is False.

    `kept_after_gap` are intact commits after the first lost one: they are lost with it. `sources`
    are the hot sources that lose flushed rows, with the mark they had reached.
    """

    intact: int
    lost_first: int
    lost_last: int
    reasons: tuple[str, ...]
    kept_after_gap: tuple[int, ...]
    segments: tuple[StraySegment, ...]
    sources: Mapping[str, int]

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to repair."""
        return bool(self.reasons)


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was accepted as lost, the version that records it, and the folder of the old files."""

    loss: LogLoss
    version: int
    aside: str


def survey(table: ColdTable, retired: Mapping[str, Mark] = MappingProxyType({})) -> LogLoss:
    """Return what is lost; nothing is changed.

    `retired` are the marks up to which hot sources have flushed rows to this table.
    """
    commits, state, trouble = _read_intact(table)
    return _describe_loss(table, commits, state, trouble, retired)


def repair(
    table: ColdTable, retired: Mapping[str, Mark] = MappingProxyType({})
) -> RepairReport | None:
    """Accept the loss and make the table open again; None when nothing needs repair.

    When this returns, a commit called `repair` follows the newest intact version.
    `Corruption` when not even the first version is intact.
    """
    commits, state, trouble = _read_intact(table)
    loss = _describe_loss(table, commits, state, trouble, retired)
    if not loss.is_needed:
        return None
    if state is None:
        raise Corruption(
            "no version of the table is intact",
            hint="restore the table's `_log` folder from a copy",
            path=layout.commit_path(1),
        )
    aside = f"{layout.REPAIR_FOLDER}/{new_id()}"
    doomed = [path for path, version in _list_later_files(table, state.version)]
    for path in (*doomed, layout.CURRENT_PATH):
        if table.storage.size(path) is not None:
            name = path.rsplit("/", 1)[-1]
            if not path.startswith(layout.TABLE_COVERAGE_FOLDER):
                table.storage.put(f"{aside}/{name}", table.storage.read(path))
    # Order matters: until the repair has its commit, CURRENT proves that the table needs it.
    table.log.advance_current(Current(Version(max(loss.lost_last, state.version + 1)), "", ""))
    for path in doomed:
        table.storage.delete(path)
    actions: list[Action] = []
    for source, mark in loss.sources.items():
        first = state.marks.get(source, Mark(0)) + 1
        actions += [SetMark(source, Mark(mark)), NoteHole(source, first, mark, None, None)]
    metrics: dict[str, Any] = {"lost_first": loss.lost_first, "lost_last": loss.lost_last}
    commit = Commit(
        Version(state.version + 1),
        state.version,
        new_id(),
        table.log.now(),
        "repair",
        tuple(actions),
        {**metrics, "aside": aside},
        state.txn_id,
    )
    after = table.log.commit_repair(state, commit)
    if after is None:
        raise Conflict(
            "another process wrote to the table during the repair",
            hint="stop every process that writes to the table, then run the repair again",
            path=layout.commit_path(commit.version),
        )
    return RepairReport(loss, after.version, aside)


def _read_intact(table: ColdTable) -> tuple[list[Commit], TableState | None, str]:
    """Return the commits before the first one that is missing or damaged, and what is wrong."""
    with suppress(Corruption):
        head = table.log.head()
        known = range(table.log.first_version(), head.version + 1)
        return [table.log.commit(v) for v in known if _is_whole(table, v)], head, ""
    newest = max(table.log.versions(), default=Version(0))
    commits: list[Commit] = []
    first, state, trouble = table.log.first_version(), None, ""
    try:
        state = table.log.base()
    except Corruption as error:
        trouble = f"{layout.base_path(first)}: {error.message}"
    if trouble:
        return [], None, trouble
    for version in range(first, newest + 1):
        try:
            commit = table.log.commit(version)
            state = fold(state, [commit]) if state is None or version > state.version else state
        except NotFound:
            return commits, state, f"{layout.commit_path(version)} is missing"
        except Corruption as error:
            return commits, state, f"{layout.commit_path(version)}: {error.message}"
        commits.append(commit)
    return _check_against_current(table, commits, state)


def _check_against_current(
    table: ColdTable, commits: list[Commit], state: TableState | None
) -> tuple[list[Commit], TableState | None, str]:
    """Return the commits that agree with CURRENT; keep a commit that names its predecessor."""
    current = table.log.read_current()
    first = commits[0].version if commits else Version(1)
    if state is None or current is None or not first <= current.version <= commits[-1].version:
        return commits, state, ""
    named = commits[current.version - first]
    try:
        check_current(current, replace(state, txn_id=named.txn_id))
    except Corruption as error:
        trouble = f"{layout.CURRENT_PATH}: {error.message}"
        if named.previous or current.version == first:
            return commits, state, trouble
        kept, base = commits[: current.version - first], table.log.base()
        return kept, fold(base, kept if base is None else kept[1:]), trouble
    return commits, state, ""


def _describe_loss(
    table: ColdTable,
    commits: list[Commit],
    state: TableState | None,
    trouble: str,
    retired: Mapping[str, Mark],
) -> LogLoss:
    intact = int(state.version) if state else 0
    reasons = [trouble] if trouble else []
    current = table.log.read_current()
    is_foreign = bool(
        state and current and current.table_id and current.table_id != state.spec.table_id
    )
    known = dict(table.log.evidence())
    if is_foreign:
        known.pop(layout.CURRENT_PATH, None)
        reasons.append(f"{layout.CURRENT_PATH} is of another table")
    later = [version for version in table.log.versions() if version > intact]
    ahead = {path: version for path, version in known.items() if version > intact}
    reasons += [f"{path} is of version {version}" for path, version in sorted(ahead.items())]
    marks: Mapping[str, Mark] = state.marks if state else {}
    sources = {name: int(m) for name, m in retired.items() if m > marks.get(name, Mark(0))}
    reasons += [
        f"hot source {name} has flushed its writes up to {mark}, the log has them up to "
        f"{marks.get(name, 0)}"
        for name, mark in sources.items()
    ]
    last = max([intact, *later, *ahead.values()])
    segments = tuple(_find_strays(table, commits, state)) if reasons else ()
    first = intact + 1 if last > intact else 0
    whole = tuple(version for version in later if _is_whole(table, version))
    return LogLoss(intact, first, last if first else 0, tuple(reasons), whole, segments, sources)


def _is_whole(table: ColdTable, version: int) -> bool:
    try:
        table.log.commit(version)
    except (NotFound, Corruption):
        return False
    return True


def _list_later_files(table: ColdTable, newest: int) -> list[tuple[str, Version]]:
    """Return the files of later versions: proofs first, then commits, the newest first."""
    evidence = {path: v for path, v in table.log.evidence().items() if v > newest}
    evidence.pop(layout.CURRENT_PATH, None)
    commits = [(layout.commit_path(v), v) for v in table.log.versions() if v > newest]
    return [*evidence.items(), *reversed(commits)]


def _find_strays(
    table: ColdTable, commits: list[Commit], state: TableState | None
) -> Iterator[StraySegment]:
    named = {
        segment.path
        for commit in commits
        for action in commit.actions
        if (segment := getattr(action, "segment", None)) is not None
    }
    for stored in table.storage.list(layout.DATA_FOLDER):
        name = stored.path.rsplit("/", 1)[-1]
        if stored.path in named or layout.is_temporary(name):
            continue
        rows, first, last = _read_footer(
            table, stored.path, state.spec.time_column if state else None
        )
        yield StraySegment(stored.path, stored.size_bytes, rows, first, last)


def _read_footer(
    table: ColdTable, path: str, time_column: str | None
) -> tuple[int | None, str | None, str | None]:
    """Return the number of rows and the first and last time that a segment's footer has."""
    try:
        with table.storage.open_input(path) as source:
            footer = pq.read_metadata(source)
    except (pa.ArrowException, OSError, ThermoclineError):
        return None, None, None
    times: list[Any] = []
    for group in range(footer.num_row_groups):
        for place in range(footer.num_columns):
            column = footer.row_group(group).column(place)
            found = column.statistics if column.path_in_schema == time_column else None
            if found is not None and found.has_min_max:
                times += [found.min, found.max]
    if not times:
        return footer.num_rows, None, None
    return footer.num_rows, str(min(times)), str(max(times))
