"""The store of one entity type: create, read, replace, patch and delete, alone or in bulk.

In:   operations on keys, requests for pages
Out:  entities; for each write its version, or an error that says whether it happened

- A write is one transaction: it commits the row, its row in `change` and its row in `revision`, or
  nothing. The same statement writes all three.
- Every write increases the version of a key by one, also across delete and create. Writers of one
  key run one after the other; versions order them, never a clock.
- Every write is validated by the newest contract. A row of an older contract may keep it.
- If the cached contract refuses a document, the newest contract is loaded before the refusal.
- A document is validated in its final form: a patch after merging.
- Operations on different keys run together, one statement per kind of write; if a key occurs again,
  its operation waits for the next wave.
- Each decision about a key comes after the key is locked, and holds until the transaction ends.
- An absent key is locked by its insert. If another transaction inserted it first, the key is read
  again.
- Creates optimistically assume a new key. If the insert shows that the row exists only in the lake,
  the transaction restarts in careful mode, which loads such rows from the lake first.
- Many rows are one parameter: a JSON array that PostgreSQL reads as records. Measured with batches
  of 1,000 rows of 20 attributes: 26,000-37,000 rows/s; an array per column 6,000-10,000 (the driver
  writes it value by value); a statement per row, pipelined, 24,000-26,000.
- A present key is locked by its row. An absent key is locked by inserting its row: the unique index
  blocks other inserts of the key until this transaction ends. An advisory lock per key would fill
  the server's lock table (64 per connection) with one large batch.
- Rows are locked and inserted in the order of their keys.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeVar

import msgspec

from thermocline.contract.contract import Contract
from thermocline.contract.document.text import encode_text
from thermocline.errors import (
    BodyTooLarge,
    Conflict,
    EntityNotFound,
    Invalid,
    PreconditionFailed,
    ThermoclineError,
    Unavailable,
)
from thermocline.hot.postgres.page.page import Page, PageRequest
from thermocline.hot.postgres.page.page_query import read_keys, read_page
from thermocline.hot.postgres.page.relation import relation_of
from thermocline.hot.postgres.schema.layout import Json, Layout, StaleLayout
from thermocline.hot.postgres.schema.registry import TypeRegistry, is_outdated
from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session import postgres_errors
from thermocline.hot.postgres.session.connect import Connection, Row
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.store.author import current_author
from thermocline.hot.postgres.store.idempotency import (
    EntityWriteRequest,
    KeyReused,
    parse_request,
    repeat_if_unknown,
    run_once,
)
from thermocline.hot.postgres.store.interface import EntityInterface
from thermocline.hot.postgres.store.operation import (
    Operation,
    OperationKind,
    StoredEntity,
    WriteResult,
    check_operation_count,
    merge_patch,
)
from thermocline.names import parse_id

T = TypeVar("T")
RELOADS_MAX = 3
RECORDS_BYTES_MAX = 64 << 20
ATTEMPTS_MAX = 10

ColdReader = Callable[[Connection, Sequence[str]], Mapping[str, tuple[int, Json]]]
"""Reads (schema_version, document) of keys whose rows are only in the lake, as of `lake_head`."""

_MERGING = (OperationKind.PATCH, OperationKind.UPSERT)
_NEEDING_ROW = (OperationKind.PATCH, OperationKind.DELETE, OperationKind.CHECK)
_WITHOUT_WHOLE_DOCUMENT = (*_MERGING, OperationKind.DELETE, OperationKind.CHECK)
OperationResult = WriteResult | ThermoclineError
NumberedOperation = tuple[int, Operation]
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


class EntityStore(EntityInterface):
    """The entities of one type of one tenant. Any thread may use it.

    `cold` reads rows that were evicted to the lake; without it such rows cannot be written.
    """

    def __init__(
        self,
        pool: Pool,
        tenant: Tenant,
        type_name: str,
        *,
        cold: ColdReader | None = None,
    ) -> None:
        self.pool = pool
        self.tenant = tenant
        self.type_name = type_name
        self.run_query = partial(pool.run_query, tenant)
        self._registry = TypeRegistry(pool, tenant)
        self._layout = self._registry.layout(type_name)
        self._targets: dict[str, Layout] = {}
        self._cold = cold

    @property
    def layout(self) -> Layout:
        """The type's layout as this store last read it."""
        return self._layout

    def write_many(
        self, operations: Sequence[Operation], *, atomic: bool, idempotency_key: str | None = None
    ) -> list[WriteResult | ThermoclineError]:
        """Run many operations in order, in one transaction; return the result of each."""
        check_operation_count(len(operations))
        request = parse_request(idempotency_key, [(self.type_name, one) for one in operations])
        if atomic or not operations:
            return self._write(operations, request, is_atomic=True)
        try:
            return self._write(operations, request, is_atomic=False)
        except KeyReused:
            raise
        except Invalid as error:
            if len(operations) == 1:
                return [error]
            # PostgreSQL refused one value, and with it the statement that had all of them. Each
            # operation gets a key derived from the request's, so that a retry repeats none.
            keys = [None if request is None else request.key_of(n) for n in range(len(operations))]
            return [self._write_alone(one, key) for one, key in zip(operations, keys, strict=True)]

    def _write_alone(
        self, operation: Operation, idempotency_key: str | None
    ) -> WriteResult | ThermoclineError:
        try:
            return self.write_one(operation, idempotency_key=idempotency_key)
        except Unavailable:
            raise
        except ThermoclineError as error:
            return error

    def read(self, id: str) -> StoredEntity | None:  # noqa: A002
        """Return an entity as it is now, or None if PostgreSQL does not have the key."""
        return self.read_many([id]).get(id)

    def read_many(self, ids: Sequence[str]) -> Mapping[str, StoredEntity]:
        """Return those of these entities that PostgreSQL has, by key, in one snapshot."""
        for key in ids:
            parse_id(key)

        def look(layout: Layout) -> dict[str, StoredEntity]:
            found = read_keys(self.run_query, layout, ids)
            return {entity.id: entity for entity in found}

        return self.run_with_layout(look)

    def read_page(self, request: PageRequest) -> Page:
        """Return the requested page, in one snapshot; see `page_query.py`."""

        def look(layout: Layout) -> Page:
            names = {relation_of(layout, name).target for name in request.refs}
            targets = {name: self._target_layout(name) for name in names - {layout.name}}
            return read_page(self.run_query, layout, request, {layout.name: layout, **targets})

        return self.run_with_layout(look)

    def reload(self) -> bool:
        """Reload the layouts of the type and its references; return whether one may differ."""
        targets = self._targets
        self._targets = {name: self._registry.layout(name) for name in targets}
        before, self._layout = self._layout, self._registry.layout(self.type_name)
        now = self._layout
        return bool(targets) or _layout_shape(before) != _layout_shape(now)

    def _target_layout(self, name: str) -> Layout:
        """Return the cached layout of another type."""
        if name not in self._targets:
            self._targets[name] = self._registry.layout(name)
        return self._targets[name]

    def _write(
        self,
        operations: Sequence[Operation],
        request: EntityWriteRequest | None,
        *,
        is_atomic: bool,
    ) -> list[WriteResult | ThermoclineError]:
        tries = count()

        def write(layout: Layout, connection: Connection) -> list[WriteResult | ThermoclineError]:
            is_careful = next(tries) > 0
            return run_once(
                connection,
                request,
                lambda: self.write_in(
                    connection, layout, operations, is_atomic=is_atomic, is_careful=is_careful
                ),
            )

        return repeat_if_unknown(
            request,
            lambda: self.run_with_layout(
                lambda layout: self.pool.run(
                    self.tenant, lambda connection: write(layout, connection)
                )
            ),
        )

    def write_in(
        self,
        connection: Connection,
        layout: Layout,
        operations: Sequence[Operation],
        *,
        is_atomic: bool,
        is_careful: bool,
    ) -> list[WriteResult | ThermoclineError]:
        """Run operations in the caller's transaction; `StaleLayout` if it must start again.

        With `is_careful`, keys to create are looked up in the lake first.
        """
        writer = OperationWriter(
            connection, layout, self._cold, is_atomic=is_atomic, is_careful=is_careful
        )
        try:
            results = writer.write(operations)
        except Invalid as error:
            if is_outdated(connection, layout):
                raise StaleLayout from error
            raise
        is_doubted = any(isinstance(result, Invalid) for result in results)
        if is_doubted and is_outdated(connection, layout):
            raise StaleLayout
        return results

    def run_with_layout(self, work: Callable[[Layout], T]) -> T:
        """Run `work` with the cached layout; reload it and run again if it is out of date."""
        for _ in range(RELOADS_MAX):
            layout = self._layout
            try:
                return work(layout)
            except StaleLayout:
                self.reload()
            except ThermoclineError as error:
                if not postgres_errors.is_outdated(error):
                    raise
                # Another thread may have reloaded the layout meanwhile.
                if not self.reload() and _layout_shape(self._layout) == _layout_shape(layout):
                    raise
        raise Conflict(
            "the type keeps changing, or its entities keep moving to the lake", hint="try again"
        )


def _layout_shape(layout: Layout) -> tuple[object, ...]:
    return layout.table, layout.columns, set(layout.contracts)


@dataclass(slots=True)
class _Plan:
    """The writes of one attempt at a wave."""

    inserts: list[Json] = field(default_factory=list)
    updates: list[Json] = field(default_factory=list)
    deletes: list[Json] = field(default_factory=list)
    inserting: list[NumberedOperation] = field(default_factory=list)


class OperationWriter:
    """The writes of one transaction; raises `StaleLayout` if it must restart in careful mode."""

    def __init__(
        self,
        connection: Connection,
        layout: Layout,
        cold: ColdReader | None,
        *,
        is_atomic: bool,
        is_careful: bool,
    ) -> None:
        self._connection = connection
        self._layout = layout
        self._cold = cold
        self._is_atomic = is_atomic
        self._is_careful = is_careful

    def write(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Run the operations in order; return their results in the same order."""
        results: dict[int, OperationResult] = {}
        for wave in split_into_waves(operations):
            self._write_wave(wave, results)
        return [results[place] for place in range(len(operations))]

    def _write_wave(
        self, wave: list[NumberedOperation], results: dict[int, OperationResult]
    ) -> None:
        # Documents are validated before any row is locked.
        checked = {place: self._check_document(operation) for place, operation in wave}
        rest = wave
        for _ in range(ATTEMPTS_MAX):
            rest = self._try_wave(rest, checked, results)
            if not rest:
                return
        raise _contention_error()

    def _try_wave(
        self,
        wave: list[NumberedOperation],
        checked: Mapping[int, Json | Invalid | None],
        results: dict[int, OperationResult],
    ) -> list[NumberedOperation]:
        """Lock and write; return the operations whose keys another transaction just created."""
        if self._is_careful and self._cold is not None:
            created = [
                operation.id for _, operation in wave if operation.kind is OperationKind.CREATE
            ]
            self._bring_back(moved_keys(self._connection, self._layout, created))
        looked_at = [
            operation.id for _, operation in wave if operation.kind is not OperationKind.CREATE
        ]
        with_documents = any(operation.kind in _MERGING for _, operation in wave)
        found = self._lock_rows(looked_at, with_documents=with_documents) if looked_at else {}
        plan = _Plan()
        for place, operation in wave:
            try:
                written = self._decide(
                    plan, place, operation, found.get(operation.id), checked[place]
                )
            except ThermoclineError as error:
                results[place] = self._result_or_raise(error, place)
            else:
                if written is not None:
                    results[place] = written
        if plan.updates:
            update_rows(self._connection, self._layout, plan.updates)
        if plan.deletes:
            delete_rows(self._connection, self._layout, plan.deletes)
        return self._insert(plan, results) if plan.inserts else []

    def _lock_rows(self, keys: Sequence[str], *, with_documents: bool) -> dict[str, Row]:
        """Lock and return the rows of keys; load those that are only in the lake first."""
        found: dict[str, Row] = {}
        sought = keys
        for _ in range(ATTEMPTS_MAX):
            found |= lock_rows(
                self._connection, self._layout, sought, with_documents=with_documents
            )
            absent = [key for key in keys if key not in found]
            if self._cold is None or not absent:
                return found
            by_key = locate_keys(self._connection, self._layout, absent)
            if not by_key:
                return found
            self._bring_back({key for key, is_moved in by_key.items() if is_moved})
            sought = sorted(by_key)
        raise _contention_error()

    def _decide(
        self,
        plan: _Plan,
        place: int,
        operation: Operation,
        row: Row | None,
        checked: Json | Invalid | None,
    ) -> WriteResult | None:
        """Add the write of an operation to the plan, given the locked row or None."""
        key, kind = operation.id, operation.kind
        if row is None:
            if kind in _NEEDING_ROW:
                raise self._missing_error(key)
            if operation.if_match is not None:
                raise _version_conflict(operation, None)
            if kind is OperationKind.UPSERT:
                checked = self._validate(merge_patch({}, operation.value))
            document = _require_document(checked)
            version = self._layout.contract.version
            # The insert determines the version.
            plan.inserts.append(record_of(self._layout, key, 0, version, document))
            plan.inserting.append((place, operation))
            return None
        ver, schema_version = row[:2]
        if operation.if_match not in (None, ver):
            raise _version_conflict(operation, ver)
        if kind is OperationKind.CHECK:
            return WriteResult(key, ver, kind)  # the row stays locked until the transaction ends
        if kind is OperationKind.DELETE:
            plan.deletes.append({"id": key, "ver": ver + 1})
            return WriteResult(key, ver + 1, kind)
        if kind in _MERGING:
            kind = OperationKind.PATCH
            old = self._layout.document_of(schema_version, row[3:], row[2])
            given = merge_patch(old, operation.value)
            fits, document = self._fit_contract(given, schema_version)
        elif isinstance(checked, Invalid) and schema_version != self._layout.contract.version:
            fits, document = self._fit_contract(operation.value, schema_version)
        else:
            fits, document = self._layout.contract.version, _require_document(checked)
        plan.updates.append(record_of(self._layout, key, ver + 1, fits, document))
        return WriteResult(key, ver + 1, kind)

    def _insert(self, plan: _Plan, results: dict[int, OperationResult]) -> list[NumberedOperation]:
        inserted = insert_rows(self._connection, self._layout, plan.inserts)
        late, moved = take_over_versions(self._connection, self._layout, inserted)
        if moved:
            raise StaleLayout(moved)
        inserted |= late
        again: list[NumberedOperation] = []
        for place, operation in plan.inserting:
            if operation.id in inserted:
                ver = inserted[operation.id]
                results[place] = WriteResult(operation.id, ver, OperationKind.CREATE)
            elif operation.kind is OperationKind.CREATE:
                error = Conflict(
                    "an entity of this key exists", hint="replace it, or use another key"
                )
                error.facts["id"] = operation.id
                results[place] = self._result_or_raise(error, place)
            else:
                again.append((place, operation))
        return again

    def _check_document(self, operation: Operation) -> Json | Invalid | None:
        """Return the canonical form of a whole document, or the error of the newest contract."""
        if operation.kind in _WITHOUT_WHOLE_DOCUMENT:
            return None
        return self._validate(operation.document)

    def _validate(self, document: Any) -> Json | Invalid:
        try:
            return validate_document(self._layout.contract, document)
        except Invalid as error:
            return error

    def _fit_contract(self, document: Any, schema_version: int) -> tuple[int, Json]:
        """Return the contract version for an updated row, and the document's canonical form.

        The newest version, unless only the row's old contract accepts the document.
        """
        newest = self._layout.contract
        if schema_version == newest.version:
            return newest.version, newest.validate(document)
        try:
            given = newest.fill_defaults(document) if isinstance(document, dict) else document
            return newest.version, newest.validate(given)
        except Invalid:
            old = self._layout.contract_of(schema_version)
            if not old.is_fitting(document):
                raise
            return schema_version, old.validate(document)

    def _missing_error(self, key: str) -> ThermoclineError:
        if self._cold is None and moved_keys(self._connection, self._layout, [key]):
            hint = "write it through the lake that has its row"
            return Unavailable("the entity's row is only in the lake", hint=hint, id=key)
        return EntityNotFound("no such entity", hint="create it first", id=key)

    def _result_or_raise(self, error: ThermoclineError, place: int) -> ThermoclineError:
        """Return the error as a result; with atomic operations raise it."""
        if not self._is_atomic:
            return error
        error.facts.setdefault("item", place)
        raise error

    def _bring_back(self, moved: set[str]) -> None:
        """Load rows that are only in the lake into the table, unchanged, and lock them."""
        assert self._cold is not None
        held = lock_moved(self._connection, self._layout, sorted(moved)) if moved else {}
        if not held:
            return
        # Order matters: the lake is read after the keys are locked, so no export comes in between.
        rows = self._cold(self._connection, sorted(held))
        records = [
            record_of(self._layout, key, ver, rows[key][0], rows[key][1])
            for key, ver in held.items()
        ]
        fill_locked(self._connection, self._layout, records)


def _contention_error() -> Conflict:
    return Conflict("other writers keep creating and deleting the same keys", hint="try again")


def _require_document(checked: Json | Invalid | None) -> Json:
    if isinstance(checked, Invalid):
        raise checked
    assert checked is not None
    return checked


def _version_conflict(operation: Operation, ver: int | None) -> PreconditionFailed:
    hint = "read it again, then decide" if ver else "it is gone; create it if it should be there"
    facts = {"id": operation.id, "if_match": operation.if_match, "ver": ver}
    return PreconditionFailed("the entity is not the one you have seen", hint=hint, **facts)


def split_into_waves(operations: Sequence[Operation]) -> list[list[tuple[int, Operation]]]:
    """Return the operations with their indexes, split so that no wave has a key twice."""
    made: list[list[tuple[int, Operation]]] = []
    seen: set[str] = set()
    for place, operation in enumerate(operations):
        if not made or operation.id in seen:
            made.append([])
            seen = set()
        seen.add(operation.id)
        made[-1].append((place, operation))
    return made


def validate_document(contract: Contract, document: Any) -> dict[str, Any]:
    """Validate a document and return its canonical form; faster than the contract for plain values.

    Checking each value of a document in Python takes 24 us for 20 attributes. Encoding it as JSON
    and decoding that takes 4 us; if the result is equal, the text is the document, and contracts
    check text quickly. Unusual values (NaN, dates, keys that are numbers, 0.1 as a `Decimal`) do
    not come back equal, and are checked value by value.
    """
    if isinstance(document, bytes):
        return contract.validate_bytes(document)
    try:
        data = _encoder.encode(document)
        is_plain = b"\\u0000" not in data and _decoder.decode(data) == document
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        is_plain = False
    return contract.validate_bytes(data) if is_plain else contract.validate(document)


def record_of(layout: Layout, key: str, ver: int, schema_version: int, document: Json) -> Json:
    """Return the record of a document: a JSON object of the table's columns."""
    rest = dict(document)
    record: Json = {"id": key, "ver": ver, "schema_version": schema_version, "rest": rest}
    for column in layout.columns:
        value = rest.get(column.name)
        if value is not None:
            record[column.sql_name] = value
            del rest[column.name]
    return record


def lock_rows(
    connection: Connection, layout: Layout, keys: Iterable[str], *, with_documents: bool
) -> dict[str, Row]:
    """Lock the existing rows of these keys, in key order, and return them by key.

    A row is (ver, schema_version), and with documents also `rest` as text and the columns' values.
    """
    more = f", rest::text{layout.names_text}" if with_documents else ""
    found = connection.execute(
        f"select id, ver, schema_version{more} from {layout.table} "  # noqa: S608
        "where id = any(%s::text[]) order by id for update",
        [array_text(keys)],
    )
    return {row[0]: row[1:] for row in found.fetchall()}


def insert_rows(connection: Connection, layout: Layout, records: Sequence[Json]) -> dict[str, int]:
    """Insert rows and their changes; return the versions of the keys that were absent.

    These keys are now locked. A row continues from its key's version in `gone`, as far as this
    statement sees it, else from the floor: no forgotten key was above the floor. One statement
    reads both, because a key forgotten between two statements would be in neither. It waits for
    other open transactions that have written one of the keys.
    """
    ver = (
        "1 + coalesce((select ver from gone where type_id = %(type_id)s and id = given.id), "
        "(select ver_floor from type where type_id = %(type_id)s))"
    )
    query = (
        "with given as (select * from jsonb_to_recordset(%(records)s::jsonb) "  # noqa: S608
        f"as r({layout.record_type})), "
        f"new as (insert into {layout.table} (id, ver, schema_version, rest{layout.names_text}) "
        f"select id, {ver}, schema_version, rest{layout.names_text} from given "
        'order by id collate "C" on conflict (id) do nothing returning *), '
        f"{_history_part('c')} "
        "insert into change (type_id, id, ver, op) select %(type_id)s, id, ver, 'u' from new "
        "returning id, ver"
    )
    return dict(_write_records(connection, layout, query, records))


def update_rows(connection: Connection, layout: Layout, records: Sequence[Json]) -> None:
    """Overwrite locked rows, and insert their changes."""
    query = (
        "with given as (select * from jsonb_to_recordset(%(records)s::jsonb) "  # noqa: S608
        f"as r({layout.record_type})), "
        f"new as (update {layout.table} as old set ver = given.ver, "
        "schema_version = given.schema_version, written_at = clock_timestamp(), "
        f"rest = given.rest{layout.assignments} from given where old.id = given.id "
        f"returning old.*), {_history_part('u')} "
        "insert into change (type_id, id, ver, op) select %(type_id)s, id, ver, 'u' from new "
        "returning id"
    )
    _write_records(connection, layout, query, records)


def delete_rows(connection: Connection, layout: Layout, records: Sequence[Json]) -> None:
    """Delete locked rows, store their keys' versions in `gone`, and insert their changes."""
    query = (
        "with given as (select * from jsonb_to_recordset(%(records)s::jsonb) "  # noqa: S608
        "as r(id text, ver bigint)), "
        f"old as (delete from {layout.table} as old using given where old.id = given.id), "
        "kept as (insert into gone (type_id, id, ver, why) "
        "select %(type_id)s, id, ver, 'd' from given), "
        "noted as (insert into revision (type_id, id, ver, op, at, author, request) "
        "select %(type_id)s, id, ver, 'd', clock_timestamp(), %(author)s, %(request)s from given) "
        "insert into change (type_id, id, ver, op) select %(type_id)s, id, ver, 'd' from given "
        "returning id"
    )
    _write_records(connection, layout, query, records)


def _history_part(op: str) -> str:
    """Return the part of a statement that stores the rows of `new` in the history."""
    return (
        "noted as (insert into revision (type_id, id, ver, op, at, author, request, image) "  # noqa: S608
        f"select %(type_id)s, id, ver, '{op}', written_at, %(author)s, %(request)s, "
        "to_jsonb(new) from new)"
    )


def take_over_versions(
    connection: Connection, layout: Layout, inserted: Mapping[str, int]
) -> tuple[dict[str, int], list[str]]:
    """Let inserted rows continue from the versions at which their keys were deleted.

    Returns the corrected versions, and the keys that were not deleted but evicted to the lake.

    Order matters: this runs after the insert. It sees a delete that the insert waited for, which
    the insert itself did not see.
    """
    found = connection.execute(
        "delete from gone where type_id = %s and id = any(%s::text[]) returning id, ver, why::text",
        [layout.type_id, array_text(inserted)],
    ).fetchall()
    late = {key: ver + 1 for key, ver, why in found if why == "d" and inserted[key] != ver + 1}
    for key, ver in late.items():
        connection.execute(
            "update revision set ver = %s where type_id = %s and id = %s "
            "and xid = pg_current_xact_id() and ver = %s",
            [ver, layout.type_id, key, inserted[key]],
        )
        connection.execute(
            f"update {layout.table} set ver = %s where id = %s",  # noqa: S608
            [ver, key],
        )
        connection.execute(
            "update change set ver = %s where type_id = %s and id = %s "
            "and xid = pg_current_xact_id() and ver = %s",
            [ver, layout.type_id, key, inserted[key]],
        )
    return late, [key for key, _, why in found if why == "e"]


def moved_keys(connection: Connection, layout: Layout, keys: Iterable[str]) -> set[str]:
    """Return those of these keys whose rows are only in the lake."""
    return {key for key, is_moved in locate_keys(connection, layout, keys).items() if is_moved}


def locate_keys(connection: Connection, layout: Layout, keys: Iterable[str]) -> dict[str, bool]:
    """Return the keys that are entities; the value is whether the row is only in the lake.

    One statement: of two, neither would see a row that returns to PostgreSQL between them.
    """
    found = connection.execute(
        "select id, true from gone where type_id = %(type)s and id = any(%(keys)s::text[]) "  # noqa: S608
        f"and why = 'e' union all select id, false from {layout.table} "
        "where id = any(%(keys)s::text[])",
        {"type": layout.type_id, "keys": array_text(keys)},
    )
    return dict(found.fetchall())


def lock_moved(connection: Connection, layout: Layout, keys: Sequence[str]) -> dict[str, int]:
    """Lock keys whose rows are only in the lake, by empty rows; return them with their versions.

    Order matters: first the lock, then the check. A key that another transaction has loaded
    meanwhile is skipped.
    """
    listed = array_text(keys)
    connection.execute(
        f"insert into {layout.table} (id, ver, schema_version, rest) "  # noqa: S608
        "select id, 0, 0, '{}' from unnest(%s::text[]) as id on conflict (id) do nothing",
        [listed],
    )
    held = connection.execute(
        f"delete from gone using {layout.table} as empty where type_id = %s "  # noqa: S608
        "and gone.id = any(%s::text[]) and why = 'e' and empty.id = gone.id and empty.ver = 0 "
        "returning gone.id, gone.ver",
        [layout.type_id, listed],
    ).fetchall()
    connection.execute(
        f"delete from {layout.table} where id = any(%s::text[]) and ver = 0 "  # noqa: S608
        "and id <> all(%s::text[])",
        [listed, array_text(key for key, _ in held)],
    )
    return dict(held)


def fill_locked(connection: Connection, layout: Layout, records: Sequence[Json]) -> None:
    """Fill the empty rows with the rows loaded from the lake; no key becomes dirty."""
    query = (
        "with given as (select * from jsonb_to_recordset(%(records)s::jsonb) "  # noqa: S608
        f"as r({layout.record_type})) update {layout.table} as old set ver = given.ver, "
        f"schema_version = given.schema_version, rest = given.rest{layout.assignments} "
        "from given where old.id = given.id returning old.id"
    )
    _write_records(connection, layout, query, records)


def array_text(values: Iterable[str]) -> str:
    """Return PostgreSQL's text form of a text array; much faster than the driver's."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"


def _write_records(
    connection: Connection, layout: Layout, query: str, records: Sequence[Json]
) -> list[Row]:
    text = encode_text(records)
    if len(text) > RECORDS_BYTES_MAX:
        raise BodyTooLarge(
            "the documents exceed the limit of one transaction",
            hint="send them in smaller parts",
            size_bytes_max=RECORDS_BYTES_MAX,
        )
    author = current_author()
    values = {
        "records": text,
        "type_id": layout.type_id,
        "author": author.key,
        "request": author.request_id,
    }
    return connection.execute(query, values).fetchall()
