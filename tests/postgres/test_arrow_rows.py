"""Rows of PostgreSQL become the lake's rows by columns, as they would document by document."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.made import contracts_and_documents
from thermocline.contract.document.row import to_postgres
from thermocline.contract.document.text import encode_text
from thermocline.contract.schema.register import parse_contract
from thermocline.hot.postgres.export import arrow_rows
from thermocline.hot.postgres.export.arrow_rows import cold_rows
from thermocline.hot.postgres.schema.layout import HotColumn, Layout, wide_type
from thermocline.hot.postgres.store.store import record_of

AT = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)


def layout_of(schema):
    """Return the layout of a contract, whose scalar properties have columns if `x-hot` says so."""
    contract = parse_contract(schema)
    columns = tuple(
        HotColumn(column.id, column.name, wide_type(column.postgres_type))
        for column in contract.hot_columns
    )
    return Layout(1, "thing", "e_1", columns, {1: contract})


def stored(pool, layout, documents, moved):
    """Return rows as PostgreSQL gives them; those not moved have no value in a column yet."""
    kinds = {part.name: part.kind for part in layout.contract.kind.fields}
    rests, values = [], []
    for document, is_moved in zip(documents, moved, strict=True):
        kept = layout.contract.validate(document)
        record = record_of(layout, "k", 1, 1, kept)
        rests.append(encode_text(record["rest"] if is_moved else kept))
        values.append(
            [
                to_postgres(kinds[column.name], record.get(column.sql_name)) if is_moved else None
                for column in layout.columns
            ]
        )
    shown = pool.run(
        None, lambda c: [c.execute("select %s::jsonb::text", [one]).fetchone()[0] for one in rests]
    )
    return [
        (f"k{n}", n + 1, 1, AT, rest, *some)
        for n, (rest, some) in enumerate(zip(shown, values, strict=True))
    ]


def by_documents(layout, rows):
    """Return the contract's columns of rows, made of one careful document after the other."""
    form = replace(layout._reader(1), quick=None)
    documents = [form.documents([[one] for one in row[5:]], [row[4]])[0] for row in rows]
    return layout.contract.arrow_rows(documents)


def shown(table):
    """Return every value as text: so 0.0 is not -0.0, and each has its type."""
    return [
        (name, str(table.schema.field(name).type), repr(table.column(name).to_pylist()))
        for name in table.column_names
    ]


def is_hot(inner):
    return inner.get("type") in ("string", "integer", "number", "boolean") or "enum" in inner


@settings(max_examples=120)
@given(made=contracts_and_documents(), data=st.data())
def test_rows_by_columns_are_rows_by_documents(pool, made, data):
    schema, documents = made
    properties = {
        name: {**inner, "x-hot": True} if is_hot(inner) and data.draw(st.booleans()) else inner
        for name, inner in schema["properties"].items()
    }
    layout = layout_of({**schema, "properties": properties})
    moved = [data.draw(st.booleans()) for _ in documents]
    rows = stored(pool, layout, documents, moved)
    expected = by_documents(layout, rows)
    found = cold_rows(layout, rows)
    assert found.column("_id").to_pylist() == [row[0] for row in rows]
    assert found.column("_ver").to_pylist() == [row[1] for row in rows]
    assert found.column("_written_at").to_pylist() == [AT] * len(rows)
    assert shown(found.select(expected.column_names)) == shown(expected)


ODD = {
    "type": "object",
    "properties": {
        "near": {"type": "number"},
        "half": {"type": "number", "x-type": "float"},
        "a name": {"type": "string"},
        "größe": {"type": ["string", "null"]},
        "money": {"type": "number", "x-type": "decimal(38,2)"},
        "price": {"type": "string", "x-type": "decimal(38,2)"},
        "any": {},
        "deep": {
            "type": "object",
            "properties": {"a": {"type": ["integer", "null"]}, "b": {"type": "number"}},
        },
        "costs": {"type": "array", "items": {"type": "number", "x-type": "decimal(18,2)"}},
    },
}
DOCUMENTS = [
    {},
    {"near": 1e22, "half": 2.0**100, "any": 1e22},
    {"near": 1e17, "half": 0.10000000149011612, "any": 0.1},
    {"near": 5e-324, "any": None},
    {"near": 1e-7, "any": [1e-7, 2.5e-300]},
    {"near": 1.7976931348623157e308, "any": 12345678901234567890123},
    {"a name": 'null "quoted" \\ \u2028 😀', "größe": None},
    {"größe": "null", "any": {"größe": None, "b": [1, None, 1.50]}},
    {"money": Decimal("999999999999999999999999999999999999.99"), "price": "0.10"},
    {"deep": {"a": None, "b": 3}, "costs": []},
    {"deep": {}, "costs": [Decimal("0.10"), 7]},
]


def test_odd_names_and_numbers_of_any_size_are_read_by_columns(pool):
    layout = layout_of(ODD)
    rows = stored(pool, layout, DOCUMENTS, [True] * len(DOCUMENTS))
    found = cold_rows(layout, rows)
    expected = by_documents(layout, rows)
    assert arrow_rows._is_columnar(layout, layout.contract)
    assert shown(found.select(expected.column_names)) == shown(expected)
    near = [1e22, 1e17, 5e-324, 1e-7, 1.7976931348623157e308]
    assert found.column("near").to_pylist()[1:6] == near
    assert found.column("_nulls").to_pylist()[6:] == [["/größe"], None, None, ["/deep/a"], None]


def test_properties_without_a_column_are_read_by_documents(pool):
    layout = layout_of({**ODD, "additionalProperties": True})
    assert not arrow_rows._is_columnar(layout, layout.contract)
    rows = stored(pool, layout, [{"near": 1e22, "other": [1, None]}], [True])
    found = cold_rows(layout, rows)
    assert found.column("_extra").to_pylist() == ['{"other":[1,null]}']
    assert found.column("near").to_pylist() == [1e22]


@pytest.mark.parametrize("name", ['a "name"', "back\\slash", "line\nbreak", "\x1f"])
def test_names_that_json_writes_another_way_are_read_by_documents(pool, name):
    layout = layout_of({"type": "object", "properties": {name: {"type": "number"}}})
    rows = stored(pool, layout, [{name: 1e22}, {}], [True, True])
    assert cold_rows(layout, rows).column(name).to_pylist() == [1e22, None]
    documents = layout.documents_of([1, 1], [], [row[4] for row in rows])
    assert documents == [{name: 1e22}, {}]


def test_rows_of_no_version_are_none(pool):
    found = cold_rows(layout_of(ODD), [])
    assert found.num_rows == 0
    assert found.schema.field("near").type == pa.float64()
