"""Opens a command's table: by its root, or by its name in a lake, with the lake's hot rows.

In:   the path that the user wrote
Out:  an opened table

- `LAKE/NAME` is the table with that name in the lake: its hot rows are read from the journal,
  beside the process that writes it. Any other path is the root of a table, with cold rows only.
- Commands never take over a lake's journal: they read it, and commit to the tables' logs.
"""

import os
from typing import TYPE_CHECKING

from thermocline.errors import Invalid, NotFound

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.table import TimeSeriesTable

LAKE_FILE = "lake.json"


def open_table(path: str) -> "TimeSeriesTable":
    """Open the table that a path names; `NotFound` when there is none."""
    from thermocline.table import TimeSeriesTable

    named = _split_lake_path(path)
    if named:
        return open_lake(named[0]).table(named[1])
    if is_lake(path):
        hint = f"name one of its tables: `thermocline lake tables {path}` lists them"
        raise Invalid("this is a lake, not a table", hint=hint, folder=path)
    try:
        return TimeSeriesTable.open(path)
    except NotFound as error:
        if "://" in path:
            raise
        raise _no_table_error(path, error) from error


def _no_table_error(path: str, error: NotFound) -> NotFound:
    """Return the error for a path without a table, with what its folder is."""
    folder = os.path.dirname(path.rstrip("/")) or "."
    if os.path.isdir(path) or not os.path.isdir(folder):
        hint = "check the path; `thermocline table create` makes a table"
    else:
        hint = (
            f"{folder} is a folder but no lake: `thermocline table create {path}` makes a table "
            f"there, `thermocline lake create` makes a lake in an empty folder"
        )
    return NotFound(error.message, hint=hint, **error.facts)


def split_new_path(path: str) -> tuple[str, str] | None:
    """Return the lake and the name for the path of a table that is to be made in a lake."""
    return None if "://" in path else _split_lake_path(path)


def is_url(place: str) -> bool:
    """Tell whether a lake is named by the address of its node."""
    return place.startswith(("http://", "https://"))


def check_lake(folder: str) -> None:
    """Raise `NotFound` unless a folder is a lake."""
    if not is_lake(folder):
        raise NotFound(
            "there is no lake here",
            hint=f"check the path; `thermocline lake create {folder}` makes one in an empty folder",
            folder=folder,
        )


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
    """Tell whether a folder, or an address of an object store, is a lake."""
    from thermocline.cold.storage.open_storage import is_store_address, open_storage

    if is_store_address(folder):
        return open_storage(folder).size(LAKE_FILE) is not None
    return os.path.isfile(os.path.join(folder, LAKE_FILE))


def open_lake(folder: str) -> "Lake":
    """Open a lake for reading; another process may write it.

    `THERMOCLINE_POSTGRES` says where its entities are, as for a node. The variable of the
    setting `data` names the data folder of a lake in an object store.
    """
    from thermocline.cold.storage.open_storage import is_store_address
    from thermocline.config import read_lake_settings
    from thermocline.node import default_data_folder, open_lake

    postgres = os.environ.get("THERMOCLINE_POSTGRES")
    given = {"postgres": postgres} if postgres else {}
    if is_store_address(folder):
        data = os.environ.get("THERMOCLINE_DATA") or default_data_folder(folder)
        return open_lake(data, read_lake_settings(given), lake=folder, is_read_only=True)
    settings = read_lake_settings(given)
    return open_lake(folder, settings, is_read_only=True)
