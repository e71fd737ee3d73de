"""Where a command's table is: its own root, or a name in a lake, with the lake's hot rows.

In:   what the user wrote
Out:  an opened table

- `LAKE/NAME` is the table of that name in the lake: its hot rows are read from the journal, beside
  the process that writes it. Anything else is the root of a table, which is cold rows alone.
- Commands never take a lake's journal over: they read, and they commit to the tables' logs.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thermocline.table import TimeSeriesTable
    from thermocline.tenant import Lake

LAKE_FILE = "lake.json"


def open_table(path: str) -> "TimeSeriesTable":
    """Open the table that a path names; `NotFound` when there is none."""
    from thermocline.table import TimeSeriesTable

    folder, name = os.path.split(path.rstrip("/"))
    if not os.path.isdir(path) and is_lake(folder or "."):
        return open_lake(folder or ".").table(name)
    return TimeSeriesTable.open(path)


def is_lake(folder: str) -> bool:
    """Tell whether a folder is a lake."""
    return os.path.isfile(os.path.join(folder, LAKE_FILE))


def open_lake(folder: str) -> "Lake":
    """Open a lake beside the process that may be writing it.

    Its entities are where `THERMOCLINE_POSTGRES` says, as for a node.
    """
    from thermocline.config import settings_of
    from thermocline.node import open_lake

    postgres = os.environ.get("THERMOCLINE_POSTGRES")
    settings = settings_of({"postgres": postgres} if postgres else {})
    return open_lake(folder, settings, is_read_only=True)
