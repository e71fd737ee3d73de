"""The table against a plain dict, and designs that are wrong in one point each.

The machine must pass on the table and fail on every one of the wrong designs.
"""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from model.table_machine import TableMachine
from thermocline.cold.coverage import CoverageIndex
from thermocline.cold.table import ColdTable
from thermocline.format import layout
from thermocline.format.log.action import SetDeletes, SetTable

TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=30, stateful_step_count=25)


# Wrong designs


class ChecksOverlapOnce(ColdTable):
    """Keeps its first plan although another writer was first."""

    def run_transaction(self, stage, planner, before=None):
        plans = []

        def planned(state):
            plans.append(plans[0] if plans else planner(state))
            return plans[0]

        return super().run_transaction(stage, planned, before)


class DeletesKeepTheirCoverage(ColdTable):
    """Hides rows and leaves the sidecar of their segment as it was."""

    def run_transaction(self, stage, planner, before=None):
        def planned(state):
            plan = planner(state)
            if plan is None:
                return None
            return replace(plan, actions=tuple(unmoved(state, a) for a in plan.actions))

        def unmoved(state, action):
            if not isinstance(action, SetDeletes):
                return action
            old = state.segments.find(action.segment.segment_id)
            kept = {"coverage_path": old.coverage_path, "coverage_checksum": old.coverage_checksum}
            return replace(action, segment=replace(action.segment, **kept))

        return super().run_transaction(stage, planned, before)


class RestoresRowsAlone(ColdTable):
    """Brings the segments of an older version back, and not its columns."""

    def run_transaction(self, stage, planner, before=None):
        def planned(state):
            plan = planner(state)
            if plan is None or plan.operation != "restore":
                return plan
            return replace(
                plan, actions=tuple(a for a in plan.actions if not isinstance(a, SetTable))
            )

        return super().run_transaction(stage, planned, before)


class BelievesItsLastCoverage(ColdTable):
    """Takes the coverage it computed last for that of every version."""

    class Index(CoverageIndex):
        def at(self, state):
            return self._last[1] if self._last else super().at(state)

    def __init__(self, storage, **options):
        super().__init__(storage, **options)
        self.index = self.Index(storage, self.log)


class ForgetsPins(ColdTable):
    """Reads and writes as it should, but its leases end at once."""

    @property
    def storage(self):
        return self._storage

    @storage.setter
    def storage(self, storage):
        class WithoutPins(type(storage)):
            def put_hint(self, path, data):
                if layout.PINS_FOLDER not in path:
                    super().put_hint(path, data)

        storage.__class__ = WithoutPins
        self._storage = storage


@pytest.mark.parametrize(
    ("wrong", "harm"),
    [
        (ChecksOverlapOnce, AssertionError),
        (DeletesKeepTheirCoverage, AssertionError),
        (RestoresRowsAlone, AssertionError),
        (BelievesItsLastCoverage, AssertionError),
        (ForgetsPins, AssertionError),
    ],
    ids=lambda value: value.__name__,
)
def test_the_machine_catches_a_wrong_design(wrong, harm):
    machine = type(f"{wrong.__name__}Machine", (TableMachine,), {"table_class": wrong})
    how = settings(
        max_examples=200,
        stateful_step_count=25,
        phases=[Phase.generate],  # that it fails is enough; the shortest way there is not needed
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(harm):
        run_state_machine_as_test(machine, settings=how)
