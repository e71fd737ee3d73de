"""Erasure of a subject: hot rows, cold rows, old versions, logs, rollups, entities; with a proof.

In:   a subject: a column and a value; or the key of an entity
Out:  a certificate: what was rewritten and removed, and what a search of every file found after

    flush    what is hot becomes cold, and the journal's files go
    delete   one commit a table hides the rows
    rewrite  segments that have them in their files are written anew without them
    forget   older versions expire and their files go at once; the log's words are taken out
    search   every file is opened and looked through: what is found is in the certificate

- Only files of versions go at once, never those of a writer under way. Readers that have pinned an
  old version keep it until they end: the certificate says so, and running it again finishes.
- Every step may be repeated: after a crash, run it again.
- Rollups that have the column are erased like any table. Those that do not are computed anew from
  what is left, by their own job, which sees that their source changed.
- Rows of the subject that are written while it runs may stay: it is true of what was there before.
"""

import getpass
import time as clock
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from thermocline.errors import NotFound, Unavailable
from thermocline.format.action import ENTITIES
from thermocline.format.instant import TimeNs, written
from thermocline.format.state import TableState
from thermocline.lake.forget import Forgotten, forget
from thermocline.lake.keyed import keyed_batches
from thermocline.lake.stage import new_id
from thermocline.lake.supersede import KEY_COLUMN
from thermocline.lake.table import Table
from thermocline.pipeline.certificate import Certificate, TableErased
from thermocline.pipeline.choose import Limits
from thermocline.pipeline.compact import Kernel, compact
from thermocline.pipeline.job import Tell, silent
from thermocline.pipeline.quarantine import SUFFIX
from thermocline.pipeline.remains import Found, Searched, columns_of, in_segment, in_table, remains
from thermocline.pipeline.site import Site
from thermocline.pipeline.subject import Subject, text_columns

if TYPE_CHECKING:
    from thermocline.entity.table import EntityTable

OPERATION = "erase"
ROLLUP = "rollup"
ROUNDS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Erasure:
    """How to erase: where segments are written anew, who asks for it, who is told."""

    kernel: Kernel
    by: str = field(default_factory=getpass.getuser)
    tell: Tell = silent
    limits: Limits = field(default_factory=Limits)


def erase(site: Site, subject: Subject, how: Erasure) -> Certificate:
    """Erase a subject from every table of a tenant; return what was done and what is left.

    When this returns, all that the certificate says is durable. It is complete when nothing was
    found afterwards; otherwise it says where, and running it again goes on from there.
    """
    names = site.tables()
    started = _now()
    keyed = [name for name in names if site.holds_entities(name)]
    plain = [name for name in names if name not in keyed]
    if plain:
        site.flush(plain)
    done: list[TableErased] = []
    for place, name in enumerate(names):
        how.tell("erasing", place, len(names))
        erased = (_of_entities if name in keyed else _of_rows)(site, name, subject, how)
        if erased is not None:
            done.append(erased)
    how.tell("searching", len(names), len(names))
    searched = remains(site, subject)
    traces = [found for name in keyed if (found := _traces(site, name, subject)) is not None]
    return Certificate(
        new_id(),
        subject.digest,
        subject.column,
        how.by,
        started,
        _now(),
        done,
        _recomputed(site, subject, {one.table for one in done}),
        Searched(searched.files, searched.size_bytes, (*searched.found, *traces)),
    )


def _now() -> str:
    return written(TimeNs(clock.time_ns()))


def is_quarantine(name: str) -> bool:
    """Tell whether a table keeps rows that were set aside, as texts."""
    return name.endswith(SUFFIX)


def _of_rows(site: Site, name: str, subject: Subject, how: Erasure) -> TableErased | None:
    table = site.table(name)
    state = table.state()
    columns = columns_of(state, subject.column)
    is_aside = is_quarantine(name)
    found = [one for one in in_table(name, table, subject) if is_aside or not one.is_mention]
    if not found:
        return None
    versions: list[int] = []
    rows = 0
    if is_aside:
        texts = text_columns(state.schema.arrow, subject.column)
        after, rows = table.delete(subject.mentions, texts)
        versions.append(after.version)
    for column in [] if is_aside else columns:
        named = Subject(column, subject.value)
        after, more = table.delete(named.row_test, [column])
        rows += more
        versions.append(after.version)
    segments, rewritten = _purged(name, table, subject, how, is_aside=is_aside)
    forgotten = forget(table, subject.words, subject.numbers)
    return _told(table, [*versions, *rewritten], rows, segments, forgotten, name)


def _purged(
    name: str, table: Table, subject: Subject, how: Erasure, *, is_aside: bool = False
) -> tuple[int, list[int]]:
    """Write the segments anew whose files have rows of the subject; return how many, and where."""
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
                for one in in_segment(name, table, state, segment.path, subject)
            )
        ]
        if not wanted:
            return segments, versions
        done = compact(table, wanted, how.kernel, how.limits, how.tell, OPERATION)
        if done.version is not None:
            versions.append(done.version)
            segments += done.numbers["segments_before"]
    raise Unavailable(
        "segments came back faster than they were written anew",
        hint="run it again while less is deleted",
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


def _of_entities(site: Site, name: str, subject: Subject, how: Erasure) -> TableErased | None:
    """Delete the entities through their store, export that, and take the traces out of both."""
    from thermocline.hot.postgres.purge import purge

    table = site.table(name)
    if subject.column not in (KEY_COLUMN, *table.state().schema.by_name):
        return None
    entity = _entity(site, name)
    keys = _keys(entity, table, subject)
    rows = 0
    for key in keys:
        with suppress(NotFound):
            entity.delete(key)
            rows += 1
    entity.export()
    subjects = [subject, *(Subject(KEY_COLUMN, key) for key in keys)]
    found = [one for s in subjects for one in in_table(name, table, s) if not one.is_mention]
    if not keys and not found:
        return None
    versions: list[int] = []
    segments = 0
    for one in subjects:
        more, rewritten = _purged(name, table, one, how)
        segments += more
        versions += rewritten
    forgotten = forget(table, [word for one in subjects for word in one.words], subject.numbers)
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
            "the PostgreSQL of these entities is not known here",
            hint="name it as the node does; without it they would come back",
            table=name,
        )
    return types.table(name)


def _traces(site: Site, name: str, subject: Subject) -> Found | None:
    """Return what PostgreSQL has of an entity's key."""
    from thermocline.hot.postgres.purge import traces

    if subject.column != KEY_COLUMN:
        return None
    rows = traces(_entity(site, name).store, [str(subject.value)])
    return Found(name, "postgres", "rows that name the key", rows) if rows else None


def _recomputed(site: Site, subject: Subject, erased: set[str]) -> list[str]:
    """Return the rollups of erased tables that do not have the subject's column themselves."""
    made = []
    for name in site.tables():
        state: TableState = site.table(name).state()
        declared = state.spec.extra.get(ROLLUP)
        if not isinstance(declared, dict) or ENTITIES in state.spec.features:
            continue
        if declared.get("source") in erased and not columns_of(state, subject.column):
            made.append(name)
    return made
