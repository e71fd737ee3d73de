"""Every public operation of a table, as a step from one known content to another.

Used by the loops that fail or kill each call of an operation. `seen` is what a user would notice:
the rows, the buckets that are held, the columns and the settings.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fixtures.lake import lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from fixtures.sim_verbs import write
from thermocline.cold.care.fsck import fsck
from thermocline.cold.care.truncate import truncate_log
from thermocline.cold.care.vacuum import expire_versions, vacuum
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.change.update import UpdateOptions
from thermocline.cold.compact.rewrite import compact_here
from thermocline.cold.table import ColdTable
from thermocline.format.instant import parse_instant
from thermocline.format.log.conflict import TimeWindow

INCOMING = "/incoming/day.parquet"
CHECKPOINT_EVERY = 5
NOW_NS = parse_instant("2024-07-01")


@dataclass(frozen=True)
class Operation:
    """One thing a user does; `is_silent` when it leaves the content as it was."""

    name: str
    act: Callable[[ColdTable], object]
    is_silent: bool = False


def opened(disk: SimDisk) -> ColdTable:
    """Return the table as a new process would meet it."""
    clock = iter(range(NOW_NS, NOW_NS + 10**15, 10**9))
    return lake_on(disk, checkpoint_every=CHECKPOINT_EVERY, now_ns=lambda: next(clock))


def _deleted(table: ColdTable) -> object:
    return table.delete(lambda batch: pc.equal(batch.column("close"), 5.0), ["close"])


def _changed(table: ColdTable) -> object:
    return table.alter(
        "add column", lambda s, c: (s, c.add_columns([pa.field("note", pa.string())]))
    )


def _compacted(table: ColdTable) -> object:
    return compact_here(table)


def _truncated(table: ColdTable) -> object:
    expire_versions(table, table.state().version, "vacuum")
    return truncate_log(table, commits_min=1)


def _vacuumed(table: ColdTable) -> object:
    return vacuum(table, grace_s=0, dry_run=False, allow_short_grace=True)


OPERATIONS = [
    Operation("append", lambda t: t.append(rows([10, 11]).to_reader(), AppendOptions())),
    Operation("append_parquet", lambda t: t.append_parquet([INCOMING], AppendOptions())),
    Operation("append_link", lambda t: t.append_parquet([INCOMING], AppendOptions(), link=True)),
    Operation(
        "append_many", lambda t: t.append_parquet([INCOMING] * 2, AppendOptions(overlap="allow"))
    ),
    Operation(
        "replace",
        lambda t: t.append(rows([1, 9], close=99).to_reader(), AppendOptions(overlap="replace")),
    ),
    Operation(
        "evolve",
        lambda t: t.append(
            rows([12]).append_column("note", pa.array(["new"])).to_reader(),
            AppendOptions(evolve=True),
        ),
    ),
    Operation("delete", _deleted),
    Operation(
        "delete_window",
        lambda t: t.delete(
            lambda b: pa.array([True] * b.num_rows),
            [],
            TimeWindow(parse_instant("2024-06-01T00:00:00"), parse_instant("2024-06-01T02:00:00")),
        ),
    ),
    Operation("update", lambda t: t.update(rows([1, 7], close=77), UpdateOptions())),
    Operation("upsert", lambda t: t.update(rows([2, 30], close=77), UpdateOptions(inserts=True))),
    Operation("restore", lambda t: t.restore(3)),
    Operation("change", _changed),
    Operation("compact", _compacted, is_silent=True),
    Operation("vacuum", _vacuumed, is_silent=True),
    Operation("truncate", _truncated, is_silent=True),
    Operation("checkpoint", lambda t: t.log.write_checkpoint(t.state().version), is_silent=True),
    Operation("read", lambda t: seen_in(t), is_silent=True),
]


def create(table: ColdTable) -> object:
    """Make the table all other operations work on."""
    return table.create(spec())


@cache
def _incoming() -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows(range(20, 30)), sink)
    return sink.getvalue()


@cache
def _base_volume():
    disk = empty_disk()
    table = opened(disk)
    create(table)
    table.append(rows([0, 1, 2]).to_reader(), AppendOptions())
    table.append(rows([0, 1, 2], "AMD").to_reader(), AppendOptions())
    table.append(rows([5, 6, 7]).to_reader(), AppendOptions())
    table.delete(lambda batch: pc.equal(batch.column("close"), 6.0), ["close"])
    table.append(rows([8]).to_reader(), AppendOptions())
    return disk.freeze()


def empty_disk() -> SimDisk:
    """Return a disk with a file to append and no table."""
    disk = SimDisk(["/lake", "/incoming"])
    write(disk, INCOMING, _incoming())
    disk.sync_folder("/incoming")
    return disk


def base_disk() -> SimDisk:
    """Return a disk with a table of six versions, one of them a delete."""
    return SimDisk.thaw(_base_volume())


def seen_in(table: ColdTable) -> tuple:
    """Return what a user would notice of a table's newest version."""
    state = table.state()
    content = sorted(str(row) for batch in table.read(state, None) for row in batch.to_pylist())
    held = {key: tuple(b.runs()) for key, b in table.index.at(state).entities.items()}
    return content, sorted(held.items()), state.schema, state.spec


def seen(disk: SimDisk) -> tuple:
    """Return what a new process would notice of the table on a disk."""
    return seen_in(opened(disk))


@cache
def contents(name: str) -> tuple[tuple, tuple]:
    """Return what is seen before and after an operation that meets no trouble."""
    operation = next(o for o in OPERATIONS if o.name == name)
    disk = base_disk()
    before = seen(disk)
    operation.act(opened(disk))
    after = seen(disk)
    assert (before == after) is operation.is_silent
    return before, after


def check_whole(disk: SimDisk) -> None:
    """Prove a table: fsck finds nothing, the next writer can write, vacuum leaves no orphan."""
    table = opened(disk)
    assert [f for f in fsck(table).findings if not f.is_harmless] == []
    table.append(rows([100], "LATER").to_reader(), AppendOptions())
    vacuum(table, grace_s=0, dry_run=False, allow_short_grace=True)
    again = opened(disk)
    found = fsck(again).findings
    assert [f for f in found if f.kind == "orphan" or not f.is_harmless] == []
    assert '["LATER"]' in again.index.at(again.state()).entities
