"""A lake against a plain list: hot and cold rows, columns that change, starts after any end.

The machine writes, flushes, deletes, appends, adds and renames columns, closes, dies and starts
again; after each step the lake's owner and a reader beside it must tell what the list tells, and
old versions what they told when they were new. It must fail on every one of the wrong designs.
"""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from crash.lake_operations import abandon, opened, write_back
from fixtures.lake import HOUR_US, JUNE_US
from fixtures.sim_disk import SimDisk
from thermocline import lake_table, snapshot
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.change.flush_plan import FlushPlanner
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.errors import Corruption
from thermocline.format.log.action import SetMark
from thermocline.hot.wal.buffer import TableBuffer
from thermocline.hot.wal.recovery import Recovery
from thermocline.snapshot import TableView

NAMES = ("low", "high", "note")
HOURS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


class LakeMachine(RuleBasedStateMachine):
    """Runs operations on a lake and on a list of rows; values are by a column's identity."""

    def __init__(self):
        super().__init__()
        self.disk = SimDisk(["/"])
        self.lake = opened(self.disk)
        self.beside = None
        self.rows = {}
        self.columns = {}
        self.versions = {}
        self.numbers = iter(range(1, 10**6))
        self.column_ids = iter(range(1, 10**6))

    @initialize()
    def create(self):
        self.lake.create_table("prices", time_column="ts", bucket="1h")
        self.table.cold._workers = 1
        self.beside = opened(self.disk, is_read_only=True)
        self.write([0])
        self.flush()

    @property
    def table(self):
        return self.lake.table("prices")

    def made(self, hours, *, with_columns=True):
        """Return rows for these hours, for the model and for the lake."""
        columns = self.columns if with_columns else {}
        made = {
            next(self.numbers): (hour, {column: hour * 100 + column for column in columns})
            for hour in hours
        }
        times = [JUNE_US + hour * HOUR_US for hour, _ in made.values()]
        data = {"ts": pa.array(times, pa.timestamp("us")), "number": list(made)}
        for column, name in columns.items():
            data[name] = [values[column] for _, values in made.values()]
        return made, pa.table(data)

    def told(self):
        """Return what the list tells now."""
        return {
            number: (hour, {name: values.get(column) for column, name in self.columns.items()})
            for number, (hour, values) in self.rows.items()
        }

    @rule(hours=HOURS, with_columns=st.booleans())
    def write(self, hours, with_columns=True):
        made, data = self.made(hours, with_columns=with_columns)
        assert self.table.write(data) == len(made)
        self.rows |= made

    @rule(count=st.integers(16, 18))
    def write_many_times(self, count):
        for hour in range(count):
            self.write([hour % 4])

    @rule()
    def flush(self):
        version = self.table.flush()
        assert self.table.snapshot().parts == ()
        self.versions[version] = self.told()

    @rule(hours=HOURS, times=st.sampled_from([1, 16]))
    def write_into_a_flush(self, hours, times):
        def strike(operation, path):
            if operation == "link" and "_log/" in path:
                self.disk.hooks = None
                for _ in range(times):
                    self.write(hours)

        self.disk.hooks = strike
        self.lake.flush()
        self.disk.hooks = None

    @rule()
    def read_while_a_flush_comes_between(self):
        head = self.table.cold.log.head

        def between():
            self.table.cold.log.head = head
            self.lake.flush()
            return head()

        wanted = self.told()
        self.table.cold.log.head = between
        try:
            self.check(self.table.to_arrow(), wanted)
        finally:
            self.table.cold.log.head = head

    @rule(hours=HOURS)
    def append_beside(self, hours):
        made, data = self.made(hours)
        beside = ColdTable(LocalStorage(self.table.root(), self.disk), workers=1)
        beside.append(data.to_reader(), AppendOptions(overlap="allow"))
        self.rows |= made

    @precondition(lambda self: self.rows)
    @rule(picks=st.sets(st.integers(0, 30), min_size=1, max_size=4))
    def delete(self, picks):
        numbers = sorted(self.rows)
        gone = {numbers[pick % len(numbers)] for pick in picks}
        self.table.flush()
        wanted = pa.array(gone, pa.int64())
        state, count = self.table.cold.delete(
            lambda batch: pc.is_in(batch.column("number"), wanted), ["number"]
        )
        assert count == len(gone)
        self.rows = {number: row for number, row in self.rows.items() if number not in gone}
        self.versions[state.version] = self.told()

    @precondition(lambda self: len(self.columns) < len(NAMES))
    @rule(pick=st.integers(0, 2))
    def add_column(self, pick):
        free = [name for name in NAMES if name not in self.columns.values()]
        name = free[pick % len(free)]
        self.table.add_column(name, pa.int64())
        self.columns = {**self.columns, next(self.column_ids): name}

    @precondition(lambda self: 0 < len(self.columns) < len(NAMES))
    @rule(pick=st.integers(0, 2))
    def rename_column(self, pick):
        column = sorted(self.columns)[pick % len(self.columns)]
        new = next(name for name in NAMES if name not in self.columns.values())
        self.table.rename_column(self.columns[column], new)
        self.columns = {**self.columns, column: new}

    @rule(is_flushed=st.booleans())
    def reopen(self, is_flushed):
        self.lake.close(flush=is_flushed)
        self.started()

    @rule(is_power_cut=st.booleans())
    def die(self, is_power_cut):
        abandon(self.lake)
        if is_power_cut:
            self.disk = next(self.disk.crash_states(1))  # all that is pending is lost
        else:
            self.disk = self.disk.killed()
        self.beside = opened(self.disk, is_read_only=True)
        self.started()

    @rule()
    def wait(self):
        write_back(self.disk)

    def started(self):
        self.lake = opened(self.disk)

    @invariant()
    def both_tell_what_the_list_tells(self):
        if self.beside is None:
            return
        for lake in (self.lake, self.beside):
            self.check(lake.table("prices").to_arrow(), self.told())

    @precondition(lambda self: self.versions)
    @rule(pick=st.integers(0, 30))
    def read_an_old_version(self, pick):
        version = sorted(self.versions)[pick % len(self.versions)]
        self.check(self.table.to_arrow(at=version), self.versions[version])

    def check(self, data, wanted):
        found = {}
        for row in data.to_pylist():
            number, hour = row.pop("number"), row.pop("ts").hour
            assert number not in found, "a row is read twice"
            found[number] = (hour, row)
        assert sorted(found) == sorted(wanted)
        assert found == wanted

    def teardown(self):
        self.disk.hooks = None
        self.lake.flush()
        self.check(self.table.to_arrow(), self.told())
        assert self.table.fsck().is_sound
        self.lake.close()


TestLake = LakeMachine.TestCase
TestLake.settings = settings(max_examples=25, stateful_step_count=20)


# Wrong designs


def pairs_with_the_newest_version(patch):
    newest = lambda hot, table: TableView(table.state(), hot.parts)  # noqa: E731
    patch.setattr(lake_table, "resolve_view", newest)


def hides_every_part_once_a_flush_has_landed(patch):
    def resolve(hot, table):
        state = table.state()
        return TableView(state, () if state.marks.get(hot.source, 0) > hot.mark else hot.parts)

    patch.setattr(lake_table, "resolve_view", resolve)


def reads_columns_by_name(patch):
    def presented(batch, wanted, known, nulls):
        names = batch.schema.names
        known = {c.id: c.name if c.name in names else None for c in wanted}
        return real(batch, wanted, known, nulls)

    real = snapshot.project_columns
    patch.setattr(snapshot, "project_columns", presented)


def carries_no_mark(patch):
    def plan(self, state):
        made = real(self, state)
        if made is None:
            return None
        return replace(made, actions=tuple(a for a in made.actions if not isinstance(a, SetMark)))

    real = FlushPlanner.plan
    patch.setattr(FlushPlanner, "plan", plan)


def starts_without_marks(patch):
    patch.setattr(Recovery, "_reached_mark", lambda self, table_id: 0)


def merges_over_a_mark(patch):
    def add(self, *part):
        count, self._frozen_count = self._frozen_count, 0
        real(self, *part)
        self._frozen_count = min(count, len(self.snapshot().parts))

    real = TableBuffer.add
    patch.setattr(TableBuffer, "add", add)


@pytest.mark.parametrize(
    ("wrong", "harm"),
    [
        (pairs_with_the_newest_version, AssertionError),
        (hides_every_part_once_a_flush_has_landed, AssertionError),
        (reads_columns_by_name, AssertionError),
        (carries_no_mark, Corruption),
        (starts_without_marks, AssertionError),
        (merges_over_a_mark, AssertionError),
    ],
    ids=lambda value: value.__name__,
)
def test_the_machine_catches_a_wrong_design(wrong, harm, monkeypatch):
    wrong(monkeypatch)
    how = settings(
        max_examples=150,
        stateful_step_count=20,
        phases=[Phase.generate],  # that it fails is enough; the shortest way there is not needed
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(harm):
        run_state_machine_as_test(LakeMachine, settings=how)
