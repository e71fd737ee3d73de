"""The certificate of an erasure: what was done, and what a search found afterwards.

In:   the outcome for each table
Out:  `erasures/<id>.json` in the tenant's folder, and the same as text for a person

- The certificate contains only a hash of column and value, so a person who knows the value can
  verify it, and the certificate does not reveal the subject. If an erasure has several subjects,
  the first is `subject` and the rest are `others`.
- The certificate contains its own digest, so that a change to it is detected.
- It lists what it does not cover: copies outside the tenant's folder.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from thermocline.pipeline.erase.search import TraceSearch
from thermocline.pipeline.run.workspace import JobWorkspace

FOLDER = "erasures"
FORMAT_VERSION = 1
NOT_COVERED = (
    "backups and other copies of the lake's folder",
    "PostgreSQL's own log, and pages that its vacuum has not reached yet",
    "answers that clients received earlier and kept",
    "disk blocks of removed files",
)


@dataclass(frozen=True, slots=True)
class TableErasure:
    """What the erasure did in one table.

    `versions` are the versions that it committed; the last one is the first without a trace of
    the subject. `revisions` are the changes removed from the history and the feed of entities.
    """

    table: str
    versions: tuple[int, ...]
    rows: int
    segments: int
    content: tuple[str, ...]
    files: int
    size_bytes: int
    commits: int
    checkpoints: int
    pinned: tuple[int, ...] = ()
    keys: int = 0
    revisions: int = 0


@dataclass(frozen=True, slots=True)
class OtherSubject:
    """Another subject of the same erasure: its column and its digest."""

    column: str
    subject: str


@dataclass(frozen=True, slots=True)
class ErasureCertificate:
    """What was erased, who requested it, when, and what a search found afterwards."""

    certificate_id: str
    subject: str
    column: str
    by: str
    started: str
    finished: str
    tables: Sequence[TableErasure]
    recomputed: Sequence[str]
    searched: TraceSearch
    others: Sequence[OtherSubject] = ()
    not_covered: Sequence[str] = NOT_COVERED
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Tell whether no row of the subject can be read any more."""
        left = any(not found.is_mention for found in self.searched.found)
        return not left and not any(table.pinned for table in self.tables)

    def json(self) -> dict[str, Any]:
        """Return the certificate with its digest."""
        body = {"format": FORMAT_VERSION, "is_complete": self.is_complete, **asdict(self)}
        digest = hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()
        return {**body, "digest": digest}

    def lines(self) -> list[str]:
        """Return the certificate as lines for a person."""
        made = [
            f"erasure {self.certificate_id} by {self.by}, {self.started} to {self.finished}",
            f"subject {self.column} sha256:{self.subject[:16]}",
            *(f"subject {one.column} sha256:{one.subject[:16]}" for one in self.others),
        ]
        for one in self.tables:
            keys = f", {one.keys} keys" if one.keys else ""
            made.append(
                f"{one.table}: {one.rows} rows{keys}, {one.segments} segments rewritten, "
                f"{one.files} files removed, {one.commits} commits redacted, "
                f"{one.revisions} changes removed from history and feed, "
                f"version {one.versions[-1] if one.versions else '-'}"
            )
            if one.pinned:
                made.append(f"{one.table}: readers pin versions {list(one.pinned)}: run it again")
        made += [f"{name}: the rollup's next run recomputes it" for name in self.recomputed]
        found = self.searched.found
        made.append(f"searched {self.searched.files} files: {len(found)} places found")
        made += [f"  {one.table} {one.path}: {one.what} ({one.rows})" for one in found]
        made.append("complete" if self.is_complete else "NOT complete: run it again")
        return made


def write_certificate(site: JobWorkspace, certificate: ErasureCertificate) -> str:
    """Write the certificate, durable when this returns; return its path in the tenant's folder."""
    path = f"{FOLDER}/{certificate.certificate_id}.json"
    data = orjson.dumps(certificate.json(), option=orjson.OPT_INDENT_2)
    site.catalog.storage.put(path, data)
    return path
