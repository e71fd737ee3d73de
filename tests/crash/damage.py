"""Damage to a lake at rest: what is damaged, how, and what a user then asks of the lake.

In:   a folder to build a lake in
Out:  for each damage and each question, one outcome: the right answer, `Corruption` that names the
      damaged file, or a violation of the promise

The promise: damage to one file gives the right answer or `Corruption` that names the file, from
every reader, whatever the file and the damage. The tests ask for it at chosen places, `evidence/`
at random ones.
"""

import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fixtures.wal import calm, ticks
from thermocline.backup.backup import backup, restore
from thermocline.cold.care.fsck import fsck
from thermocline.cold.care.pin import list_pinned_versions
from thermocline.cold.care.truncate import truncate_log
from thermocline.cold.care.vacuum import expire_versions
from thermocline.cold.catalog import Catalog
from thermocline.cold.compact.plan import CompactionLimits
from thermocline.cold.compact.rewrite import compact, merge_here
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.cold.tenants import TenantCatalog
from thermocline.disk import OsDisk
from thermocline.errors import Corruption, ThermoclineError
from thermocline.format.layout import Version
from thermocline.iceberg.avro import decode_records
from thermocline.iceberg.publish import publish
from thermocline.lake import Lake
from thermocline.node import Node
from thermocline.pipeline.run.job import ignore_progress
from thermocline.pipeline.run.lease import Lease
from thermocline.pipeline.run.workspace import JobWorkspace
from thermocline.pipeline.spark.read_lease import hold_version
from thermocline.server.access.keys import KeyStore
from thermocline.table import TimeSeriesTable

CREATION = {
    "time_column": "ts",
    "bucket": "1h",
    "entity_columns": ["host"],
    "token_columns": ["host"],
}
START, END = "2024-06-01T00:00:00Z", "2024-06-01T12:00:00Z"
WAL_FILE_BYTES = 4_096
FLIPS_PER_FILE = 9
TABLES = {("default", "a"), ("default", "b"), ("acme", "a"), ("bolt", "a")}
TRUNCATED = {("default", "b"), ("acme", "a")}
"""The tables whose log begins at a base."""
PIN_S = 86_400
LEASE_S = 0.2
MEMORY_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where damaged lakes are kept: in memory, where an fsync costs nothing."""

KINDS = {
    "commit": r"_log/\d{20}\.json",
    "checkpoint": r"_log/\d{20}\.checkpoint\.parquet",
    "base": r"_log/\d{20}\.base\.parquet",
    "current": r"_log/CURRENT",
    "segment": r"data/.*\.parquet",
    "segment coverage": r"_coverage/segments/.*\.roar",
    "segment tokens": r"_tokens/.*\.bloom",
    "table coverage": r"_coverage/table/.*\.roar",
    "table name": r"names/[a-z]+\.json",
    "tenant name": r"tenants/names/[a-z]+\.json",
    "lake identity": r"lake\.json",
    "journal identity": r"journal/journal\.json",
    "journal file": r"journal/\d{20}\.wal",
    "journal watermark": r"journal/durable",
    "journal lock": r"journal/lock",
    "journal marks": r"journal/retired\.json",
    "keys": r"keys\.json",
    "memory of keys": r"keys_exist\.json",
    "uses of keys": r"key_uses\.json",
    "pin": r"_pins/[a-z0-9-]+\.json",
    "dropped table": r"dropped/[0-9a-f]{32}\.json",
    "Iceberg metadata": r"metadata/v\d+\.metadata\.json",
    "Iceberg manifest": r"metadata/(manifest|snap)-.*\.avro",
    "Iceberg deletes": r"metadata/deletes-.*\.parquet",
    "Iceberg hint": r"metadata/version-hint\.text",
    "lease": r"leases/[a-z]+/\d{20}\.(json|beat|end)",
}
"""Every kind of file that a node without PostgreSQL keeps, by its path inside of its own folder."""

NOT_KEPT = {".keys.lock"}
"""Files whose bytes mean nothing: only whether a process holds them counts."""

_OWNER = re.compile(r"(?:tenants/[0-9a-f]{32}/)?(?:tables/[0-9a-f]{32}/)?")  # may be empty


def kind_of(path: str) -> str | None:
    """Return which kind of file has this path inside a lake, or None for one that is not listed."""
    owner = _OWNER.match("" if path.startswith("tenants/names/") else path)
    inside = path[owner.end() :]
    return next((kind for kind, form in KINDS.items() if re.fullmatch(form, inside)), None)


@dataclass(frozen=True, slots=True)
class World:
    """A lake that was closed in an orderly way, and the same lake some commits earlier."""

    now: Path
    older: Path
    dropped_folder: str
    """The folder of a table that is dropped and not purged: no question but one reads it."""

    def files(self) -> dict[str, list[str]]:
        """Return the paths of the lake's files by kind."""
        found: dict[str, list[str]] = {}
        for path in sorted(p for p in self.now.rglob("*") if p.is_file()):
            inside = str(path.relative_to(self.now))
            if inside not in NOT_KEPT and not inside.startswith(self.dropped_folder):
                found.setdefault(kind_of(inside) or inside, []).append(inside)
        return found


def build_world(folder: Path) -> World:
    """Make a lake with every kind of file; its journal has several files and unflushed rows."""
    now, older = folder / "now", folder / "older"
    settings = calm(file_bytes_max=WAL_FILE_BYTES)
    with Node(str(now), settings) as node:
        for name in ("a", "b"):
            table = node.lake().create_table(name, **CREATION)
            table.write(ticks(*range(200)))
            table.flush()
            table.append(ticks(*range(200, 300), hour=2))
        for place, tenant in enumerate(("acme", "bolt")):
            table = node.create_tenant(tenant).create_table("a", **CREATION)
            table.write(ticks(*range(7_000 + place, 7_100 + place)))
        keys = KeyStore(str(now))
        keys.write_uses({keys.create("acme", ["query"]).key.key_id: time.time_ns()})
        node.lake().table("a").delete("n = 3")
        catalog = Catalog(str(now))
        catalog.table("a").log.write_checkpoint(node.lake().table("a").version())
        node.lake().table("b").write(ticks(900, hour=5))
        for place, name in enumerate(("a", "b")):
            hold_version(catalog.table(name), Version(place + 1), PIN_S)
        dropped_folder = _drop_tables(node.lake())
    publish(Catalog(str(now)).table("a"))
    for tenant, name in TRUNCATED:
        _truncate(Catalog(f"{now}/{TenantCatalog(str(now), OsDisk()).folder(tenant)}").table(name))
    _leave_lease(now)
    # The older lake was closed, so each of its files is one that a backup may have held.
    shutil.copytree(now, older)
    with Node(str(now), settings) as node:
        for tenant, name in sorted(TABLES):
            table = node.lake(tenant).table(name)
            table.write(ticks(*range(1_000, 1_040), hour=3, host="b"))
            table.flush()
            table.append(ticks(*range(2_000, 2_050), hour=4))
        node.lake().table("a").delete("n = 5")
        for name in ("a", "b"):
            newest = node.lake().table(name).version()
            Catalog(str(now)).table(name).log.write_checkpoint(newest - 1)
        publish(Catalog(str(now)).table("a"))
        KeyStore(str(now)).create("default", ["ingest"])
        # A journal in one piece could be cut at its end only: these rows span several files.
        for part in range(12):
            for tenant, name in sorted(TABLES):
                first = 3_000 + part * 20
                node.lake(tenant).table(name).write(ticks(*range(first, first + 20), hour=part))
        node.close(flush=False)
    return World(now, older, dropped_folder)


def _drop_tables(lake: Lake) -> str:
    """Drop two tables whose rows are in the journal, purge one; return the other's folder."""
    for place, name in enumerate(("purged", "gone")):
        table = lake.create_table(name, **CREATION)
        table.write(ticks(*range(8_000, 8_010 + place)))
        lake.drop_table(name)
        if name == "purged":
            lake.vacuum_dropped(dry_run=False, grace="0s", allow_short_grace=True)
        else:
            (kept,) = Catalog(lake.root()).list_dropped()
    return f"{kept.folder}/"


def _truncate(table: ColdTable) -> None:
    """Let the log of a table begin at its oldest version that is pinned, or at its newest."""
    oldest = min([table.state().version, *list_pinned_versions(table)])
    expire_versions(table, oldest, "vacuum")
    assert truncate_log(table, commits_min=1).files


def _leave_lease(root: Path) -> None:
    """Take a lease, keep it until it has been prolonged, and give it back."""
    storage = LocalStorage(str(root))
    with Lease(storage, "a", job="compact", holder="one", term_s=LEASE_S):
        while not list(root.glob("leases/a/*.beat")):
            time.sleep(LEASE_S / 10)


# Ways to damage a file.


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage of one file; `touched` are the files that an error may name."""

    kind: str
    way: str
    path: str
    touched: tuple[str, ...]
    act: Callable[[Path], None]

    def __str__(self) -> str:
        return f"{self.kind} {self.way}: {self.path}"


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def truncate(path: Path, size_bytes: int) -> None:
    """Cut a file off."""
    path.write_bytes(path.read_bytes()[:size_bytes])


def swap(one: Path, other: Path) -> None:
    """Exchange the contents of two files."""
    mine, theirs = one.read_bytes(), other.read_bytes()
    one.write_bytes(theirs)
    other.write_bytes(mine)


def structures(path: Path) -> list[int]:
    """Return an offset inside of every structure of a file: pages, footer, fields, ends."""
    size_bytes = path.stat().st_size
    if size_bytes == 0:
        return []
    found = {0, size_bytes - 1}
    if path.suffix == ".parquet":
        metadata = pq.ParquetFile(path).metadata
        for group in range(metadata.num_row_groups):
            for column in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(column)
                pages = {chunk.data_page_offset, chunk.dictionary_page_offset} - {None}
                end = min(pages) + chunk.total_compressed_size
                # A page begins with its header; its last byte belongs to its values.
                found |= {*pages, *(start + 1 for start in pages), *(p - 1 for p in pages), end - 1}
                found.add((max(pages) + end) // 2)
        footer = int.from_bytes(path.read_bytes()[-8:-4], "little")
        found |= {size_bytes - 8 - footer, size_bytes - 8 - footer // 2, size_bytes - 7}
    found |= {size_bytes * part // FLIPS_PER_FILE for part in range(FLIPS_PER_FILE)}
    return sorted(offset for offset in found if 0 <= offset < size_bytes)


def chosen_damages(world: World, kind: str) -> Iterator[Damage]:
    """Yield every damage of one kind of file: each structure flipped, then the other ways."""
    for path in _examples(world, kind):
        for offset in structures(world.now / path):
            yield _flipped(kind, path, offset * 8 + offset % 8)
        yield from _other_ways(world, kind, path)


def _examples(world: World, kind: str) -> list[str]:
    # The first and the last file of a kind: an old commit and the newest, a full journal file
    # and the one that was being written.
    paths = [p for p in world.files()[kind] if not p.startswith("tenants/") or "/names/" in p]
    return sorted({paths[0], paths[-1]})


def _flipped(kind: str, path: str, bit: int) -> Damage:
    way = f"bit {bit % 8} of byte {bit // 8} flipped"
    return Damage(kind, way, path, (path,), lambda root: flip(root / path, bit))


def _other_ways(world: World, kind: str, path: str) -> Iterator[Damage]:
    size_bytes = (world.now / path).stat().st_size
    for kept in sorted({size_bytes // 2, max(0, size_bytes - 1)}):
        yield Damage(
            kind,
            f"truncated to {kept} bytes",
            path,
            (path,),
            lambda root, kept=kept: truncate(root / path, kept),
        )
    yield Damage(kind, "emptied", path, (path,), lambda root: truncate(root / path, 0))
    yield Damage(kind, "deleted", path, (path,), lambda root: (root / path).unlink())
    old = world.older / path
    if old.exists() and old.read_bytes() != (world.now / path).read_bytes():
        then = old.read_bytes()
        yield Damage(
            kind, "replaced by an older one", path, (path,), lambda r: _replace(r / path, then)
        )
    data = (world.now / path).read_bytes()
    for neighbour in world.files()[kind]:
        # Two tables with the same rows have files with the same bytes: exchanged, nothing changes.
        if (world.now / neighbour).read_bytes() != data:
            yield Damage(
                kind,
                "swapped with its neighbour",
                path,
                (path, neighbour),
                lambda root, other=neighbour: swap(root / path, root / other),
            )
            break


def _replace(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def random_damage(world: World, rng: random.Random) -> Damage:
    """Return a damage of a random file at a random place."""
    files = world.files()
    kind = rng.choice(sorted(KINDS))
    path = rng.choice(files[kind])
    size_bytes = (world.now / path).stat().st_size
    if size_bytes and rng.random() < 0.6:
        return _flipped(kind, path, rng.randrange(size_bytes * 8))
    if size_bytes and rng.random() < 0.3:
        kept = rng.randrange(size_bytes)
        return Damage(
            kind,
            f"truncated to {kept} bytes",
            path,
            (path,),
            lambda root: truncate(root / path, kept),
        )
    return rng.choice(list(_other_ways(world, kind, path)))


# Questions. Each opens the lake itself, so that none profits from what another has read.


@contextmanager
def _node(root: Path) -> Iterator[Node]:
    node = Node(str(root), calm(file_bytes_max=WAL_FILE_BYTES))
    try:
        yield node
    finally:
        node.close(flush=False)


def ask_open(root: Path) -> object:
    """Return which tables the lake has."""
    with _node(root) as node:
        return sorted((tenant, name) for tenant in node.tenants() for name in _names(node, tenant))


def _names(node: Node, tenant: str) -> list[str]:
    return node.lake(tenant).tables()


def ask_query(root: Path) -> object:
    """Return the rows of every table, by SQL."""
    with _node(root) as node:
        return _rows(node)


def _rows(node: Node) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
    found = {}
    for tenant, name in sorted(TABLES):
        text = f"select ts, host, n from {name} order by n, ts"
        answer = node.lake(tenant).sql(text)
        found[tenant, name] = [tuple(row.values()) for row in answer.to_pylist()]
    return found


def ask_search(root: Path) -> object:
    """Return how many rows of every table hold a word, which its token sidecars may deny."""
    with _node(root) as node:
        return {
            (tenant, name, word): node.lake(tenant)
            .sql(f"select count(n) c from {name} where has_token(host, '{word}')")
            .to_pylist()
            for tenant, name in sorted(TABLES)
            for word in ("a", "b", "zebra")
        }


def ask_reader(root: Path) -> object:
    """Return the rows of every table, by a process that reads the journal beside its owner."""
    node = Node(str(root), calm(file_bytes_max=WAL_FILE_BYTES), is_read_only=True)
    try:
        return _rows(node)
    finally:
        node.close()


def ask_scan(root: Path) -> object:
    """Return the rows of every table, by reading it in this process."""
    with _node(root) as node:
        return {
            (tenant, name): sorted(
                map(str, node.lake(tenant).table(name).scan().read_all().to_pylist())
            )
            for tenant, name in sorted(TABLES)
        }


def ask_gaps(root: Path) -> object:
    """Return what every table holds and lacks."""
    with _node(root) as node:
        tables = [node.lake(tenant).table(name) for tenant, name in sorted(TABLES)]
        return [(str(t.gaps(START, END)), str(t.coverage())) for t in tables]


def ask_fsck(root: Path) -> object:
    """Return what is wrong with the lake's tables: nothing, for one that is whole.

    A finding counts as an error that names its file.
    """
    with _node(root) as node:
        for tenant in node.tenants():
            folder = node.lake(tenant).root()
            for named in Catalog(folder):
                checked = fsck(Catalog(folder).table(named.name))
                for finding in checked.findings:
                    if not finding.is_harmless:
                        raise Corruption(finding.what, path=f"{named.folder}/{finding.path}")
    return []


def ask_backup(root: Path) -> object:
    """Return the rows of every table after a backup and a restore elsewhere."""
    copy, back = root.with_name(root.name + "-copy"), root.with_name(root.name + "-back")
    try:
        backup(str(root), str(copy))
        restore(str(copy), str(back))
        return ask_query(back)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(back, ignore_errors=True)


def ask_compaction(root: Path) -> object:
    """Return the rows of every table after a compaction, which must also be sound."""
    with JobWorkspace(root) as site:
        for name in ("a", "b"):
            table = site.table(name)
            wanted = [segment.segment_id for segment in table.state().segments]
            compact(table, wanted, merge_here, CompactionLimits(inputs_min=2), ignore_progress)
    ask_fsck(root)
    return ask_query(root)


def ask_vacuum(root: Path) -> object:
    """Return the rows of every table after a vacuum, which must leave it sound."""
    with _node(root) as node:
        for tenant, name in sorted(TABLES):
            table = node.lake(tenant).table(name)
            table.vacuum(dry_run=False, grace="0s", allow_short_grace=True)
    ask_fsck(root)
    return ask_query(root)


def ask_after_a_write(root: Path) -> object:
    """Return the rows of every table without a row that was written, flushed and read back."""
    with _node(root) as node:
        for tenant, name in sorted(TABLES):
            table = node.lake(tenant).table(name)
            table.write(ticks(99_999, hour=9))
            table.flush()
        found = _rows(node)
    for key, rows in found.items():
        assert rows[-1][-1] == 99_999, f"the new row is missing in {key}"
    return {key: rows[:-1] for key, rows in found.items()}


def ask_keys(root: Path) -> object:
    """Return the keys that the lake's node accepts; when they were used is read with them.

    Without the file of uses that is not known, which is an answer as well.
    """
    keys = KeyStore(str(root))
    found = sorted(keys.read().by_id)
    assert keys.read_uses().keys() <= set(found)
    return found


def ask_lease(root: Path) -> object:
    """Return that a job can take a table that no other job has."""
    with Lease(LocalStorage(str(root)), "a", job="compact", holder="two") as lease:
        lease.check()
    return "taken"


def ask_dropped(root: Path) -> object:
    """Return the rows of the dropped table that can be brought back."""
    with _node(root) as node:
        listed = node.lake().dropped_tables()["table"].to_pylist()
        table = node.lake().undrop_table("gone")
        return listed, sorted(map(str, table.to_arrow().to_pylist()))


def ask_copy(root: Path) -> object:
    """Return the rows of a copy of each table, which must be sound."""
    found = {}
    with _node(root) as node:
        for tenant, name in sorted(TABLES):
            copy = node.lake(tenant).copy_table(name, f"copied_{name}")
            assert copy.fsck().is_sound
            found[tenant, name] = sorted(map(str, copy.to_arrow().to_pylist()))
    return found


def ask_update(root: Path) -> object:
    """Return the rows of each table after one was set to what it is, by its key."""
    with JobWorkspace(root) as site:
        for name in ("a", "b"):
            table = TimeSeriesTable(site.table(name))
            table.update_rows(table.to_arrow().slice(0, 1))
    return ask_query(root)


def ask_truncation(root: Path) -> object:
    """Return the rows of every table after its log was truncated, which must leave it sound."""
    for tenant in TenantCatalog(str(root), OsDisk()):
        catalog = Catalog(f"{root}/{TenantCatalog(str(root), OsDisk()).folder(tenant)}")
        for named in catalog:
            table = catalog.table(named.name)
            expire_versions(table, table.state().version, "vacuum")
            truncate_log(table, commits_min=1)
    ask_fsck(root)
    return ask_query(root)


def ask_publish(root: Path) -> object:
    """Return what other engines learn from the Iceberg metadata, after one more commit."""
    with JobWorkspace(root) as site:
        table = site.table("a")
        publish(table)
        TimeSeriesTable(table).delete("n = 7")
        done = publish(table)
        found = []
        for snapshot in done.metadata["snapshots"]:
            for listed in _records(snapshot["manifest-list"]):
                entries = _records(listed["manifest_path"])
                found += [(snapshot["snapshot-id"], one["status"], *_named(one)) for one in entries]
    return sorted(str(one).replace(str(root), "") for one in found)


def _named(entry: dict[str, Any]) -> tuple[object, ...]:
    """Return what a manifest says about a file, without what depends on the lake's folder."""
    file = entry["data_file"]
    if not file["content"]:
        return (file,)
    rows = pq.read_table(file["file_path"].removeprefix("file://")).to_pylist()
    return file["referenced_data_file"], file["record_count"], rows


def _records(address: str) -> list[dict[str, Any]]:
    path = address.removeprefix("file://")
    return decode_records(Path(path).read_bytes(), path)


QUESTIONS: dict[str, Callable[[Path], object]] = {
    "open": ask_open,
    "query": ask_query,
    "search": ask_search,
    "reader": ask_reader,
    "scan": ask_scan,
    "gaps": ask_gaps,
    "fsck": ask_fsck,
    "backup": ask_backup,
    "compaction": ask_compaction,
    "vacuum": ask_vacuum,
    "write": ask_after_a_write,
    "keys": ask_keys,
    "lease": ask_lease,
    "dropped": ask_dropped,
    "copy": ask_copy,
    "update": ask_update,
    "truncation": ask_truncation,
    "publish": ask_publish,
}


_OF_THE_LOG = {"commit", "checkpoint", "base", "current"}
_OF_ONE_TABLE = {*_OF_THE_LOG, "segment", "segment coverage", "segment tokens"}
_OF_ICEBERG = {kind for kind in KINDS if kind.startswith("Iceberg")}
ASKED_ABOUT: dict[str, set[str]] = {
    "dropped": {"dropped table", "table name", "lake identity"},
    "copy": _OF_ONE_TABLE,
    "update": _OF_ONE_TABLE,
    "truncation": {*_OF_ONE_TABLE, "table coverage", "pin"},
    "publish": {*_OF_ONE_TABLE, *_OF_ICEBERG, "pin"},
}
"""Questions that read files of some kinds alone; the others are asked about every kind."""
OF_ICEBERG = {"open", "publish"}
"""What is asked about files that only other engines read."""


def questions_about(kind: str) -> list[str]:
    """Return the questions whose answers may depend on files of a kind."""
    if kind in _OF_ICEBERG:
        return [question for question in QUESTIONS if question in OF_ICEBERG]
    return [question for question in QUESTIONS if kind in ASKED_ABOUT.get(question, KINDS)]


MUST_BE_FOUND = {
    "segment": {"query", "reader", "scan", "fsck", "backup", "compaction", "vacuum", "write"}
    | {"copy", "truncation"},
    "commit": {"fsck", "backup"},
}
"""Questions that read every byte of a file, so that no answer of theirs is right."""


@cache
def right_answer(world: World, question: str) -> object:
    """Return the answer of the lake as it was before any damage."""
    with copied(world) as root:
        return QUESTIONS[question](root)


@contextmanager
def copied(world: World) -> Iterator[Path]:
    """Yield a copy of the lake that may be damaged, and remove it."""
    root = world.now.parent / f"case-{random.getrandbits(64):016x}"
    shutil.copytree(world.now, root)
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def violation(world: World, damage: Damage, question: str) -> str | None:
    """Damage a copy of the lake and ask; return what the promise does not allow, or None."""
    found = outcome(world, damage, question)
    return None if found in ("right", "refused") else found


def outcome(world: World, damage: Damage, question: str) -> str:
    """Damage a copy of the lake and ask; return "right", "refused" or what is wrong."""
    right = right_answer(world, question)
    with copied(world) as root:
        damage.act(root)
        try:
            found = QUESTIONS[question](root)
        except Corruption as error:
            is_named = names(error, damage)
            return "refused" if is_named else f"{question}: another file is named: {error!r}"
        except ThermoclineError as error:
            return f"{question}: {type(error).__name__}: {error.message} {error.facts}"
        except Exception as error:  # noqa: BLE001  # an error of any other kind is a finding
            return f"{question}: raw {type(error).__name__}: {error}"
    if question in MUST_BE_FOUND.get(damage.kind, ()):
        return f"{question}: the damage was not noticed"
    return "right" if found == right else f"{question}: a wrong answer without an error"


def names(error: Exception, damage: Damage) -> bool:
    """Tell whether an error names one of the files that were damaged.

    A name that is gone says no longer whose it was: then the error names the folder it was in.
    An error of Spark has the text of the error that its worker raised.
    """
    told = (
        f"{error.message} {error.facts} {error.hint}"
        if isinstance(error, Corruption)
        else str(error)
    )
    if damage.way == "deleted" and damage.kind in ("table name", "tenant name"):
        return f"{os.path.dirname(damage.path)}/" in told or "its file in names/" in told
    return any(path.rpartition("/")[2] in told for path in damage.touched)
