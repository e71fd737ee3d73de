"""Commands about time: which stretches a table lacks, and which it holds.

- They read metadata alone: no Parquet file is opened.
- On a terminal they draw the coverage as bars of blocks above the rows.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.cli.argument import (
    AtOption,
    CommandList,
    EndOption,
    EntityOption,
    Format,
    FormatOption,
    JsonOption,
    RowsOption,
    StartOption,
    TableArgument,
    expand_options,
    parse_at,
    parse_entity,
)
from thermocline.cli.table.target import open_table
from thermocline.cli.terminal.terminal import answer_console

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.cold.coverage_report import CoverageReport

_NOUNS = {"gaps": ("gap", "gaps"), "stretches": ("stretch", "stretches")}

NoEntitiesOption = Annotated[
    bool,
    typer.Option("--no-entities", help="A bucket counts as held when any entity has it."),
]


@dataclass(frozen=True)
class CoverageOptions:
    """The options of both commands."""

    start: StartOption = None
    end: EndOption = None
    entity: EntityOption = None
    no_entities: NoEntitiesOption = False
    at: AtOption = None
    rows: RowsOption = 40
    form: FormatOption = None
    json: JsonOption = False


@expand_options
def gaps(table: TableArgument, *, options: CoverageOptions) -> None:
    """Show which stretches of time are missing."""
    view = _CoverageView(table, options)
    view.write("gaps", view.gaps())


@expand_options
def coverage(table: TableArgument, *, options: CoverageOptions) -> None:
    """Show which stretches of time are held."""
    view = _CoverageView(table, options)
    view.write("stretches", view.stretches())


class _CoverageView:
    """What a table holds in a stretch, and how it is written."""

    def __init__(self, table: str, options: CoverageOptions) -> None:
        opened = open_table(table)
        self._options = options
        self._root = opened.root()
        self._held: CoverageReport = opened.held(parse_at(options.at))
        self._entity = parse_entity(options.entity, self._held)
        self._is_split = not options.no_entities
        self._span = self._held.span(options.start, options.end)

    def gaps(self) -> "pa.Table":
        """Return the missing stretches."""
        options = self._options
        return self._held.gaps(options.start, options.end, self._entity, per_entity=self._is_split)

    def stretches(self) -> "pa.Table":
        """Return the held stretches, clipped to the requested stretch."""
        is_split = self._is_split or self._entity is not None
        options = self._options
        rows = self._held.runs(options.start, options.end, per_entity=is_split)
        if self._entity is not None:
            self._held.buckets(self._entity)  # raises for an unknown entity
            return rows.filter(_match_entity(rows, self._entity))
        return rows

    def write(self, what: str, rows: "pa.Table") -> None:
        """Write the stretches in the requested format."""
        from thermocline.cli.terminal.output import choose_output, print_json

        output = choose_output(self._options.form, is_json=self._options.json)
        if output.form is Format.JSON:
            from thermocline.cli.table.info import rows_json

            print_json({**self._collect_facts(), what: rows_json(rows)})
            return
        if output.form is Format.BOX:
            self._draw(what, rows)
        else:
            output.write(rows.to_reader())
        self._warn_of_lost_writes()

    def _warn_of_lost_writes(self) -> None:
        """Warn on stderr of lost writes, which the rows do not show."""
        lost = sum(hole.last - hole.first + 1 for hole in self._held.state.holes)
        if lost:
            text = f"note: {lost:,} writes were lost in the journal; their rows are in no bucket"
            print(text, file=sys.stderr)

    def _collect_facts(self) -> dict[str, Any]:
        from thermocline.cli.table.info import rows_json
        from thermocline.cold.coverage_report import holes

        state, (first, after) = self._held.state, self._span
        bucket = state.spec.bucket
        held, total = self._count_buckets()
        return {
            "root": self._root,
            "version": state.version,
            "bucket": str(bucket),
            "start": bucket.format_position(bucket.start(first)) if after > first else None,
            "end": bucket.format_position(bucket.start(after)) if after > first else None,
            "buckets": total,
            "buckets_held": held,
            "ratio": held / total if total else 0.0,
            "is_verified": self._held.is_verified and not state.holes,
            "holes": rows_json(holes(state)),
        }

    def _count_buckets(self) -> tuple[int, int]:
        """Return how many buckets are held, and how many there are."""
        from thermocline.show.facts import count_covered

        first, after = self._span
        if self._entity is None and self._is_split:
            return count_covered(self._held, first, after)
        return self._held.buckets(self._entity).count(first, after), after - first

    def _draw(self, what: str, rows: "pa.Table") -> None:
        from thermocline.cli.terminal.box import draw
        from thermocline.cli.terminal.picture import print_picture

        console = answer_console()
        options = self._options
        print_picture(
            self._held,
            console,
            options.start,
            options.end,
            self._entity,
            per_entity=self._is_split,
        )
        held, total = self._count_buckets()
        if rows.num_rows:
            console.print()
            word, number = ("missing", total - held) if what == "gaps" else ("held", held)
            also = f"{number:,} of {total:,} buckets {word}"
            draw(rows.to_reader(), console, options.rows, _NOUNS[what], also)
        elif what == "gaps" and total:
            console.print("\nno gaps: every bucket is held", style="dim")


def _match_entity(rows: "pa.Table", entity: dict[str, Any]) -> Any:
    """Return for each row whether it belongs to the entity."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = pa.array([True] * rows.num_rows)
    for name, value in entity.items():
        column = rows.column(name)
        same = (
            pc.is_null(column)
            if value is None
            else pc.equal(column, pa.scalar(value).cast(column.type)).fill_null(False)
        )
        mask = pc.and_(mask, same)
    return mask


COMMANDS: CommandList = (
    (
        "gaps",
        gaps,
        (
            "thermocline gaps prices",
            "thermocline gaps prices --start 2024-06-01 --end 2024-06-08",
            "thermocline gaps prices --entity symbol=NVDA --json",
        ),
    ),
    (
        "coverage",
        coverage,
        ("thermocline coverage prices", "thermocline coverage prices --no-entities --format csv"),
    ),
)
