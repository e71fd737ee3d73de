"""Commands about entities: each write and read of them, transactions, history, export, import.

- They call a node, or open a lake that no other process has open; see `target.py`.
- Documents come from a file or stdin (`-`), as JSON, and keep every digit both ways.
- If an answer is not exact, stderr and `--json` say so.
"""

import sys
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.cli.argument import AtOption, CommandList, JsonOption, expand_options, parse_at
from thermocline.cli.entity.entity_import import import_lines
from thermocline.cli.entity.schema import print_exact_json, read_bytes
from thermocline.cli.entity.target import (
    EntityTarget,
    TypeArgument,
    find_contract,
)
from thermocline.cli.terminal.terminal import print_line
from thermocline.errors import EntityNotFound

if TYPE_CHECKING:
    from thermocline.hot.postgres.store.operation import StoredEntity, WriteResult


class ModeWord(StrEnum):
    """How to answer when PostgreSQL is down."""

    STRICT = "strict"
    BEST_EFFORT = "best_effort"
    CACHED = "cached"


IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The entity's key.")]
DocumentArgument = Annotated[
    str, typer.Argument(metavar="DOCUMENT", help="A file with a JSON document; - is stdin.")
]
IfMatchOption = Annotated[
    int | None,
    typer.Option("--if-match", metavar="N", help="Only if this is still the entity's version."),
]
IdempotencyOption = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key",
        metavar="KEY",
        help="A retry with the same key writes nothing again and prints the first answer.",
    ),
]


@expand_options
def create(
    type: TypeArgument,  # noqa: A002
    document: DocumentArgument,
    id: Annotated[  # noqa: A002
        str | None, typer.Option("--id", metavar="ID", help="Its key; generated if omitted.")
    ] = None,
    idempotency_key: IdempotencyOption = None,
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """Create an entity. A key that exists is a conflict."""
    data = read_bytes(document)
    with target.open() as opened:
        done = opened.entity(type).create(data, id, idempotency_key=idempotency_key)
        _print_written(type, done, is_json=json)


@expand_options
def show(
    type: TypeArgument,  # noqa: A002
    id: IdArgument,  # noqa: A002
    at: AtOption = None,
    mode: Annotated[
        ModeWord | None,
        typer.Option("--mode", help="How to answer when PostgreSQL is down.", show_default=False),
    ] = None,
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """Show an entity, now or as it was at a version of the lake or an instant."""
    facts: dict[str, Any] = {"as_of": None, "warning": ""}
    with target.open() as opened:
        entities = opened.entity(type)
        if at is not None:
            found = entities.read(id, at=parse_at(at))
        else:
            answer = entities.find(id, mode=None if mode is None else mode.value)
            found = answer.entity
            facts = {"as_of": _time_text(answer.as_of), "warning": answer.warning}
    if facts["warning"]:
        print(f"warning: {facts['warning']} ({facts['as_of']})", file=sys.stderr)
    if found is None:
        given = {name: value for name, value in facts.items() if value}
        raise EntityNotFound("no such entity", hint="`entity list` lists them", id=id, **given)
    print_exact_json({"type": type, **_entity_json(found), **facts} if json else found.document)


@expand_options
def replace(
    type: TypeArgument,  # noqa: A002
    id: IdArgument,  # noqa: A002
    document: DocumentArgument,
    if_match: IfMatchOption = None,
    idempotency_key: IdempotencyOption = None,
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """Replace an entity's document, or create the entity."""
    data = read_bytes(document)
    with target.open() as opened:
        write = opened.entity(type).replace
        done = write(id, data, if_match, idempotency_key=idempotency_key)
        _print_written(type, done, is_json=json)


@expand_options
def patch(
    type: TypeArgument,  # noqa: A002
    id: IdArgument,  # noqa: A002
    document: Annotated[
        str, typer.Argument(metavar="PATCH", help="A file with a JSON merge patch; - is stdin.")
    ],
    if_match: IfMatchOption = None,
    idempotency_key: IdempotencyOption = None,
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """Change some properties of an entity; null removes one."""
    data = read_bytes(document)
    with target.open() as opened:
        write = opened.entity(type).patch
        done = write(id, data, if_match, idempotency_key=idempotency_key)
        _print_written(type, done, is_json=json)


@expand_options
def upsert(
    type: TypeArgument,  # noqa: A002
    id: IdArgument,  # noqa: A002
    document: Annotated[
        str, typer.Argument(metavar="PATCH", help="A file with a JSON merge patch; - is stdin.")
    ],
    if_match: IfMatchOption = None,
    idempotency_key: IdempotencyOption = None,
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """Change some properties of an entity, or create the entity from them."""
    data = read_bytes(document)
    with target.open() as opened:
        write = opened.entity(type).upsert
        done = write(id, data, if_match, idempotency_key=idempotency_key)
        _print_written(type, done, is_json=json)


@expand_options
def transact(
    operations: Annotated[
        str,
        typer.Argument(
            metavar="OPERATIONS", help="A file with a JSON list of operations; - is stdin."
        ),
    ],
    idempotency_key: IdempotencyOption = None,
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """Write entities of several types: all or none. Each operation names its type."""
    from thermocline.contract.document.text import decode

    given = decode(read_bytes(operations))
    with target.open() as opened:
        done = opened.transact(given, idempotency_key=idempotency_key)
    if json:
        results = [{"id": one.id, "ver": one.ver, "deed": one.deed.value} for one in done]
        print_exact_json({"results": results})
        return
    for one in done:
        print_line(f"{one.deed.value} {one.id} (version {one.ver:,})")


@expand_options
def delete(
    type: TypeArgument,  # noqa: A002
    id: IdArgument,  # noqa: A002
    if_match: IfMatchOption = None,
    idempotency_key: IdempotencyOption = None,
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """Delete an entity. Versions of the lake that have it keep it."""
    with target.open() as opened:
        done = opened.entity(type).delete(id, if_match, idempotency_key=idempotency_key)
        _print_written(type, done, is_json=json)


@expand_options
def list_entities(
    type: TypeArgument,  # noqa: A002
    filter: Annotated[  # noqa: A002
        str | None,
        typer.Option("--filter", metavar="JSON", help='{"field": ..., "op": ..., "value": ...}'),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", metavar="CONDITION", help="status=open, or total[gt]=10; all must hold."
        ),
    ] = None,
    sort: Annotated[
        list[str] | None,
        typer.Option(
            "--sort", metavar="FIELD", help="Sort by it; -FIELD sorts in descending order."
        ),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME", help="Only this property; may be given again."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1_000, metavar="N", help="At most this many.")
    ] = 100,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="CURSOR", help="The cursor that ends the previous page."),
    ] = None,
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """List entities, a page at a time, one a line: key, version, document."""
    from thermocline.contract.document.text import decode, encode_text
    from thermocline.hot.postgres.page.page import AllOf, parse_filter
    from thermocline.hot.postgres.page.query_text import parse_assignments

    wanted = None if filter is None else parse_filter(decode(filter.encode()))
    with target.open() as opened:
        if where and (more := parse_assignments(find_contract(opened, type), where)) is not None:
            wanted = more if wanted is None else AllOf((wanted, more))
        page = opened.entity(type).page(wanted, sort or (), field or None, after, limit)
    if json:
        entities = [_entity_json(one) for one in page.entities]
        print_exact_json({"type": type, "entities": entities, "after": page.after})
        return
    for one in page.entities:
        print_line(f"{one.id}  {one.ver}  {encode_text(one.document)}")
    if page.after is not None:
        print(f"there are more: --after {page.after}", file=sys.stderr)


@expand_options
def history(
    type: TypeArgument,  # noqa: A002
    id: IdArgument,  # noqa: A002
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """Show every recorded change of an entity: when, what, which key wrote it, the document."""
    from thermocline.contract.document.text import encode_text

    with target.open() as opened:
        found = opened.entity(type).history(id)
    if not found:
        raise EntityNotFound("no such entity", hint="`entity list` lists them", id=id)
    if json:
        revisions = [asdict(one) | {"at": _time_text(one.at)} for one in found]
        print_exact_json({"type": type, "id": id, "revisions": revisions})
        return
    for one in found:
        where = "hot" if one.version is None else f"version {one.version}"
        what = "deleted" if one.document is None else encode_text(one.document)
        words = (_time_text(one.at), where, one.ver or "", one.key or "", what)
        print_line("  ".join(str(word) for word in words if word != ""))


@expand_options
def diff(
    type: TypeArgument,  # noqa: A002
    id: IdArgument,  # noqa: A002
    old: Annotated[int, typer.Argument(metavar="OLD", help="A version of the entity.")],
    new: Annotated[int, typer.Argument(metavar="NEW", help="Another version of the entity.")],
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """Show what differs between two versions of an entity, by property."""
    from thermocline.contract.document.text import encode_text

    with target.open() as opened:
        found = opened.entity(type).diff(id, old, new)
    if json:
        print_exact_json({"type": type, "id": id, "changes": [asdict(one) for one in found]})
        return
    for one in found:
        before = "nothing" if one.is_added else encode_text(one.old)
        after = "nothing" if one.is_removed else encode_text(one.new)
        print_line(f"{one.pointer or '/'}  {before} -> {after}")


@expand_options
def changes(
    type: Annotated[  # noqa: A002
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only this type; may be given again."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="POSITION", help="The position to go on from."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1_000, metavar="N", help="At most this many.")
    ] = 100,
    wait: Annotated[
        float,
        typer.Option("--wait", min=0, max=60, metavar="SECONDS", help="Wait so long for a change."),
    ] = 0.0,
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """List committed changes of entities in the order of the feed, and the position after them."""
    from thermocline.contract.document.text import encode_text

    with target.open() as opened:
        page = opened.changes(type or None, after, limit, wait_s=wait)
    if json:
        listed = [asdict(one) | {"at": _time_text(one.at)} for one in page.changes]
        print_exact_json({"changes": listed, "position": page.position})
        return
    for one in page.changes:
        what = "" if one.document is None else f"  {encode_text(one.document)}"
        print_line(f"{_time_text(one.at)}  {one.type} {one.id}  {one.op} {one.ver}{what}")
    print(f"go on with: --after {page.position}", file=sys.stderr)


@expand_options
def export(
    type: TypeArgument,  # noqa: A002
    *,
    target: EntityTarget,
    json: JsonOption = False,
) -> None:
    """Export every current change into the lake, in one version."""
    with target.open() as opened:
        done = opened.entity(type).export()
    if json:
        exported = None if done is None else asdict(done) | {"as_of": _time_text(done.as_of)}
        print_exact_json({"type": type, "exported": exported})
    elif done is None:
        print_line("nothing has changed since the last export")
    else:
        print_line(
            f"exported {done.keys:,} keys, {done.rows:,} of them rows (version {done.version:,})"
        )


def _entity_json(one: "StoredEntity") -> dict[str, Any]:
    return {
        "id": one.id,
        "ver": one.ver,
        "schema_version": one.schema_version,
        "written_at": _time_text(one.written_at),
        "document": one.document,
    }


def _time_text(when: Any) -> str:
    from thermocline.format.instant import format_instant, from_datetime

    return format_instant(from_datetime(when))


def _print_written(type: str, done: "WriteResult", *, is_json: bool) -> None:  # noqa: A002
    if is_json:
        print_exact_json({"type": type, "id": done.id, "ver": done.ver, "deed": done.deed.value})
    else:
        print_line(f"{done.deed.value} {done.id} (version {done.ver:,})")


COMMANDS: CommandList = (
    (
        "create",
        create,
        (
            "thermocline entity create order order.json --id o-1",
            'echo \'{"status": "open"}\' | thermocline entity create order -',
        ),
    ),
    (
        "get",
        show,
        (
            "thermocline entity get order o-1",
            "thermocline entity get order o-1 --at 2024-06-01T12:00:00Z",
            "thermocline entity get order o-1 --mode best_effort --json",
        ),
    ),
    ("replace", replace, ("thermocline entity replace order o-1 order.json --if-match 3",)),
    ("patch", patch, ("echo '{\"note\": null}' | thermocline entity patch order o-1 -",)),
    (
        "upsert",
        upsert,
        ('echo \'{"status": "open"}\' | thermocline entity upsert order o-1 -',),
    ),
    (
        "transact",
        transact,
        (
            "thermocline entity transact operations.json --idempotency-key 8f14e45f",
            "thermocline entity transact - < operations.json",
        ),
    ),
    ("delete", delete, ("thermocline entity delete order o-1 --if-match 4",)),
    (
        "list",
        list_entities,
        (
            "thermocline entity list order --where status=open --where 'quantity[gt]=10'",
            "thermocline entity list order --sort=-quantity --limit 10",
            """thermocline entity list order --filter '{"field": "total", "op": "is_null"}'""",
        ),
    ),
    ("history", history, ("thermocline entity history order o-1",)),
    ("diff", diff, ("thermocline entity diff order o-1 1 2",)),
    (
        "changes",
        changes,
        (
            "thermocline entity changes --type order --limit 10",
            "thermocline entity changes --wait 30 --json",
        ),
    ),
    ("export", export, ("thermocline entity export order",)),
    (
        "import",
        import_lines,
        (
            "thermocline entity import order orders.ndjson --key number",
            "thermocline entity import order orders.ndjson --key number --replace --atomic",
            "thermocline entity import order orders.ndjson --lake lake",
        ),
    ),
)
