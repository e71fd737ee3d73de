"""Commands that change a table: create, append, delete, restore, retain, set.

- When a command returns, the change is durable and visible to every reader.
- Many files are one commit: all of them are appended, or none.
- `delete` asks for confirmation first.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, cast, overload

import typer

from thermocline.cli.argument import (
    CommandList,
    EndOption,
    IndexType,
    JsonOption,
    Overlap,
    StartOption,
    TableArgument,
    YesOption,
    expand_options,
    parse_at,
    parse_txn,
    parse_types,
)
from thermocline.cli.table.target import (
    count_on_node,
    count_rows,
    find_version,
    is_remote,
    open_node,
    open_node_for,
    open_node_table,
    open_table,
    split_new_path,
)
from thermocline.cli.terminal.terminal import Progress, confirm, print_line, show_progress
from thermocline.errors import Invalid

if TYPE_CHECKING:
    from thermocline.client.table import ClientTable
    from thermocline.ingest.files.input_files import InputFile
    from thermocline.table import TimeSeriesTable


@dataclass(frozen=True)
class NewTableOptions:
    """What a new table is, apart from its bucket."""

    time_column: Annotated[
        str | None,
        typer.Option("--time-column", metavar="NAME", help="The column that holds the time."),
    ] = None
    index_column: Annotated[
        str | None,
        typer.Option(
            "--index-column",
            metavar="NAME",
            help="Instead of --time-column: the column of whole numbers that orders the rows.",
        ),
    ] = None
    index_type: Annotated[
        IndexType | None,
        typer.Option("--index-type", help="The type of the index; default: that of the bucket."),
    ] = None
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="NAME:TYPE",
            help="A column, such as close:float64. May be given again; else the first append adds "
            "the columns.",
        ),
    ] = None
    entity_columns: Annotated[
        list[str] | None,
        typer.Option(
            "--entity-column",
            metavar="NAME",
            help="A column that tells entities apart, such as symbol. May be given again.",
        ),
    ] = None
    timezone: Annotated[
        str | None,
        typer.Option(
            "--timezone", metavar="ZONE", help="The zone of times without a zone; default UTC."
        ),
    ] = None
    overlap: Annotated[
        Overlap | None,
        typer.Option(
            "--overlap",
            help="What an append into held buckets does; default: reject, in a lake allow.",
            show_default=False,
        ),
    ] = None
    retention: Annotated[
        str | None,
        typer.Option(
            "--retention",
            metavar="AGE",
            help="How long `retain` keeps rows, such as 90d; default no limit.",
        ),
    ] = None
    entities_max: Annotated[
        int | None,
        typer.Option("--entities-max", min=1, metavar="N", help="The largest number of entities."),
    ] = None
    unique: Annotated[
        bool,
        typer.Option("--unique", help="Keep at most one row for each entity and bucket."),
    ] = False
    token_columns: Annotated[
        list[str] | None,
        typer.Option(
            "--tokens", metavar="COLUMN", help="A column of texts to index for has_token and LIKE."
        ),
    ] = None


@expand_options
def create(
    table: TableArgument,
    bucket: Annotated[
        str,
        typer.Option(
            "--bucket",
            metavar="WIDTH",
            help="The width of a bucket: 15min, 1h, 1w, 1mo; 1000 for an integer index.",
        ),
    ],
    *,
    options: NewTableOptions,
    json: JsonOption = False,
) -> None:
    """Create an empty table. Without --column, the first append adds its columns."""
    kind = options.index_type
    create_one = _create_on_node if open_node_for(table) else _create_table
    made = create_one(
        table,
        {
            "time_column": options.time_column,
            "index_column": options.index_column,
            "index_type": kind.value if kind else "int64" if bucket.strip().isdigit() else None,
            "bucket": bucket,
            "unique": options.unique,
            "entity_columns": options.entity_columns or (),
            "timezone": options.timezone,
            "overlap": options.overlap.value if options.overlap else None,
            "retention": options.retention,
            "entities_max": options.entities_max,
            "token_columns": options.token_columns or (),
        },
        _parse_columns(options.columns) if options.columns else None,
    )
    _print_change(made, made.version(), f"created {made.root()}", {}, is_json=json)


def _create_table(
    path: str, spec: dict[str, Any], columns: dict[str, str] | None
) -> "TimeSeriesTable":
    """Create a table in a folder, or in the lake that the folder above it is."""
    from thermocline.table import TimeSeriesTable, declare_columns, new_spec

    named = split_new_path(path)
    default = Overlap.REJECT if named is None else Overlap.ALLOW
    spec["overlap"] = spec["overlap"] or default.value
    if named is None:
        return TimeSeriesTable.create(path, schema=columns, **spec)
    from thermocline.cold.catalog import Catalog
    from thermocline.query.source import check_table_name

    made = new_spec(**spec)
    name = check_table_name(named[1])
    # A table is made beside the process that writes the lake: that needs no journal.
    return TimeSeriesTable(Catalog(named[0]).create(name, made, declare_columns(columns, made)))


def _create_on_node(
    name: str, spec: dict[str, Any], columns: dict[str, str] | None
) -> "TimeSeriesTable":
    """Create a table on the node that the command calls."""
    node = open_node()
    if node is None:
        raise Invalid("no node is named", hint="give --url or --context")
    spec["overlap"] = spec["overlap"] or Overlap.ALLOW.value
    return cast("TimeSeriesTable", node.create_table(name, **spec, schema=columns))


def _parse_columns(words: list[str]) -> dict[str, str]:
    """Return the types by name of words such as `close:float64`."""
    found = {}
    for word in words:
        name, is_pair, kind = word.partition(":")
        if not is_pair or name in found:
            hint = "write NAME:TYPE, each name once, such as close:float64"
            raise Invalid("not a column", hint=hint, got=word)
        found[name] = kind
    return found


@dataclass(frozen=True)
class AppendCommandOptions:
    """How files are read, and what their append does."""

    input_format: Annotated[
        str | None,
        typer.Option(
            "--input-format",
            metavar="NAME",
            help="parquet, csv or json; default: by the file's ending.",
        ),
    ] = None
    column_types: Annotated[
        list[str] | None,
        typer.Option(
            "--column-type",
            metavar="NAME=TYPE",
            help="The type of a new column of CSV or JSON; once for each. By default all cells "
            "decide it.",
        ),
    ] = None
    overlap: Annotated[
        Overlap | None,
        typer.Option(
            "--overlap",
            help="What to do about buckets already held; default: the table's policy.",
            show_default=False,
        ),
    ] = None
    evolve: Annotated[
        bool, typer.Option("--evolve", help="Add new columns, and widen types where needed.")
    ] = False
    link: Annotated[
        bool,
        typer.Option("--link", help="Share the bytes of Parquet files instead of copying them."),
    ] = False
    txn: Annotated[
        str | None,
        typer.Option(
            "--txn", metavar="NAME:NUMBER", help="Append once: a repeated number does nothing."
        ),
    ] = None


@expand_options
def append(
    table: TableArgument,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES",
            help="Parquet, CSV or JSON files, folders, or patterns such as june/*.parquet; - reads "
            "standard input.",
        ),
    ],
    *,
    options: AppendCommandOptions,
    json: JsonOption = False,
) -> None:
    """Append Parquet, CSV or JSON files, all of them in one commit. No row is set aside."""
    remote = open_node_table(table)
    if remote is not None:
        _append_to_node(remote, files, options, is_json=json)
        return
    opened = open_table(table)
    before = opened.version()
    count, version = _append_files(opened, files, options)
    if version == before:
        facts = {"files": count, "rows": 0, "segments": 0, "replaced": 0, "appended": False}
        why = f"{options.txn} was already appended" if options.txn else "the files have no rows"
        _print_change(opened, version, f"nothing to append: {why}", facts, is_json=json)
        return
    metrics = opened.cold.log.commit(version).metrics
    rows, segments, replaced = (int(metrics[k]) for k in ("rows", "segments", "replaced"))
    facts = {
        "files": count,
        "rows": rows,
        "segments": segments,
        "replaced": replaced,
        "appended": True,
    }
    said = f"appended {_count_text(rows, 'row')} from {_count_text(count, 'file')}"
    if replaced:
        said += f", replacing rows in {_count_text(replaced, 'segment')}"
    _print_change(opened, version, said, facts, is_json=json)


def _append_files(
    opened: "TimeSeriesTable", words: list[str], options: AppendCommandOptions
) -> tuple[int, int]:
    """Append files, and return their number and the version after."""
    from thermocline.cold.change.append import AppendOptions

    overlap = options.overlap.value if options.overlap else None
    how = AppendOptions(overlap, options.evolve, parse_txn(options.txn))
    types = parse_types(options.column_types or ())
    with _find_files(words, options.input_format) as files, show_progress("appending") as report:
        if all(file.format == "parquet" for file in files) and not types:
            paths = _ReportedPaths([file.path for file in files], report)
            return len(files), opened.cold.append_parquet(paths, how, link=options.link).version
        if options.link:
            raise Invalid("only Parquet files can be linked", hint="omit --link")
        from thermocline.ingest.files.open_rows import open_file_rows

        rows = open_file_rows(
            files, opened.cold.state(), types=types, evolve=options.evolve, progress=report
        )
        return len(files), opened.cold.append_batches(rows.schema, rows.batches, how)[0].version


def _append_to_node(
    table: "ClientTable", words: list[str], options: AppendCommandOptions, *, is_json: bool
) -> None:
    """Write the rows of files to a node, after all of them were checked."""
    from thermocline.cli.table.node_write import write_files

    if options.overlap or options.link:
        raise Invalid("a node takes rows, not files", hint="omit --overlap and --link")
    with _find_files(words, options.input_format) as files, show_progress("appending") as report:
        rows = write_files(
            table,
            files,
            types=parse_types(options.column_types or ()),
            evolve=options.evolve,
            txn=options.txn,
            progress=report,
        )
    said = f"appended {_count_text(rows, 'row')} from {_count_text(len(files), 'file')}"
    _print_change(
        table, table.version(), said, {"files": len(files), "rows": rows}, is_json=is_json
    )


@contextmanager
def _find_files(words: list[str], file_format: str | None) -> Iterator[list["InputFile"]]:
    """Find the files that words name; standard input becomes a temporary file."""
    from thermocline.ingest.files.input_files import InputFile, find_input_files

    remote = [word for word in words if "://" in word]
    local = [word for word in words if word not in remote]
    found = [InputFile(word, "parquet", 0, 0) for word in remote]
    if "-" not in local:
        yield found + (find_input_files(local, file_format) if local else [])
        return
    if file_format is None:
        hint = "give --input-format csv, json or parquet"
        raise Invalid("the format of standard input is unknown", hint=hint)
    with TemporaryDirectory(prefix="thermocline-") as folder:
        path = os.path.join(folder, "stdin")
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        local[local.index("-")] = path
        yield found + find_input_files(local, file_format)


@dataclass(frozen=True)
class UpdateCommandOptions:
    """Which columns an update sets, and what it must follow."""

    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--column", metavar="NAME", help="A column to set. May be given again; else all."
        ),
    ] = None
    expected_version: Annotated[
        int | None,
        typer.Option(
            "--expect-version",
            min=1,
            metavar="N",
            help="Refuse if the table is at another version.",
        ),
    ] = None
    json: JsonOption = False


UpdateFileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="A Parquet file with the keys and the new values.")
]


@expand_options
def update(
    table: TableArgument, file: UpdateFileArgument, *, options: UpdateCommandOptions
) -> None:
    """Give rows new values by their entity columns and index; every key must exist."""
    _update_by_file(table, file, options, verb="update_rows")


@expand_options
def upsert(
    table: TableArgument, file: UpdateFileArgument, *, options: UpdateCommandOptions
) -> None:
    """Give rows new values by their entity columns and index; insert the rows that are new."""
    _update_by_file(table, file, options, verb="upsert")


def _update_by_file(table: str, file: str, options: UpdateCommandOptions, *, verb: str) -> None:
    from thermocline.cold.segment.stage import open_parquet, read_parquet
    from thermocline.cold.storage.open_storage import open_storage

    opened = open_table(table, flushes=True)
    storage = open_storage(".") if is_remote(opened) else opened.cold.storage
    with open_parquet(storage, file) as found:
        import pyarrow as pa

        batches = list(read_parquet(found, file))
        rows = pa.Table.from_batches(batches, found.schema_arrow)
    report = getattr(opened, verb)(
        rows, columns=options.columns, expected_version=options.expected_version
    )
    facts = {
        "matched": report.matched,
        "inserted": report.inserted,
        "unchanged": report.unchanged,
    }
    said = ", ".join(f"{count:,} {name}" for name, count in facts.items())
    _print_change(opened, report.committed_version, said, facts, is_json=options.json)


def delete(
    table: TableArgument,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help="The condition of the rows to delete."),
    ] = None,
    start: StartOption = None,
    end: EndOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Delete rows by a condition, a stretch of time, or both. Asks for confirmation."""
    opened = open_table(table, flushes=True)
    if where is None and start is None and end is None:
        raise Invalid(
            "a delete needs a condition or a stretch of time",
            hint="give --where, --start or --end; --where true deletes every row",
        )
    rows = _count_matching(opened, where, start, end)
    if not rows:
        _print_change(opened, opened.version(), "no row matches", {"rows": 0}, is_json=json)
        return
    before = count_rows(opened)
    would = f"delete {rows:,} of {_count_text(before, 'row')} from {opened.root()}"
    if not confirm(f"{would}?", is_yes=yes, otherwise=would):
        print_line("nothing was deleted")
        raise typer.Exit(1)
    version = opened.delete(where, start=start, end=end)
    rows = before - count_rows(opened, version)
    _print_change(
        opened, version, f"deleted {_count_text(rows, 'row')}", {"rows": rows}, is_json=json
    )


def restore(
    table: TableArgument,
    at: Annotated[str, typer.Argument(metavar="VERSION|TIME", help="The version, or an instant.")],
    json: JsonOption = False,
) -> None:
    """Restore an old version of the table, as a new version. No version is lost."""
    opened = open_table(table, flushes=True)
    wanted = find_version(opened, parse_at(at))
    version = opened.restore(wanted)
    _print_change(opened, version, f"restored version {wanted}", {"restored": wanted}, is_json=json)


def retain(
    table: TableArgument,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Delete even if that deletes every row.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Delete the rows that are older than the table's retention."""
    opened = open_table(table, flushes=True)
    before = count_rows(opened)
    version = opened.retain(yes=yes)
    rows = before - count_rows(opened, version)
    _print_change(
        opened, version, f"deleted {_count_text(rows, 'row')}", {"rows": rows}, is_json=json
    )


def set_policy(
    table: TableArgument,
    overlap: Annotated[
        Overlap | None,
        typer.Option(
            "--overlap", help="What an append into held buckets does.", show_default=False
        ),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(
            "--retention",
            metavar="AGE",
            help="How long `retain` keeps rows, such as 90d, or forever.",
        ),
    ] = None,
    entities_max: Annotated[
        int | None,
        typer.Option("--entities-max", min=1, metavar="N", help="The largest number of entities."),
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(
            "--compression", metavar="CODEC", help="The codec of new segments: zstd, snappy."
        ),
    ] = None,
    token_columns: Annotated[
        list[str] | None,
        typer.Option(
            "--tokens",
            metavar="COLUMN",
            help="A column of texts to index for has_token and LIKE; `none` ends the index.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Change the table's policies, its limit of entities, and how it is written."""
    opened = open_table(table)
    version = opened.version()
    given = (overlap, retention, entities_max, compression, token_columns)
    if all(one is None for one in given):
        raise Invalid("nothing to set", hint="give --overlap, --retention or another option")
    if is_remote(opened) and any(one is not None for one in (overlap, entities_max, compression)):
        hint = "set only --retention, or run the command on the table's folder"
        raise Invalid("a node changes only the retention of a table", hint=hint)
    if entities_max is not None:
        version = opened.set_entities_max(entities_max)
    if compression is not None:
        version = opened.set_writer(compression=compression)
    if token_columns is not None:
        names = [] if token_columns == ["none"] else token_columns
        version = opened.set_token_columns(names)
    if overlap is not None:
        version = opened.set_overlap(overlap.value)
    if retention is not None:
        version = opened.set_retention(None if retention == "forever" else retention)
    spec = opened.held().state.spec
    facts = {"overlap": spec.overlap, "retention": spec.retention}
    said = f"overlap is {spec.overlap}, retention is {spec.retention or 'forever'}"
    _print_change(opened, version, said, facts, is_json=json)


class _ReportedPaths(Sequence[str]):
    """Paths that report progress: the append takes each path when it reads the file."""

    def __init__(self, paths: Sequence[str], report: Progress) -> None:
        self._paths = paths
        self._report = report

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[str]:
        for done, path in enumerate(self._paths):
            self._report(done, len(self._paths))
            yield path
        self._report(len(self._paths), len(self._paths))

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...

    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        return self._paths[place]


def _count_matching(
    table: "TimeSeriesTable", where: str | None, start: str | None, end: str | None
) -> int:
    if not table.schema().names:
        return 0
    if is_remote(table):
        return count_on_node(table, where, start, end)
    columns = [table.spec().time_column]
    return sum(b.num_rows for b in table.scan(columns, where, start=start, end=end))


def _count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _print_change(
    table: "TimeSeriesTable | ClientTable",
    version: int,
    said: str,
    facts: dict[str, Any],
    *,
    is_json: bool,
) -> None:
    if not is_json:
        print_line(f"{said} (version {version:,})")
        return
    from thermocline.cli.terminal.output import print_json

    print_json({"root": table.root(), "version": version, **facts})


COMMANDS: CommandList = (
    (
        "create",
        create,
        (
            "thermocline table create prices --time-column ts --bucket 1h",
            "thermocline table create prices --time-column ts --bucket 1h \\",
            "    --entity-column symbol --overlap replace --retention 90d",
            "thermocline table create blocks --index-column height --bucket 1000",
        ),
    ),
    (
        "append",
        append,
        (
            "thermocline table append prices june.parquet",
            "thermocline table append prices 'june/*.parquet' --overlap replace",
            "thermocline table append prices june.parquet --txn nightly:20240601",
            "thermocline table append prices june.csv --column-type close=float64",
            "zcat june.ndjson.gz | thermocline table append prices - --input-format json",
        ),
    ),
)


CHANGE_COMMANDS: CommandList = (
    (
        "restore",
        restore,
        (
            "thermocline table restore prices 3",
            "thermocline table restore prices 2024-06-08T12:00:00Z",
        ),
    ),
    (
        "delete",
        delete,
        (
            "thermocline table delete prices --where \"symbol = 'AMD'\"",
            "thermocline table delete prices --start 2024-06-01 --end 2024-06-02 --yes",
        ),
    ),
    (
        "update",
        update,
        ("thermocline table update prices fixes.parquet --column close",),
    ),
    ("upsert", upsert, ("thermocline table upsert prices late.parquet",)),
    ("retain", retain, ("thermocline table retain prices",)),
    (
        "set",
        set_policy,
        ("thermocline table set prices --retention 90d --overlap replace",),
    ),
)
