"""Verbs for entities in two places: made types, one reading as a dict, steps that fail."""

import errno
import os
from dataclasses import replace

import pyarrow as pa
import pytest

from thermocline.cold.catalog import Catalog
from thermocline.cold.change.export_plan import ExportBatch, find_flush_note
from thermocline.disk import OsDisk
from thermocline.entity.columns import conform_rows
from thermocline.entity.types import EntityCatalog

ACCOUNT = {
    "type": "object",
    "properties": {
        "owner": {"type": "string", "x-hot": True},
        "balance": {"type": "integer", "x-hot": True},
        "note": {"type": ["string", "null"]},
        "limit": {"type": "string", "x-type": "decimal(18,2)"},
    },
    "required": ["balance"],
}


def account(balance, **more):
    """Return the document of an account."""
    return {"balance": balance, **more}


def balances(entities, **options):
    """Return the balance of each key, as a scan gives it; a key read twice fails the test."""
    return told(entities.scan(["_id", "balance"], **options))


def told(answer):
    """Return what an answer says: the balance of each key."""
    rows = answer.rows.to_pylist()
    found = {row["_id"]: row["balance"] for row in rows}
    assert len(found) == len(rows), "a key was read twice"
    return found


def cold_balances(entities, at=None):
    """Return the balance of each key in the lake alone, at its newest version or another."""
    found = {}
    table = entities.table
    for batch in table.read(table.state(at), ["_id", "balance"]):
        for row in batch.to_pylist():
            assert row["_id"] not in found, "a key has two live rows"
            found[row["_id"]] = row["balance"]
    return found


class Died(BaseException):
    """The process is gone: nothing of ours catches this."""


def dies(owner, name, *, after):
    """Let the next call of a method end the process, before or after it has done its work."""
    method = getattr(owner, name)

    def last(*args, **options):
        setattr(owner, name, method)
        if after:
            method(*args, **options)
        raise Died

    setattr(owner, name, last)


def compact(entities):
    """Rewrite every live row of the lake into one segment, as a compaction does."""
    table = entities.table
    state = table.state()
    rows = pa.Table.from_batches(list(table.read(state, None)), state.schema.arrow).sort_by("_id")
    notes = (find_flush_note(table.log.commit(version)) for version in range(state.version, 0, -1))
    note = next((note for note in notes if note is not None), None)
    if note is not None:
        keys = rows.column("_id").combine_chunks()
        stored = conform_rows(rows, state.schema)
        table.commit_export(
            ExportBatch(state.version, keys, stored, replace(note, changes=""), state)
        )


class WeakDisk:
    """A real disk that can be made to fail every call."""

    def __init__(self):
        self._disk = OsDisk()
        self.is_down = False

    def __getattr__(self, name):
        if self.is_down:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return getattr(self._disk, name)


@pytest.fixture
def entity_types(pool, tenant, tmp_path):
    """The types of a tenant, with a lake of this test's own."""
    return EntityCatalog(pool, tenant, Catalog(str(tmp_path / "lake")))


@pytest.fixture
def accounts(entity_types):
    """Entities of one type."""
    return entity_types.register("account", ACCOUNT)


@pytest.fixture
def another(pool, tenant, tmp_path):
    """The same entities as another process has them: nothing is shared but what is stored."""

    def opened(settings=None):
        types = EntityCatalog(pool, tenant, Catalog(str(tmp_path / "lake")), settings)
        return types.table("account")

    return opened


def text_array(*values):
    """Return texts as Arrow has them."""
    return pa.array(list(values), pa.string())


def forget_changes(entities):
    """Remove what was recorded, as if it was from before changes were recorded."""
    store = entities.store
    store.pool.run(store.tenant, lambda c: c.execute("delete from revision").rowcount)
