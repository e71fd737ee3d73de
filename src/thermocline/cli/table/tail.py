"""The command that prints the rows of a node's table as they become durable."""

import json as text_json
import time
from typing import Annotated, Any

import typer

from thermocline.cli.argument import CommandList, JsonOption
from thermocline.cli.entity.target import open_wire
from thermocline.cli.node_address import KeyFileOption, UrlOption
from thermocline.cli.terminal.terminal import print_line
from thermocline.errors import Invalid, Overloaded, Unavailable

SECONDS_MAX = 3_600.0


def tail(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")],
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Only rows of which this is true.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME", help="A column to print; may be given again."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=1.0, metavar="N", help="Stop after so long, not at Ctrl-C."),
    ] = None,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Print rows as they become durable, until Ctrl-C. Rows of before are not printed."""
    from thermocline.client.table import table_path
    from thermocline.client.tail import TailEnd, read_tail

    asked: dict[str, Any] = {} if where is None else {"where": where}
    if columns:
        asked["columns"] = ",".join(columns)
    end_s = None if seconds is None else time.monotonic() + seconds
    with open_wire(url, key_file) as wire:
        while True:
            left_s = SECONDS_MAX if end_s is None else max(1.0, end_s - time.monotonic())
            try:
                for row in read_tail(
                    wire, f"{table_path(table)}/tail", **asked, seconds=min(left_s, SECONDS_MAX)
                ):
                    _print_row(row, is_json=json)
            except TailEnd as end:
                _check_end(end.reason, end.message)
            if end_s is not None and time.monotonic() >= end_s:
                return


def _check_end(reason: str, message: str) -> None:
    """Raise the error for an end that is not that of the time."""
    if reason == "slow":
        raise Overloaded(message, hint="add --where, or print fewer columns")
    if reason == "stopping":
        raise Unavailable(message, hint="ask again when the node runs")
    if reason != "time":
        raise Invalid(message, hint="fix --where and --column")


def _print_row(row: dict[str, Any], *, is_json: bool) -> None:
    if is_json:
        print_line(text_json.dumps(row, ensure_ascii=False))
    else:
        print_line("  ".join(_value_text(value) for value in row.values()))


def _value_text(value: Any) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else text_json.dumps(value, ensure_ascii=False)
    return text.replace("\n", "\\n")


COMMANDS: CommandList = (
    (
        "tail",
        tail,
        (
            "thermocline tail logs --column ts --column body",
            "thermocline tail logs --where \"has_token(body, 'timeout')\"",
        ),
    ),
)
