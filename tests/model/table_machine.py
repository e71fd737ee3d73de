"""A table against a plain dict: every operation in any order, every version kept, two handles.

The machine compares, after each step, the rows and the buckets of each entity at the newest
version and at some older ones, and at every version that has not expired when it ends.
"""

from dataclasses import dataclass, field, replace

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from fixtures.lake import HOUR_US, JUNE_US, spec
from fixtures.sim_disk import SimDisk
from thermocline.cold.care.fsck import fsck
from thermocline.cold.care.pin import pin_version
from thermocline.cold.care.vacuum import vacuum
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.errors import CoverageOverlapError, NotFound
from thermocline.format import layout
from thermocline.format.instant import NS_PER_S, parse_instant

ROOT = "/lake/prices/"
FIRST_HOUR = JUNE_US // HOUR_US
NAMES = ("low", "high", "note")
KEEPS_H = 6
OLDER_CHECKED = 2

SYMBOLS = st.sampled_from(["NVDA", "AMD"])
HOURS = st.integers(0, 9)
CELLS = st.lists(st.tuples(SYMBOLS, HOURS), min_size=1, max_size=5)
POLICIES = st.sampled_from(["reject", "allow", "replace"])


@dataclass(frozen=True)
class Row:
    """A row of the model; its values are by the identity of a column, not by its name."""

    symbol: str
    hour: int
    values: dict[int, int]


@dataclass(frozen=True)
class Content:
    """What one version holds: rows by number, and the columns' names by identity."""

    rows: dict[int, Row] = field(default_factory=dict)
    columns: dict[int, str] = field(default_factory=dict)

    def held(self):
        found = {}
        for row in self.rows.values():
            found.setdefault(row.symbol, set()).add(row.hour)
        return found

    def told(self):
        return {
            number: (row.symbol, row.hour, {n: row.values.get(c) for c, n in self.columns.items()})
            for number, row in self.rows.items()
        }


def differing(found, wanted):
    """Return what differs, key by key: two large dicts side by side tell a reader nothing."""
    keys = [key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)]
    return {key: (found.get(key), wanted.get(key)) for key in keys[:3]}


class TableMachine(RuleBasedStateMachine):
    """Runs operations on a table and on a dict."""

    table_class = ColdTable

    def __init__(self):
        super().__init__()
        self.disk = SimDisk(["/lake"])
        self.now_ns = parse_instant("2024-07-01")
        self.handles = [self.opened(), self.opened()]
        self.versions = {}
        self.oldest = 1
        self.writers = {}
        self.numbers = iter(range(1, 10**6))
        self.column_ids = iter(range(1, 10**6))
        self.lost = set()

    def opened(self):
        storage = LocalStorage(ROOT, self.disk)
        return self.table_class(storage, now_ns=self.tick, checkpoint_every=4, workers=1)

    def tick(self):
        self.now_ns += NS_PER_S
        return self.now_ns

    @property
    def content(self):
        return self.versions[max(self.versions)]

    def became(self, version, content):
        """Note what the newest version must hold."""
        newest = max(self.versions)
        assert version in (newest, newest + 1)
        assert version == newest + 1 or content == self.content
        self.versions[version] = content

    @initialize()
    def create(self):
        kind = replace(spec(), retention=f"{KEEPS_H}h")
        self.handles[0].create(kind)
        self.versions = {1: Content()}

    # Appends

    def made(self, cells, *, with_columns=True):
        """Return new rows for these cells, for the model and for the table."""
        columns = self.content.columns if with_columns else {}
        rows = {
            next(self.numbers): Row(symbol, hour, {c: hour * 100 + c for c in columns})
            for symbol, hour in cells
        }
        times = [JUNE_US + row.hour * HOUR_US for row in rows.values()]
        data = {
            "ts": pa.array(times, pa.timestamp("us")),
            "symbol": [row.symbol for row in rows.values()],
            "number": list(rows),
        }
        for column, name in columns.items():
            data[name] = [row.values[column] for row in rows.values()]
        return rows, pa.table(data)

    def after_append(self, rows, policy):
        """Return the content after an append, or None when it must be refused."""
        cells = {(row.symbol, row.hour) for row in rows.values()}
        before = self.content.rows
        meeting = {n for n, row in before.items() if (row.symbol, row.hour) in cells}
        if policy == "reject" and meeting:
            return None
        gone = meeting if policy == "replace" else set()
        kept = {n: row for n, row in before.items() if n not in gone}
        return replace(self.content, rows=kept | rows)

    def appended(self, handle, rows, data, policy, **wish):
        wanted = self.after_append(rows, policy)
        try:
            state = self.handles[handle].append(
                data.to_reader(), AppendOptions(overlap=policy, **wish)
            )
        except CoverageOverlapError:
            assert wanted is None, "refused what does not overlap"
        else:
            assert wanted is not None, "took what overlaps"
            self.became(state.version, wanted)

    @rule(handle=st.integers(0, 1), cells=CELLS, policy=POLICIES, with_columns=st.booleans())
    def append(self, handle, cells, policy, with_columns):
        rows, data = self.made(cells, with_columns=with_columns)
        self.appended(handle, rows, data, policy)

    @rule(cells=CELLS, rival=st.none() | CELLS, policy=POLICIES, rival_policy=POLICIES)
    def append_while_a_rival_is_first(self, cells, rival, policy, rival_policy):
        rows, data = self.made(cells)
        rival_rows, rival_data = self.made(rival or cells)
        commit = ROOT + layout.commit_path(max(self.versions) + 1)

        def strike(operation, path):
            if (operation, path) == ("link", commit):
                self.disk.hooks = None
                self.appended(1, rival_rows, rival_data, rival_policy)

        self.disk.hooks = strike
        self.handles[0].log.head()
        # The rival changes the model in between, so what is wanted is known only afterwards.
        try:
            state = self.handles[0].append(data.to_reader(), AppendOptions(overlap=policy))
        except CoverageOverlapError:
            assert self.after_append(rows, policy) is None, "refused what does not overlap"
        else:
            wanted = self.after_append(rows, policy)
            assert wanted is not None, "took what overlaps"
            self.became(state.version, wanted)
        self.disk.hooks = None

    @rule(handle=st.integers(0, 1), cells=CELLS, sequence=st.integers(0, 3))
    def append_once(self, handle, cells, sequence):
        rows, data = self.made(cells)
        if self.writers.get("job", -1) >= sequence:
            state = self.handles[handle].append(
                data.to_reader(), AppendOptions(txn=("job", sequence))
            )
            self.became(state.version, self.content)
            return
        self.appended(handle, rows, data, "allow", txn=("job", sequence))
        self.writers["job"] = sequence

    # Deletes

    @rule(handle=st.integers(0, 1), symbol=SYMBOLS, hours=st.sets(HOURS, min_size=1, max_size=4))
    def delete(self, handle, symbol, hours):
        gone = [
            number
            for number, row in self.content.rows.items()
            if row.symbol == symbol and row.hour in hours
        ]
        self.deleted(handle, gone)

    @rule(handle=st.integers(0, 1), picks=st.lists(st.integers(0, 30), min_size=1, max_size=3))
    def delete_single_rows(self, handle, picks):
        numbers = sorted(self.content.rows)
        self.deleted(handle, [numbers[pick % len(numbers)] for pick in picks if numbers])

    def deleted(self, handle, gone):
        wanted = pa.array(gone, pa.int64())
        state, count = self.handles[handle].delete(
            lambda batch: pc.is_in(batch.column("number"), wanted),
            ["number"] if self.content.rows else [],
        )
        assert count == len(set(gone))
        rows = {n: row for n, row in self.content.rows.items() if n not in gone}
        self.became(state.version, replace(self.content, rows=rows))

    @rule(handle=st.integers(0, 1), cut_off=st.integers(0, 11))
    def retain(self, handle, cut_off):
        now_ns, self.now_ns = self.now_ns, (JUNE_US + (cut_off + KEEPS_H) * HOUR_US) * 1_000
        self.now_ns -= NS_PER_S
        state, _ = self.handles[handle].retain(yes=True)
        self.now_ns = now_ns
        rows = {n: row for n, row in self.content.rows.items() if row.hour >= cut_off}
        self.became(state.version, replace(self.content, rows=rows))

    # Columns, and back

    @precondition(lambda self: self.content.rows and len(self.content.columns) < len(NAMES))
    @rule(handle=st.integers(0, 1), pick=st.integers(0, 2))
    def add_column(self, handle, pick):
        free = [name for name in NAMES if name not in self.content.columns.values()]
        name = free[pick % len(free)]
        state = self.handles[handle].alter(
            "add", lambda s, c: (s, c.add_columns([pa.field(name, pa.int64())]))
        )
        columns = {**self.content.columns, next(self.column_ids): name}
        self.became(state.version, replace(self.content, columns=columns))

    @precondition(lambda self: 0 < len(self.content.columns) < len(NAMES))
    @rule(handle=st.integers(0, 1), pick=st.integers(0, 2))
    def rename_column(self, handle, pick):
        columns = dict(self.content.columns)
        column = sorted(columns)[pick % len(columns)]
        old = columns[column]
        new = next(name for name in NAMES if name not in columns.values())
        state = self.handles[handle].alter("rename", lambda s, c: (s, c.rename_column(old, new)))
        columns[column] = new
        self.became(state.version, replace(self.content, columns=columns))

    @rule(handle=st.integers(0, 1), pick=st.integers(0, 100))
    def restore(self, handle, pick):
        kept = [version for version in self.versions if version >= self.oldest]
        version = kept[pick % len(kept)]
        state = self.handles[handle].restore(version)
        self.became(state.version, self.versions[version])

    # Care

    @rule(handle=st.integers(0, 1))
    def checkpoint(self, handle):
        self.handles[handle].log.write_checkpoint(max(self.versions))

    @rule(handle=st.integers(0, 1))
    def reopen(self, handle):
        self.handles[handle] = self.opened()

    @rule(pick=st.integers(0, 100))
    def lose_what_can_be_made_again(self, pick):
        hints = [
            path
            for path, data in self.disk.tree().items()
            if data is not None and ("_coverage/" in path or "CURRENT" in path or "check" in path)
        ]
        if hints:
            self.lost.add(hints[pick % len(hints)])
            self.disk.remove(hints[pick % len(hints)])

    @rule(handle=st.integers(0, 1))
    def vacuum(self, handle):
        newest = max(self.versions)
        vacuum(self.handles[handle], grace_s=0, dry_run=False, allow_short_grace=True)
        state = self.handles[handle].state()
        self.became(state.version, self.content)
        assert state.oldest <= newest
        self.oldest = state.oldest

    @rule(pick=st.integers(0, 100), cells=CELLS)
    def vacuum_while_an_older_version_is_read(self, pick, cells):
        kept = [version for version in self.versions if version >= self.oldest]
        version = kept[pick % len(kept)]
        rows, data = self.made(cells)
        with pin_version(self.handles[0], version):
            self.appended(0, rows, data, "replace")
            self.vacuum(1)
            assert self.oldest <= version, "a version that is read has expired"
            self.check(self.handles[0], version)

    # What must hold

    @invariant()
    def newest_is_as_the_dict_says(self):
        for handle in self.handles:
            assert handle.state().version == max(self.versions)
            self.check(handle, max(self.versions))

    @invariant()
    def older_versions_are_as_they_were(self):
        kept = [version for version in self.versions if version >= self.oldest]
        for place in range(min(OLDER_CHECKED, len(kept))):
            self.check(self.handles[1], kept[len(self.disk.calls) * (place + 1) % len(kept)])

    def check(self, table, version):
        content = self.versions[version]
        state, coverage = table.coverage(version)
        told = {}
        for batch in table.read(state, None):
            for row in batch.to_pylist():
                number, symbol, hour = row.pop("number"), row.pop("symbol"), row.pop("ts").hour
                assert number not in told, "a row is read twice"
                told[number] = (symbol, hour, row)
        assert differing(told, content.told()) == {}
        assert state.totals.rows == len(told)
        held = {
            orjson.loads(key)[0]: set((buckets.numbers() - FIRST_HOUR).tolist())
            for key, buckets in coverage.entities.items()
        }
        assert differing(held, content.held()) == {}
        whole = set((coverage.whole.numbers() - FIRST_HOUR).tolist())
        assert whole == {hour for hours in held.values() for hour in hours}

    def teardown(self):
        self.disk.hooks = None
        table = self.opened()
        for version in self.versions:
            if version >= self.oldest:
                self.check(table, version)
            else:
                with pytest.raises(NotFound, match="expired"):
                    table.state(version)
        lost = {path for path in self.lost if self.disk.size(path) is None}
        found = [f for f in fsck(table).findings if not f.is_harmless]
        assert {ROOT + finding.path for finding in found} <= lost
