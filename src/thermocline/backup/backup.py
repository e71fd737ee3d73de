"""Copies a lake at one acknowledged moment while nodes write to it, and restores the copy.

In:   a data folder, with or without a running node; a target
Out:  a folder or tar file; a restore turns it into a data folder again

    journal/            the frames up to the moment
    tables/<id>/        the log, the segments and their coverage, up to one version
    names/ tenants/     the names of tables and tenants
    entities/<tenant>/  PostgreSQL's rows, at a moment that matches the tables' versions
    keys.json           the hashes of keys
    backup.json         the manifest: versions, marks, sizes, checksums

- Order matters: first read how far the journal is acknowledged, then copy its files up to there,
  then copy each table at the newest version that has no row of the journal after that point. A
  row that the journal has dropped is in that version; any other row is in the copied journal.
- So the copy equals the folder of a process killed at that moment: every row acknowledged before
  it, no row after it, in all tables at once. Opening it is an ordinary start.
- A table's version is pinned while it is copied. Its commits, segments and sidecars are compared
  with their checksums as they are copied; a restore compares segments with the log that it
  restored. Damage ends the backup or restore, and leaves no backup or lake behind.
- `lake.json` is restored last: a folder with an interrupted restore cannot be opened as a lake.
"""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import google_crc32c

from thermocline import __version__
from thermocline.backup.archive import (
    MANIFEST_NAME,
    ArchiveSink,
    FolderSink,
    create_archive,
    read_members,
    remove_files,
)
from thermocline.cold.care.pin import pin_version
from thermocline.cold.catalog import JOURNAL_FOLDER, LAKE_PATH, Catalog, CatalogEntry
from thermocline.cold.dropped import DroppedTable, dropped_path, encode_dropped
from thermocline.cold.segment.token_filter import read_sidecar
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.storage.storage import Storage
from thermocline.cold.storage.verified import (
    checksum_text,
    damage_error,
    find_damaged_offset,
    missing_file_error,
    wrong_size_error,
)
from thermocline.cold.table import ColdTable
from thermocline.cold.tenants import TenantCatalog
from thermocline.disk import COPY_CHUNK_BYTES, OsDisk, translate_errors
from thermocline.errors import Conflict, Corruption, Invalid, NotFound, Unavailable, Unsupported
from thermocline.format import layout
from thermocline.format.layout import Version
from thermocline.format.log.action import Mark, Segment
from thermocline.format.log.commit import decode_commit
from thermocline.format.log.state import TableState, fold
from thermocline.format.sealed_json import seal, unseal
from thermocline.hot.wal.folder import (
    DURABLE_NAME,
    IDENTITY_NAME,
    Watermark,
    file_path,
    list_file_numbers,
    read_identity,
    read_watermark,
)
from thermocline.hot.wal.reader import JournalReader
from thermocline.hot.wal.retired_marks import read_retired
from thermocline.names import DEFAULT_TENANT
from thermocline.server.access.keys import KEYS_NAME
from thermocline.server.access.private_files import hold_lock

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
TRIES_MAX = 5
LOCK_NAME = ".backup.lock"
RESTORE_LOCK_NAME = ".restore.lock"
MANIFEST_BYTES_MAX = 256 << 20
_UNSEALED = frozenset(
    {"format", "version", "lsn", "lake_id", "journal_id", "tables", "files"}
)  # what older releases wrote, without a checksum
_TABLE = re.compile(r"(tenants/[0-9a-f]{32}/)?tables/[0-9a-f]{32}(?=/)")

Progress = Callable[[int, int], None]
Entities = Callable[[Callable[[str, bytes], None]], dict[str, Version]]


@dataclass(slots=True)
class BackupContents:
    """The contents of one backup, filled in while it is made."""

    lake_id: str
    journal_id: str
    lsn: int | None = None
    tables: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(size for size, _ in self.files.values())

    def manifest(self) -> dict[str, Any]:
        """Return the content of `backup.json`."""
        files = [
            {"name": name, "size_bytes": size, "crc32c": f"{checksum:08x}"}
            for name, (size, checksum) in self.files.items()
        ]
        beginning = {"format": FORMAT_VERSION, "version": __version__, "lsn": self.lsn}
        ids = {"lake_id": self.lake_id, "journal_id": self.journal_id}
        return {**beginning, **ids, "tables": self.tables, "files": files}


def backup(
    data: str,
    target: str,
    progress: Progress = lambda done, total: None,
    entities: Entities = lambda put: {},
) -> BackupContents:
    """Copy a lake to a folder or a tar file; writers and readers continue meanwhile.

    `entities` puts PostgreSQL's rows into the copy, and returns the table versions that match.
    The target gets its name when it is complete. `Conflict` when it exists, or another backup runs.
    """
    data = os.path.abspath(data)
    identity = Catalog(data, is_read_only=True).identity() if os.path.isdir(data) else None
    if identity is None:
        raise NotFound("there is no lake here", hint="check the path", folder=data)
    if identity.is_shared:
        raise Unsupported(
            "a lake of several nodes cannot be copied from one folder: its journals are elsewhere",
            hint="flush every node, then copy the folder with the means of its file system",
            folder=data,
        )
    with (
        hold_lock(f"{data}/{LOCK_NAME}", what="makes a backup of this lake", wait_s=0),
        create_archive(target) as sink,
    ):
        copy = BackupContents(identity.lake_id, identity.journal_id)
        copying = _LakeCopier(data, sink, copy)
        copying.heads = entities(copying.put_bytes)
        source = copying.copy_journal()
        copying.copy_tables(source, progress)
        copying.check_no_node_started()
        copying.put_file(KEYS_NAME, is_needed=False)
        copying.put_file(LAKE_PATH)
        body = seal(copy.manifest())
        sink.put(MANIFEST_NAME, len(body), iter([body]))
    return copy


class _LakeCopier:
    """One copy of one lake."""

    def __init__(self, data: str, sink: ArchiveSink, copy: BackupContents) -> None:
        self._data = data
        self._sink = sink
        self._copy = copy
        self._disk = OsDisk()
        self.heads: dict[str, Version] = {}

    def put_bytes(self, name: str, data: bytes) -> None:
        """Add a file that is in memory."""
        self._put(name, len(data), iter([data]))

    def put_file(self, name: str, *, until: int | None = None, is_needed: bool = True) -> None:
        """Copy one file, to its end or up to an offset."""
        path = f"{self._data}/{name}"
        try:
            with translate_errors(path):
                size_bytes = self._disk.size(path) if until is None else until
                if size_bytes is None:
                    raise FileNotFoundError(2, "no such file", path)
                reader = self._disk.open_reader(path)
        except NotFound:
            if is_needed:
                raise
            return
        try:
            self._put(name, size_bytes, self._read(reader, size_bytes))
        finally:
            reader.close()

    def _read(self, reader: Any, left: int) -> Iterator[bytes]:
        while left and (chunk := reader.read(min(left, COPY_CHUNK_BYTES))):
            left -= len(chunk)
            yield chunk

    def _put(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        checksum = 0

        def count_chunks() -> Iterator[bytes]:
            nonlocal checksum
            for chunk in chunks:
                checksum = google_crc32c.extend(checksum, chunk)
                yield chunk

        self._sink.put(name, size_bytes, count_chunks())
        self._copy.files[name] = (size_bytes, checksum)

    def copy_journal(self) -> str:
        """Copy the journal up to the newest acknowledged write; return its id."""
        folder = f"{self._data}/{JOURNAL_FOLDER}"
        for _ in range(TRIES_MAX):
            held = _Journal(folder)
            opened = held.open_files()
            if opened is None:
                continue  # a file was trimmed meanwhile: its rows are in a version
            try:
                for name, reader, size_bytes in opened:
                    size = size_bytes
                    self._put(f"{JOURNAL_FOLDER}/{name}", size, self._read(reader, size))
            finally:
                for _, reader, _ in opened:
                    reader.close()
            body = held.identity_bytes
            self._put(f"{JOURNAL_FOLDER}/{IDENTITY_NAME}", len(body), iter([body]))
            self._copy.lsn = None if held.mark is None else int(held.mark.visible)
            return held.source
        raise Unavailable("the journal changes faster than it can be read", hint="try again")

    def check_no_node_started(self) -> None:
        """Raise `Conflict` if the copy began without a running node and a node started since."""
        if self._copy.lsn is None and _Journal(f"{self._data}/{JOURNAL_FOLDER}").mark is not None:
            raise Conflict("a node started during the backup", hint="make the backup again")

    def copy_tables(self, source: str, progress: Progress) -> None:
        """Copy every table of every tenant, at the version that matches the journal's copy."""
        tenants = TenantCatalog(self._data, self._disk)
        tenants.check_names()
        names = list(tenants)
        found = []
        for tenant in names:
            folder = tenants.folder(tenant)
            catalog = Catalog("/".join(filter(None, (self._data, folder))), is_read_only=True)
            catalog.check_names()
            before = catalog.dropped_files()
            found += [(tenant, folder, named) for named in catalog]
            self._put_dropped(folder, catalog, [*before, *catalog.dropped_files()])
        for done, (tenant, folder, named) in enumerate(found):
            self._copy_table(tenant, folder, named, source)
            progress(done + 1, len(found))
        for tenant in names:
            if tenant != DEFAULT_TENANT:
                self.put_file(f"tenants/names/{tenant}.json")

    def _put_dropped(self, folder: str, catalog: Catalog, dropped: Sequence[DroppedTable]) -> None:
        """Note the dropped tables, without their files: the journal's copy may have their rows."""
        named = {one.table_id for one in catalog}
        for table_id, one in {one.table_id: one for one in dropped}.items():
            if table_id not in named:
                path = "/".join(filter(None, (folder, dropped_path(table_id))))
                self.put_bytes(path, encode_dropped(replace(one, is_purged=True), catalog.lake_id))

    def _copy_table(self, tenant: str, folder: str, named: CatalogEntry, source: str) -> None:
        prefix = "/".join(filter(None, (folder, named.folder)))
        table = ColdTable(LocalStorage(f"{self._data}/{prefix}", self._disk))
        head = self.heads.get(named.table_id)
        state = table.state(int(head)) if head else _fitting_state(table, source, self._copy.lsn)
        with pin_version(table, state.version):
            first = table.log.first_version()
            # A checkpoint may hide that the beginning of the log is damaged or missing.
            table.log.check_base()
            table.log.commit(first)
            self._put_version_files(prefix, named, table, state)
            for stored in table.storage.list(layout.LOG_FOLDER):
                name = stored.path.rpartition("/")[2]
                version = layout.checkpoint_version(name)
                if layout.base_version(name) == first and first <= state.version:
                    self.put_file(f"{prefix}/{stored.path}")
                elif version is not None and first <= version <= state.version:
                    self.put_file(f"{prefix}/{stored.path}", is_needed=False)
            if table.log.head().oldest > state.version:
                raise _vacuumed_error(named.name)
        names_folder = "/".join(filter(None, (folder, "names")))
        self.put_file(f"{names_folder}/{named.name.lower()}.json")
        mark = int(state.marks.get(source, Mark(0)))
        ids = {"table_id": named.table_id, "version": int(state.version), "mark": mark}
        self._copy.tables.append({"tenant": tenant, "name": named.name, **ids})

    def _put_version_files(
        self, prefix: str, named: CatalogEntry, table: ColdTable, state: TableState
    ) -> None:
        """Copy the files that a version needs; `Corruption` for a missing or changed file."""
        try:
            for version in range(table.log.first_version(), state.version + 1):
                path = layout.commit_path(version)
                # Check the bytes that are copied, not bytes from an earlier read.
                data = table.storage.read(path)
                decode_commit(data, version)
                self.put_bytes(f"{prefix}/{path}", data)
            for segment in _segments(table, state):
                if f"{prefix}/{segment.path}" not in self._copy.files:
                    self._put_segment(prefix, table, segment)
                if f"{prefix}/{segment.coverage_path}" not in self._copy.files:
                    data = table.index.sidecar(state, segment)
                    self.put_bytes(f"{prefix}/{segment.coverage_path}", data)
                self._put_tokens(prefix, table, segment)
        except NotFound as error:
            if table.log.head().oldest > state.oldest:
                raise _vacuumed_error(named.name) from error
            raise missing_file_error(str(error.facts.get("path", ""))) from error

    def _put_tokens(self, prefix: str, table: ColdTable, segment: Segment) -> None:
        """Copy a segment's token sidecar; a damaged one is omitted, because it holds no row."""
        name = f"{prefix}/{segment.tokens_path}"
        if not segment.tokens_path or name in self._copy.files:
            return
        try:
            self.put_bytes(name, read_sidecar(table.storage, segment))
        except (NotFound, Corruption) as error:
            logger.warning("token sidecar %s is not in the backup: %s", name, error)

    def _put_segment(self, prefix: str, table: ColdTable, segment: Segment) -> None:
        name = f"{prefix}/{segment.path}"
        self.put_file(name)
        _check_copied(table.storage, segment, *self._copy.files[name])


class _Journal:
    """A journal at one moment: its acknowledged position, and its files up to there."""

    def __init__(self, folder: str) -> None:
        self._disk = OsDisk()
        self._folder = folder
        # Order matters: the identity first, then the watermark, then the files. Every row of a
        # file that was trimmed before this is in the table's version at the watermark.
        identity = read_identity(self._disk, folder)
        if identity is None:
            raise Corruption(
                "the journal of this lake is missing",
                hint="mount the disk if it is not mounted, or restore this file from a copy",
                path=f"{folder}/{IDENTITY_NAME}",
            )
        self.identity_bytes = self._identity()
        retired = read_retired(self._disk, folder, identity.journal_id)
        self.source = identity.journal_id.hex()
        self._oldest = identity.oldest
        mark = read_watermark(self._disk, folder, identity.journal_id)
        is_live = mark is not None and mark.boot_id == self._disk.boot_id()
        self.mark: Watermark | None = mark if is_live else None
        if self.mark is not None:
            self._check_watermark(self.mark, retired)
            with suppress(NotFound):  # trimmed meanwhile: the caller begins again
                JournalReader(self._disk, folder, identity).check_mark(self.mark)

    def _check_watermark(self, mark: Watermark, retired: Mapping[bytes, Mark]) -> None:
        """Raise `Corruption` if the watermark is older than the identity or the retired marks."""
        if mark.number < self._oldest or max(retired.values(), default=Mark(0)) > mark.visible:
            raise Corruption(
                "the journal's watermark is an older copy",
                hint="start the node, which rewrites the watermark, then make the backup",
                path=f"{self._folder}/{DURABLE_NAME}",
            )

    def _identity(self) -> bytes:
        path = f"{self._folder}/{IDENTITY_NAME}"
        with translate_errors(path):
            return self._disk.read(path)

    def open_files(self) -> list[tuple[str, Any, int]] | None:
        """Return the open files, each with the bytes to copy; None when a file was trimmed.

        An open file stays readable to its end, even if it is trimmed later.
        """
        found: list[tuple[str, Any, int]] = []
        with suppress(FileNotFoundError):
            for number in list_file_numbers(self._disk, self._folder):
                if number < self._oldest or (self.mark and number > self.mark.number):
                    continue
                path = file_path(self._folder, number)
                reader = self._disk.open_reader(path)
                size_bytes = self._disk.size(path)
                if self.mark and number == self.mark.number:
                    size_bytes = self.mark.end
                found.append((os.path.basename(path), reader, size_bytes or 0))
            if self._identity() == self.identity_bytes:
                return found
        for _, reader, _ in found:
            reader.close()
        return None


def _fitting_state(table: ColdTable, source: str, lsn: int | None) -> TableState:
    """Return the newest state that has no row of the journal after an lsn."""
    state = table.state()
    while lsn is not None and state.marks.get(source, Mark(0)) > lsn:
        state = table.log.state(Version(state.version - 1))
    return state


def _vacuumed_error(name: str) -> Conflict:
    return Conflict("the table was vacuumed during the backup", hint="try again", table=name)


def _check_copied(storage: Storage, segment: Segment, size_bytes: int, checksum: int) -> None:
    """Raise `Corruption` unless the copy has the size and CRC32C that the commit names."""
    if size_bytes != segment.file_size:
        raise wrong_size_error(segment.path, segment.file_size, size_bytes)
    found = checksum_text(checksum)
    if found != segment.checksum:
        offset = find_damaged_offset(lambda: storage.open_input(segment.path))
        raise damage_error(segment.path, segment.checksum, found, offset)


def _segments(table: ColdTable, state: TableState) -> list[Segment]:
    """Return the segments of a version, and of the versions kept before it."""
    kept = table.log.state(state.oldest) if state.oldest <= state.version else state
    segments = [*kept.segments, *state.segments]
    for version in range(state.oldest + 1, state.version + 1):
        found = (getattr(one, "segment", None) for one in table.log.commit(version).actions)
        segments += [segment for segment in found if segment is not None]
    return segments


def restore(source: str, data: str) -> dict[str, Any]:
    """Restore a copy into an empty or new folder; return its manifest.

    Every byte is checked against the manifest before the folder becomes a lake. `Conflict` when
    the folder is not empty or another restore runs; the folder is unchanged then.
    """
    data = os.path.abspath(data)
    if not os.path.exists(source):
        raise NotFound("there is no backup here", hint="check the path", path=source)
    with translate_errors(data), suppress(FileExistsError):
        os.makedirs(data, mode=0o700)
    _check_empty(data)
    with hold_lock(f"{data}/{RESTORE_LOCK_NAME}", what="restores into this folder", wait_s=0):
        _check_empty(data)  # again, under the lock: another restore may just have ended
        made: list[str] = []
        try:
            return _restore_files(source, data, made)
        except BaseException:
            remove_files(data, made)
            raise


def _check_empty(data: str) -> None:
    with translate_errors(data):
        others = [one.name for one in OsDisk().entries(data) if one.name != RESTORE_LOCK_NAME]
    if others:
        raise Conflict(
            "the folder to restore into is not empty",
            hint="use a new folder, or move these files away",
            folder=data,
            found=sorted(others)[:5],
        )


def _restore_files(source: str, data: str, made: list[str]) -> dict[str, Any]:
    sink = FolderSink(data)
    found: dict[str, tuple[int, int]] = {}
    kept: dict[str, bytes] = {}
    for name, size_bytes, chunks in read_members(source):
        if name in (MANIFEST_NAME, LAKE_PATH):
            if size_bytes > MANIFEST_BYTES_MAX:
                raise Invalid("the manifest is too large", hint="make another backup", name=name)
            kept[name] = b"".join(chunks)
            found[name] = (len(kept[name]), google_crc32c.value(kept[name]))
            continue
        made.append(name)
        checksum = 0

        def count_chunks(chunks: Iterator[bytes] = chunks) -> Iterator[bytes]:
            nonlocal checksum
            for chunk in chunks:
                checksum = google_crc32c.extend(checksum, chunk)
                yield chunk

        sink.put(name, size_bytes, count_chunks())
        found[name] = (size_bytes, checksum)
    manifest = _check_manifest(f"{source}/{MANIFEST_NAME}", kept.get(MANIFEST_NAME), found)
    _check_tables(data, found)
    sink.sync()
    # Order matters: `lake.json` makes the folder a lake, so every other file is durable first.
    made.append(LAKE_PATH)
    sink.put(LAKE_PATH, len(kept[LAKE_PATH]), iter([kept[LAKE_PATH]]))
    sink.sync()
    return manifest


def _check_tables(data: str, found: dict[str, tuple[int, int]]) -> None:
    """Raise `Corruption` unless every table's segments match its restored log.

    The manifest alone proves too little: it also matches a lake that was damaged when copied.
    """
    for prefix in sorted({match[0] for name in found if (match := _TABLE.match(name))}):
        storage = LocalStorage(f"{data}/{prefix}")
        # Not through `Table`, which writes hint files: a refused restore must leave no file.
        names = [name.removeprefix(f"{prefix}/{layout.LOG_FOLDER}/") for name in found]
        newest = max(layout.commit_version(name) or 0 for name in names)
        first = max((v for name in names if (v := layout.base_version(name))), default=1)
        versions = range(first, newest + 1)
        commits = [decode_commit(storage.read(layout.commit_path(v)), v) for v in versions]
        base = ColdTable(storage).log.base()
        after = commits if base is None else commits[1:]
        live = {segment.path for segment in fold(base, after).segments}
        actions = (action for commit in commits for action in commit.actions)
        for segment in (getattr(action, "segment", None) for action in actions):
            if segment is None:
                continue
            copied = found.get(f"{prefix}/{segment.path}")
            if copied is not None:
                _check_copied(storage, segment, *copied)
            elif segment.path in live:
                raise missing_file_error(segment.path)


def _check_manifest(
    path: str, data: bytes | None, found: dict[str, tuple[int, int]]
) -> dict[str, Any]:
    """Return the manifest of a copy that has all it names, byte for byte, and nothing else."""
    hint = "it was interrupted or changed; use another backup"
    if data is None:
        raise Corruption("the backup has no manifest", hint=hint, path=path)
    manifest = unseal(data, path, hint=hint, unsealed_fields=_UNSEALED)
    try:
        if int(manifest["format"]) > FORMAT_VERSION:
            hint = "restore it with that version"
            raise Unsupported("the backup was made by a newer Thermocline", hint=hint)
        named = {
            str(one["name"]): (int(one["size_bytes"]), int(one["crc32c"], 16))
            for one in manifest["files"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption("the backup's manifest cannot be read", hint=hint, path=path) from error
    found.pop(MANIFEST_NAME)
    if named != found or LAKE_PATH not in named:
        both = named.keys() | found.keys()
        differ = sorted(name for name in both if named.get(name) != found.get(name))
        raise Corruption(
            "the backup is not what its manifest says", hint=hint, path=path, files=differ[:5]
        )
    return manifest
