"""Commands about a table's columns: list, add, rename, widen."""

from typing import Annotated

import typer

from thermocline.cli.argument import (
    AtOption,
    CommandList,
    JsonOption,
    TableArgument,
    parse_at,
)
from thermocline.cli.table.target import open_table
from thermocline.cli.terminal.terminal import print_line

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The column.")]
TypeArgument = Annotated[
    str,
    typer.Argument(metavar="TYPE", help="Such as int64, float64, string or date32."),
]


def list_columns(table: TableArgument, at: AtOption = None, json: JsonOption = False) -> None:
    """List the columns of a table with their types."""
    from thermocline.show.text import pad, text_width, visible

    opened = open_table(table)
    schema = opened.schema(parse_at(at))
    if json:
        from thermocline.cli.terminal.output import print_json

        columns = [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in schema]
        print_json({"root": opened.root(), "columns": columns})
        return
    names = [visible(name) for name in schema.names]
    wide = max((text_width(name) for name in names), default=0)
    for name, field in zip(names, schema, strict=True):
        note = "" if field.nullable else "  never null"
        print_line(f"{pad(name, wide)}  {field.type}{note}")
    if not schema.names:
        print_line("no columns yet: the first append adds them")


def add(
    table: TableArgument, name: NameArgument, kind: TypeArgument, json: JsonOption = False
) -> None:
    """Add a column, null in every row so far."""
    from thermocline.format.types import parse_type

    opened = open_table(table)
    version = opened.add_column(name, parse_type(kind))
    _print_change(opened.root(), version, f"added {name}", is_json=json)


def rename(
    table: TableArgument,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The column's name now.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The column's new name.")],
    json: JsonOption = False,
) -> None:
    """Rename a column. Its values stay, in old segments too."""

    opened = open_table(table)
    version = opened.rename_column(old, new)
    _print_change(opened.root(), version, f"{old} is now {new}", is_json=json)


def widen(
    table: TableArgument, name: NameArgument, kind: TypeArgument, json: JsonOption = False
) -> None:
    """Give a column a type that holds all its values: int32 to int64."""
    from thermocline.format.types import parse_type

    opened = open_table(table)
    version = opened.widen_column(name, parse_type(kind))
    _print_change(
        opened.root(), version, f"{name} is now {opened.schema().field(name).type}", is_json=json
    )


def _print_change(root: str, version: int, said: str, *, is_json: bool) -> None:
    if not is_json:
        print_line(f"{said} (version {version:,})")
        return
    from thermocline.cli.terminal.output import print_json

    print_json({"root": root, "version": version})


def drop(table: TableArgument, name: NameArgument, json: JsonOption = False) -> None:
    """Drop a column that is not part of the key; older versions still have it."""
    opened = open_table(table)
    version = opened.drop_column(name)
    _print_change(opened.root(), version, f"dropped {name}", is_json=json)


NODE_COMMANDS: CommandList = (("list", list_columns, ("thermocline table columns list prices",)),)
"""Commands that work on a table of a node, too."""

COMMANDS: CommandList = (
    ("add", add, ("thermocline table columns add prices venue string",)),
    ("drop", drop, ("thermocline table columns drop prices venue",)),
    ("rename", rename, ("thermocline table columns rename prices venue market",)),
    ("widen", widen, ("thermocline table columns widen prices volume int64",)),
)
