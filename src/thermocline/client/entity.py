"""The entities of a type on a node, with the interface of an embedded entity table.

In:   documents, ids, filters
Out:  the same values and errors as `EntityTable`

- Documents are sent as JSON with every digit, and returned with their contract's types: a decimal
  is a `Decimal`. Each version of a contract is fetched once.
- A read is retried until the timeout. A write is sent once; a write without an answer is
  `OutcomeUnknown`. If the caller chose the id and `if_match`, reading the entity shows whether the
  write happened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace as with_changes
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa

from thermocline.client.http import ARROW, JSON, Wire, problem_error, quote_part
from thermocline.client.parameters import wire_at
from thermocline.contract.contract import Contract
from thermocline.contract.document.text import check_value, decode, encode_text
from thermocline.contract.schema.register import parse_contract
from thermocline.entity.follow import parse_feed_arguments
from thermocline.entity.model import (
    EntityRevision,
    ExportResult,
    FindAnswer,
    PropertyChange,
    ReadMode,
    ScanAnswer,
    mode_of,
)
from thermocline.errors import EntityNotFound, Invalid, NotFound, ThermoclineError, Unavailable
from thermocline.format.argument import check_count, list_names
from thermocline.format.bucket import parse_duration_s
from thermocline.format.instant import format_instant, parse_instant, to_datetime, to_instant
from thermocline.format.layout import Version
from thermocline.hot.postgres.page.page import (
    AllOf,
    AnyOf,
    Comparison,
    Filter,
    Not,
    Page,
    PageRequest,
)
from thermocline.hot.postgres.revision.change import EntityChange, FeedPage
from thermocline.hot.postgres.store.interface import EntityInterface
from thermocline.hot.postgres.store.operation import (
    Operation,
    OperationKind,
    StoredEntity,
    WriteResult,
    parse_typed_operations,
)
from thermocline.names import parse_id, parse_idempotency_key

MERGE_PATCH = "application/merge-patch+json"
_REQUESTS = {
    OperationKind.CREATE: ("POST", JSON),
    OperationKind.REPLACE: ("PUT", JSON),
    OperationKind.PATCH: ("PATCH", MERGE_PATCH),
    OperationKind.UPSERT: ("PATCH", MERGE_PATCH),
    OperationKind.DELETE: ("DELETE", JSON),
}


def register_type(wire: Wire, name: str, document: Any) -> "ClientEntityTable":
    """Register a version of a type's contract and return its entities."""
    content = json_bytes(document)
    headers = {"Content-Type": JSON}
    wire.send("POST", f"{_type_path(name)}/schema", content=content, headers=headers)
    return ClientEntityTable(wire, name)


class ClientEntityTable(EntityInterface):
    """The entities of one type; every call is a request to the node."""

    def __init__(self, wire: Wire, name: str) -> None:
        self._wire = wire
        self._path = _type_path(name)
        self.name = name
        self._contracts: dict[int, Contract] = {}
        self.contract()  # `NotFound` when there is no such type

    def contract(self, version: int | None = None) -> Contract:
        """Return a version of the type's contract, or the newest."""
        if version is not None:
            check_count(version, "version")
        if version is not None and version in self._contracts:
            return self._contracts[version]
        data = self._read_json(f"{self._path}/schema", version=version)
        found = with_changes(parse_contract(data["document"]), version=data["version"])
        self._contracts[found.version] = found
        return found

    # Writing.

    def write_one(self, operation: Operation, *, idempotency_key: str | None = None) -> WriteResult:
        """Run one operation, in a separate request; with an idempotency key it is retried."""
        if operation.kind is OperationKind.CHECK:
            (result,) = self.write_many([operation], atomic=True, idempotency_key=idempotency_key)
            assert isinstance(result, WriteResult)
            return result
        method, media = _REQUESTS[operation.kind]
        is_new = operation.kind is OperationKind.CREATE
        path = self._path if is_new else self._address(operation.id)
        content = b"" if method == "DELETE" else json_bytes(operation.document)
        headers = {"Content-Type": media, **idempotency_header(idempotency_key)}
        if operation.if_match is not None:
            headers["If-Match"] = f'"{operation.if_match}"'
        params: dict[str, Any] = {}
        if is_new and not (operation.has_new_key and idempotency_key is not None):
            params = {"id": operation.id}  # else a retry with another new key would differ
        if operation.kind is OperationKind.UPSERT:
            params = {"upsert": True}
        answer = self._wire.send(
            method,
            path,
            params=params,
            content=content,
            headers=headers,
            is_repeatable=idempotency_key is not None,
        )
        return parse_written(decode(answer.content))

    def write_many(
        self, operations: Sequence[Operation], *, atomic: bool, idempotency_key: str | None = None
    ) -> list[WriteResult | ThermoclineError]:
        """Run operations in order, in one request and one transaction."""
        results: list[WriteResult | ThermoclineError | None] = [None] * len(operations)
        bodies: dict[int, dict[str, Any]] = {}
        for place, operation in enumerate(operations):
            try:
                bodies[place] = operation_body(operation, is_retried=idempotency_key is not None)
            except Invalid as error:
                if atomic:
                    error.facts.setdefault("item", place)
                    raise
                results[place] = error
        content = encode_text({"atomic": atomic, "operations": list(bodies.values())}).encode()
        answer = self._wire.send(
            "POST",
            f"{self._path}/bulk",
            content=content,
            headers={"Content-Type": JSON, **idempotency_header(idempotency_key)},
            is_repeatable=idempotency_key is not None,
        )
        for place, data in zip(bodies, decode(answer.content)["results"], strict=True):
            results[place] = problem_error(data["error"]) if data["error"] else parse_written(data)
        return [result for result in results if result is not None]

    # Reading.

    def read(self, id: str, *, at: object = None) -> StoredEntity | None:  # noqa: A002
        """Return one entity as it is now, or as it was at a version or instant; None if absent."""
        return self._find_entity(id, at=wire_at(at)).entity

    def find(self, id: str, *, mode: ReadMode | str | None = None) -> FindAnswer:  # noqa: A002
        """Return one entity, or its absence, with the instant the answer is true of."""
        return self._find_entity(id, mode=None if mode is None else mode_of(mode).value)

    def _find_entity(self, key: str, **params: Any) -> FindAnswer:
        if parse_id(key) == "schema":
            hint = "page with a filter of _id"
            raise Invalid(
                "an entity with the key `schema` cannot be read by its key", hint=hint, id=key
            )
        try:
            data = self._read_json(self._address(key), **params)
        except EntityNotFound as error:
            as_of = _parse_time(error.facts.get("as_of")) or _LONG_AGO
            return FindAnswer(None, as_of, str(error.facts.get("warning", "")))
        as_of = _parse_time(data["as_of"]) or _LONG_AGO
        return FindAnswer(_parse_entity(self, data), as_of, data["warning"])

    def read_page(self, request: PageRequest) -> Page:
        """Return the requested page."""
        body = {
            "filter": None if request.filter is None else _filter_body(request.filter),
            "sort": list(request.sort),
            "fields": None if request.fields is None else list(request.fields),
            "after": request.after,
            "limit": request.limit,
            "refs": list(request.refs),
            "total": request.with_total,
        }
        data = self._post_json("search", body)
        targets = {
            name: ClientEntityTable(self._wire, name) for name, held in data["refs"].items() if held
        }
        found = {
            name: {key: _parse_entity(targets[name], one) for key, one in held.items()}
            for name, held in data["refs"].items()
        }
        entities = [_parse_entity(self, one) for one in data["entities"]]
        return Page(entities, data["after"], data["total"], found)

    def scan(
        self,
        columns: str | Sequence[str] | None = None,
        *,
        at: object = None,
        mode: ReadMode | str | None = None,
    ) -> ScanAnswer:
        """Return all rows, or some of their columns, with the instant they are true of."""
        body = {
            "columns": None if columns is None else list(list_names(columns, "columns")),
            "at": wire_at(at),
            "mode": None if mode is None else mode_of(mode).value,
        }
        answer = self._post_question("scan", body, {"Accept": ARROW})
        try:
            rows = pa.ipc.open_stream(answer.content).read_all()
        except pa.ArrowException as error:
            raise Unavailable("the answer cannot be read", hint="try again") from error
        headers = answer.headers
        version = headers.get("thermocline-version")
        as_of = _parse_time(headers.get("thermocline-as-of")) or _LONG_AGO
        warning = headers.get("thermocline-warning", "")
        return ScanAnswer(rows, as_of, None if version is None else Version(int(version)), warning)

    def history(self, id: str) -> list[EntityRevision]:  # noqa: A002
        """Return every recorded change of an entity, oldest first: what, when, and who made it."""
        return self._read_revisions(id)

    def at(self, id: str, instant: object) -> EntityRevision | None:  # noqa: A002
        """Return an entity as it was at an instant, exact to the change; None before its creation.

        `NotFound` if the history does not reach back so far.
        """
        found = self._read_revisions(id, at=format_instant(to_instant(instant)))
        return found[0] if found else None

    def diff(self, id: str, old: int, new: int) -> list[PropertyChange]:  # noqa: A002
        """Return the properties that differ between two versions of an entity."""
        versions = {"old": check_count(old, "old", 1), "new": check_count(new, "new", 1)}
        found = self._read_json(f"{self._address(id)}/diff", **versions)["changes"]
        return [PropertyChange(**one) for one in found]

    def keep_history(self, length: str | timedelta | None) -> float:
        """Set for how long changes are kept; None sets the default. Return it in seconds.

        The key needs the scope `admin`.
        """
        kept = None if length is None else float(parse_duration_s(length))
        return float(self._wire.change(f"{self._path}/history", {"kept_s": kept})["kept_s"])

    def _read_revisions(self, key: str, **params: Any) -> list[EntityRevision]:
        newest = self.contract()
        return [
            EntityRevision(
                one["ver"],
                None if one["document"] is None else _parse_document(newest, one["document"]),
                to_datetime(parse_instant(one["at"])),
                None if one["version"] is None else Version(one["version"]),
                one["op"],
                one["key"],
                one["request_id"],
            )
            for one in self._read_json(f"{self._address(key)}/history", **params)["revisions"]
        ]

    def export(self) -> ExportResult | None:
        """Export every change committed by now, in one version of the lake; None without changes.

        The key needs the scope `admin`.
        """
        data = self._wire.change(f"{self._path}/export")["exported"]
        if data is None:
            return None
        data["as_of"] = to_datetime(parse_instant(data["as_of"]))
        return ExportResult(**data)

    def __repr__(self) -> str:
        return f"ClientEntityTable({self.name!r} at {self._wire.url})"

    def _address(self, key: str) -> str:
        if parse_id(key) in (".", ".."):
            # On the way they are taken for steps through folders: it would be another address.
            hint = "write it with bulk, read it with page"
            raise Invalid("a key of dots cannot be part of a URL", hint=hint, id=key)
        return f"{self._path}/{quote_part(key)}"

    def _read_json(self, path: str, **params: Any) -> Any:
        return decode(self._wire.send("GET", path, params=params, is_repeatable=True).content)

    def _post_json(self, word: str, body: Mapping[str, Any]) -> Any:
        return decode(self._post_question(word, body, {}).content)

    def _post_question(self, word: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        return self._wire.send(
            "POST",
            f"{self._path}/{word}",
            content=json_bytes(body),
            headers={"Content-Type": JSON, **headers},
            is_repeatable=True,
            is_read=True,
        )


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON text with every digit; bytes must be JSON text already.

    `Invalid` names every place with a value that JSON cannot hold.
    """
    if isinstance(value, bytes):
        return value
    check_value(value)
    return encode_text(value).encode()


_LONG_AGO = to_datetime(0)


def _type_path(name: str) -> str:
    if not isinstance(name, str) or name in (".", ".."):
        raise NotFound("no such type", hint="register it first", type=str(name)[:80])
    return f"/api/v1/entities/{quote_part(name)}"


def read_changes(
    wire: Wire, types: str | Sequence[str] | None, after: str | None, limit: int, wait_s: float
) -> FeedPage:
    """Return the next changes of types, with documents of their contracts' types."""
    asked = parse_feed_arguments(types, after, limit, wait_s)
    names = None if asked.types is None else ",".join(asked.types)
    params = {**asked._asdict(), "types": names}
    data = decode(wire.send("GET", "/api/v1/feed", params=params, is_repeatable=True).content)
    tables: dict[str, ClientEntityTable] = {}
    return FeedPage([_parse_change(wire, tables, one) for one in data["changes"]], data["position"])


def _parse_change(
    wire: Wire, tables: "dict[str, ClientEntityTable]", data: Mapping[str, Any]
) -> EntityChange:
    name, document = data["type"], data["document"]
    if document is not None:
        if name not in tables:
            tables[name] = ClientEntityTable(wire, name)
        document = _parse_document(tables[name].contract(data["schema_version"]), document)
    at = to_datetime(parse_instant(data["at"]))
    return EntityChange(**{**data, "document": document, "at": at})


def transact_over(
    wire: Wire, operations: Sequence[Any], idempotency_key: str | None
) -> list[WriteResult]:
    """Run operations of several types in one request and one transaction."""
    bodies = []
    is_retried = idempotency_key is not None
    for place, one in enumerate(parse_typed_operations(operations)):
        try:
            bodies.append(
                {"type": one.type, **operation_body(one.operation, is_retried=is_retried)}
            )
        except Invalid as error:
            error.facts.setdefault("item", place)
            raise
    answer = wire.send(
        "POST",
        "/api/v1/transaction",
        content=encode_text({"operations": bodies}).encode(),
        headers={"Content-Type": JSON, **idempotency_header(idempotency_key)},
        is_repeatable=is_retried,
    )
    return [parse_written(one) for one in decode(answer.content)["results"]]


def idempotency_header(key: str | None) -> dict[str, str]:
    """Return the header of an idempotency key; none without a key."""
    return {} if key is None else {"Idempotency-Key": parse_idempotency_key(key)}


def operation_body(operation: Operation, *, is_retried: bool) -> dict[str, Any]:
    """Return an operation as JSON; with `is_retried` the node generates the key of a new entity."""
    made: dict[str, Any] = {"op": operation.kind.verb}
    if not (operation.has_new_key and is_retried):
        made["id"] = operation.id
    if operation.kind not in (OperationKind.DELETE, OperationKind.CHECK):
        data = json_bytes(operation.document)
        decode(data)  # malformed JSON would make the whole request malformed
        made["document"] = msgspec.Raw(data)
    if operation.if_match is not None:
        made["if_match"] = operation.if_match
    return made


def parse_written(data: Mapping[str, Any]) -> WriteResult:
    """Return the result of a write in an answer."""
    return WriteResult(data["id"], data["ver"], OperationKind(data["deed"]))


def _parse_entity(table: ClientEntityTable, data: Mapping[str, Any]) -> StoredEntity:
    version = data["schema_version"]
    return StoredEntity(
        data["id"],
        data["ver"],
        version,
        to_datetime(parse_instant(data["written_at"])),
        _parse_document(table.contract(version), data["document"]),
    )


def _parse_document(contract: Contract, data: dict[str, Any]) -> dict[str, Any]:
    """Return a document, or some of its properties, with the contract's types."""
    return contract.join(dict.fromkeys(column.id for column in contract.hot_columns), data)


def _filter_body(given: Filter) -> dict[str, Any]:
    match given:
        case AllOf(parts):
            return {"and": [_filter_body(part) for part in parts]}
        case AnyOf(parts):
            return {"or": [_filter_body(part) for part in parts]}
        case Not(part):
            return {"not": _filter_body(part)}
        case Comparison(field, op, value):
            return {"field": field, "op": op, "value": value}


def _parse_time(text: str | None) -> datetime | None:
    return None if text is None else to_datetime(parse_instant(text))
