"""Searches every file of a tenant for traces of a subject.

In:   a workspace, subjects
Out:  a `SubjectTrace` for each file or PostgreSQL table that still contains the subject

- The search trusts nothing: it also reads files that no version names, and deleted rows.
- Parquet and the journal's frames are decoded; logs and sidecars are searched as bytes. Files in
  the journal's folder that no reader opens, or that were set aside, are reported unread.
- Every readable version must have its files. If files are missing and the version has not expired,
  a step of the erasure was skipped, and the search reports that.
- A row is found by the subject's column. Texts that only mention the value are counted separately:
  a person decides whether they are about the subject.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from thermocline.cold.catalog import JOURNAL_FOLDER
from thermocline.cold.change.export_plan import KEY_COLUMN
from thermocline.cold.segment.parquet import open_segment
from thermocline.cold.storage.storage import StoredFile
from thermocline.cold.table import ColdTable
from thermocline.disk import Disk, OsDisk, translate_errors
from thermocline.errors import Corruption, NotFound
from thermocline.format import layout
from thermocline.format.coverage import decode_coverage
from thermocline.format.log.action import ENTITIES_FEATURE, AddSegment, Segment, SetDeletes
from thermocline.format.log.commit import decode_commit
from thermocline.format.log.state import TableState
from thermocline.hot.wal.folder import (
    QUARANTINE_NAME,
    TEMPORARY_SUFFIX,
    JournalIdentity,
    file_number,
    read_identity,
)
from thermocline.hot.wal.follower import JournalFollower
from thermocline.pipeline.erase.subject import Subject, is_text
from thermocline.pipeline.run.workspace import JobWorkspace

BATCH_ROWS = 65_536
JOURNAL = "journal"


@dataclass(frozen=True, slots=True)
class SubjectTrace:
    """A file or table with rows of the subject, or with texts that mention its value."""

    table: str
    path: str
    what: str
    rows: int = 0
    is_mention: bool = False


@dataclass(frozen=True, slots=True)
class TraceSearch:
    """How much was searched, and what was found."""

    files: int
    size_bytes: int
    found: tuple[SubjectTrace, ...]


def search_remains(site: JobWorkspace, *subjects: Subject) -> TraceSearch:
    """Search all tables of a tenant, their logs and their journal for subjects."""
    files = size_bytes = 0
    found: list[SubjectTrace] = []
    for name in site.tables():
        table = site.table(name)
        for stored in _list_files(table):
            files += 1
            size_bytes += stored.size_bytes
        for subject in subjects:
            found += search_table(name, table, subject)
        found += _find_missing_files(name, table)
    # A dropped table can be brought back: bring it back to erase it, or purge it.
    for gone in site.catalog.list_dropped():
        table = site.catalog.open_dropped(gone)
        for subject in subjects:
            found += search_table(f"{gone.name} (dropped)", table, subject)
    found += _search_journal(site, subjects)
    return TraceSearch(files, size_bytes, tuple(dict.fromkeys(found)))


def check_columns_exist(site: JobWorkspace, subjects: Sequence[Subject]) -> None:
    """Raise `NotFound` if no table has, or ever had, the column of a subject.

    A misspelled column would be found nowhere, and its certificate would be complete.
    """
    known: set[str] = set()
    for name in site.tables():
        state = site.table(name).state()
        known |= {column.name for schema in state.schemas.values() for column in schema.columns}
        if ENTITIES_FEATURE in state.spec.features:
            known.add(KEY_COLUMN)
    for subject in subjects:
        if subject.column not in known:
            raise NotFound(
                "no table has a column with this name",
                hint="check the column: a subject is COLUMN=VALUE",
                column=subject.column,
            )


def _find_missing_files(name: str, table: ColdTable) -> Iterator[SubjectTrace]:
    """Yield the table if a version that has not expired lacks a file."""
    state = table.state()
    try:
        missing = sum(table.storage.size(path) is None for path in _named_files(table, state))
    except NotFound:
        return  # the version has expired meanwhile
    # A concurrent vacuum expires versions before it removes their files.
    if missing and table.state().oldest == state.oldest:
        what = "readers can open versions whose files are missing"
        yield SubjectTrace(name, layout.LOG_FOLDER, what, missing)


def _named_files(table: ColdTable, state: TableState) -> set[str]:
    """Return the files that readable versions name."""
    named = _named_segments(table, state)
    return {path for segment in named for path in segment.paths}


def _named_segments(table: ColdTable, state: TableState) -> list[Segment]:
    named: list[Segment] = list(table.state(state.oldest).segments)
    for version in range(state.oldest + 1, state.version + 1):
        actions = table.log.commit(version).actions
        named += [one.segment for one in actions if isinstance(one, AddSegment | SetDeletes)]
    return named


def search_table(name: str, table: ColdTable, subject: Subject) -> list[SubjectTrace]:
    """Search every file of a table, including files that no version names."""
    state = table.state()
    try:
        live = {segment.path: segment for segment in _named_segments(table, state)}
    except NotFound:  # versions have expired meanwhile
        live = {segment.path: segment for segment in state.segments}
    return [
        found
        for stored in _list_files(table)
        for found in _search_file(name, table, state, stored.path, subject, live.get(stored.path))
    ]


def _list_files(table: ColdTable) -> Iterator[StoredFile]:
    for folder in (layout.DATA_FOLDER, "_coverage", layout.LOG_FOLDER, layout.PINS_FOLDER):
        yield from table.storage.list(folder)


def _search_file(
    name: str,
    table: ColdTable,
    state: TableState,
    path: str,
    subject: Subject,
    segment: Segment | None,
) -> Iterator[SubjectTrace]:
    try:
        if path.startswith(f"{layout.DATA_FOLDER}/") and path.endswith(".parquet"):
            yield from search_segment(name, table, state, path, subject, segment)
        elif layout.checkpoint_version(path.rpartition("/")[2]) is not None:
            yield from _search_checkpoint(name, table, path, subject)
        elif _has_value(path, table.storage.read(path), subject):
            yield SubjectTrace(name, path, "its bytes contain the value")
    except NotFound:
        return  # the file was removed meanwhile, with its content


def _has_value(path: str, data: bytes, subject: Subject) -> bool:
    """Tell whether a file without rows contains the subject's value."""
    if _has_bytes(data, subject):
        return True
    if path.endswith(".roar"):
        keys = (orjson.loads(key) for key in decode_coverage(data).entities if key)
        return any(value in subject.numbers for key in keys for value in key)
    version = layout.commit_version(path.rpartition("/")[2])
    if version is None or not subject.numbers:
        return False
    segments = (getattr(one, "segment", None) for one in decode_commit(data, version).actions)
    bounds = (both for one in segments if one is not None for both in one.stats.values())
    return any(bound in subject.numbers for both in bounds for bound in both)


def _has_bytes(data: bytes, subject: Subject) -> bool:
    return any(word.encode() in data for word in subject.words)


def search_segment(
    name: str,
    table: ColdTable,
    state: TableState,
    path: str,
    subject: Subject,
    segment: Segment | None = None,
) -> Iterator[SubjectTrace]:
    """Search one file, including deleted rows, by every name that the column ever had.

    The checksum of a `segment` is verified first. For a file that no version names, only the
    checksums of its pages are known and verified.
    """
    names = {
        column.name
        for schema in state.schemas.values()
        for column in schema.columns
        if column.id in _column_ids(state, subject.column)
    }
    rows = mentions = 0
    try:
        if segment is None:
            source = table.storage.open_input(path)
        else:
            source = open_segment(table.storage, segment, fresh=True)
    except Corruption as error:
        if table.storage.size(path) is not None:  # a missing file is of an expired version
            yield SubjectTrace(name, path, f"cannot be read: {error.message}")
        return
    with source:
        try:
            file = pq.ParquetFile(source, page_checksum_verification=segment is None)
            texts = [f.name for f in file.schema_arrow if is_text(f.type) or f.name in names]
            for batch in file.iter_batches(BATCH_ROWS, columns=texts):
                hit = pa.array([False] * batch.num_rows, pa.bool_())
                for column in names & {*texts}:
                    hit = pc.or_(hit, subject.match_values(batch.column(column)))
                said = pc.and_not(subject.match_mentions(batch), hit)
                rows += pc.sum(hit).as_py() or 0
                mentions += pc.sum(said).as_py() or 0
        except (pa.ArrowException, OSError) as error:
            yield SubjectTrace(name, path, f"cannot be read: {str(error).splitlines()[0]}")
            return
    if rows:
        yield SubjectTrace(name, path, "rows of the subject", rows)
    if mentions:
        yield SubjectTrace(name, path, "texts that mention the value", mentions, is_mention=True)


def _column_ids(state: TableState, name: str) -> set[int]:
    """Return the ids of the columns that have or had this name."""
    return {
        column.id
        for schema in state.schemas.values()
        for column in schema.columns
        if column.name == name
    }


def _search_checkpoint(
    name: str, table: ColdTable, path: str, subject: Subject
) -> Iterator[SubjectTrace]:
    with table.storage.open_input(path) as source:
        try:
            file = pq.ParquetFile(source)
            held = [bytes(value) for value in (file.metadata.metadata or {}).values()]
            held += file.read(["segment"]).column(0).cast(pa.binary()).to_pylist()
        except pa.ArrowException as error:
            yield SubjectTrace(name, path, f"cannot be read: {str(error).splitlines()[0]}")
            return
    if any(_has_bytes(data, subject) for data in held):
        yield SubjectTrace(name, path, "the bounds of its segments contain the value")


def _search_journal(site: JobWorkspace, subjects: Sequence[Subject]) -> Iterator[SubjectTrace]:
    """Search the rows in the journal's files, including flushed rows."""
    if site.is_shared:
        for label in site.list_journals():
            yield SubjectTrace(JOURNAL, label, "a node's own journal, which was not searched")
        return
    disk, folder = OsDisk(), f"{site.data}/{JOURNAL_FOLDER}"
    identity = None if disk.size(folder) is None else read_identity(disk, folder)
    if identity is None:
        return
    follower = JournalFollower(disk, folder)
    for name in site.tables():
        spec = site.table(name).state().spec
        if ENTITIES_FEATURE in spec.features:
            continue
        rows = 0
        for part in follower.snapshot(bytes.fromhex(spec.table_id)).parts:
            tests = [s.match_rows for s in subjects if s.column in part.batch.schema.names]
            rows += sum(pc.sum(test(part.batch)).as_py() or 0 for test in tests)
        if rows:
            yield SubjectTrace(name, JOURNAL, "rows of the subject, in an open file", rows)
    yield from _find_unread_files(disk, folder, identity)


def _find_unread_files(
    disk: Disk, folder: str, identity: JournalIdentity
) -> Iterator[SubjectTrace]:
    """Yield files in the journal's folder that may contain rows and that no reader opens."""
    with translate_errors(folder):
        entries = disk.entries(folder)
        aside = f"{folder}/{QUARANTINE_NAME}"
        kept = [] if disk.size(aside) is None else disk.entries(aside)
    for entry in entries:
        number = file_number(entry.name)
        if number is not None and number < identity.oldest:
            yield SubjectTrace(JOURNAL, entry.name, "a trimmed file that could not be removed")
        elif entry.name.endswith(TEMPORARY_SUFFIX):
            yield SubjectTrace(JOURNAL, entry.name, "an unfinished file")
    for entry in kept:
        path = f"{QUARANTINE_NAME}/{entry.name}"
        yield SubjectTrace(JOURNAL, path, "bytes that a repair set aside: inspect and remove them")


def current_columns(state: TableState, name: str) -> list[str]:
    """Return the current names of the columns that have or had this name."""
    ids = _column_ids(state, name)
    return [column.name for column in state.schema.columns if column.id in ids]
