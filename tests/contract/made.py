"""Random contracts and documents, and the functions that build them for tests."""

import string
from datetime import UTC, datetime

from hypothesis import strategies as st

from thermocline.contract.schema.register import parse_contract

NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=6)


def contract_of(_previous=None, **properties):
    """Return the contract of an entity with these properties, all optional."""
    return parse_contract({"type": "object", "properties": properties}, _previous)


def kind_column(contract, name):
    """Return the column of one property."""
    return next(column for column in contract.columns if column.name == name)


def _instants():
    times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
    return times.map(lambda time: time.isoformat())


TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)
INT64 = st.integers(-(2**63), 2**63 - 1)
DOUBLE_INTEGERS = INT64.map(lambda number: int(float(number)))  # a column of doubles rounds others
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | DOUBLES | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
SCALARS = [
    ({"type": "string"}, TEXT),
    ({"type": "string", "format": "uuid"}, st.uuids().map(str)),
    ({"type": "string", "format": "date"}, st.dates().map(lambda day: day.isoformat())),
    ({"type": "string", "format": "date-time"}, _instants()),
    ({"type": "integer"}, INT64),
    ({"type": "integer", "x-type": "int32"}, st.integers(-(2**31), 2**31 - 1)),
    ({"type": "number"}, DOUBLES | DOUBLE_INTEGERS),
    (
        {"type": "number", "x-type": "float"},
        st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    ({"type": "boolean"}, st.booleans()),
    ({"enum": ["red", "green", "blue"]}, st.sampled_from(["red", "green", "blue"])),
    (
        {"type": "number", "x-type": "decimal(18,2)"},
        st.decimals("-9999999999999999.99", "9999999999999999.99", places=2),
    ),
    (
        {"type": "string", "x-type": "decimal(38,6)"},
        st.decimals(-(10**31), 10**31, places=6).map(lambda number: format(number, "f")),
    ),
    ({}, ANY_JSON),
    ({"type": ["string", "integer"]}, TEXT | st.integers()),
    ({"type": "object"}, st.dictionaries(TEXT, ANY_JSON, max_size=3)),
    ({"type": "array"}, st.lists(ANY_JSON, max_size=3)),
]


@st.composite
def fields(draw, depth=2):
    """Draw a schema and a strategy for the values that fit it."""
    shape = draw(st.sampled_from(["scalar"] * 3 + (["list", "map", "object"] if depth else [])))
    if shape == "scalar":
        schema, values = draw(st.sampled_from(SCALARS))
    elif shape == "object":
        schema, values = draw(objects(depth - 1))
    else:
        inner, some = draw(fields(depth - 1))
        if shape == "list":
            schema, values = {"type": "array", "items": inner}, st.lists(some, max_size=3)
        else:
            schema = {"type": "object", "additionalProperties": inner}
            values = st.dictionaries(TEXT, some, max_size=3)
    if draw(st.booleans()):
        return {"anyOf": [schema, {"type": "null"}]}, values | st.none()
    return schema, values


@st.composite
def objects(draw, depth=2):
    """Draw a closed object and a strategy for its values: every optional property may be absent."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique_by=str.lower))
    parts = {name: draw(fields(depth)) for name in names}
    required = draw(st.lists(st.sampled_from(names), unique=True))
    schema = {
        "type": "object",
        "properties": {name: schema for name, (schema, _) in parts.items()},
        "required": required,
    }
    values = st.fixed_dictionaries(
        {name: parts[name][1] for name in required},
        optional={name: parts[name][1] for name in names if name not in required},
    )
    return schema, values


@st.composite
def contracts_and_documents(draw):
    """Draw a document of a contract, and a few documents that fit it."""
    schema, values = draw(objects())
    if draw(st.booleans()):
        schema = {**schema, "additionalProperties": True}
        extra = st.dictionaries(NAMES.map(lambda name: "other" + name), ANY_JSON, max_size=2)
        values = st.tuples(extra, values).map(lambda pair: {**pair[0], **pair[1]})
    return schema, draw(st.lists(values, min_size=1, max_size=4))
