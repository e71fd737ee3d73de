"""Rows become the documents that were written, by the quick way and by the careful one."""

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from thermocline.contract.schema.register import parse_contract
from thermocline.hot.postgres.schema.layout import HotColumn, Layout

CONTRACT = parse_contract(
    {
        "type": "object",
        "properties": {
            "status": {"type": "string", "x-hot": True},
            "at": {"type": "string", "format": "date-time", "x-hot": True},
            "weight": {"type": ["number", "null"]},
            "count": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "odd name": {"type": "string"},
        },
    }
)
LAYOUT = Layout(
    1,
    "thing",
    "e_1",
    (HotColumn(1, "status", "text"), HotColumn(2, "at", "timestamptz")),
    {1: CONTRACT},
)
AT = "2024-06-01 12:00:00.25+00"
ROWS = {
    "whole": (
        ("open", AT),
        '{"tags": ["a", "b"], "count": 5, "weight": 1.5, "odd name": "x"}',
        {
            "status": "open",
            "at": "2024-06-01T12:00:00.25Z",
            "weight": 1.5,
            "count": 5,
            "tags": ["a", "b"],
            "odd name": "x",
        },
    ),
    "a whole number": ((None, None), '{"weight": 5}', {"weight": 5.0}),
    "many digits": ((None, None), f'{{"weight": 1{"0" * 22}}}', {"weight": 1e22}),
    "more digits": ((None, None), f'{{"weight": 1{"0" * 300}}}', {"weight": 1e300}),
    "the least": ((None, None), f'{{"weight": 0.{"0" * 323}5}}', {"weight": 5e-324}),
    "null": (("open", None), '{"at": null, "weight": null}', None),
    "nothing": ((None, None), "{}", {}),
    "columns alone": (("open", None), None, {"status": "open"}),
    "not of this contract": (("open", None), '{"other": 1}', {"status": "open", "other": 1}),
}
ROWS["null"] = (*ROWS["null"][:2], {"status": "open", "at": None, "weight": None})


@pytest.mark.parametrize(("values", "rest", "document"), ROWS.values(), ids=ROWS)
def test_a_row_is_its_document_in_the_order_of_the_contract(values, rest, document):
    made = LAYOUT.document_of(1, values, rest)
    assert repr(made) == repr(document)


def test_both_ways_give_the_same_documents():
    form = LAYOUT._reader(1)
    assert form.quick is not None
    careful = replace(form, quick=None)
    rows = [(values, rest) for values, rest, _ in ROWS.values() if rest is not None]
    columns = list(zip(*(values for values, _ in rows), strict=True))
    rests = [rest for _, rest in rows]
    assert repr(form.documents(columns, rests)) == repr(careful.documents(columns, rests))
    bare = [None] * len(rests)  # a page asks for the rest of all rows or of none
    assert repr(form.documents(columns, bare)) == repr(careful.documents(columns, bare))


PRICED = parse_contract(
    {
        "type": "object",
        "properties": {
            "price": {"type": "string", "x-type": "decimal(30,8)", "x-hot": True},
            "at": {"type": "string", "format": "date-time", "x-hot": True},
            "day": {"type": "string", "format": "date", "x-hot": True},
        },
    }
)
PRICES = ["0", "0.00", "-12.50", "1E+3", Decimal("1E-7"), Decimal("2.50"), None]
INSTANTS = ["0001-01-01 00:00:00+00", "2024-06-01 12:00:00.25+00", "9999-12-31 23:59:59+00", None]
MOMENT = datetime(2024, 6, 1, 12, 0, 0, 250_000, UTC)


@pytest.mark.parametrize(
    ("prices", "instants"),
    [
        (PRICES, [*INSTANTS, MOMENT, MOMENT, None]),
        (PRICES[:3], INSTANTS[:3]),
        (PRICES[:4], INSTANTS),
        ([None, None], [None, None]),
        ([], []),
    ],
)
def test_many_values_of_a_column_are_shown_as_each_is(prices, instants):
    columns = (HotColumn(1, "price", "numeric"), HotColumn(2, "at", "timestamptz"))
    columns += (HotColumn(3, "day", "date"),)
    layout = Layout(1, "thing", "e_1", columns, {1: PRICED})
    assert layout._reader(1).quick is not None
    days = [date(2024, 2, 29) if n % 2 else None for n in range(len(prices))]
    rows = list(zip(prices, instants, days, strict=True))
    rests = ["{}"] * len(rows)
    made = layout.documents_of([1] * len(rows), [prices, instants, days], rests)
    careful = replace(layout._reader(1), quick=None)
    assert made == [careful.documents([[v] for v in row], ["{}"])[0] for row in rows]
    bare = layout.documents_of([1] * len(rows), [prices, instants, days], [None] * len(rows))
    assert bare == made, "also where the rest was not asked for"


def test_numbers_that_need_every_digit_are_read_carefully():
    exact = parse_contract(
        {"type": "object", "properties": {"d": {"type": "number", "x-type": "decimal(18,2)"}}}
    )
    assert Layout(1, "thing", "e_1", (), {1: exact})._reader(1).quick is None
