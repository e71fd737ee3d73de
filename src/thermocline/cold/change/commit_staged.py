"""Commits segments that other processes staged in a table's folder.

In:   the staged segments that each process reports
Out:  one version that has all of them, or an error

- Only reported segments are committed: no version names the files of a failed or repeated attempt.
  The names of these files begin with the tag of the work, by which `sweep_staged` finds them.
"""

from collections.abc import Collection, Sequence

from thermocline.cold.change.append import AppendOptions, AppendPlanner
from thermocline.cold.segment.stage import TAG_LENGTH, Stage, StagedSegment, new_id
from thermocline.cold.table import ColdTable
from thermocline.errors import Invalid
from thermocline.format import layout
from thermocline.format.log.state import TableState

STAGED_MAX = 100_000


def new_tag() -> str:
    """Return a tag for the files of one piece of work."""
    return new_id()[:TAG_LENGTH]


def append_staged(
    table: ColdTable, staged: Sequence[StagedSegment], options: AppendOptions
) -> TableState:
    """Append what others staged in one commit; remove the files if it is definitely not made.

    If the table already has the batch, by `options.txn`, this removes the files and returns its
    state.
    """
    stage = adopt_staged(table, staged)
    appending = AppendPlanner(table.storage, table.index, stage, options)
    return table.run_transaction(stage, appending.plan)


def adopt_staged(table: ColdTable, staged: Sequence[StagedSegment]) -> Stage:
    """Return a stage that owns what others staged."""
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


def sweep_staged(table: ColdTable, tag: str, kept: Collection[str] = ()) -> int:
    """Remove the files of one piece of work that no version names; return how many.

    Call it only after all writers of the work have ended. `kept` are paths that a commit may name.
    """
    named = {path for s in table.state().segments for path in s.paths} | {*kept}
    removed = 0
    for folder in layout.SEGMENT_FOLDERS:
        for stored in table.storage.list(folder):
            name = stored.path.rpartition("/")[2]
            if name.startswith(tag) and stored.path not in named:
                table.storage.delete(stored.path)
                removed += 1
    return removed
