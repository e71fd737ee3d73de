"""Opens a command's table: by its root, by its name in a lake, or by its name on a node.

In:   the path that the user wrote
Out:  an opened table

- `LAKE/NAME` is the table with that name in the lake: its hot rows are read from the journal,
  beside the process that writes it. Any other path is the root of a table, with cold rows only.
- Commands never take over a lake's journal: they read it, and commit to the tables' logs.
- If `--url`, `--context` or a context in use names a node, a plain name such as `prices` is a table
  of the node. A path with a slash, such as `./prices`, is a folder unless an option names the node.
"""

import inspect
import os
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from thermocline.cli.argument import CommandList
from thermocline.cli.node_address import ContextOption, KeyFileOption, find_node
from thermocline.errors import Conflict, Invalid, NotFound
from thermocline.format.instant import TimeNs, to_datetime
from thermocline.names import is_table_name

if TYPE_CHECKING:
    from thermocline.client import Client
    from thermocline.client.table import ClientTable
    from thermocline.lake import Lake
    from thermocline.table import TimeSeriesTable

LAKE_FILE = "lake.json"

NodeUrlOption = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The node that has the table; else a folder has it."),
]


@dataclass(frozen=True)
class NodeChoice:
    """The options of every command that works on a table of a node, too."""

    url: NodeUrlOption = None
    context: ContextOption = None
    key_file: KeyFileOption = None

    @property
    def is_explicit(self) -> bool:
        """Whether the command line names a node."""
        return self.url is not None or self.context is not None


@dataclass(frozen=True)
class _RunningCommand:
    """The node that a running command's options name, and what to close at its end."""

    choice: NodeChoice
    at_end: ExitStack


_running: ContextVar[_RunningCommand | None] = ContextVar("running_command", default=None)
"""Only `offer_node` sets it."""


def offer_node(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of `NodeChoice`, which `open_table` follows."""
    signature = inspect.signature(command)
    names = [one.name for one in fields(NodeChoice)]

    def run(**values: Any) -> None:
        choice = NodeChoice(**{name: values.pop(name) for name in names})
        with ExitStack() as at_end:
            token = _running.set(_RunningCommand(choice, at_end))
            try:
                command(**values)
            finally:
                _running.reset(token)

    added = [
        inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=one.type
        )
        for one in fields(NodeChoice)
    ]
    parameters = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in signature.parameters.values()
    ]
    run.__signature__ = signature.replace(parameters=parameters + added)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters + added}
    run.__doc__ = command.__doc__
    return run


def offer_nodes(commands: CommandList) -> CommandList:
    """Return the commands with the options that name a node."""
    return tuple((name, offer_node(command), lines) for name, command, lines in commands)


def open_node() -> "Client | None":
    """Return a client of the node that the command's options, or a context in use, name."""
    running = _running.get()
    if running is None:
        return None
    choice = running.choice
    node = find_node(choice.url, choice.context, choice.key_file, environment=False)
    return None if node is None else running.at_end.enter_context(node.open())


def is_node_chosen() -> bool:
    """Tell whether the command line itself names a node."""
    running = _running.get()
    return running is not None and running.choice.is_explicit


def open_node_for(path: str) -> "Client | None":
    """Return a client if a table's name or path is of a table on a node; `Invalid` if it cannot."""
    if is_table_name(path):
        return open_node()
    if is_node_chosen():
        hint = "give the name of a table on the node, such as prices"
        raise Invalid("this cannot be the name of a table on a node", hint=hint, table=path)
    return None


def is_remote(table: object) -> bool:
    """Tell whether an opened table is one of a node: its files are elsewhere."""
    return not hasattr(type(table), "cold")


def count_rows(table: "TimeSeriesTable", at: object = None) -> int:
    """Return how many rows a table has, of a node with its hot ones."""
    if not is_remote(table):
        return table.cold.state(at).totals.rows
    info = cast("ClientTable", table).info(at)
    return int(info["rows"]) + int(info["hot_rows"])


def find_version(table: "TimeSeriesTable", at: object) -> int:
    """Return the version at a version or instant."""
    if not is_remote(table):
        return table.cold.state(at).version
    return int(cast("ClientTable", table).info(at)["version"])


def count_on_node(table: "TimeSeriesTable", where: str | None, start: object, end: object) -> int:
    """Return how many rows of a node's table match a condition in a stretch."""
    node, remote = open_node(), cast("ClientTable", table)
    if node is None:
        raise Invalid("no node is named", hint="give --url or --context")
    spec = remote.held().state.spec
    conditions: list[str] = []
    given: dict[str, Any] = {}
    for name, sign, edge in (("start", ">=", start), ("end", "<", end)):
        if edge is not None:
            position = spec.bucket.parse_position(edge)
            given[name] = to_datetime(TimeNs(position)) if spec.bucket.is_time else position
            conditions.append(f'"{spec.time_column}" {sign} ${name}')
    if where is not None:
        conditions.append(f"({where})")
    # The condition is SQL of the user, whom the node allows what the key allows.
    condition = " and ".join(conditions)
    text = f'select count(*) as matching from "{remote.name}" where {condition}'  # noqa: S608
    return int(node.sql(text, given or None).column("matching")[0].as_py())


def open_node_table(path: str) -> "ClientTable | None":
    """Return the table of a node that a name stands for, or None for a table in a folder."""
    node = open_node_for(path)
    return None if node is None else node.table(path)


def open_table(path: str, *, flushes: bool = False) -> "TimeSeriesTable":
    """Open the table that a name or a path stands for; `NotFound` when there is none.

    A table of a node has the methods of other tables, apart from those on the files themselves.
    With `flushes` the command changes hot rows too: it takes the journal of the table's lake until
    the command ends, and `Conflict` says that another process has it.
    """
    from thermocline.table import TimeSeriesTable

    remote = open_node_table(path)
    if remote is not None:
        return cast("TimeSeriesTable", remote)
    named = _split_lake_path(path)
    if named:
        lake = _own_lake(named[0]) if flushes else open_lake(named[0])
        return lake.table(named[1])
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


def _own_lake(folder: str) -> "Lake":
    """Open a lake for writing until the running command ends."""
    running = _running.get()
    assert running is not None, "only commands of `offer_nodes` flush hot rows"
    try:
        return running.at_end.enter_context(open_lake(folder, is_read_only=False))
    except Conflict as error:
        hint = "if a node has the lake open, call the node: --url, with the table's name"
        raise Conflict(error.message, hint=hint, **error.facts) from error


def open_lake(folder: str, *, is_read_only: bool = True) -> "Lake":
    """Open a lake, for reading unless told otherwise; then another process may write it.

    `THERMOCLINE_POSTGRES` says where its entities are, as for a node. The variable of the
    setting `data` names the data folder of a lake in an object store.
    """
    from thermocline.cold.storage.open_storage import is_store_address
    from thermocline.config import read_lake_settings
    from thermocline.node import default_data_folder
    from thermocline.node import open_lake as open_with_settings

    postgres = os.environ.get("THERMOCLINE_POSTGRES")
    given = {"postgres": postgres} if postgres else {}
    if is_store_address(folder):
        data = os.environ.get("THERMOCLINE_DATA") or default_data_folder(folder)
        return open_with_settings(
            data, read_lake_settings(given), lake=folder, is_read_only=is_read_only
        )
    settings = read_lake_settings(given)
    return open_with_settings(folder, settings, is_read_only=is_read_only)
