"""What an erasure leaves behind: a paper that says what was done, and what was found afterwards.

In:   what became of each table
Out:  `erasures/<id>.json` in the tenant's folder, and the same as text for a person

- The subject is not named: a digest of column and value proves who was meant to whoever knows.
  Of several, the first is `subject` and the rest are `others`.
- The paper has a digest of itself, so that a change to it shows.
- It says what it does not cover: copies that are not in the tenant's folder.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from thermocline.lake.local import LocalStorage
from thermocline.pipeline.remains import Searched
from thermocline.pipeline.site import Site

FOLDER = "erasures"
FORMAT_VERSION = 1
NOT_COVERED = (
    "backups and other copies of the lake's folder",
    "PostgreSQL's own log, and pages that its vacuum has not reached yet",
    "answers that were given before, wherever they were kept",
    "blocks of the disk that held files which are removed",
)


@dataclass(frozen=True, slots=True)
class TableErased:
    """What became of the subject in one table.

    `versions` are those that have the change: the last one is the first without a trace.
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


@dataclass(frozen=True, slots=True)
class Other:
    """Another subject of the same erasure: its column and its digest."""

    column: str
    subject: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was erased, by whom, when, and what a search found afterwards."""

    certificate_id: str
    subject: str
    column: str
    by: str
    started: str
    finished: str
    tables: Sequence[TableErased]
    recomputed: Sequence[str]
    searched: Searched
    others: Sequence[Other] = ()
    not_covered: Sequence[str] = NOT_COVERED
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Tell whether nothing of the subject can be read any more."""
        left = any(not found.is_mention for found in self.searched.found)
        return not left and not any(table.pinned for table in self.tables)

    def json(self) -> dict[str, Any]:
        """Return the paper, with its digest."""
        body = {"format": FORMAT_VERSION, "is_complete": self.is_complete, **asdict(self)}
        digest = hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()
        return {**body, "digest": digest}

    def lines(self) -> list[str]:
        """Return what a person reads."""
        made = [
            f"erasure {self.certificate_id} by {self.by}, {self.started} to {self.finished}",
            f"subject {self.column} sha256:{self.subject[:16]}",
            *(f"subject {one.column} sha256:{one.subject[:16]}" for one in self.others),
        ]
        for one in self.tables:
            keys = f", {one.keys} keys" if one.keys else ""
            made.append(
                f"{one.table}: {one.rows} rows{keys}, {one.segments} segments written anew, "
                f"{one.files} files removed, {one.commits} commits redacted, "
                f"version {one.versions[-1] if one.versions else '-'}"
            )
            if one.pinned:
                made.append(f"{one.table}: readers hold versions {list(one.pinned)}: run it again")
        made += [f"{name}: is computed anew at the rollup's next run" for name in self.recomputed]
        found = self.searched.found
        made.append(f"searched {self.searched.files} files: {len(found)} places found")
        made += [f"  {one.table} {one.path}: {one.what} ({one.rows})" for one in found]
        made.append("complete" if self.is_complete else "NOT complete: run it again")
        return made


def write_certificate(site: Site, certificate: Certificate) -> str:
    """Write the paper down, durable when this returns; return its path in the tenant's folder."""
    path = f"{FOLDER}/{certificate.certificate_id}.json"
    data = orjson.dumps(certificate.json(), option=orjson.OPT_INDENT_2)
    LocalStorage(site.catalog.root).put(path, data)
    return path
