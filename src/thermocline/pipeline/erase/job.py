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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from thermocline.cold.care.expunge import Forgotten, forget
from thermocline.cold.change.export_plan import KEY_COLUMN
from thermocline.cold.entity_view import keyed_batches
from thermocline.cold.segment.stage import new_id
from thermocline.cold.table import Table
from thermocline.errors import NotFound, Unavailable
from thermocline.format import layout
from thermocline.format.instant import TimeNs, written
from thermocline.format.log.action import ENTITIES
from thermocline.format.log.state import TableState
from thermocline.pipeline.backfill.quarantine import SUFFIX
from thermocline.pipeline.compact.job import Kernel, compact
from thermocline.pipeline.compact.plan import Limits
from thermocline.pipeline.erase.certificate import Certificate, Other, TableErased
from thermocline.pipeline.erase.search import (
    Found,
    Searched,
    check_known,
    columns_of,
    in_segment,
    in_table,
    remains,
)
from thermocline.pipeline.erase.subject import Subject, distinct, text_columns
from thermocline.pipeline.run.job import Tell, silent
from thermocline.pipeline.run.workspace import Site

if TYPE_CHECKING:
    from thermocline.entity.table import EntityTable

OPERATION = "erase"
ROLLUP = "rollup"
ROUNDS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Erasure:
    """How to erase: what rewrites the segments, who requests it, what receives the progress."""

    kernel: Kernel
    by: str = field(default_factory=getpass.getuser)
    tell: Tell = silent
    limits: Limits = field(default_factory=Limits)


def erase(site: Site, subject: Subject | Sequence[Subject], how: Erasure) -> Certificate:
    """Erase a subject from every table of a tenant; return what was done and what is left.

    Several subjects are one person whom several columns identify: the rows of each are erased.
    When this returns, everything in the certificate is durable. It is complete if the search found
    nothing; otherwise it lists what was found, and a second run continues. `NotFound` if no table
    has a subject's column.
    """
    subjects = distinct([subject] if isinstance(subject, Subject) else subject)
    check_known(site, subjects)
    names = site.tables()
    started = _now()
    keyed = [name for name in names if site.holds_entities(name)]
    plain = [name for name in names if name not in keyed]
    if plain:
        site.flush(plain)
    done: list[TableErased] = []
    for place, name in enumerate(names):
        how.tell("erasing", place, len(names))
        erased = (_of_entities if name in keyed else _of_rows)(site, name, subjects, how)
        if erased is not None:
            done.append(erased)
    how.tell("searching", len(names), len(names))
    searched = remains(site, *subjects)
    left = [found for name in keyed for one in subjects for found in _traces(site, name, one)]
    left += [found for one in done for found in _unexpired(site, one)]
    first, *others = subjects
    return Certificate(
        new_id(),
        first.digest,
        first.column,
        how.by,
        started,
        _now(),
        done,
        _recomputed(site, subjects, {one.table for one in done}),
        Searched(searched.files, searched.size_bytes, (*searched.found, *left)),
        [Other(one.column, one.digest) for one in others],
    )


def _now() -> str:
    return written(TimeNs(clock.time_ns()))


def is_quarantine(name: str) -> bool:
    """Tell whether a table is a quarantine, which stores bad rows as texts."""
    return name.endswith(SUFFIX)


def _of_rows(
    site: Site, name: str, subjects: Sequence[Subject], how: Erasure
) -> TableErased | None:
    table = site.table(name)
    is_aside = is_quarantine(name)
    everything = [found for one in subjects for found in in_table(name, table, one)]
    if not any(is_aside or not found.is_mention for found in everything):
        return None
    versions: list[int] = []
    rows = segments = 0
    for subject in subjects:
        state = table.state()
        if is_aside:
            texts = text_columns(state.schema.arrow, subject.column)
            after, more = table.delete(subject.mentions, texts)
            rows += more
            versions += [after.version] if more else []
        for column in [] if is_aside else columns_of(state, subject.column):
            named = Subject(column, subject.value)
            after, more = table.delete(named.row_test, [column])
            rows += more
            versions += [after.version] if more else []
    for subject in subjects:
        anew, rewritten = _purged(name, table, subject, how, is_aside=is_aside)
        segments += anew
        versions += rewritten
    forgotten = _forgotten(table, subjects)
    return _told(table, versions, rows, segments, forgotten, name)


def _forgotten(table: Table, subjects: Sequence[Subject]) -> Forgotten:
    words = [word for one in subjects for word in one.words]
    return forget(table, words, [number for one in subjects for number in one.numbers])


def _unexpired(site: Site, erased: TableErased) -> Iterator[Found]:
    """Yield a table if readers can still open its older versions; this reads its log again."""
    oldest = Table(site.table(erased.table).storage).state().oldest
    left = max(erased.versions) - oldest
    if left > 0:
        yield Found(erased.table, layout.LOG_FOLDER, "older versions have not expired", left)


def _purged(
    name: str, table: Table, subject: Subject, how: Erasure, *, is_aside: bool = False
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
                for one in in_segment(name, table, state, segment.path, subject, segment)
            )
        ]
        if not wanted:
            return segments, versions
        done = compact(table, wanted, how.kernel, how.limits, how.tell, OPERATION)
        if done.version is not None:
            versions.append(done.version)
            segments += done.numbers["segments_before"]
    raise Unavailable(
        "other writers added segments with these rows faster than they were rewritten",
        hint="run it again while fewer rows are written and deleted",
        table=name,
    )


def _told(
    table: Table,
    versions: Sequence[int],
    rows: int,
    segments: int,
    forgotten: Forgotten,
    name: str,
    keys: int = 0,
) -> TableErased:
    contents = [str(table.log.commit(version).metrics.get("content", "")) for version in versions]
    return TableErased(
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


def _of_entities(
    site: Site, name: str, given: Sequence[Subject], how: Erasure
) -> TableErased | None:
    """Delete the entities in their store, export that, and remove their traces from both tiers."""
    from thermocline.hot.postgres.export.purge import purge

    table = site.table(name)
    columns = (KEY_COLUMN, *table.state().schema.by_name)
    given = [one for one in given if one.column in columns]
    if not given:
        return None
    entity = _entity(site, name)
    keys = sorted({key for one in given for key in _keys(entity, table, one)})
    rows = 0
    for key in keys:
        with suppress(NotFound):
            entity.delete(key)
            rows += 1
    entity.export()
    subjects = [*given, *(Subject(KEY_COLUMN, key) for key in keys)]
    found = [one for s in subjects for one in in_table(name, table, s) if not one.is_mention]
    if not keys and not found:
        return None
    versions: list[int] = []
    segments = 0
    for one in subjects:
        more, rewritten = _purged(name, table, one, how)
        segments += more
        versions += rewritten
    forgotten = _forgotten(table, subjects)
    entity.recover()
    if keys:
        purge(entity.store, keys)
    return _told(table, versions, rows, segments, forgotten, name, len(keys))


def _keys(entity: "EntityTable", table: Table, subject: Subject) -> list[str]:
    """Return the keys of the subject's entities, hot and cold."""
    if subject.column == KEY_COLUMN:
        return [str(subject.value)]
    found: set[str] = set()
    for batch in keyed_batches(table.storage, entity.view(), [KEY_COLUMN, subject.column]):
        hit = subject.matches(batch.column(1))
        found |= {*batch.column(0).filter(hit).to_pylist()}
    return sorted(found)


def _entity(site: Site, name: str) -> "EntityTable":
    types = site.entities()
    if types is None:
        raise Unavailable(
            "the PostgreSQL server of these entities is not configured",
            hint="set `postgres` as for the node; otherwise an export would restore the entities",
            table=name,
        )
    return types.table(name)


def _traces(site: Site, name: str, subject: Subject) -> Iterator[Found]:
    """Yield the rows in PostgreSQL that contain an entity's key."""
    from thermocline.hot.postgres.export.purge import traces

    if subject.column == KEY_COLUMN:
        rows = traces(_entity(site, name).store, [str(subject.value)])
        if rows:
            yield Found(name, "postgres", "rows that contain the key", rows)


def _recomputed(site: Site, subjects: Sequence[Subject], erased: set[str]) -> list[str]:
    """Return the rollups of erased tables that lack a subject's column."""
    made = []
    for name in site.tables():
        state: TableState = site.table(name).state()
        declared = state.spec.extra.get(ROLLUP)
        if not isinstance(declared, dict) or ENTITIES in state.spec.features:
            continue
        has_all = all(columns_of(state, one.column) for one in subjects)
        if declared.get("source") in erased and not has_all:
            made.append(name)
    return made
