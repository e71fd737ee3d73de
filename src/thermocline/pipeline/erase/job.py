"""Erases a subject: hot rows, cold rows, old versions, logs, rollups, entities; with a certificate.

In:   a subject: a column and a value, or several, or the key of an entity
Out:  a certificate: what was rewritten and removed, and what a search of every file found after

    flush    hot rows become cold, and the journal's files are removed, the open one as well
    delete   one commit for each table hides the rows
    rewrite  segments with these rows in their files are rewritten without them
    forget   older versions expire and their files are removed at once; the log is redacted
    search   every file is opened and searched: the certificate lists what is found

- Only files of expired versions are removed at once, never the files of a running writer. A reader
  that has pinned an old version keeps it until the reader ends. The certificate says so; a second
  run finishes the erasure.
- Every step may be repeated: after a crash, run it again.
- Rollups that have the column are erased like any table. The job `rollup` recomputes the others
  from the remaining rows, because it detects that their source changed.
- Rows of the subject that are written during the erasure may stay: the certificate covers what was
  there when it started.
"""

import getpass
import time as clock
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from thermocline.cold.care.expunge import ExpungeReport, expunge
from thermocline.cold.change.export_plan import KEY_COLUMN
from thermocline.cold.compact.plan import CompactionLimits
from thermocline.cold.compact.rewrite import MergeKernel, compact
from thermocline.cold.entity_view import read_entity_rows
from thermocline.cold.segment.stage import new_id
from thermocline.cold.table import ColdTable
from thermocline.errors import NotFound, Unavailable
from thermocline.format import layout
from thermocline.format.instant import TimeNs, format_instant
from thermocline.format.log.action import ENTITIES_FEATURE
from thermocline.format.log.state import TableState
from thermocline.pipeline.backfill.quarantine import QUARANTINE_SUFFIX
from thermocline.pipeline.erase.certificate import ErasureCertificate, OtherSubject, TableErasure
from thermocline.pipeline.erase.search import (
    SubjectTrace,
    TraceSearch,
    check_columns_exist,
    current_columns,
    search_remains,
    search_segment,
    search_table,
)
from thermocline.pipeline.erase.subject import Subject, distinct_subjects, text_columns
from thermocline.pipeline.run.job import TaskProgress, ignore_progress
from thermocline.pipeline.run.workspace import JobWorkspace

if TYPE_CHECKING:
    from thermocline.entity.table import EntityTable

OPERATION = "erase"
ROLLUP = "rollup"
ROUNDS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Erasure:
    """How to erase: what rewrites the segments, who requests it, what receives the progress."""

    kernel: MergeKernel
    by: str = field(default_factory=getpass.getuser)
    progress: TaskProgress = ignore_progress
    limits: CompactionLimits = field(default_factory=CompactionLimits)


def erase(
    site: JobWorkspace, subject: Subject | Sequence[Subject], how: Erasure
) -> ErasureCertificate:
    """Erase a subject from every table of a tenant; return what was done and what is left.

    Several subjects are one person whom several columns identify: the rows of each are erased.
    When this returns, everything in the certificate is durable. It is complete if the search found
    nothing; otherwise it lists what was found, and a second run continues. `NotFound` if no table
    has a subject's column.
    """
    subjects = distinct_subjects([subject] if isinstance(subject, Subject) else subject)
    check_columns_exist(site, subjects)
    names = site.tables()
    started = _utc_text()
    keyed = [name for name in names if site.holds_entities(name)]
    plain = [name for name in names if name not in keyed]
    if plain:
        site.flush(plain)
    done: list[TableErasure] = []
    for place, name in enumerate(names):
        how.progress("erasing", place, len(names))
        erased = (_erase_entities if name in keyed else _erase_rows)(site, name, subjects, how)
        if erased is not None:
            done.append(erased)
    how.progress("searching", len(names), len(names))
    searched = search_remains(site, *subjects)
    left = [
        found
        for name in keyed
        for one in subjects
        for found in _find_postgres_traces(site, name, one)
    ]
    left += [found for one in done for found in _find_unexpired(site, one)]
    first, *others = subjects
    return ErasureCertificate(
        new_id(),
        first.digest,
        first.column,
        how.by,
        started,
        _utc_text(),
        done,
        _rollups_to_recompute(site, subjects, {one.table for one in done}),
        TraceSearch(searched.files, searched.size_bytes, (*searched.found, *left)),
        [OtherSubject(one.column, one.digest) for one in others],
    )


def _utc_text() -> str:
    return format_instant(TimeNs(clock.time_ns()))


def is_quarantine(name: str) -> bool:
    """Tell whether a table is a quarantine, which stores bad rows as texts."""
    return name.endswith(QUARANTINE_SUFFIX)


def _erase_rows(
    site: JobWorkspace, name: str, subjects: Sequence[Subject], how: Erasure
) -> TableErasure | None:
    table = site.table(name)
    is_aside = is_quarantine(name)
    everything = [found for one in subjects for found in search_table(name, table, one)]
    if not any(is_aside or not found.is_mention for found in everything):
        return None
    versions: list[int] = []
    rows = segments = 0
    for subject in subjects:
        state = table.state()
        if is_aside:
            texts = text_columns(state.schema.arrow, subject.column)
            after, more = table.delete(subject.match_mentions, texts)
            rows += more
            versions += [after.version] if more else []
        for column in [] if is_aside else current_columns(state, subject.column):
            named = Subject(column, subject.value)
            after, more = table.delete(named.match_rows, [column])
            rows += more
            versions += [after.version] if more else []
    for subject in subjects:
        rewritten_count, rewritten = _purge_segments(name, table, subject, how, is_aside=is_aside)
        segments += rewritten_count
        versions += rewritten
    forgotten = _forget_history(table, subjects)
    return _make_table_erasure(table, versions, rows, segments, forgotten, name)


def _forget_history(table: ColdTable, subjects: Sequence[Subject]) -> ExpungeReport:
    words = [word for one in subjects for word in one.words]
    return expunge(table, words, [number for one in subjects for number in one.numbers])


def _find_unexpired(site: JobWorkspace, erased: TableErasure) -> Iterator[SubjectTrace]:
    """Yield a table if readers can still open its older versions; this reads its log again."""
    oldest = ColdTable(site.table(erased.table).storage).state().oldest
    left = max(erased.versions) - oldest
    if left > 0:
        yield SubjectTrace(erased.table, layout.LOG_FOLDER, "older versions have not expired", left)


def _purge_segments(
    name: str, table: ColdTable, subject: Subject, how: Erasure, *, is_aside: bool = False
) -> tuple[int, list[int]]:
    """Rewrite the segments whose files contain rows of the subject; return number and versions."""
    versions: list[int] = []
    segments = 0
    for _ in range(ROUNDS_MAX):
        state = table.state()
        wanted = [
            segment.segment_id
            for segment in state.segments
            if segment.deleted_count
            and any(
                is_aside or not one.is_mention
                for one in search_segment(name, table, state, segment.path, subject, segment)
            )
        ]
        if not wanted:
            return segments, versions
        done = compact(table, wanted, how.kernel, how.limits, how.progress, OPERATION)
        if done.version is not None:
            versions.append(done.version)
            segments += done.numbers["segments_before"]
    raise Unavailable(
        "other writers added segments with these rows faster than they were rewritten",
        hint="run it again while fewer rows are written and deleted",
        table=name,
    )


def _make_table_erasure(
    table: ColdTable,
    versions: Sequence[int],
    rows: int,
    segments: int,
    forgotten: ExpungeReport,
    name: str,
    keys: int = 0,
) -> TableErasure:
    contents = [str(table.log.commit(version).metrics.get("content", "")) for version in versions]
    return TableErasure(
        name,
        tuple(dict.fromkeys([*versions, int(forgotten.oldest)])),
        rows,
        segments,
        tuple(content for content in contents if content),
        forgotten.files,
        forgotten.size_bytes,
        forgotten.commits,
        forgotten.checkpoints,
        tuple(int(version) for version in forgotten.pinned),
        keys,
    )


def _erase_entities(
    site: JobWorkspace, name: str, given: Sequence[Subject], how: Erasure
) -> TableErasure | None:
    """Delete the entities in their store, export that, and remove their traces from both tiers."""
    from thermocline.hot.postgres.export.purge import purge
    from thermocline.hot.postgres.revision.revisions import purge_value

    table = site.table(name)
    columns = (KEY_COLUMN, *table.state().schema.by_name)
    given = [one for one in given if one.column in columns]
    if not given:
        return None
    entity = _entity_table(site, name)
    keys = sorted({key for one in given for key in _find_entity_keys(entity, table, one)})
    rows = 0
    for key in keys:
        with suppress(NotFound):
            entity.delete(key)
            rows += 1
    entity.export()
    subjects = [*given, *(Subject(KEY_COLUMN, key) for key in keys)]
    found = [one for s in subjects for one in search_table(name, table, s) if not one.is_mention]
    # Earlier versions of entities that do not have the value any more, or that were deleted.
    revisions = sum(
        purge_value(entity.store, one.column, one.value)
        for one in given
        if one.column != KEY_COLUMN
    )
    if not keys and not found and not revisions:
        return None
    versions: list[int] = []
    segments = 0
    for one in subjects:
        more, rewritten = _purge_segments(name, table, one, how)
        segments += more
        versions += rewritten
    forgotten = _forget_history(table, subjects)
    entity.recover()
    if keys:
        revisions += purge(entity.store, keys).revisions
    made = _make_table_erasure(table, versions, rows, segments, forgotten, name, len(keys))
    return replace(made, revisions=revisions)


def _find_entity_keys(entity: "EntityTable", table: ColdTable, subject: Subject) -> list[str]:
    """Return the keys of the subject's entities, hot and cold."""
    if subject.column == KEY_COLUMN:
        return [str(subject.value)]
    found: set[str] = set()
    for batch in read_entity_rows(table.storage, entity.view(), [KEY_COLUMN, subject.column]):
        hit = subject.match_values(batch.column(1))
        found |= {*batch.column(0).filter(hit).to_pylist()}
    return sorted(found)


def _entity_table(site: JobWorkspace, name: str) -> "EntityTable":
    types = site.entities()
    if types is None:
        raise Unavailable(
            "the PostgreSQL server of these entities is not configured",
            hint="set `postgres` as for the node; otherwise an export would restore the entities",
            table=name,
        )
    return types.table(name)


def _find_postgres_traces(
    site: JobWorkspace, name: str, subject: Subject
) -> Iterator[SubjectTrace]:
    """Yield the rows in PostgreSQL that contain an entity's key."""
    from thermocline.hot.postgres.export.purge import count_traces

    if subject.column == KEY_COLUMN:
        rows = count_traces(_entity_table(site, name).store, [str(subject.value)])
        if rows:
            yield SubjectTrace(name, "postgres", "rows that contain the key", rows)


def _rollups_to_recompute(
    site: JobWorkspace, subjects: Sequence[Subject], erased: set[str]
) -> list[str]:
    """Return the rollups of erased tables that lack a subject's column."""
    made = []
    for name in site.tables():
        state: TableState = site.table(name).state()
        declared = state.spec.extra.get(ROLLUP)
        if not isinstance(declared, dict) or ENTITIES_FEATURE in state.spec.features:
            continue
        has_all = all(current_columns(state, one.column) for one in subjects)
        if declared.get("source") in erased and not has_all:
            made.append(name)
    return made
