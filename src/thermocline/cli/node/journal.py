"""Commands that inspect and repair the journal of a lake: inspect and repair.

- `inspect` changes nothing, needs no lock and works on the journal of a running process.
- `repair` changes nothing without `--yes`; it shows what is lost first.
- `repair --set-aside` stores intact frames that no table can take; without it a start refuses them.
- Both exit with the code of a corruption while the journal is damaged.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.cli.argument import CommandList, JsonOption
from thermocline.cli.terminal.terminal import answer_console, is_terminal, print_line, show_progress
from thermocline.errors import Corruption, Unsupported

if TYPE_CHECKING:
    from thermocline.hot.wal.repair.damage import Damage
    from thermocline.hot.wal.repair.survey import InspectedFile, Inspection

TABLES_NAMED_MAX = 5
JOURNAL_NAME = "journal"

LakeArgument = Annotated[
    str,
    typer.Argument(metavar="LAKE", help="The folder of the lake, or of the journal in it."),
]


def inspect(lake: LakeArgument, json: JsonOption = False) -> None:
    """Show the content of a lake's journal, and whether a process can start with it."""
    from thermocline.disk import OsDisk
    from thermocline.hot.wal.repair.survey import inspect as look

    with show_progress("reading") as report:
        found = look(OsDisk(), journal_folder(lake), progress=report)
    if json:
        from thermocline.cli.terminal.output import print_json

        print_json(inspection_json(found))
    else:
        _print_inspection(found)
    hint = "run `thermocline journal repair`, or restore the files from a copy first"
    _check_sound(found.damages, hint)


def repair(
    lake: LakeArgument,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do it. Without this, only show what it would do.")
    ] = False,
    set_aside: Annotated[
        bool,
        typer.Option(
            "--set-aside",
            help="Move rows that no table can take to the quarantine, and start without them.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Set damaged parts of a journal aside, so that a node starts. A dry run by default."""
    if set_aside:
        _set_aside(journal_folder(lake), dry_run=not yes, is_json=json)
        return
    from thermocline.disk import OsDisk
    from thermocline.hot.wal.repair.repair import repair as repair_journal

    folder = journal_folder(lake)
    with show_progress("reading") as report:
        done = repair_journal(OsDisk(), folder, dry_run=not yes, progress=report)
    if json:
        from thermocline.cli.terminal.output import print_json

        facts = {"is_dry_run": done.is_dry_run, "lost_lsns": done.lost_lsns}
        lists = {"quarantined": list(done.quarantined), "rewritten": list(done.rewritten)}
        damages = [_damage_json(damage) for damage in done.damages]
        print_json({"folder": folder, **facts, "damages": damages, **lists})
    elif not done.damages:
        print_line("nothing to repair: the journal is not damaged")
    else:
        _print_damages(done.damages)
        for path in done.quarantined:
            print_line(
                f"{'would copy' if done.is_dry_run else 'copied'} the damaged bytes to {path}"
            )
        lost = f"{_count_text(done.lost_lsns, 'write')} lost"
        if done.is_dry_run:
            print_line(f"would make the journal usable, with {lost}; --yes does it")
        else:
            print_line(f"repaired: the journal is usable, with {lost}")
    if done.is_dry_run:
        _check_sound(done.damages, "restore the files from a copy, or accept the loss with --yes")


def _set_aside(folder: str, *, dry_run: bool, is_json: bool) -> None:
    """Move the frames that no table can take to the quarantine, or list them."""
    from dataclasses import asdict

    from thermocline.node import set_aside_frames

    found = set_aside_frames(os.path.dirname(folder), dry_run=dry_run)
    if is_json:
        from thermocline.cli.terminal.output import print_json

        frames = [asdict(one) for one in found]
        print_json({"is_dry_run": dry_run, "set_aside": frames})
    else:
        for one in found:
            print_line(f"frame     lsn {one.lsn:,} of table {one.table_id}: {one.why}")
        done = "would be kept" if dry_run else "is kept"
        count = _count_text(len(found), "frame")
        print_line(
            f"{count} {done} in the quarantine; no query reads them" if found else "nothing to do"
        )
    if dry_run and found:
        raise Corruption(
            "the journal has acknowledged rows that no table can take",
            hint="restore the names of their tables, or move the rows to the quarantine with --yes",
            frames=len(found),
            table_ids=sorted({one.table_id for one in found})[:TABLES_NAMED_MAX],
        )


def journal_folder(lake: str) -> str:
    """Return the journal's folder of a lake; `lake` may also be the journal's folder itself."""
    if "://" in lake:
        raise Unsupported(
            "a journal has no address: it is in a folder of the machine that writes it",
            hint="run this on that machine, and name the folder",
            lake=lake,
        )
    folder = os.path.abspath(lake)
    is_journal = os.path.exists(os.path.join(folder, "journal.json"))
    return folder if is_journal else os.path.join(folder, JOURNAL_NAME)


def inspection_json(found: "Inspection") -> dict[str, Any]:
    """Return what was found with the keys that `docs/cli.md` names."""
    mark = found.watermark
    return {
        "folder": found.folder,
        "journal_id": found.identity.journal_id.hex(),
        "oldest": found.identity.oldest,
        "is_sound": found.is_sound,
        "start": _describe_start(found),
        "torn_bytes": found.torn_bytes,
        "next_lsn": found.chain[-1].next_lsn if found.chain else 1,
        "watermark": None
        if mark is None
        else {
            "visible": mark.visible,
            "durable": mark.durable,
            "number": mark.number,
            "end": mark.end,
        },
        "files": [_file_json(file) for file in found.files],
        "tables": [
            {
                "table_id": table_id,
                "frames": table.frames,
                "rows": table.rows,
                "size_bytes": table.size_bytes,
                "unreadable": table.unreadable,
            }
            for table_id, table in sorted(found.tables.items())
        ],
        "damages": [_damage_json(damage) for damage in found.damages],
        "holes": [_damage_json(hole) for hole in found.holes],
        "quarantined": [
            {"name": one.name, "size_bytes": one.size_bytes} for one in found.quarantined
        ],
    }


def _file_json(file: "InspectedFile") -> dict[str, Any]:
    return {
        "number": file.number,
        "path": file.path,
        "state": file.state.value,
        "size_bytes": file.size_bytes,
        "first_lsn": file.first_lsn if file.frames else None,
        "last_lsn": file.next_lsn - 1 if file.frames else None,
        "frames": file.frames,
        "frame_bytes": file.frame_bytes,
        "torn_bytes": file.torn_bytes,
    }


def _damage_json(damage: "Damage") -> dict[str, Any]:
    from dataclasses import asdict

    fields = asdict(damage)
    fields["after"] = _time_text(fields.pop("after_ns"))
    fields["before"] = _time_text(fields.pop("before_ns"))
    return {**fields, "lost_lsns": damage.lost_lsns}


def _describe_start(found: "Inspection") -> str:
    if not found.is_sound:
        return "refuse"
    return "cut" if found.torn_bytes else "start"


def _check_sound(damages: "Sequence[Damage]", hint: str) -> None:
    if damages:
        raise Corruption(
            "the journal is damaged, and no process can start with it",
            hint=hint,
            damages=len(damages),
            first=f"{damages[0].file}, offset {damages[0].offset:,}: {damages[0].why}",
        )


def _print_inspection(found: "Inspection") -> None:
    from thermocline.show import size_text

    mark = found.watermark
    print_line(f"journal   {found.identity.journal_id.hex()} in {found.folder}")
    text = "none" if mark is None else f"lsn {mark.durable:,} durable, {mark.visible:,} visible"
    print_line(f"watermark {text}")
    _print_rows(
        ("file", "state", "first lsn", "last lsn", "frames", "size"),
        [
            (
                file.number,
                file.state.value,
                file.first_lsn if file.frames else None,
                file.next_lsn - 1 if file.frames else None,
                file.frames,
                size_text(file.size_bytes),
            )
            for file in found.files
        ],
        ("file", "files"),
    )
    _print_rows(
        ("table", "frames", "rows", "unreadable", "size"),
        [
            (table_id, table.frames, table.rows, table.unreadable, size_text(table.size_bytes))
            for table_id, table in sorted(found.tables.items())
        ],
        ("table", "tables"),
    )
    for hole in found.holes:
        print_line(f"hole      {_describe_loss(hole)}, by an earlier repair: {hole.why}")
    for one in found.quarantined:
        print_line(f"aside     {one.name}, {size_text(one.size_bytes)}, in the quarantine")
    _print_damages(found.damages)
    next_lsn = found.chain[-1].next_lsn if found.chain else 1
    if found.is_sound and found.torn_bytes:
        size = _count_text(found.torn_bytes, "byte")
        print_line(
            f"a start would cut {size} of an unacknowledged write, and use lsn {next_lsn:,} next"
        )
    elif found.is_sound:
        print_line(f"a start would use lsn {next_lsn:,} next")
    else:
        first = found.damages[0]
        print_line(f"a start would refuse: {first.why} ({first.file}, offset {first.offset:,})")


def _print_rows(names: tuple[str, ...], rows: list[Any], nouns: tuple[str, str]) -> None:
    """Draw a box for a person; write one line a row into a pipe."""
    if not is_terminal():
        for row in rows:
            pairs = zip(names, row, strict=True)
            print_line(" ".join(f"{name} {'-' if cell is None else cell}" for name, cell in pairs))
        return
    import pyarrow as pa

    from thermocline.cli.terminal.box import draw

    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in names]
    table = pa.table([pa.array(column) for column in columns], names=list(names))
    draw(table.to_reader(), answer_console(), 0, nouns)


def _print_damages(damages: "Sequence[Damage]") -> None:
    for damage in damages:
        print_line(f"damage    {damage.file}, offset {damage.offset:,}: {damage.why}")
        print_line(f"          {_describe_loss(damage)}")


def _describe_loss(damage: "Damage") -> str:
    """Return in one line what is lost, when it was written, and the tables that it may be of."""
    if not damage.lost_lsns:
        return "nothing lost"
    lsns = f"lsn {damage.first_lsn:,}"
    if damage.lost_lsns > 1:
        lsns += f" to {damage.last_lsn:,}"
    after, before = _time_text(damage.after_ns), _time_text(damage.before_ns)
    when = [f"after {after}"] if after else []
    when += [f"before {before}"] if before else []
    written = f", written {' and '.join(when)}" if when else ""
    size = _count_text(damage.size_bytes, "byte")
    return f"lost: {lsns}, {size}{written}, {_describe_tables(damage)}"


def _describe_tables(damage: "Damage") -> str:
    if not damage.tables:
        return "of any table"
    names = ", ".join(damage.tables[:TABLES_NAMED_MAX])
    more = len(damage.tables) - TABLES_NAMED_MAX
    names += f" and {more:,} more" if more > 0 else ""
    noun = "table" if len(damage.tables) == 1 else "tables"
    return f"of {noun} {names}" if damage.are_tables_known else f"perhaps of {noun} {names}"


def _count_text(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _time_text(time_ns: int | None) -> str | None:
    from thermocline.format.instant import format_instant

    return None if time_ns is None else format_instant(time_ns)


COMMANDS: CommandList = (
    (
        "inspect",
        inspect,
        ("thermocline journal inspect lake", "thermocline journal inspect lake --json"),
    ),
    (
        "repair",
        repair,
        ("thermocline journal repair lake", "thermocline journal repair lake --yes"),
    ),
)
