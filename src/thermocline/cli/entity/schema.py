"""Commands about contracts: diff, infer and check read files; register and show use a registry.

- A contract's file is one JSON Schema; documents are JSON, one a line. `-` is stdin.
- Problems are listed on stdout, pointer first; then the exit code is not 0.
- The registry is that of a node, or of a lake that no other process has open; see `target.py`.
"""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.cli.argument import CommandList, JsonOption, expand_options
from thermocline.cli.entity.target import (
    EntityTarget,
    TypeArgument,
    find_contract,
)
from thermocline.cli.terminal.terminal import print_line
from thermocline.errors import Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from thermocline.contract.contract import Contract

PROBLEMS_LISTED_MAX = 100

ContractArgument = Annotated[
    str, typer.Argument(metavar="CONTRACT", help="A file with a JSON Schema; - is stdin.")
]


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The registered contract.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The contract that is to follow it.")],
    json: JsonOption = False,
) -> None:
    """Show what differs between two contracts, and whether one may follow the other."""
    from thermocline.contract.evolve.compatible import find_incompatibilities
    from thermocline.contract.evolve.difference import diff_documents as differences
    from thermocline.contract.schema.register import parse_contract

    before = parse_contract(read_document(old))
    after = parse_contract(read_document(new), before)
    changes = differences(before.document, after.document)
    refusals = find_incompatibilities(before, after)
    if json:
        print_exact_json(
            {
                "mode": before.mode,
                "is_compatible": not refusals,
                "changes": [change.as_json() for change in changes],
                "refusals": [refusal.as_json() for refusal in refusals],
            }
        )
        return
    from thermocline.contract.document.text import preview_value

    for change in changes:
        before_text = "" if change.change == "added" else f" {preview_value(change.before)}"
        after_text = "" if change.change == "removed" else f" {preview_value(change.after)}"
        arrow = " ->" if change.change == "changed" else ""
        print_line(f"{change.change}  {change.pointer}:{before_text}{arrow}{after_text}")
    for refusal in refusals:
        print_line(f"refused  {refusal.pointer or '/'}: {refusal.reason}")
    verdict = "may follow" if not refusals else "may not follow"
    print_line(f"the new contract {verdict} the old one ({before.mode})")


def infer(
    documents: Annotated[
        str, typer.Argument(metavar="DOCUMENTS", help="A file of JSON, one a line; - is stdin.")
    ],
) -> None:
    """Infer a contract from documents; every one of them fits it."""
    from thermocline.contract.document.text import decode
    from thermocline.contract.infer import infer_schema as guess

    def samples() -> Iterator[Any]:
        for number, line in enumerate(read_bytes(documents).splitlines(), start=1):
            if line.strip():
                try:
                    yield decode(line)
                except Invalid as error:
                    raise Invalid(
                        error.message, hint=error.hint, line=number, **error.facts
                    ) from error

    print_exact_json(guess(samples()))


def check(
    contract: ContractArgument,
    documents: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DOCUMENTS]...", help="Files of JSON, one a line; - is stdin."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="OLD", help="The contract that it is to follow."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check a contract, that it may follow another, and documents against it."""
    from thermocline.contract.evolve.compatible import evolve_contract
    from thermocline.contract.schema.register import parse_contract

    document = read_document(contract)
    counts: dict[str, int] = {}
    try:
        if against is None:
            made = parse_contract(document)
        else:
            made = evolve_contract(document, parse_contract(read_document(against)))
        for path in documents or ():
            counts[path] = len(made.validate_lines(read_bytes(path)))
    except Invalid as error:
        problems = error.facts.get("problems")
        if problems is None:
            raise
        if json:
            print_exact_json({"is_sound": False, "problems": problems})
        else:
            for problem in problems[:PROBLEMS_LISTED_MAX]:
                print_line(describe_problem(problem))
        raise Invalid(error.message, hint=error.hint, problems=len(problems)) from error
    if json:
        print_exact_json(
            {"is_sound": True, "columns": made.columns_json["columns"], "documents": counts}
        )
        return
    for column in made.columns:
        hot = f", hot as {column.postgres_type}" if column.is_hot else ""
        print_line(f"{column.id:>4}  {column.name}  {column.type}{hot}")
    for path, count in counts.items():
        print_line(f"{path}: {count:,} document{'' if count == 1 else 's'} fit")


@expand_options
def register_type(
    type: TypeArgument,  # noqa: A002
    contract: ContractArgument,
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """Register a contract as a type of entities, or as its next version."""
    document = read_document(contract)
    with target.open() as opened:
        try:
            opened.register(type, document)
            made = find_contract(opened, type)
        except Invalid as error:
            problems = error.facts.get("problems")
            if problems is None or json:
                raise
            for problem in problems[:PROBLEMS_LISTED_MAX]:
                print_line(describe_problem(problem))
            raise Invalid(error.message, hint=error.hint, problems=len(problems)) from error
    if json:
        columns = made.columns_json["columns"]
        print_exact_json({"type": type, "version": made.version, "columns": columns})
    else:
        print_line(f"registered {type}, version {made.version}: {len(made.columns)} columns")


@expand_options
def show_type(
    type: TypeArgument,  # noqa: A002
    version: Annotated[
        int | None,
        typer.Option("--version", min=1, metavar="N", help="The version; default: the newest."),
    ] = None,
    tool: Annotated[
        str | None,
        typer.Option("--tool", metavar="FORM", help="As a tool of a model: anthropic or openai."),
    ] = None,
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """Show a registered contract, or its tool definition for a language model."""
    with target.open() as opened:
        found = find_contract(opened, type, version)
    if tool is not None:
        print_exact_json(_tool_definition(found, type, tool))
    elif json:
        shown = {"type": type, "version": found.version, "mode": found.mode}
        print_exact_json({**shown, "document": found.document})
    else:
        print_exact_json(found.document)


def _tool_definition(contract: "Contract", name: str, form: str) -> dict[str, Any]:
    from thermocline.contract.tool import tool_schema

    if form == "openai":
        return tool_schema(contract, name, form="openai")
    if form == "anthropic":
        return tool_schema(contract, name, form="anthropic")
    raise Invalid("unknown form of a tool", hint="use anthropic or openai", got=form)


def read_document(path: str) -> dict[str, Any]:
    """Return the JSON object in a file; `Invalid` if the file has none."""
    from thermocline.contract.document.canonical import json_form
    from thermocline.contract.document.text import decode

    document = json_form(decode(read_bytes(path)))
    if not isinstance(document, dict):
        raise Invalid("the contract is not a JSON object", hint="give a JSON Schema", path=path)
    return document


def read_bytes(path: str) -> bytes:
    """Return the bytes of a file, or of stdin for `-`."""
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        raise NotFound("no such file", hint="check the path", path=path) from error
    except OSError as error:
        why = error.strerror or str(error)
        hint = "check the path and the permissions of the file"
        raise Unavailable("the file cannot be read", hint=hint, path=path, why=why) from error


def describe_problem(problem: dict[str, str]) -> str:
    """Return a problem as one line, its pointer first."""
    if "reason" in problem:
        return f"{problem['pointer'] or '/'}: {problem['reason']}"
    return f"{problem['pointer'] or '/'}: expected {problem['expected']}, got {problem['got']}"


def print_exact_json(value: Any) -> None:
    """Write a JSON value with indentation, without losing a digit."""
    import msgspec

    from thermocline.contract.document.text import encode_text

    text = msgspec.json.format(encode_text(value).encode(), indent=2)
    sys.stdout.buffer.write(text + b"\n")


COMMANDS: CommandList = (
    (
        "register",
        register_type,
        (
            "thermocline schema register order order.json --url http://127.0.0.1:4320",
            "thermocline schema register order order.json --lake lake",
        ),
    ),
    (
        "show",
        show_type,
        (
            "thermocline schema show order --version 1",
            "thermocline schema show order --tool anthropic",
        ),
    ),
    ("diff", diff, ("thermocline schema diff order-1.json order-2.json",)),
    ("infer", infer, ("thermocline schema infer orders.ndjson",)),
    (
        "check",
        check,
        (
            "thermocline schema check order.json",
            "thermocline schema check order-2.json --against order-1.json",
            "thermocline schema check order.json orders.ndjson",
        ),
    ),
)
