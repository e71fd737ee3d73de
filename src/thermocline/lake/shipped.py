"""Segments that other processes wrote into a table's folder, committed by one.

In:   what each of them staged, as they report it
Out:  one version that has all of it, or none

- Only what is reported is committed: the files of an attempt that failed, or of one that ran twice,
  are named by no version. They carry the mark of the work, and `sweep` finds them.
"""

from collections.abc import Collection, Sequence

from thermocline.errors import Invalid
from thermocline.format import layout
from thermocline.format.state import TableState
from thermocline.lake.append import Appending, Wish
from thermocline.lake.stage import MARK_LENGTH, Stage, Staged, new_id
from thermocline.lake.table import Table

STAGED_MAX = 100_000


def new_mark() -> str:
    """Return a mark for the files of one piece of work."""
    return new_id()[:MARK_LENGTH]


def append_staged(table: Table, staged: Sequence[Staged], wish: Wish) -> TableState:
    """Append what others staged in one commit; discard it when it is definitely not made.

    A batch that is there already, by `wish.txn`, is discarded, and the state returned.
    """
    stage = stage_of(table, staged)
    appending = Appending(table.storage, table.index, stage, wish)
    return table.landed(stage, appending.plan)


def stage_of(table: Table, staged: Sequence[Staged]) -> Stage:
    """Return a stage that has taken over what others staged."""
    if len(staged) > STAGED_MAX:
        raise Invalid(
            "too many segments for one commit",
            hint="let fewer workers write larger ones",
            segments=len(staged),
            segments_max=STAGED_MAX,
        )
    stage = Stage(table.storage)
    stage.adopt(staged)
    return stage


def sweep(table: Table, mark: str, kept: Collection[str] = ()) -> int:
    """Remove the files of one piece of work that no version names; return how many.

    Only once none of its writers runs any more. `kept` are paths that a commit may yet name.
    """
    named = {path for s in table.state().segments for path in (s.path, s.coverage_path)} | {*kept}
    removed = 0
    for folder in (layout.DATA_FOLDER, layout.SEGMENT_COVERAGE_FOLDER):
        for stored in table.storage.list(folder):
            name = stored.path.rpartition("/")[2]
            if name.startswith(mark) and stored.path not in named:
                table.storage.delete(stored.path)
                removed += 1
    return removed
