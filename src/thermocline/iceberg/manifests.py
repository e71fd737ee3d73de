"""The live manifests of a table: grown by appends, rewritten only where a segment goes.

In:   the entries that a version adds, and the addresses of those that it removes
Out:  the manifests of that version; every unchanged manifest is used again

- An append costs one new manifest. Small manifests are merged when there are more than
  `MANIFESTS_MAX`, so that a manifest list stays short.
- An entry that is removed is in the manifest of its version as deleted, and in none after it.
- Entries are read from a manifest's file only when one of them is removed or merged.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from thermocline.iceberg.avro import (
    ADDED,
    DATA,
    DELETED,
    DELETES,
    EXISTING,
    Record,
    decode_records,
    describe_manifest,
    encode_manifest,
)

MANIFESTS_MAX = 100
SMALL_ENTRIES_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Manifest:
    """One manifest: its row in a manifest list, and its entries once they have been read."""

    row: Record
    entries: tuple[Record, ...] | None = None

    @property
    def path(self) -> str:
        """The address of the manifest."""
        return str(self.row["manifest_path"])

    @property
    def live_count(self) -> int:
        """How many live files it names."""
        return int(self.row["added_files_count"]) + int(self.row["existing_files_count"])


class ManifestWriter:
    """Writes manifests of one version; `read` and `write` reach the metadata's folder."""

    def __init__(
        self,
        version: int,
        schema: Record,
        read: Callable[[str], bytes],
        write: Callable[[str, bytes], str],
    ) -> None:
        self._version = version
        self._schema = schema
        self._read = read
        self._write = write

    def entry(self, data_file: Record, status: int = ADDED) -> Record:
        """Return the entry of a file of this version."""
        return {
            "status": status,
            "snapshot_id": self._version,
            "sequence_number": self._version,
            "file_sequence_number": self._version,
            "data_file": data_file,
        }

    def load(self, manifest: Manifest) -> Manifest:
        """Return a manifest with the entries of its live files."""
        if manifest.entries is not None:
            return manifest
        found = decode_records(self._read(manifest.path), manifest.path)
        live = (one for one in found if one["status"] != DELETED)
        return replace(manifest, entries=tuple({**one, "status": EXISTING} for one in live))

    def store(self, entries: Sequence[Record], content: int) -> Manifest:
        """Write a manifest of these entries."""
        data = encode_manifest(entries, content, self._schema)
        path = self._write(f"manifest-{self._version}", data)
        row = describe_manifest(path, len(data), entries, content, self._version)
        live = (one for one in entries if one["status"] != DELETED)
        return Manifest(row, tuple({**one, "status": EXISTING} for one in live))

    def remove(self, manifests: Sequence[Manifest], paths: Collection[str]) -> list[Manifest]:
        """Return the manifests after files are removed; those that name one are written again."""
        kept = []
        for manifest in manifests:
            if not manifest.live_count:
                continue  # it only said what an earlier version removed
            loaded = self.load(manifest)
            assert loaded.entries is not None
            gone = [e for e in loaded.entries if e["data_file"]["file_path"] in paths]
            if not gone:
                kept.append(loaded)
                continue
            left = [e for e in loaded.entries if e["data_file"]["file_path"] not in paths]
            removed = [{**one, "status": DELETED, "snapshot_id": self._version} for one in gone]
            kept.append(self.store([*left, *removed], DATA))
        return kept

    def add(self, manifests: Sequence[Manifest], files: Sequence[Record]) -> list[Manifest]:
        """Return the manifests with new files in one more manifest."""
        kept = [one for one in manifests if one.live_count or self._is_of_this_version(one)]
        if files:
            kept.append(self.store([self.entry(one) for one in files], DATA))
        return self._merge(kept) if len(kept) > MANIFESTS_MAX else kept

    def _is_of_this_version(self, manifest: Manifest) -> bool:
        return bool(manifest.row["added_snapshot_id"] == self._version)

    def _merge(self, manifests: Sequence[Manifest]) -> list[Manifest]:
        """Return fewer manifests: small ones of earlier versions become one."""
        taken: list[Manifest] = []
        count = 0
        for manifest in manifests:
            size = manifest.live_count
            if self._is_of_this_version(manifest) or count + size > SMALL_ENTRIES_MAX:
                continue
            taken.append(self.load(manifest))
            count += size
        if len(taken) < 2:
            return list(manifests)
        paths = {one.path for one in taken}
        merged = self.store([e for one in taken for e in one.entries or ()], DATA)
        return [merged, *(one for one in manifests if one.path not in paths)]

    def store_deletes(self, live: Mapping[str, Record], known: Collection[str]) -> Manifest | None:
        """Write the manifest of all delete files; `known` are those of the version before."""
        if not live:
            return None
        entries = [
            self.entry(one, EXISTING if one["file_path"] in known else ADDED)
            for one in live.values()
        ]
        return self.store(entries, DELETES)
