"""Commands about time: which stretches a table lacks, and which it holds.

- They read metadata alone: no Parquet file is opened.
- On a terminal they draw the coverage as bars of blocks above the rows.
- `gaps --fail` and `--max-missing` are a gate for schedulers: if more is missing than allowed, the
  exit code is 10. A stretch without any bucket does not pass: nothing was checked.
"""

import re
import sys
from dataclasses import dataclass
from decimal import Decimal
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
from thermocline.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.cold.coverage_report import CoverageReport

EXIT_GATE = 10
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


@dataclass(frozen=True)
class GateOptions:
    """What may be missing before the command fails."""

    fail: Annotated[
        bool, typer.Option("--fail", help="Exit with code 10 if a bucket is missing.")
    ] = False
    max_missing: Annotated[
        str | None,
        typer.Option(
            "--max-missing",
            metavar="N|P%",
            help="Exit with code 10 if more buckets are missing: a number, or a share such as 1%.",
        ),
    ] = None

    def allowance(self) -> "Allowance | None":
        """Return what may be missing; None if the command is not a gate."""
        if self.max_missing is not None:
            return _parse_allowance(self.max_missing)
        return Allowance("0", buckets=0) if self.fail else None


@dataclass(frozen=True)
class Allowance:
    """How many buckets may be missing: a number of them, or a share in percent."""

    text: str
    buckets: int | None = None
    percent: Decimal = Decimal(0)

    def permits(self, missing: int, total: int) -> bool:
        """Tell whether so many missing buckets of a total are allowed."""
        if self.buckets is not None:
            return missing <= self.buckets
        return missing * 100 <= self.percent * total


def _parse_allowance(text: str) -> Allowance:
    word = text.strip()
    if re.fullmatch(r"\d{1,18}", word, re.ASCII):
        return Allowance(word, buckets=int(word))
    if re.fullmatch(r"\d{1,3}(?:\.\d{1,6})?%", word, re.ASCII):
        percent = Decimal(word[:-1])
        if percent <= 100:
            return Allowance(word, percent=percent)
    hint = "write a number of buckets, such as 3, or a share from 0% to 100%, such as 0.5%"
    raise Invalid("this is not an allowed number of missing buckets", hint=hint, got=text)


@expand_options
def gaps(table: TableArgument, *, gate: GateOptions, options: CoverageOptions) -> None:
    """Show which stretches of time are missing. With --fail, a gate for a scheduler."""
    allowed = gate.allowance()
    view = _CoverageView(table, options)
    verdict = None if allowed is None else view.judge(allowed)
    view.write("gaps", view.gaps(), verdict)
    if verdict is not None and not verdict.is_passed:
        print(f"gate: {verdict.reason}", file=sys.stderr)
        raise typer.Exit(EXIT_GATE)


@dataclass(frozen=True)
class Verdict:
    """Whether a gate passed: the missing buckets, what is allowed, and the reason if it failed."""

    missing: int
    max_missing: str
    reason: str = ""

    @property
    def is_passed(self) -> bool:
        """Whether no more is missing than allowed."""
        return not self.reason

    def facts(self) -> dict[str, Any]:
        """Return the verdict by the names of the JSON answer."""
        return {
            "missing": self.missing,
            "max_missing": self.max_missing,
            "passed": self.is_passed,
            "reason": self.reason or None,
        }


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

    def judge(self, allowed: Allowance) -> Verdict:
        """Return whether so much may be missing. What cannot be known does not pass."""
        held, total = self._count_buckets()
        missing = total - held
        reason = ""
        if not self._held.is_verified:
            reason = "the coverage contradicts the log: run `thermocline table fsck`"
        elif not total:
            reason = "nothing was checked: no bucket is held; give --start and --end"
        elif not allowed.permits(missing, total):
            reason = f"{missing:,} of {total:,} buckets are missing, {allowed.text} may be"
        return Verdict(missing, allowed.text, reason)

    def write(self, what: str, rows: "pa.Table", verdict: Verdict | None = None) -> None:
        """Write the stretches in the requested format."""
        from thermocline.cli.terminal.output import choose_output, print_json

        output = choose_output(self._options.form, is_json=self._options.json)
        if output.form is Format.JSON:
            from thermocline.cli.table.info import rows_json

            facts = self._collect_facts() | ({} if verdict is None else verdict.facts())
            print_json({**facts, what: rows_json(rows)})
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
            "thermocline gaps prices --start 2024-06-01 --end 2024-06-02 --max-missing 1%",
        ),
    ),
    (
        "coverage",
        coverage,
        ("thermocline coverage prices", "thermocline coverage prices --no-entities --format csv"),
    ),
)
