"""Opens a command's table: by its root, or by its name in a lake, with the lake's hot rows.

In:   the path that the user wrote
Out:  an opened table

- `LAKE/NAME` is the table with that name in the lake: its hot rows are read from the journal,
  beside the process that writes it. Any other path is the root of a table, with cold rows only.
- Commands never take over a lake's journal: they read it, and commit to the tables' logs.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.table import TimeSeriesTable

LAKE_FILE = "lake.json"


def open_table(path: str) -> "TimeSeriesTable":
    """Open the table that a path names; `NotFound` when there is none."""
    from thermocline.table import TimeSeriesTable

    named = _split_lake_path(path)
    return open_lake(named[0]).table(named[1]) if named else TimeSeriesTable.open(path)


def find_table_root(path: str) -> str:
    """Return the folder of the table that a path names, even if its lake cannot be opened."""
    named = _split_lake_path(path)
    if named is None:
        return path
    from thermocline.cold.catalog import Catalog

    folder, name = named
    catalog = Catalog(folder, is_read_only=True)
    return f"{catalog.root}/{catalog.find_entry(name).folder}"


def _split_lake_path(path: str) -> tuple[str, str] | None:
    """Return the folder of the lake and the name in it, for a path such as `lake/prices`."""
    folder, name = os.path.split(path.rstrip("/"))
    return (folder or ".", name) if not os.path.isdir(path) and is_lake(folder or ".") else None


def is_lake(folder: str) -> bool:
    """Tell whether a folder is a lake."""
    return os.path.isfile(os.path.join(folder, LAKE_FILE))


def open_lake(folder: str) -> "Lake":
    """Open a lake for reading; another process may write it.

    `THERMOCLINE_POSTGRES` says where its entities are, as for a node.
    """
    from thermocline.config import read_lake_settings
    from thermocline.node import open_lake

    postgres = os.environ.get("THERMOCLINE_POSTGRES")
    settings = read_lake_settings({"postgres": postgres} if postgres else {})
    return open_lake(folder, settings, is_read_only=True)
