"""Is every reading of entities exact, whatever happens beside it? Every order, and wrong designs.

The model is `export_model.py`. The protocol must be right in every order of the steps of two
writers, two exporters, a compactor and a reader. Each ingredient of it, taken away, must be seen
to matter; so must each habit of the reference that it does not share.
"""

from dataclasses import replace

import pytest
from export_model import (
    ABSENT,
    MARKS_BY_KEY,
    NO_FENCE,
    NO_FENCE_BY_NUMBER,
    NO_SNAPSHOT,
    NO_TOMBSTONES,
    OURS,
    REFERENCE,
    compacts,
    crowd,
    exports,
    reads,
    recovers,
    search,
    writes,
)


def torn(design):
    """A reading beside one transaction that changes two entities."""
    return [[writes(A=2), writes(A=3, B=3)], reads(design)]


def two_exporters(design):
    """Two exporters beside two updates of one entity."""
    return [[writes(A=2), writes(A=3)], exports(design), exports(design), reads(design)]


def two_exporters_and_a_delete(design):
    """Two exporters beside an update and a delete of one entity."""
    return [[writes(A=2), writes(A=ABSENT)], exports(design), exports(design), reads(design)]


def late_exporter(design):
    """An exporter beside a whole export and a compaction, which drops tombstones."""
    changes = [writes(A=2), writes(A=ABSENT)]
    return [changes, exports(design), [*exports(design), *compacts(design), *reads(design)]]


def dead_exporter(design):
    """An exporter that dies before it has told PostgreSQL; then a delete, and a clean export."""
    dies_after = "commit" if design.has_log else "write"
    steps = [writes(A=2), *exports(design, dies_after=dies_after), *recovers(design)]
    return [[*steps, writes(A=ABSENT), *exports(design)], reads(design)]


def few_keys_at_a_time(design):
    """Exports that leave some of the dirty keys for the next."""
    few = exports(design, keys_max=1)
    return [[writes(A=2), writes(B=2)], [*few, *few], reads(design)]


SCENES = [
    torn,
    two_exporters,
    two_exporters_and_a_delete,
    late_exporter,
    dead_exporter,
    few_keys_at_a_time,
]


@pytest.mark.parametrize("scene", SCENES)
def test_P11_P15_a_reading_is_exact_in_every_order_of_the_steps(scene):
    assert search(OURS, *scene(OURS)).wrong == 0


def test_a_reading_is_exact_in_every_order_of_two_writers_two_exporters_and_a_compactor():
    found = search(OURS, *crowd(OURS))
    assert (found.wrong, found.schedules) == (0, 1_513_512_000)


@pytest.mark.parametrize(
    ("design", "scene", "wrong", "schedules"),
    [
        (NO_FENCE, two_exporters, 52, 207_900),
        (NO_FENCE, two_exporters_and_a_delete, 52, 207_900),
        (NO_FENCE_BY_NUMBER, late_exporter, 25, 75_075),
        (NO_SNAPSHOT, torn, 2, 10),
        (MARKS_BY_KEY, two_exporters, 2_380, 207_900),
        (REFERENCE, two_exporters, 530, 92_400),
        (NO_TOMBSTONES, two_exporters_and_a_delete, 768, 207_900),
    ],
)
def test_the_protocol_without_one_ingredient_answers_wrongly(design, scene, wrong, schedules):
    found = search(design, *scene(design))
    assert (found.wrong, found.schedules) == (wrong, schedules)
    assert search(OURS, *scene(OURS)).wrong == 0


# The habits of the reference, one at a time: ours with that one habit is wrong in plain histories.


def is_told_wrong(design, *steps):
    """Tell whether a reading after these steps, one after another, is wrong."""
    return search(design, [*steps, *reads(design)]).wrong > 0


def test_P01_marking_by_row_id_loses_an_update_made_during_an_export():
    def history(design):
        read, *rest = exports(design)
        return [writes(A=2), read, writes(A=3), *rest]

    assert is_told_wrong(MARKS_BY_KEY, *history(MARKS_BY_KEY))
    assert not is_told_wrong(OURS, *history(OURS))


def test_P03_without_tombstones_a_deleted_entity_returns_once_the_delete_is_exported():
    def history(design):
        return [writes(A=ABSENT), *exports(design)]

    assert is_told_wrong(NO_TOMBSTONES, *history(NO_TOMBSTONES))
    assert not is_told_wrong(OURS, *history(OURS))


@pytest.mark.parametrize("second", [5, 4])
def test_P17_newest_by_clock_keeps_the_old_value_when_clocks_tie_or_go_back(second):
    by_clock = replace(OURS, newest="clock")

    def history(design):
        once = exports(design)
        return [writes(clock=5, A=2), *once, writes(clock=second, A=3), *once]

    assert is_told_wrong(by_clock, *history(by_clock))
    assert not is_told_wrong(OURS, *history(OURS))


def test_P04_orphan_files_that_readers_list_bring_back_what_was_deleted():
    by_listing = replace(OURS, has_log=False, newest="number")

    def scene(design):
        dead = exports(design, dies_after="write")
        changes = [writes(A=2), writes(A=ABSENT)]
        return [changes, dead, [*exports(design), *compacts(design), *reads(design)]]

    found = search(by_listing, *scene(by_listing))
    assert found.wrong > 0
    assert search(OURS, *scene(OURS)).wrong == 0


def test_P15_a_reading_in_two_statements_is_torn_by_a_transaction_between_them():
    found = search(NO_SNAPSHOT, *torn(NO_SNAPSHOT))
    first = found.example.index(1)
    assert found.wrong > 0
    assert 0 in found.example[first:]  # the writer came between the reader's statements
    assert search(OURS, *torn(OURS)).wrong == 0


def test_all_habits_of_the_reference_together_are_wrong_in_every_scene_but_one():
    wrong = [scene.__name__ for scene in SCENES if search(REFERENCE, *scene(REFERENCE)).wrong]
    assert wrong == [scene.__name__ for scene in SCENES if scene is not few_keys_at_a_time]
