"""Carries hot rows into the lake: freeze, write, commit, retire.

In:   the hot half of a table and its cold half
Out:  the mark that the table's newest version has reached

- Committed before retired: the hot copy is dropped only when a version is known to contain it.
- After a crash at any step, call `flush` again to finish. It never commits a row twice: the commit
  that names the segments also carries the mark.
"""

from thermocline.cold.table import ColdTable
from thermocline.format.log.action import Mark
from thermocline.hot.wal.tier import WalTable
from thermocline.snapshot import TableView, hot_rows, list_held_columns


def flush(hot: WalTable, table: ColdTable) -> Mark | None:
    """Carry what the tier has frozen into the lake; return its mark, or None if nothing was hot.

    When this returns, the rows are in a committed version and no longer hot. After an error they
    are still hot, and possibly in a version too: the next flush finds out.
    """
    frozen = hot.freeze()
    if frozen is None:
        return None
    state = table.state()
    view = TableView(state, frozen.parts)
    rows = hot_rows(view, list_held_columns(view))
    requests = {key: count for part in frozen.parts for key, count in part.requests.items()}
    table.commit_flush(rows, state, hot.source, frozen.mark, requests)
    # Crash here: between commit and retire. The version's mark says that it happened.
    hot.retire(frozen.mark)
    return frozen.mark
