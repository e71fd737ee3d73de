"""Commands that maintain a table: compact, vacuum, publish, fsck and repair.

- `vacuum` removes nothing without `--yes`; it shows what it would remove.
- `repair` shows what is lost, and changes nothing without `--accept-loss`.
- `fsck` changes nothing; it exits with the code of a corruption if it finds one.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from thermocline.cli.argument import CommandList, JsonOption, TableArgument
from thermocline.cli.table.target import find_table_root, open_table
from thermocline.cli.terminal.terminal import print_line, show_progress
from thermocline.errors import Corruption

if TYPE_CHECKING:
    from thermocline.cold.care.repair import LogLoss

FILES_LISTED_MAX = 20


def compact(table: TableArgument, json: JsonOption = False) -> None:
    """Rewrite small segments as few large ones, without Spark. The rows stay the same."""
    from dataclasses import asdict

    from thermocline.show import size_text

    opened = open_table(table)
    with show_progress("merging") as report:
        done = opened.compact(lambda what, parts, total: report(parts, total))
    if json:
        from thermocline.cli.terminal.output import print_json

        print_json({"root": opened.root(), **asdict(done)})
    elif not done.commits:
        print_line("nothing to compact: no small segments can be merged")
    else:
        sizes = f"{size_text(done.size_bytes_before)} to {size_text(done.size_bytes)}"
        print_line(
            f"{done.segments_before:,} segments are {done.segments:,}, {sizes}, "
            f"{done.rows:,} rows (version {done.version:,})"
        )


def vacuum(
    table: TableArgument,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace", metavar="AGE", help="Keep the files of younger versions: 7d is the default."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only show what would be removed.")
    ] = True,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Remove the files; the same as --no-dry-run.")
    ] = False,
    allow_short_grace: Annotated[
        bool,
        typer.Option(
            "--allow-short-grace",
            help="Allow less than 1h; only safe while no other process reads or writes.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Remove files that no kept version and no reader needs. A dry run by default."""
    from thermocline.show import size_text

    opened = open_table(table)
    with show_progress("removing") as report:
        done = opened.vacuum(
            dry_run=dry_run and not yes,
            grace=grace,
            allow_short_grace=allow_short_grace,
            progress=report,
        )
    if json:
        from thermocline.cli.terminal.output import print_json

        facts = {"is_dry_run": done.is_dry_run, "oldest_kept": done.oldest}
        sums = {"files": list(done.files), "size_bytes": done.size_bytes}
        print_json({"root": opened.root(), **facts, **sums})
        return
    for path in done.files[:FILES_LISTED_MAX]:
        print_line(f"  {path}")
    if len(done.files) > FILES_LISTED_MAX:
        print_line(f"  and {len(done.files) - FILES_LISTED_MAX:,} more")
    what = f"{len(done.files):,} file{'' if len(done.files) == 1 else 's'}"
    size = size_text(done.size_bytes)
    if not done.files:
        print_line(f"nothing to remove (oldest version kept: {done.oldest:,})")
    elif done.is_dry_run:
        print_line(f"would remove {what}, {size}; this was a dry run, --yes removes them")
    else:
        print_line(f"removed {what}, {size} (oldest version kept: {done.oldest:,})")


def fsck(table: TableArgument, json: JsonOption = False) -> None:
    """Check a table: every commit, checksum, file and coverage bitmap."""
    from dataclasses import asdict

    from thermocline.cold.storage.open_storage import open_storage
    from thermocline.cold.table import ColdTable
    from thermocline.show import size_text
    from thermocline.table import TimeSeriesTable

    # A table with a damaged log cannot be opened, but must be checked.
    opened = TimeSeriesTable(ColdTable(open_storage(find_table_root(table))))
    if not opened.cold.log.exists():
        opened = open_table(table)
    with show_progress("checking") as report:
        checked = opened.fsck(report)
    if json:
        from thermocline.cli.terminal.output import print_json

        print_json({"root": opened.root(), "is_sound": checked.is_sound, **asdict(checked)})
    else:
        for finding in checked.findings:
            note = " (harmless)" if finding.is_harmless else ""
            print_line(f"  {finding.kind}  {finding.path}: {' '.join(finding.what.split())}{note}")
        sums = f"{checked.commits:,} commits, {checked.segments:,} segments, {checked.rows:,} rows"
        word = "sound" if checked.is_sound else "checked"
        print_line(f"{word}: {sums}, {size_text(checked.size_bytes)} (version {checked.version:,})")
    if not checked.is_sound:
        harms = [finding for finding in checked.findings if not finding.is_harmless]
        raise Corruption(
            "the table's files do not match its log",
            hint="restore the listed files from a copy; write nothing before that",
            findings=len(harms),
            first=harms[0].path,
        )


def repair(
    table: TableArgument,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Go on without the lost commits. Without this, only list them."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """List the commits that a table has lost, or go on without them.

    A dry run by default.
    """
    from dataclasses import asdict

    from thermocline.cold.care.repair import RepairReport
    from thermocline.table import survey_loss

    root = find_table_root(table)
    done: RepairReport | None = None
    if accept_loss:
        from thermocline.table import repair_table

        done = repair_table(root)
    loss = done.loss if done else survey_loss(root)
    if json:
        from thermocline.cli.terminal.output import print_json

        made = {"version": done.version, "aside": done.aside} if done else {}
        facts = {"root": root, "is_needed": loss.is_needed, "is_dry_run": not accept_loss}
        print_json({**facts, **asdict(loss), **made})
        return
    if not loss.is_needed:
        print_line(f"nothing to repair: the log is whole up to version {loss.intact:,}")
        return
    _say_loss(loss)
    if done is None:
        print_line("restore the missing files from a copy if there is one: then nothing is lost")
        print_line("this was a dry run; --accept-loss goes on from the newest intact version")
    else:
        print_line(f"repaired: version {done.version:,} follows version {loss.intact:,}")
        print_line(f"the files that were set aside are in {done.aside}")


def _say_loss(loss: "LogLoss") -> None:
    from thermocline.show import size_text

    for reason in loss.reasons:
        print_line(f"  {reason}")
    print_line(f"newest intact version: {loss.intact:,}")
    if loss.lost_first:
        print_line(f"lost: versions {loss.lost_first:,} to {loss.lost_last:,}")
    if loss.kept_after_gap:
        kept = ", ".join(str(version) for version in loss.kept_after_gap[:FILES_LISTED_MAX])
        print_line(f"intact, but unreadable without the lost versions: versions {kept}")
    if loss.segments:
        print_line("files that no intact version names; append them again to keep their rows:")
    for stray in loss.segments[:FILES_LISTED_MAX]:
        rows = "rows unknown" if stray.rows is None else f"{stray.rows:,} rows"
        times = f", {stray.first} to {stray.last}" if stray.first else ""
        print_line(f"  {stray.path}: {rows}, {size_text(stray.size_bytes)}{times}")
    if len(loss.segments) > FILES_LISTED_MAX:
        print_line(f"  and {len(loss.segments) - FILES_LISTED_MAX:,} more")


def publish(
    table: TableArgument,
    lease: Annotated[
        str,
        typer.Option(
            "--lease", metavar="AGE", help="Keep the published files from being vacuumed so long."
        ),
    ] = "30d",
    rewrite: Annotated[
        bool,
        typer.Option(
            "--rewrite", help="First rewrite files that Iceberg would not read as the table does."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Write Iceberg metadata beside a table, so that other engines read it. Repeat to refresh."""
    from thermocline.format.bucket import parse_duration_s
    from thermocline.iceberg.publish import publish as publish_table

    opened = open_table(table)
    done = publish_table(opened, lease_s=parse_duration_s(lease, "lease"), rewrite=rewrite)
    snapshots = [one["snapshot-id"] for one in done.metadata["snapshots"]]
    if json:
        from thermocline.cli.terminal.output import print_json

        print_json(
            {
                "root": opened.root(),
                "version": done.version,
                "oldest": snapshots[0],
                "location": done.location,
            }
        )
        return
    print_line(f"published version {done.version:,}, the newest of {len(snapshots):,} snapshots")
    print_line(done.location)


NODE_COMMANDS: CommandList = (
    (
        "compact",
        compact,
        ("thermocline table compact prices", "thermocline table compact ./lake/metrics --json"),
    ),
    (
        "vacuum",
        vacuum,
        ("thermocline table vacuum prices", "thermocline table vacuum prices --grace 30d --yes"),
    ),
)
"""Commands that work on a table of a node, too."""

COMMANDS: CommandList = (
    (
        "publish",
        publish,
        ("thermocline table publish prices", "thermocline table publish prices --lease 60d --json"),
    ),
    (
        "fsck",
        fsck,
        ("thermocline table fsck prices", "thermocline table fsck prices --json"),
    ),
    (
        "repair",
        repair,
        (
            "thermocline table repair prices",
            "thermocline table repair prices --accept-loss",
        ),
    ),
)
