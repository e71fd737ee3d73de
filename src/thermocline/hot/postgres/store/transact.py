"""Writes entities of several types in one transaction: all of them or none.

In:   operations, each with the name of its type; the store of each type
Out:  the result of each operation, in order; or the error of the first one that failed

    {"type": "order", "op": "create", "document": {...}}
    {"type": "stock", "op": "check", "id": "bolt", "if_match": 7}

- The operations of one type run in their order. Types do not share entities, so the order between
  operations of different types cannot matter.
- Types are locked in the order of their names, and keys within a type in their order. If writers
  deadlock nevertheless, PostgreSQL cancels one, which starts again.
- A failure names its operation by the fact `item`, and nothing is written.
"""

from collections.abc import Mapping, Sequence

from thermocline.errors import Conflict, ThermoclineError
from thermocline.hot.postgres.schema.layout import Layout, StaleLayout
from thermocline.hot.postgres.session import postgres_errors
from thermocline.hot.postgres.session.connect import Connection
from thermocline.hot.postgres.store.idempotency import (
    Results,
    parse_request,
    repeat_if_unknown,
    run_once,
)
from thermocline.hot.postgres.store.operation import TypedOperation, WriteResult
from thermocline.hot.postgres.store.store import RELOADS_MAX, EntityStore


def transact(
    stores: Mapping[str, EntityStore],
    operations: Sequence[TypedOperation],
    *,
    idempotency_key: str | None = None,
) -> list[WriteResult]:
    """Run operations of several types in one transaction; return the result of each.

    When this returns, all of them are durable and visible. After an error, none is; if the error
    is `OutcomeUnknown`, all or none are.
    """
    if not operations:
        return []
    request = parse_request(idempotency_key, [(one.type, one.operation) for one in operations])
    named = {name: stores[name] for name in sorted({one.type for one in operations})}
    anyone = next(iter(named.values()))

    def attempt(layouts: Mapping[str, Layout], *, is_careful: bool) -> Results:
        def work(connection: Connection) -> Results:
            return run_once(
                connection,
                request,
                lambda: _write(connection, named, layouts, operations, is_careful=is_careful),
            )

        return anyone.pool.run(anyone.tenant, work)

    def write() -> Results:
        for turn in range(RELOADS_MAX):
            layouts = {name: store.layout for name, store in named.items()}
            try:
                return attempt(layouts, is_careful=turn > 0)
            except StaleLayout:
                _reload(named)
            except ThermoclineError as error:
                if not postgres_errors.is_outdated(error):
                    raise
                _reload(named)
        hint = "try again"
        raise Conflict("the types keep changing, or entities keep moving to the lake", hint=hint)

    results = repeat_if_unknown(request, write)
    return [one for one in results if isinstance(one, WriteResult)]


def _reload(stores: Mapping[str, EntityStore]) -> None:
    for store in stores.values():
        store.reload()


def _write(
    connection: Connection,
    stores: Mapping[str, EntityStore],
    layouts: Mapping[str, Layout],
    operations: Sequence[TypedOperation],
    *,
    is_careful: bool,
) -> Results:
    results: dict[int, WriteResult | ThermoclineError] = {}
    for name, store in stores.items():
        places = [place for place, one in enumerate(operations) if one.type == name]
        mine = [operations[place].operation for place in places]
        try:
            done = store.write_in(
                connection, layouts[name], mine, is_atomic=True, is_careful=is_careful
            )
        except ThermoclineError as error:
            if isinstance(error.facts.get("item"), int):
                error.facts["item"] = places[error.facts["item"]]
            error.facts.setdefault("type", name)
            raise
        results.update(zip(places, done, strict=True))
    return [results[place] for place in range(len(operations))]
