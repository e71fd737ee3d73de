"""Commands that show a table: info, history, diff. They change nothing.

- `info` shows the same facts as a notebook does.
- Every answer is of one version, even while other processes write.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.cli.argument import (
    AtOption,
    CommandList,
    Format,
    FormatOption,
    JsonOption,
    TableArgument,
    parse_at,
)
from thermocline.cli.table.target import open_table
from thermocline.cli.terminal.terminal import answer_console, is_terminal

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.cold.coverage_report import CoverageReport, VersionDiff

HISTORY_SHOWN = 40


def info(table: TableArgument, at: AtOption = None, json: JsonOption = False) -> None:
    """Show what a table is: rows, size, time range, coverage, columns, policies."""

    opened = open_table(table)
    found = opened.held(parse_at(at))
    if json:
        from thermocline.cli.terminal.output import print_json
        from thermocline.show.facts import table_values

        print_json({"root": opened.root(), **table_values(found)})
        return
    _print_info(found, opened.root())


def _print_info(found: "CoverageReport", root: str) -> None:
    from thermocline.cli.terminal.picture import print_picture
    from thermocline.show import table_facts, visible
    from thermocline.show.text import pad, text_width

    console = answer_console()
    facts = table_facts(found, root)
    wide = max(len(label) for label in facts)
    for label, text in facts.items():
        print_pair(label.ljust(wide), visible(text))
    if found.coverage.whole and is_terminal():
        console.print()
        print_picture(found, console)
    console.print()
    columns = found.state.schema.columns
    if not columns:
        console.print("no columns yet: the first append adds them", style="dim")
        return
    names = [visible(column.name) for column in columns]
    wide = max(text_width(name) for name in names)
    for name, column in zip(names, columns, strict=True):
        print_pair(pad(name, wide), visible(str(column.type)), is_name=True)


def print_pair(label: str, text: str, *, is_name: bool = False) -> None:
    """Print a label and its text on one line; the label is faint, a name is not."""
    from rich.text import Text

    line = Text(label, style="" if is_name else "dim").append("  ")
    line.append(text, style="dim" if is_name else "")
    answer_console().print(line, soft_wrap=True)


def history(
    table: TableArgument,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, metavar="N", help="At most this many versions."),
    ] = None,
    form: FormatOption = None,
    json: JsonOption = False,
) -> None:
    """List the versions of a table, the newest first."""
    from thermocline.cli.terminal.output import choose_output, print_json

    opened = open_table(table)
    output = choose_output(form, is_json=json)
    is_box = output.form is Format.BOX
    rows = opened.history(limit or (HISTORY_SHOWN if is_box else opened.version()))
    if output.form is Format.JSON:
        print_json({"root": opened.root(), "versions": rows_json(rows)})
        return
    if not is_box:
        output.write(rows.to_reader())
        return
    from thermocline.cli.terminal.box import draw

    older = opened.version() - rows.num_rows
    also = f"{older:,} older (--limit shows more)" if older else ""
    draw(_shorten_history(rows).to_reader(), answer_console(), 0, ("version", "versions"), also)


def _shorten_history(rows: "pa.Table") -> "pa.Table":
    """Return a history that fits a terminal: additions and removals share a column."""
    import pyarrow as pa

    def change(noun: str) -> list[str]:
        added, removed = (rows[f"{noun}_{way}"].to_pylist() for way in ("added", "removed"))
        counts = zip(added, removed, strict=True)
        return [" ".join(f"{n:+,}" for n in (come, -gone) if n) or "0" for come, gone in counts]

    times = rows["time"].cast(pa.timestamp("s", tz="UTC"), safe=False)
    return pa.table(
        {
            "version": rows["version"],
            "time": times,
            "operation": rows["operation"],
            "rows": change("rows"),
            "segments": change("segments"),
        }
    )


def rows_json(rows: "pa.Table") -> list[dict[str, Any]]:
    """Return small results as a list of objects."""
    from thermocline.show.lines import distinct_names
    from thermocline.show.value import json_values

    names = distinct_names(rows.column_names)
    found = []
    for batch in rows.to_batches():
        columns = [json_values(column) for column in batch.columns]
        found += [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return found


def diff(
    table: TableArgument,
    old: Annotated[str, typer.Argument(metavar="OLD", help="A version, or an instant.")],
    new: Annotated[
        str | None,
        typer.Argument(metavar="NEW", help="A later version or instant; default: the newest."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what changed from one version to another."""
    from dataclasses import asdict

    opened = open_table(table)
    found = opened.diff(parse_at(old), parse_at(new))
    if json:
        from thermocline.cli.terminal.output import print_json

        print_json({"root": opened.root(), **asdict(found)})
        return
    _print_diff(found)


def _print_diff(found: "VersionDiff") -> None:
    from thermocline.show import size_text, visible

    sign = "+" if found.size_bytes >= 0 else ""
    counts = f"{len(found.added)} added, {len(found.removed)} removed, {len(found.changed)} changed"
    print_pair("versions", f"{found.old} to {found.new}")
    print_pair("rows    ", f"{found.rows:+,}")
    print_pair("size    ", sign + size_text(found.size_bytes))
    print_pair("buckets ", f"{found.buckets_gained:,} gained, {found.buckets_lost:,} lost")
    print_pair("segments", counts)
    for word, paths in (("+", found.added), ("-", found.removed), ("~", found.changed)):
        for path in paths:
            print_pair("        ", f"{word} {visible(path)}")
    for column in found.columns:
        print_pair("column  ", visible(column))


COMMANDS: CommandList = (
    (
        "info",
        info,
        ("thermocline table info prices", "thermocline table info prices --at 3 --json"),
    ),
    (
        "history",
        history,
        ("thermocline table history prices", "thermocline table history prices --limit 5 --json"),
    ),
    (
        "diff",
        diff,
        ("thermocline table diff prices 3", "thermocline table diff prices 3 2024-06-08"),
    ),
)
