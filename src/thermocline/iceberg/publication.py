"""The Iceberg metadata of one table: rendered from its commit log, version by version.

In:   a table, the folder of the metadata, and the address under which readers see the table
Out:  `PublishedTable`: the table metadata of the newest version

- A version of the table is a snapshot of the same number. The newest `SNAPSHOTS_KEPT` are kept,
  more of them while they are younger than `SNAPSHOT_AGE_S`; none that has expired in the log.
- Order matters: everything that a metadata file names is durable before it. `put_new` of the
  metadata file decides between two publishers; the loser takes what the winner wrote.
- A pin keeps the files of the newest published version from being vacuumed while its lease runs.
- What a commit does is read from the log alone; of a new segment the footer is read as well.
- Every file of metadata is compared with its digest before a later snapshot is built on it.
- A table that Iceberg would show wrongly is refused. If only its past is such a table, the
  snapshots begin at the newest version.
"""

import re
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import orjson

from thermocline.cold.care.pin import put_pin
from thermocline.cold.table import ColdTable
from thermocline.errors import Conflict, NotFound, Unsupported
from thermocline.format import layout
from thermocline.format.instant import NS_PER_S
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    AddSegment,
    RemoveSegment,
    Segment,
    SetDeletes,
    SetTable,
)
from thermocline.format.log.commit import Commit
from thermocline.format.log.state import TableState
from thermocline.format.schema import Schema
from thermocline.iceberg.avro import FORMAT_VERSION, Record, decode_records, encode_list
from thermocline.iceberg.columns import (
    check_names,
    check_types,
    encode_columns,
    encode_names,
    last_field_id,
    unite_names,
)
from thermocline.iceberg.data_file import (
    describe_deletes,
    describe_segment,
    encode_position_deletes,
)
from thermocline.iceberg.manifests import Manifest, ManifestWriter
from thermocline.iceberg.metadata_file import (
    check_bytes,
    damaged_metadata_error,
    name_of_bytes,
    seal_metadata,
    unseal_metadata,
)

SNAPSHOTS_KEPT = 100
SNAPSHOTS_MAX = 1_000
SNAPSHOT_AGE_S = 3_600
SWEEP_EVERY_VERSIONS = 64
SWEEP_AGE_S = 24 * 3_600
FILES_AT_ONCE = 8
PIN_AGE_S = 60
HINT_NAME = "version-hint.text"
MAPPING_PROPERTY = "schema.name-mapping.default"
NAMES_PROPERTY = "thermocline.names-without-ids"
VERSION_KEY = "thermocline.version"
_METADATA_NAME = re.compile(r"v([0-9]{1,19})\.metadata\.json")
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """The Iceberg metadata of a table at its newest published version."""

    version: Version
    path: str
    location: str
    metadata: dict[str, Any]


@dataclass(slots=True)
class _Chain:
    """The snapshots so far, and what the next one builds on."""

    version: int
    schema_id: int
    schemas: dict[int, Schema]
    snapshots: list[Record] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)
    delete_manifest: Manifest | None = None
    deletes: dict[str, Record] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)

    @property
    def schema(self) -> Schema:
        return self.schemas[self.schema_id]

    @property
    def lists(self) -> list[Record]:
        last = [self.delete_manifest] if self.delete_manifest else []
        return [one.row for one in (*self.manifests, *last)]


class Publication:
    """Publishes one table into one folder. Safe to use from many threads."""

    def __init__(self, table: ColdTable, folder: str, base: str, *, pin: str) -> None:
        self._table = table
        self._storage = table.storage
        self._folder = folder
        self._base = base
        self._pin = pin
        self._lock = threading.Lock()
        self._chain: _Chain | None = None
        self._published: PublishedTable | None = None
        self._files: tuple[int, frozenset[str]] = (0, frozenset())
        self._named: dict[str, frozenset[str]] = {}
        self._past: tuple[tuple[int, int], dict[str, Segment]] = ((0, 0), {})
        self._pinned_ns = 0
        self._unwritten: list[tuple[str, bytes]] = []

    def publish(self, lease_s: int) -> PublishedTable:
        """Publish the newest version and return its metadata.

        `Unsupported` names what Iceberg would show wrongly. When this returns, the metadata and
        all that it names are durable, and are kept from being vacuumed for `lease_s`.
        """
        with self._lock:
            state = self._table.log.head()
            done = self._published
            if done is None or done.version != state.version or self._has_expired(state, done):
                done = self._publish(state, lease_s)
            self._published = done
            if self._pin_version(done.version, lease_s):
                self._pinned_ns = self._table.log.now()
            return done

    def _has_expired(self, state: TableState, done: PublishedTable) -> bool:
        return bool(done.metadata["snapshots"][0]["snapshot-id"] < state.oldest)

    def _pin_version(self, version: int, lease_s: int) -> bool:
        """Pin a version, unless a pin of an earlier one was made a moment ago; tell whether."""
        now = self._table.log.now()
        if now - self._pinned_ns < min(PIN_AGE_S, lease_s / 2) * NS_PER_S:
            return False
        put_pin(self._storage, layout.pin_path(self._pin), version, now + lease_s * NS_PER_S)
        # Order matters: the log is read again after the pin is written, as `Pin` does it.
        if version < self._table.log.head().oldest:
            self._table.log.state(version)  # raises: the version has expired
        return True

    def _publish(self, state: TableState, lease_s: int) -> PublishedTable:
        chain = self._chain or self._resume()
        before = chain.version if chain is not None else state.version
        # What is published already is kept until the metadata of this version is durable.
        self._pin_version(max(int(state.oldest), min(before, state.version)), lease_s)
        self._chain = None  # a failure below leaves nothing half done
        self._unwritten = []
        chain = self._advance(chain, state)
        self._write_all()
        self._drop_snapshots(chain, state)
        metadata = self._encode(chain, state)
        name = f"v{state.version}.metadata.json"
        data = orjson.dumps(metadata)
        if not self._storage.put_new(f"{self._folder}/{name}", data):
            metadata = self._settle(state.version, name, metadata)
            chain = self._decode(metadata)
        self._storage.put_hint(f"{self._folder}/{HINT_NAME}", str(state.version).encode())
        self._chain = chain
        if state.version % SWEEP_EVERY_VERSIONS == 0:
            self._sweep(metadata)
        location = f"{self._base}/{self._folder}/{name}"
        return PublishedTable(state.version, f"{self._folder}/{name}", location, metadata)

    def _settle(self, version: int, name: str, metadata: Record) -> Record:
        """Return the metadata that stays, when a metadata file of this version exists already."""
        path = f"{self._folder}/{name}"
        found = self._read_metadata(version)
        if found is not None and found["location"] == self._base:
            oldest = found["snapshots"][0]["snapshot-id"]
            if oldest >= metadata["snapshots"][0]["snapshot-id"]:
                return found
        # Of a table that was moved or vacuumed since, or of an older release.
        self._storage.delete(path)
        if not self._storage.put_new(path, orjson.dumps(metadata)):
            raise Conflict("two processes publish the table at once", hint="publish it again")
        return metadata

    def _read_metadata(self, version: int) -> Record | None:
        """Return the metadata of a version; None if an older release wrote it."""
        path = f"{self._folder}/v{version}.metadata.json"
        return unseal_metadata(self._storage.read(path), path, version)

    # What is there already.

    def _newest_metadata(self) -> int:
        """Return the newest version that has a metadata file; 0 if none has one."""
        found = (
            int(match.group(1))
            for stored in self._storage.list(self._folder)
            if (match := _METADATA_NAME.fullmatch(stored.path.rsplit("/", 1)[-1]))
        )
        return max(found, default=0)

    def _resume(self) -> _Chain | None:
        """Return what the newest metadata file says; None if there is none of this address."""
        while newest := self._newest_metadata():
            try:
                metadata = self._read_metadata(newest)
                if metadata is None or metadata["location"] != self._base:
                    return None
                is_of_table = metadata["table-uuid"] == self._uuid(self._table.log.head())
                return self._decode(metadata) if is_of_table else None
            except NotFound as error:
                # Another publisher removes what its newer metadata does not name.
                if self._newest_metadata() == newest:
                    path = str(error.facts.get("path", self._folder))
                    raise damaged_metadata_error(path) from error
        return None

    def _decode(self, metadata: Record) -> _Chain | None:
        version = int(metadata["current-snapshot-id"])
        head = self._table.log.head()
        if version > head.version or metadata["current-schema-id"] not in head.schemas:
            return None
        self._files = version, self._check_files(metadata)
        snapshots = list(metadata["snapshots"])
        rows = decode_records(self._read(snapshots[-1]["manifest-list"]), "manifest list")
        chain = _Chain(
            version,
            int(metadata["current-schema-id"]),
            {n: s for n, s in head.schemas.items() if n <= int(metadata["current-schema-id"])},
            snapshots,
            [Manifest(row) for row in rows if not row["content"]],
            names=orjson.loads(metadata["properties"][NAMES_PROPERTY]),
        )
        for row in rows:
            if row["content"]:
                entries = tuple(decode_records(self._read(row["manifest_path"]), "manifest"))
                chain.delete_manifest = Manifest(row, entries)
                files = [one["data_file"] for one in entries]
                chain.deletes = {self._path_of(one["referenced_data_file"]): one for one in files}
        return chain

    def _path_of(self, address: str) -> str:
        return address.removeprefix(f"{self._base}/")

    def _read(self, address: str) -> bytes:
        path = self._path_of(address)
        return check_bytes(path, self._storage.read(path))

    def _check_files(self, metadata: Record) -> frozenset[str]:
        """Return the files that the snapshots name, after those of metadata were verified."""
        found = self._list_files(metadata)
        deletes = [path for path in found if path.startswith(f"{self._folder}/deletes-")]
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            list(pool.map(lambda path: check_bytes(path, self._storage.read(path)), deletes))
        return found

    def _write(self, name: str, data: bytes) -> str:
        path = f"{self._folder}/{name_of_bytes(name, data, '.avro')}"
        self._unwritten.append((path, data))
        return f"{self._base}/{path}"

    def _write_all(self) -> None:
        """Make the new files durable, several at once: a disk syncs them together."""
        todo, self._unwritten = self._unwritten, []
        with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            list(pool.map(lambda one: self._storage.put(*one), todo))

    # One version after the other.

    def _advance(self, chain: _Chain | None, state: TableState) -> _Chain:
        is_far = chain is None or state.version - chain.version > SNAPSHOTS_KEPT
        try:
            if is_far or chain is None or chain.version < state.oldest:
                chain = self._start(self._first_version(state))
            while chain.version < state.version:
                self._apply(chain, self._table.log.commit(chain.version + 1))
            self._check_columns(chain)
            return chain
        except Unsupported:
            self._unwritten = []
            return self._start(state)

    def _first_version(self, state: TableState) -> TableState:
        """Return the oldest version to begin with: kept, recent enough, and with columns."""
        version = max(int(state.oldest), state.version - SNAPSHOTS_KEPT + 1)
        while version < state.version:
            found = self._table.log.state(version)
            if found.schema.columns:
                return found
            version += 1
        return state

    def _start(self, state: TableState) -> _Chain:
        """Return a chain whose only snapshot is this version."""
        chain = _Chain(state.version, state.schema_id, dict(state.schemas))
        writer = self._writer(chain)
        segments = sorted(state.segments, key=lambda one: (one.ts_min, one.segment_id))
        chain.manifests = writer.add([], self._describe(chain, segments))
        self._write_deletes(chain, writer, {one.path: one for one in segments})
        self._add_snapshot(chain, state.time, "append", {"added-data-files": len(segments)})
        self._check_columns(chain)
        return chain

    def _writer(self, chain: _Chain) -> ManifestWriter:
        schema = encode_columns(chain.schema_id, chain.schema)
        return ManifestWriter(chain.version, schema, self._read, self._write)

    def _apply(self, chain: _Chain, commit: Commit) -> None:
        """Add the snapshot of one commit."""
        added: dict[str, Segment] = {}
        removed: set[str] = set()
        hidden: dict[str, Segment] = {}
        chain.version = commit.version
        for action in commit.actions:
            match action:
                case SetTable(_, schema_id, schema):
                    chain.schema_id, chain.schemas[schema_id] = schema_id, schema
                    self._check_live(chain, commit.version)
                case AddSegment(segment):
                    added[segment.path] = segment
                case RemoveSegment():
                    removed.add(action.path)
                case SetDeletes(segment, _, _):
                    hidden[segment.path] = segment
        # A file that is removed and added in one commit stays; its deletion vector may differ.
        stays = added.keys() & removed
        hidden |= {path: added.pop(path) for path in stays}
        removed -= stays
        writer = self._writer(chain)
        if removed:
            gone = {f"{self._base}/{path}" for path in removed}
            chain.manifests = writer.remove(chain.manifests, gone)
        if added or removed:
            files = self._describe(chain, list(added.values()))
            chain.manifests = writer.add(chain.manifests, files)
        changed = hidden | {path: one for path, one in added.items() if one.deletes}
        self._write_deletes(chain, writer, changed, removed)
        counts = {"added-data-files": len(added), "deleted-data-files": len(removed)}
        operation = _operation(commit.operation, added, removed, hidden)
        has_rows = bool(added or removed or changed)
        self._add_snapshot(chain, commit.time, operation, counts, is_same=not has_rows)

    def _describe(self, chain: _Chain, segments: list[Segment]) -> list[Record]:
        """Return the records of new data files; their names and types are checked."""

        def describe(segment: Segment) -> Any:
            schema = chain.schemas[segment.schema_id]
            path = f"{self._base}/{segment.path}"
            return describe_segment(self._storage, segment, schema, path)

        for segment in segments:
            check_types(segment, chain.schemas, chain.schema)
        if len(segments) == 1:
            found = [describe(segments[0])]
        else:
            with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
                found = list(pool.map(describe, segments))
        for segment, (_, columns) in zip(segments, found, strict=True):
            if not columns.has_ids:
                chain.names = unite_names(chain.names, columns.names, segment.path)
        return [record for record, _ in found]

    def _check_live(self, chain: _Chain, version: int) -> None:
        """Raise `Unsupported` if a file does not fit the columns that a version has changed."""
        for segment in self._table.log.state(version).segments:
            check_types(segment, chain.schemas, chain.schema)

    def _check_columns(self, chain: _Chain) -> None:
        encode_columns(chain.schema_id, chain.schema)
        check_names(chain.names, chain.schema)

    def _write_deletes(
        self,
        chain: _Chain,
        writer: ManifestWriter,
        changed: Mapping[str, Segment],
        removed: set[str] | frozenset[str] = frozenset(),
    ) -> None:
        """Write the delete files of changed deletion vectors, and the manifest of all of them."""
        known = {one["file_path"] for one in chain.deletes.values()}
        before = dict(chain.deletes)
        for path in removed:
            chain.deletes.pop(path, None)
        for path, segment in changed.items():
            chain.deletes.pop(path, None)
            if segment.deletes:
                chain.deletes[path] = self._write_delete_file(segment)
        if chain.deletes != before:
            chain.delete_manifest = writer.store_deletes(chain.deletes, known)

    def _write_delete_file(self, segment: Segment) -> Record:
        """Write the position-delete file of a deletion vector, unless it is there already."""
        data_path = f"{self._base}/{segment.path}"
        data = encode_position_deletes(data_path, segment.deletes)
        path = f"{self._folder}/{name_of_bytes('deletes', data, '.parquet')}"
        if not self._storage.put_new(path, data):
            check_bytes(path, self._storage.read(path))
        return describe_deletes(f"{self._base}/{path}", len(data), data_path, segment.deleted_count)

    def _add_snapshot(
        self,
        chain: _Chain,
        time_ns: int,
        operation: str,
        counts: Mapping[str, int],
        *,
        is_same: bool = False,
    ) -> None:
        last = chain.snapshots[-1] if chain.snapshots else None
        # Times of snapshots may not step back; those of commits do when a clock was set back.
        time_ms = max(time_ns // NS_PER_MS, last["timestamp-ms"] if last else 0)
        if is_same and last is not None:
            listed = last["manifest-list"]
        else:
            listed = self._write(f"snap-{chain.version}", encode_list(chain.lists, chain.version))
        summary = {name: str(count) for name, count in counts.items()}
        snapshot = {
            "snapshot-id": chain.version,
            "sequence-number": chain.version,
            "timestamp-ms": time_ms,
            "manifest-list": listed,
            "schema-id": chain.schema_id,
            "summary": {"operation": operation, VERSION_KEY: str(chain.version), **summary},
        }
        if last is not None:
            snapshot["parent-snapshot-id"] = last["snapshot-id"]
        chain.snapshots.append(snapshot)

    def _drop_snapshots(self, chain: _Chain, state: TableState) -> None:
        """Forget snapshots that have expired, or are past the number and the age to keep."""
        young_ms = self._table.log.now() // NS_PER_MS - SNAPSHOT_AGE_S * 1_000
        newest = len(chain.snapshots)
        kept = [
            one
            for place, one in enumerate(chain.snapshots)
            if one["snapshot-id"] >= state.oldest
            and newest - place <= SNAPSHOTS_MAX
            and (newest - place <= SNAPSHOTS_KEPT or one["timestamp-ms"] >= young_ms)
        ]
        if len(kept) < newest:
            first = {n: v for n, v in kept[0].items() if n != "parent-snapshot-id"}
            kept[0] = first
        chain.snapshots = kept

    def _uuid(self, state: TableState) -> str:
        return str(uuid.UUID(state.spec.table_id))

    def _encode(self, chain: _Chain, state: TableState) -> Record:
        """Return the table metadata."""
        used = sorted({chain.schema_id, *(one["schema-id"] for one in chain.snapshots)})
        schemas = {number: chain.schemas[number] for number in used}
        last = chain.snapshots[-1]
        metadata = {
            "format-version": FORMAT_VERSION,
            "table-uuid": self._uuid(state),
            "location": self._base,
            "last-sequence-number": chain.version,
            "last-updated-ms": last["timestamp-ms"],
            "last-column-id": last_field_id(schemas.values()),
            "schemas": [encode_columns(number, schema) for number, schema in schemas.items()],
            "current-schema-id": chain.schema_id,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": {
                MAPPING_PROPERTY: orjson.dumps(encode_names(chain.names, schemas)).decode(),
                NAMES_PROPERTY: orjson.dumps(chain.names).decode(),
            },
            "current-snapshot-id": chain.version,
            "refs": {"main": {"snapshot-id": chain.version, "type": "branch"}},
            "snapshots": chain.snapshots,
            "snapshot-log": [
                {"snapshot-id": one["snapshot-id"], "timestamp-ms": one["timestamp-ms"]}
                for one in chain.snapshots
            ],
            "metadata-log": [],
        }
        return seal_metadata(metadata)

    # The files that the published snapshots name.

    def names_file(self, path: str) -> bool:
        """Tell whether a published snapshot, or its metadata, names a file of the table."""
        with self._lock:
            done = self._published
            if done is None:
                return False
            if self._files[0] != done.version:
                self._files = done.version, self._list_files(done.metadata)
            return path == done.path or path in self._files[1]

    def check_file(self, path: str) -> None:
        """Raise `Corruption` unless a file that `names_file` knows is what was written.

        `NotFound` when it has been removed since, with the version that needed it.
        """
        with self._lock:
            done = self._published
            segment = None if path.startswith(f"{self._folder}/") else self._find_segment(path)
        if segment is not None:
            self._storage.check(path, segment.file_size, segment.checksum)
        elif done is not None and path == done.path:
            self._read_metadata(done.version)
        else:
            check_bytes(path, self._storage.read(path))

    def _find_segment(self, path: str) -> Segment:
        """Return the segment with this path, of the newest version or of a published one."""
        segment_id = path.rpartition("/")[2].removesuffix(".parquet")
        found = self._table.log.head().segments.find(segment_id)
        if found is None or found.path != path:
            found = self._past_segments().get(path)
        if found is None:
            raise NotFound("no kept version has this file", path=path)
        return found

    def _past_segments(self) -> dict[str, Segment]:
        """Return the segments of the published versions that are still kept, by path."""
        assert self._published is not None
        oldest = int(self._published.metadata["snapshots"][0]["snapshot-id"])
        first = max(oldest, int(self._table.log.head().oldest))
        key = first, int(self._published.version)
        if self._past[0] != key:
            found = {one.path: one for one in self._table.log.state(first).segments}
            for version in range(first + 1, key[1] + 1):
                for action in self._table.log.commit(version).actions:
                    if isinstance(action, AddSegment):
                        found[action.segment.path] = action.segment
            self._past = key, found
        return self._past[1]

    def _list_files(self, metadata: Record) -> frozenset[str]:
        """Return every file that the snapshots name, relative to the table."""
        found: set[str] = set()
        seen: dict[str, frozenset[str]] = {}
        for address in {one["manifest-list"] for one in metadata["snapshots"]}:
            manifests = self._named_by(address, "manifest_path", seen)
            found |= {self._path_of(address), *manifests}
            for path in manifests:
                found |= self._named_by(f"{self._base}/{path}", "data_file", seen)
        self._named = seen
        return frozenset(found)

    def _named_by(self, address: str, key: str, seen: dict[str, frozenset[str]]) -> frozenset[str]:
        """Return the files that a manifest list or a manifest names; each is read once."""
        if address not in seen:
            seen[address] = self._named.get(address) or frozenset(
                self._path_of(one[key]["file_path"] if key == "data_file" else one[key])
                for one in decode_records(self._read(address), address)
            )
        return seen[address]

    def _sweep(self, metadata: Record) -> None:
        """Remove metadata that no kept snapshot names and that is older than `SWEEP_AGE_S`."""
        needed, cut_off = self._list_files(metadata), self._table.log.now() - SWEEP_AGE_S * NS_PER_S
        first = metadata["snapshots"][0]["snapshot-id"]
        for stored in self._storage.list(self._folder):
            name = stored.path.rsplit("/", 1)[-1]
            match = _METADATA_NAME.fullmatch(name)
            is_needed = int(match.group(1)) >= first if match else stored.path in needed
            if not is_needed and name != HINT_NAME and stored.modified_ns < cut_off:
                self._storage.delete(stored.path)


def _operation(name: str, added: Any, removed: Any, hidden: Any) -> str:
    """Return what a commit did, in Iceberg's words."""
    if name == "compact":
        return "replace"
    if removed and added:
        return "overwrite"
    return "delete" if removed or hidden else "append"
