"""fsck: checks, file by file, that a table is what its log says.

In:   a table
Out:  findings, each with a kind, a path and what is wrong; no finding means that all is proven

    log       commits are dense, each has its checksum and follows from the one before; no CURRENT,
              checkpoint or coverage of a version proves that there were more
    current   CURRENT is of this log
    state     every checkpoint equals the replayed log
    segment   every live file exists, with its size, checksum, rows and times
    coverage  every sidecar has its checksum and equals a recount from its Parquet file; so does
              the newest version's shortcut, if readers would use it
    tokens    every token sidecar has its checksum and holds every token of its segment's live rows
    orphan    files that no version names; harmless, and vacuum removes them

- fsck changes nothing and reports every finding. If the log itself is damaged, it stops there: only
  the log says which files should exist.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from thermocline.cold.log.checkpoint import encode_checkpoint, read_checkpoint
from thermocline.cold.log.commit_log import check_current
from thermocline.cold.segment.parquet import measure_segment
from thermocline.cold.segment.token_filter import count_missing_tokens
from thermocline.cold.table import ColdTable
from thermocline.errors import NotFound, ThermoclineError
from thermocline.format import layout
from thermocline.format.coverage import (
    Buckets,
    Coverage,
    decode_coverage,
    encode_coverage,
    sidecar_checksum,
    unite_buckets,
)
from thermocline.format.layout import Version
from thermocline.format.log.action import Segment
from thermocline.format.log.commit import Commit
from thermocline.format.log.state import TableState, fold


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem; `is_harmless` if it only costs space."""

    kind: str
    path: str
    what: str
    is_harmless: bool = False


@dataclass(frozen=True, slots=True)
class FsckReport:
    """What was checked and what was found."""

    version: int
    commits: int
    segments: int
    rows: int
    size_bytes: int
    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        """Whether the table is proven: it has no findings but harmless ones."""
        return all(finding.is_harmless for finding in self.findings)


def fsck(
    table: ColdTable, progress: Callable[[int, int], None] = lambda done, total: None
) -> FsckReport:
    """Check every file of a table and return what is wrong; nothing is changed."""
    findings: list[Finding] = []
    names = [item.path.rsplit("/", 1)[-1] for item in table.storage.list(layout.LOG_FOLDER)]
    base, state, commits = _replay_log(table, names, findings)
    if state is None:
        return FsckReport(0, len(commits), 0, 0, 0, tuple(findings))
    findings += _check_end(table, state.version)
    findings += _check_current(table, commits, state)
    findings += _check_checkpoints(table, names, commits, base)
    segments = list(state.segments)
    recounts: list[Coverage] = []
    for done, segment in enumerate(segments, start=1):
        findings += _check_segment(table, state, segment, recounts)
        progress(done, len(segments))
    if len(recounts) == len(segments):
        findings += _check_shortcut(table, state, recounts)
    findings += _find_orphans(table, commits, base)
    totals = state.totals
    return FsckReport(
        state.version, len(commits), len(segments), totals.rows, totals.size_bytes, tuple(findings)
    )


def _replay_log(
    table: ColdTable, names: list[str], findings: list[Finding]
) -> tuple[TableState | None, TableState | None, list[Commit]]:
    """Return the base of a truncated log, the newest state, and the commits from the base on."""
    base: TableState | None = None
    first = Version(1)
    try:
        first = table.log.first_version()
        base = table.log.check_base()
    except ThermoclineError as error:
        findings.append(Finding("log", layout.base_path(first), str(error)))
    newest = max((v for name in names if (v := layout.commit_version(name))), default=Version(0))
    commits: list[Commit] = []
    for version in range(first, newest + 1):
        try:
            commits.append(table.log.commit(version))
        except NotFound:
            what = str(table.log.find_missing(version, newest))
            findings.append(Finding("log", layout.commit_path(version), what))
        except ThermoclineError as error:
            findings.append(Finding("log", layout.commit_path(version), str(error)))
    if not newest:
        findings.append(Finding("log", layout.commit_path(1), "there is no commit"))
    if findings:
        return base, None, commits
    try:
        return base, fold(base, commits if base is None else commits[1:]), commits
    except ThermoclineError as error:
        findings.append(Finding("log", layout.LOG_FOLDER, str(error)))
        return base, None, commits


def _check_end(table: ColdTable, newest: int) -> Iterator[Finding]:
    ahead = {path: v for path, v in table.log.evidence().items() if v > newest}
    if not ahead or table.storage.size(layout.commit_path(newest + 1)) is not None:
        return  # no evidence, or a writer committed meanwhile
    proofs = ", ".join(f"{path} is of version {version}" for path, version in ahead.items())
    what = f"is missing: {proofs}; `thermocline table repair` says what is lost"
    yield Finding("log", layout.commit_path(newest + 1), what)


def _check_current(table: ColdTable, commits: list[Commit], state: TableState) -> Iterator[Finding]:
    try:
        current = table.log.read_current()
    except ThermoclineError as error:
        yield Finding("current", layout.CURRENT_PATH, str(error))
        return
    if current is None:
        what = "missing or garbage; the next writer writes it again"
        yield Finding("current", layout.CURRENT_PATH, what, is_harmless=True)
    elif (named := _commit_of(commits, current.version)) is not None:
        try:
            then = replace(state, txn_id=named.txn_id)
            check_current(current, then)
        except ThermoclineError as error:
            yield Finding("log", layout.commit_path(current.version), str(error))


def _commit_of(commits: list[Commit], version: int) -> Commit | None:
    """Return the commit of a version, from commits that follow each other."""
    place = version - commits[0].version if commits else -1
    return commits[place] if 0 <= place < len(commits) else None


def _check_checkpoints(
    table: ColdTable, names: list[str], commits: list[Commit], base: TableState | None
) -> Iterator[Finding]:
    versions = sorted(v for name in names if (v := layout.checkpoint_version(name)) is not None)
    replayed, first = base, commits[0].version
    for version in versions:
        path = layout.checkpoint_path(version)
        if version < first:
            yield Finding("state", path, "is older than the log; remove it", is_harmless=True)
            continue
        if version > commits[-1].version:
            yield Finding("state", path, "is of a version that does not exist")
            continue
        done = replayed.version - first + 1 if replayed else 0
        rest = commits[done : version - first + 1]
        replayed = fold(replayed, rest) if rest or replayed is None else replayed
        live = tuple(replayed.segments)
        stored = read_checkpoint(table.storage, version, lambda live=live: live)  # type: ignore[misc]
        if stored is None:
            what = "torn or damaged; the log is used instead"
            yield Finding("state", path, what, is_harmless=True)
        elif encode_checkpoint(stored) != encode_checkpoint(_as_older_release(replayed, stored)):
            yield Finding("state", path, "contradicts the log")


def _as_older_release(replayed: TableState, stored: TableState) -> TableState:
    """Return the replayed state as an older release wrote it, where it wrote the checkpoint."""
    return replayed if stored.txn_id else replace(replayed, txn_id="")


def _check_segment(
    table: ColdTable, state: TableState, segment: Segment, recounts: list[Coverage]
) -> Iterator[Finding]:
    try:
        table.storage.check(segment.path, segment.file_size, segment.checksum, fresh=True)
        measured = measure_segment(table.storage, state, segment)
    except ThermoclineError as error:
        yield Finding("segment", segment.path, str(error))
        return
    # The log has the bounds of all rows as written, so they may be wider than those of live rows.
    times = (measured.ts_min or segment.ts_min, measured.ts_max or segment.ts_max)
    if not segment.deletes and times != (segment.ts_min, segment.ts_max):
        yield Finding("segment", segment.path, "has other times than the log says")
    recounts.append(measured.coverage)
    yield from _check_coverage(table, segment, measured.coverage)
    if segment.tokens_path:
        yield from _check_tokens(table, state, segment)


def _check_shortcut(
    table: ColdTable, state: TableState, recounts: list[Coverage]
) -> Iterator[Finding]:
    path = layout.table_coverage_path(state.version)
    try:
        shortcut = decode_coverage(table.storage.read(path))
    except ThermoclineError:
        return  # the shortcut is optional
    if shortcut.digest != state.totals.digest:
        return  # readers ignore it
    whole = unite_buckets(recount.whole for recount in recounts)
    entities: dict[str, list[Buckets]] = {}
    for recount in recounts:
        for key, buckets in recount.entities.items():
            entities.setdefault(key, []).append(buckets)
    counted = {key: unite_buckets(parts) for key, parts in entities.items()}
    if shortcut.whole != whole or dict(shortcut.entities) != counted:
        yield Finding("coverage", path, "is not what the segments hold; remove it")


def _check_coverage(table: ColdTable, segment: Segment, recount: Coverage) -> Iterator[Finding]:
    path = segment.coverage_path
    try:
        data = table.storage.read(path)
        stored = decode_coverage(data)
    except ThermoclineError as error:
        yield Finding("coverage", path, str(error))
        return
    if sidecar_checksum(data) != segment.coverage_checksum:
        yield Finding("coverage", path, "has another checksum than the log says")
    elif encode_coverage(stored) != encode_coverage(recount):
        extra, lacking = stored.subtract(recount), recount.subtract(stored)
        what = f"{len(extra.whole)} buckets too many, {len(lacking.whole)} too few"
        yield Finding("coverage", path, what)


def _check_tokens(table: ColdTable, state: TableState, segment: Segment) -> Iterator[Finding]:
    try:
        missing = count_missing_tokens(table.storage, state, segment)
    except ThermoclineError as error:
        yield Finding("tokens", segment.tokens_path, str(error))
        return
    if missing:
        what = f"lacks {missing} tokens that the segment holds"
        yield Finding("tokens", segment.tokens_path, what)


def _find_orphans(
    table: ColdTable, commits: list[Commit], base: TableState | None
) -> Iterator[Finding]:
    kept = () if base is None else base.segments
    named = {path for segment in kept for path in segment.paths}
    named |= {
        path
        for commit in commits
        for action in commit.actions
        if (segment := getattr(action, "segment", None)) is not None
        for path in segment.paths
    }
    for folder in layout.SEGMENT_FOLDERS:
        for item in table.storage.list(folder):
            if item.path not in named:
                yield Finding("orphan", item.path, "no version names it", is_harmless=True)
