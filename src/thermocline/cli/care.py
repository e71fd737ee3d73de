"""Commands that care for a table: vacuum and fsck.

- `vacuum` removes nothing unless it is told to; it says what it would remove.
- `fsck` changes nothing; it exits with the code of a corruption when it finds one.
"""

from typing import Annotated

import typer

from thermocline.cli.argument import JsonOption, TableArgument
from thermocline.cli.place import open_table
from thermocline.cli.screen import progress, say
from thermocline.errors import Corruption

FILES_LISTED_MAX = 20


def vacuum(
    table: TableArgument,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace", metavar="AGE", help="Keep what younger versions need: 7d is the default."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only say what would be removed.")
    ] = True,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Remove the files; the same as --no-dry-run.")
    ] = False,
    allow_short_grace: Annotated[
        bool,
        typer.Option(
            "--allow-short-grace",
            help="Allow less than 1h; only safe when nobody else reads or writes.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Remove files that no kept version and no reader needs. A dry run by default."""
    from thermocline.show import size_text

    opened = open_table(table)
    with progress("removing") as report:
        done = opened.vacuum(
            dry_run=dry_run and not yes,
            grace=grace,
            allow_short_grace=allow_short_grace,
            progress=report,
        )
    if json:
        from thermocline.cli.output import say_json

        facts = {"is_dry_run": done.is_dry_run, "oldest_kept": done.oldest}
        sums = {"files": list(done.files), "size_bytes": done.size_bytes}
        say_json({"root": opened.root(), **facts, **sums})
        return
    for path in done.files[:FILES_LISTED_MAX]:
        say(f"  {path}")
    if len(done.files) > FILES_LISTED_MAX:
        say(f"  and {len(done.files) - FILES_LISTED_MAX:,} more")
    what = f"{len(done.files):,} file{'' if len(done.files) == 1 else 's'}"
    size = size_text(done.size_bytes)
    if not done.files:
        say(f"nothing to remove (oldest version kept: {done.oldest:,})")
    elif done.is_dry_run:
        say(f"would remove {what}, {size}; this was a dry run, --yes removes them")
    else:
        say(f"removed {what}, {size} (oldest version kept: {done.oldest:,})")


def fsck(table: TableArgument, json: JsonOption = False) -> None:
    """Prove a table: every commit, checksum, file and coverage bitmap."""
    from dataclasses import asdict

    from thermocline.lake.place import open_storage
    from thermocline.lake.table import Table
    from thermocline.show import size_text
    from thermocline.table import TimeSeriesTable

    # A table whose log is damaged cannot be opened, and is the one that most needs checking.
    opened = TimeSeriesTable(Table(open_storage(table)))
    if not opened.lake.log.exists():
        opened = open_table(table)
    with progress("checking") as report:
        checked = opened.fsck(report)
    if json:
        from thermocline.cli.output import say_json

        say_json({"root": opened.root(), "is_sound": checked.is_sound, **asdict(checked)})
    else:
        for finding in checked.findings:
            note = " (harmless)" if finding.is_harmless else ""
            say(f"  {finding.kind}  {finding.path}: {' '.join(finding.what.split())}{note}")
        sums = f"{checked.commits:,} commits, {checked.segments:,} segments, {checked.rows:,} rows"
        word = "sound" if checked.is_sound else "checked"
        say(f"{word}: {sums}, {size_text(checked.size_bytes)} (version {checked.version:,})")
    if not checked.is_sound:
        harms = [finding for finding in checked.findings if not finding.is_harmless]
        raise Corruption(
            "the table is not what its log says",
            hint="restore the files that are named from a copy; write nothing before that",
            findings=len(harms),
            first=harms[0].path,
        )
