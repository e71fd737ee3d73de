"""Entities over HTTP: create, read, replace, patch, delete, one entity or many.

In:   a call on a route; documents as bytes, with every digit
Out:  entities with their versions; when a write is answered, it is durable and visible

- `ETag` is the entity's version, such as `"7"`; `If-Match` makes a write depend on it, and 412
  means it differs. A well-formed tag that no version can have differs too.
- An answer that may be out of date says so in a header and in the body, with the instant it is
  true of. That holds for the answer that an entity does not exist, too.
- `contract/` checks documents and reports every problem at once, each with its pointer.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers

from thermocline.contract.document.text import decode
from thermocline.error_table import ERROR_TABLE
from thermocline.errors import (
    Conflict,
    EntityNotFound,
    Invalid,
    PreconditionFailed,
    ThermoclineError,
)
from thermocline.format.instant import format_instant, from_datetime
from thermocline.hot.postgres.page.page import AllOf, parse_filter
from thermocline.hot.postgres.page.query_text import parse_conditions
from thermocline.hot.postgres.store.operation import OperationKind, StoredEntity, WriteResult
from thermocline.server.api.handle.table import parse_at
from thermocline.server.api.http.encode import content_type, encode_table
from thermocline.server.api.http.incoming import decode_body, idempotency_key_of
from thermocline.server.api.http.problem import (
    PROBLEM_TYPE,
    problem_bytes,
    problem_of,
)
from thermocline.server.api.http.reply import choose_format, exact_json
from thermocline.server.api.types import response_types
from thermocline.server.api.types.request_types import StrictRequest
from thermocline.server.api.types.route import API, ApiRequest, ApiResponse
from thermocline.show.scrub import scrub

if TYPE_CHECKING:
    from thermocline.entity.table import EntityTable

SIGNAL = "entities"
AS_OF = "Thermocline-As-Of"
WARNING = "Thermocline-Warning"
_NOTHING = msgspec.Raw()
_VERSION = re.compile(r'"(\d{1,18})"')
_TAG = re.compile(r'(?:W/)?"[^"]*"')


class _RawSearch(StrictRequest):
    """A `SearchRequest` with an undecoded filter, so that its numbers keep all digits."""

    filter: msgspec.Raw = _NOTHING
    sort: list[str] = msgspec.field(default_factory=list)
    fields: list[str] | None = None
    after: str | None = None
    limit: int = 100
    refs: list[str] = msgspec.field(default_factory=list)
    total: bool = False


class _RawOperation(StrictRequest):
    """A `BulkOperation` with an undecoded document."""

    op: str
    id: str | None = None
    document: msgspec.Raw = _NOTHING
    if_match: int | None = None


class _RawTypedOperation(_RawOperation, kw_only=True):
    """A `TypedOperationRequest` with an undecoded document."""

    type: str


class _RawTransaction(StrictRequest):
    """A `TransactionRequest` of such operations."""

    operations: list[_RawTypedOperation]


class _RawBulk(StrictRequest):
    """A `BulkRequest` of such operations."""

    operations: list[_RawOperation]
    atomic: bool = True


# One entity


def create(call: ApiRequest) -> ApiResponse:
    """Create an entity."""
    key = idempotency_key_of(call.headers)
    made = _entities(call).create(_charge_body(call), call.params.id, idempotency_key=key)
    return _write_response(call, made)


def read(call: ApiRequest) -> ApiResponse:
    """Return one entity, now or as it was."""
    entities, key, asked = _entities(call), call.path["id"], call.params
    if asked.at is not None:
        found = entities.read(key, at=parse_at(asked.at))
        return _entity_response(call, found, None, "")
    answer = entities.find(key, mode=asked.mode)
    return _entity_response(call, answer.entity, answer.as_of, answer.warning)


def replace(call: ApiRequest) -> ApiResponse:
    """Replace an entity's document, or create the entity."""
    entities, key = _entities(call), call.path["id"]
    match = _parse_if_match(call.headers, has_star=False)
    again = idempotency_key_of(call.headers)
    if not _must_be_new(call.headers):
        done = entities.replace(key, _charge_body(call), match, idempotency_key=again)
        return _write_response(call, done)
    if match is not None:
        hint = "send If-Match or If-None-Match, not both"
        raise Invalid("the two conditions cannot both hold", hint=hint)
    try:
        done = entities.create(_charge_body(call), key, idempotency_key=again)
        return _write_response(call, done)
    except Conflict as error:
        problem = problem_of(error, call.request_id)
        problem.status = ERROR_TABLE[PreconditionFailed].http_status
        return ApiResponse(problem_bytes(problem), problem.status, PROBLEM_TYPE)


def patch(call: ApiRequest) -> ApiResponse:
    """Merge a patch into an entity; with `upsert` create a missing one from it."""
    entities, key = _entities(call), call.path["id"]
    match = _parse_if_match(call.headers, has_star=True)
    write = entities.upsert if call.params.upsert else entities.patch
    again = idempotency_key_of(call.headers)
    return _write_response(call, write(key, _charge_body(call), match, idempotency_key=again))


def delete(call: ApiRequest) -> ApiResponse:
    """Delete an entity."""
    entities, key = _entities(call), call.path["id"]
    match = _parse_if_match(call.headers, has_star=True)
    again = idempotency_key_of(call.headers)
    return _write_response(call, entities.delete(key, match, idempotency_key=again))


def history(call: ApiRequest) -> ApiResponse:
    """Return every recorded change of an entity, or with `at` the one that was current then."""
    entities, key = _entities(call), call.path["id"]
    if call.params.at is None:
        found = entities.history(key)
    else:
        one = entities.at(key, call.params.at)
        found = [] if one is None else [one]
    return exact_json(
        response_types.Revisions(
            [
                response_types.RevisionResponse(
                    one.ver,
                    one.document,
                    _time(one.at),
                    _number(one.version),
                    one.op,
                    one.key,
                    one.request_id,
                )
                for one in found
            ]
        )
    )


def diff(call: ApiRequest) -> ApiResponse:
    """Return the properties that differ between two versions of an entity."""
    asked = call.params
    found = _entities(call).diff(call.path["id"], asked.old, asked.new)
    listed = [
        response_types.PropertyChangeResponse(
            one.pointer, one.old, one.new, one.is_added, one.is_removed
        )
        for one in found
    ]
    return exact_json(response_types.EntityDiff(listed))


def keep_history(call: ApiRequest) -> response_types.HistoryKept:
    """Set for how long the changes of a type are kept."""
    kept_s = call.body.kept_s
    length = None if kept_s is None else timedelta(seconds=kept_s)
    return response_types.HistoryKept(_entities(call).keep_history(length))


# Many


def bulk(call: ApiRequest) -> ApiResponse:
    """Do many operations; return the result of each."""
    entities = _entities(call)
    asked = decode_body(_charge_body(call), _RawBulk)
    operations = [_operation(one) for one in asked.operations]
    again = idempotency_key_of(call.headers)
    results = entities.bulk(operations, atomic=asked.atomic, idempotency_key=again)
    count = sum(isinstance(one, WriteResult) for one in results)
    call.parts.metrics.count_ingested(SIGNAL, count, len(call.body))
    if count < len(results):
        call.parts.metrics.count_rejected(SIGNAL, len(results) - count)
    return exact_json(response_types.BulkDone([_bulk_result(call, one) for one in results]))


def transact(call: ApiRequest) -> ApiResponse:
    """Write entities of several types in one transaction; return the result of each."""
    asked = decode_body(_charge_body(call), _RawTransaction)
    operations = [{"type": one.type, **_operation(one)} for one in asked.operations]
    again = idempotency_key_of(call.headers)
    results = call.lake.transact(operations, idempotency_key=again)
    call.parts.metrics.count_ingested(SIGNAL, len(results), len(call.body))
    return exact_json(response_types.BulkDone([_bulk_result(call, one) for one in results]))


def page(call: ApiRequest) -> ApiResponse:
    """Return one page of entities, as the query parameters ask."""
    entities, asked = _entities(call), call.params
    return _read_page(
        call,
        entities,
        None if asked.filter is None else asked.filter.encode(),
        asked.where,
        sort=_names(asked.sort) or (),
        fields=_names(asked.fields),
        after=asked.after,
        limit=asked.limit,
        refs=_names(asked.refs) or (),
        with_total=asked.total,
    )


def search(call: ApiRequest) -> ApiResponse:
    """Return one page of entities, as the body asks."""
    entities, asked = _entities(call), decode_body(call.body, _RawSearch)
    return _read_page(
        call,
        entities,
        bytes(asked.filter),
        {},
        sort=asked.sort,
        fields=asked.fields,
        after=asked.after,
        limit=asked.limit,
        refs=asked.refs,
        with_total=asked.total,
    )


def scan(call: ApiRequest) -> ApiResponse:
    """Return all rows, with the instant they are true of."""
    entities, asked = _entities(call), call.body
    form = choose_format(call)
    quota = call.parts.quota.of(call.caller.tenant)
    with quota.count_query():
        answer = entities.scan(asked.columns, at=parse_at(asked.at), mode=asked.mode)
        quota.check_rows(answer.rows.num_rows)
        data = encode_table(answer.rows, form)
    headers = _freshness_headers(answer.as_of, answer.warning)
    if answer.version is not None:
        headers["Thermocline-Version"] = str(int(answer.version))
    return ApiResponse(data, 200, content_type(form), headers)


def export(call: ApiRequest) -> ApiResponse:
    """Export every change committed by now into the lake."""
    done = _entities(call).export()
    if done is None:
        return exact_json(response_types.ExportDone(None))
    as_of = _time(done.as_of)
    exported = response_types.ExportedResponse(
        int(done.version), as_of, done.keys, done.rows, done.changes
    )
    return exact_json(response_types.ExportDone(exported))


def _entities(call: ApiRequest) -> "EntityTable":
    return call.lake.entity(call.path["type"])


def _charge_body(call: ApiRequest) -> bytes:
    """Return the body, charged to the tenant's quota."""
    data: bytes = call.body
    call.parts.quota.take_ingest(call.caller.tenant, len(data))
    return data


def _write_response(call: ApiRequest, done: WriteResult) -> ApiResponse:
    size_bytes = 0 if call.body is None else len(call.body)
    call.parts.metrics.count_ingested(SIGNAL, 1, size_bytes)
    headers = {}
    if done.deed is not OperationKind.DELETE:
        headers["ETag"] = _etag(done.ver)
    if done.deed is OperationKind.CREATE:
        place = quote(done.id, safe="")
        headers["Location"] = f"{API}/entities/{call.path['type']}/{place}"
    status = 201 if done.deed is OperationKind.CREATE else 200
    answer = response_types.EntityWritten(done.id, done.ver, done.deed.value)
    return exact_json(answer, status, headers)


def _entity_response(
    call: ApiRequest, found: StoredEntity | None, as_of: datetime | None, warning: str
) -> ApiResponse:
    headers = _freshness_headers(as_of, warning)
    if found is None:
        facts: dict[str, Any] = {"id": call.path["id"]}
        if as_of is not None:
            facts |= {"as_of": _time(as_of), "warning": warning}
        error = EntityNotFound("no such entity", hint="create it first", **facts)
        problem = problem_of(error, call.request_id)
        return ApiResponse(problem_bytes(problem), problem.status, PROBLEM_TYPE, headers)
    headers["ETag"] = _etag(found.ver)
    if not warning and _is_known(call.headers, found.ver):
        return ApiResponse(b"", 304, headers=headers)
    answer = response_types.EntityAnswerResponse(
        found.id,
        found.ver,
        found.schema_version,
        _time(found.written_at),
        found.document,
        None if as_of is None else _time(as_of),
        scrub(warning),
    )
    return exact_json(answer, 200, headers)


def _freshness_headers(as_of: datetime | None, warning: str) -> dict[str, str]:
    headers = {} if as_of is None else {AS_OF: _time(as_of)}
    if warning:
        headers[WARNING] = scrub(warning)
    return headers


def _operation(one: _RawOperation) -> dict[str, Any]:
    """Return an operation in the form for `bulk`, with its document undecoded."""
    given = {"op": one.op, "id": one.id, "if_match": one.if_match}
    data = bytes(one.document)
    return {**given, "document": data} if data else given


def _bulk_result(
    call: ApiRequest, result: WriteResult | ThermoclineError
) -> response_types.BulkResult:
    if isinstance(result, ThermoclineError):
        problem = problem_of(result, call.request_id)
        return response_types.BulkResult(problem.status, error=problem)
    status = 201 if result.deed is OperationKind.CREATE else 200
    return response_types.BulkResult(status, result.id, result.ver, result.deed.value)


def _read_page(
    call: ApiRequest,
    entities: "EntityTable",
    condition: bytes | None,
    where: Mapping[str, str],
    **how: Any,
) -> ApiResponse:
    given = None if not condition else decode(condition)
    filters = [None if given is None else parse_filter(given)]
    if where:
        filters.append(parse_conditions(entities.layout.contract, where))
    parts = tuple(one for one in filters if one is not None)
    wanted = AllOf(parts) if parts else None
    found = entities.page(wanted, **how)
    call.parts.quota.of(call.caller.tenant).check_rows(len(found.entities))
    refs = {
        name: {key: _entity(one) for key, one in held.items()} for name, held in found.refs.items()
    }
    listed = [_entity(one) for one in found.entities]
    return exact_json(response_types.EntityPage(listed, found.after, found.total, refs))


def _entity(one: StoredEntity) -> response_types.EntityResponse:
    return response_types.EntityResponse(
        one.id, one.ver, one.schema_version, _time(one.written_at), one.document
    )


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _time(when: datetime) -> str:
    return format_instant(from_datetime(when))


def _number(value: int | None) -> int | None:
    return None if value is None else int(value)


# Preconditions in headers


def _etag(ver: int) -> str:
    """Return a version as an entity tag."""
    return f'"{ver}"'


def _parse_if_match(headers: Headers, *, has_star: bool) -> int | None:
    """Return the version that the entity must have, or None for any version.

    `has_star` says that the method requires an existing entity anyway, so `*` has no effect.
    """
    given = ", ".join(headers.getlist("if-match")).strip()
    if not given or (given == "*" and has_star):
        return None
    found = _VERSION.fullmatch(given)
    if found is not None:
        return int(found.group(1))
    if _TAG.fullmatch(given):
        hint = "read the entity again, then decide"
        raise PreconditionFailed("the entity has another version", hint=hint, if_match=given[:80])
    hint = 'send one version as in ETag, such as If-Match: "7"'
    raise Invalid("If-Match has no valid version", hint=hint, if_match=given[:80])


def _is_known(headers: Headers, ver: int) -> bool:
    """Tell whether the client has this version already."""
    given = ", ".join(headers.getlist("if-none-match"))
    tags = [tag.strip().removeprefix("W/") for tag in given.split(",")]
    return "*" in tags or _etag(ver) in tags


def _must_be_new(headers: Headers) -> bool:
    """Tell whether the entity must not exist yet; `Invalid` for anything but `*`."""
    given = ", ".join(headers.getlist("if-none-match")).strip()
    if not given:
        return False
    if given != "*":
        hint = "send If-None-Match: * to create, If-Match to replace"
        raise Invalid("If-None-Match of a write is not *", hint=hint)
    return True
