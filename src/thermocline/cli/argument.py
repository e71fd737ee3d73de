"""The arguments that commands share, and how their words become values.

In:   words from a shell
Out:  values: versions and instants, entities, parameters, types, files

- A word means the same in every command: `--at 7` is a version, `--at 2024-06-01` an instant.
- A word that cannot be parsed is `Invalid`, and the hint shows the syntax.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.errors import Invalid, ThermoclineError

if TYPE_CHECKING:
    from thermocline.cold.coverage_report import CoverageReport


CommandList = tuple[tuple[str, Callable[..., None], tuple[str, ...]], ...]
"""Commands in the order of their help: the name, the function, the examples."""


class Format(StrEnum):
    """How rows are written."""

    BOX = "box"
    CSV = "csv"
    JSON = "json"
    NDJSON = "ndjson"
    ARROW = "arrow"
    PARQUET = "parquet"


class IndexType(StrEnum):
    """The type of the index of a table."""

    TIMESTAMP = "timestamp"
    INT64 = "int64"
    UINT64 = "uint64"


class Overlap(StrEnum):
    """What an append into buckets already held does."""

    REJECT = "reject"
    ALLOW = "allow"
    REPLACE = "replace"


TableArgument = Annotated[
    str,
    typer.Argument(
        metavar="TABLE", help="The table's folder, or its s3://, gs:// or az:// address."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer in JSON, for machines.")]
FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        help="How rows are written. A box on a terminal, CSV in a pipe.",
        show_default=False,
    ),
]
AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="VERSION|TIME", help="Read this version or instant."),
]
StartOption = Annotated[
    str | None,
    typer.Option("--start", metavar="TIME", help="The first instant of the stretch."),
]
EndOption = Annotated[
    str | None,
    typer.Option("--end", metavar="TIME", help="The end of the stretch, not part of it."),
]
EntityOption = Annotated[
    list[str] | None,
    typer.Option(
        "--entity", metavar="COLUMN=VALUE", help="One entity; once for each entity column."
    ),
]
RowsOption = Annotated[
    int, typer.Option("--rows", min=0, metavar="N", help="Rows a box shows at most; 0 shows all.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with an option for each field of its parameters that are dataclasses.

    The parser knows plain parameters only; the command receives the dataclasses.
    """
    signature = inspect.signature(command)
    groups: dict[str, Any] = {
        one.name: one.annotation
        for one in signature.parameters.values()
        if is_dataclass(one.annotation)
    }

    def run(**values: Any) -> None:
        made = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **made)

    expanded: list[inspect.Parameter] = []
    for one in signature.parameters.values():
        options = fields(groups[one.name]) if one.name in groups else ()
        expanded += [
            one.replace(name=field.name, annotation=field.type, default=field.default)
            for field in options
        ] or [one]
    run.__signature__ = signature.replace(parameters=expanded)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in expanded}
    run.__doc__ = command.__doc__
    return run


def examples(*lines: str) -> str:
    """Return the end of a command's help."""
    # The backspace keeps the parser's help from joining the lines into one paragraph.
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def parse_at(text: str | None) -> int | str | None:
    """Return the version that a number names; any other text is an instant."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else text


def parse_txn(text: str | None) -> tuple[str, int] | None:
    """Return the application and number of `job:7`."""
    if text is None:
        return None
    application, _, number = text.rpartition(":")
    if not application or not (number.isascii() and number.isdigit()):
        raise Invalid(
            "expected a name and a number",
            hint="write a name and an increasing number, such as --txn nightly:7",
            got=text,
        )
    return application, int(number)


def parse_entity(words: Sequence[str] | None, held: "CoverageReport") -> dict[str, Any] | None:
    """Return the entity that `symbol=NVDA` names, with values of the columns' types."""
    if not words:
        return None
    names = held.state.spec.entity_columns
    if not names:
        raise Invalid(
            "the table has no entity columns", hint="omit --entity", entity=", ".join(words)
        )
    given = dict(_split_pair(word, names) for word in words)
    if set(given) != set(names):
        raise Invalid(
            "an entity needs a value for each entity column",
            hint="give " + " ".join(f"--entity {name}=VALUE" for name in names),
            got=list(given),
            entity_columns=list(names),
        )
    return {name: _parse_entity_part(given[name], name, held) for name in names}


def _split_pair(word: str, names: Sequence[str]) -> tuple[str, str]:
    name, is_pair, value = word.partition("=")
    if is_pair and name in names:
        return name, value
    if len(names) == 1:
        return names[0], word
    raise Invalid(
        "unknown entity column",
        hint="write COLUMN=VALUE with one of the entity columns",
        got=word,
        entity_columns=list(names),
    )


def _parse_entity_part(text: str, name: str, held: "CoverageReport") -> Any:
    """Return a part of an entity's key: integers and booleans typed, all other types as text."""
    import pyarrow as pa
    import pyarrow.types as kinds

    from thermocline.format.types import plain_type

    kind = plain_type(held.state.schema.column(name).type)
    if text == "null":
        return None
    if not (kinds.is_integer(kind) or kinds.is_boolean(kind)):
        return text
    try:
        return pa.scalar(text).cast(kind).as_py()
    except pa.ArrowException as error:
        raise Invalid(
            "the value does not fit the column's type",
            hint="give a value of the column's type",
            column=name,
            type=str(kind),
            got=text,
        ) from error


def parse_parameters(words: Iterable[str]) -> dict[str, Any] | list[Any] | None:
    """Return the parameters of a query: by name if all have a name, else by position."""
    pairs = [word.partition("=") for word in words]
    if not pairs:
        return None
    if all(is_pair and name.isidentifier() for name, is_pair, _ in pairs):
        return {name: parse_parameter(text) for name, _, text in pairs}
    if any(is_pair and name.isidentifier() for name, is_pair, _ in pairs):
        raise Invalid(
            "parameters must be all by name or all by position",
            hint="write --param name=value for each $name, or --param value for each ?",
        )
    return [parse_parameter("".join(pair)) for pair in pairs]


def parse_parameter(text: str) -> Any:
    """Return a word as number, boolean, null or time if it looks like one, else as text.

    A word in quotes is text.
    """
    import orjson

    from thermocline.format.instant import parse_exact

    if re.fullmatch(r"-?(?:0|[1-9]\d{0,999})", text, re.ASCII):
        return int(text)  # the parser of JSON makes a double of one that 64 bits do not hold
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    else:
        if isinstance(value, float) and Decimal(text) != Decimal(repr(value)):
            return Decimal(text)  # it has more digits than a double
        if not isinstance(value, dict | list):
            return value
    try:
        moment = parse_exact(text)
    except ThermoclineError:
        return text
    if isinstance(moment, datetime) and moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    return moment


def parse_types(given: Iterable[str]) -> dict[str, str]:
    """Return the declared types by the names of their columns."""
    found = {}
    for one in given:
        name, sign, kind = one.partition("=")
        if not (name and sign and kind):
            hint = "write NAME=TYPE, such as --column-type close=double"
            raise Invalid("expected a column and its type", hint=hint, got=one)
        found[name] = kind
    return found
