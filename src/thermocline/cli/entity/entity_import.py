"""Imports documents as entities, one a line.

In:   a file of JSON lines, or stdin
Out:  a count; for each line that failed its number and the reason

- Lines are sent in parts and written independently; with `--atomic` all lines are written or none.
- If the documents contain their key, a repeated import finds existing entities: these lines fail,
  or replace the entities with `--replace`.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.cli.argument import JsonOption, expand_options
from thermocline.cli.entity.schema import describe_problem, print_exact_json, read_bytes
from thermocline.cli.entity.target import (
    EntityTarget,
    TypeArgument,
)
from thermocline.cli.terminal.terminal import print_line
from thermocline.errors import Invalid, ThermoclineError

if TYPE_CHECKING:
    from thermocline.hot.postgres.store.operation import Operation

LINES_AT_ONCE = 500
FAILURES_LISTED_MAX = 100


@expand_options
def import_lines(
    type: TypeArgument,  # noqa: A002
    documents: Annotated[
        str, typer.Argument(metavar="DOCUMENTS", help="A file of JSON, one a line; - is stdin.")
    ],
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="NAME",
            help="The property that holds the key; keys are generated if omitted.",
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace existing entities; needs --key.")
    ] = False,
    atomic: Annotated[
        bool, typer.Option("--atomic", help="All lines or none, in one transaction.")
    ] = False,
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """Write one document a line. Lines that fail are listed, and the others are written."""
    if replace and key is None:
        raise Invalid("--replace needs the documents' key", hint="give --key NAME")
    lines = [
        (number, line)
        for number, line in enumerate(read_bytes(documents).splitlines(), start=1)
        if line.strip()
    ]
    failures: list[tuple[int, ThermoclineError]] = []
    with target.open() as opened:
        entities = opened.entity(type)
        for some in _split_parts(lines, len(lines) if atomic else LINES_AT_ONCE):
            failures += _import_part(entities, some, key, is_replace=replace, is_atomic=atomic)
    count = len(lines) - len(failures)
    if json:
        listed = [_failure_json(number, error) for number, error in failures[:FAILURES_LISTED_MAX]]
        print_exact_json(
            {"type": type, "imported": count, "failed": len(failures), "failures": listed}
        )
    else:
        for number, error in failures[:FAILURES_LISTED_MAX]:
            problems = error.facts.get("problems") or []
            why = "; ".join(describe_problem(problem) for problem in problems) or error.message
            print_line(f"line {number}: {why}")
        print_line(f"imported {count:,} of {len(lines):,} documents")
    if failures:
        hint = "fix the listed lines, and import them again"
        raise Invalid("some lines were not imported", hint=hint, failed=len(failures))


def _split_parts(lines: list[tuple[int, bytes]], size: int) -> Iterator[list[tuple[int, bytes]]]:
    rest = iter(lines)
    while some := list(islice(rest, max(size, 1))):
        yield some


def _import_part(
    entities: Any,
    lines: list[tuple[int, bytes]],
    key: str | None,
    *,
    is_replace: bool,
    is_atomic: bool,
) -> list[tuple[int, ThermoclineError]]:
    """Write some lines; return those that failed."""
    failures: list[tuple[int, ThermoclineError]] = []
    sound: list[tuple[int, Operation]] = []
    for number, line in lines:
        try:
            sound.append((number, _parse_operation(line, key, is_replace=is_replace)))
        except Invalid as error:
            failures.append((number, error))
    if is_atomic and failures:
        number, first = failures[0]
        raise _add_line(first, number)
    try:
        done = entities.bulk([operation for _, operation in sound], atomic=is_atomic)
    except ThermoclineError as error:
        item = error.facts.pop("item", None)
        raise (error if item is None else _add_line(error, sound[item][0])) from None
    failures += [
        (number, result)
        for (number, _), result in zip(sound, done, strict=True)
        if isinstance(result, ThermoclineError)
    ]
    return sorted(failures, key=lambda failure: failure[0])


def _parse_operation(line: bytes, key: str | None, *, is_replace: bool) -> "Operation":
    from thermocline.contract.document.text import decode
    from thermocline.hot.postgres.store.operation import Operation, OperationKind, new_key

    document = decode(line)
    if not isinstance(document, dict):
        raise Invalid("a line is not a JSON object", hint="give one JSON object a line")
    kind = OperationKind.REPLACE if is_replace else OperationKind.CREATE
    return Operation(kind, new_key() if key is None else document.get(key), line)  # type: ignore[arg-type]


def _add_line(error: ThermoclineError, line: int) -> ThermoclineError:
    return type(error)(error.message, hint=error.hint, line=line, **error.facts)


def _failure_json(line: int, error: ThermoclineError) -> dict[str, Any]:
    return {
        "line": line,
        "code": error.code,
        "message": error.message,
        "problems": error.facts.get("problems") or [],
    }
