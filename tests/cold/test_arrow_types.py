"""Every ordinary Arrow type goes in and comes out exactly, through Arrow and through Parquet."""

import io
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from fixtures.lake import HOUR_US, JUNE_US, lake_on, spec
from fixtures.sim_disk import SimDisk
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.append import AppendOptions
from thermocline.errors import Invalid

ROWS = 5
INCOMING = "/incoming/made.parquet"
UNITS = ("s", "ms", "us", "ns")
ZONES = (None, "UTC", "Europe/Berlin", "+05:30")
DAY = 86_400

TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
BYTES = [pa.binary(), pa.large_binary(), pa.binary_view()]
DECIMALS = [
    pa.decimal32(7, 2),
    pa.decimal64(16, 4),
    pa.decimal128(38, 0),
    pa.decimal128(9, 9),
    pa.decimal256(76, 10),
    pa.decimal256(10, 2),
]
LEAVES = [
    *(pa.bool_(), pa.null(), pa.date32(), pa.date64()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(*TEXTS, *BYTES, pa.binary(3)),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit, tz=zone) for unit in UNITS for zone in ZONES),
    *(pa.duration(unit) for unit in UNITS),
    *DECIMALS,
    *(pa.dictionary(index, pa.string()) for index in (pa.int32(), pa.int64(), pa.uint32())),
    *(
        pa.dictionary(pa.int32(), value)
        for value in (pa.large_string(), pa.int16(), pa.binary(), pa.date32(), DECIMALS[2])
    ),
    pa.dictionary(pa.int32(), pa.string(), ordered=True),
]
KEYS = [pa.string(), pa.large_string(), pa.int64(), pa.date32(), pa.binary()]


def nested(children):
    fields = st.lists(
        st.tuples(st.sampled_from("abc d"), children),
        min_size=1,
        max_size=3,
        unique_by=lambda f: f[0],
    )
    return st.one_of(
        children.map(pa.list_),
        children.map(pa.large_list),
        st.tuples(children, st.integers(1, 3)).map(lambda made: pa.list_(*made)),
        fields.map(pa.struct),
        st.tuples(st.sampled_from(KEYS), children).map(lambda made: pa.map_(*made)),
    )


TYPES = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4)


def whole_numbers(kind):
    """Return the range of the integers that stand for a temporal type's values."""
    if kinds.is_date32(kind):
        return st.integers(-719_162, 2_932_896)
    if kinds.is_date64(kind):
        return st.integers(-719_162, 2_932_896).map(lambda day: day * DAY * 1_000)
    if kinds.is_time(kind):
        return st.integers(0, DAY * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit] - 1)
    if kind.unit == "s":  # Parquet has no seconds: they are kept as milliseconds
        return st.integers(-(2**50), 2**50)
    return st.integers(-(2**63), 2**63 - 1)


def numbers(kind):
    if kinds.is_floating(kind):
        special = st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0])
        return st.one_of(special, st.floats(width=kind.bit_width))
    if kinds.is_decimal(kind):
        unscaled = st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1)
        return unscaled.map(lambda digits: scaled(digits, kind.scale))
    low = -(2 ** (kind.bit_width - 1)) if kinds.is_signed_integer(kind) else 0
    return st.integers(low, low + 2**kind.bit_width - 1)


def collections(kind):
    if kinds.is_struct(kind):
        return st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    if kinds.is_map(kind):
        pairs = st.tuples(present(kind.key_type), values(kind.item_type))
        return st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
    is_fixed = kinds.is_fixed_size_list(kind)
    low, high = (kind.list_size, kind.list_size) if is_fixed else (0, 3)
    return st.lists(values(kind.value_type), min_size=low, max_size=high)


PRESENT = [
    (kinds.is_null, lambda kind: st.none()),
    (kinds.is_boolean, lambda kind: st.booleans()),
    (kinds.is_temporal, whole_numbers),
    (kinds.is_dictionary, lambda kind: present(kind.value_type)),
    (kinds.is_nested, collections),
    (kinds.is_fixed_size_binary, lambda kind: st.binary(min_size=3, max_size=3)),
    (lambda kind: kind in TEXTS, lambda kind: st.text(max_size=20)),
    (lambda kind: kind in BYTES, lambda kind: st.binary(max_size=20)),
    (lambda kind: True, numbers),
]


def present(kind):
    """Return a strategy for the values of a type, as `pa.array` takes them."""
    return next(make(kind) for is_meant, make in PRESENT if is_meant(kind))


def scaled(digits, scale):
    return Decimal((digits < 0, tuple(int(d) for d in str(abs(digits))), -scale))


def values(kind):
    return st.one_of(st.none(), present(kind))


def column(kind, made):
    """Return an array; a dictionary is encoded here, because `pa.array` knows few of them."""
    if kinds.is_dictionary(kind):
        plain = pa.array(made, kind.value_type).dictionary_encode()
        indices = plain.indices.cast(kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, plain.dictionary, ordered=kind.ordered)
    return pa.array(made, kind)


def no_nested_dictionary(kind):
    if kinds.is_dictionary(kind):
        return False
    children = [kind.field(i) for i in range(kind.num_fields)]
    return all(no_nested_dictionary(child.type) for child in children)


@st.composite
def tables(draw):
    columns = {}
    for number in range(draw(st.integers(1, 3))):
        kind = draw(TYPES.filter(lambda k: kinds.is_dictionary(k) or no_nested_dictionary(k)))
        made = draw(st.lists(values(kind), min_size=ROWS, max_size=ROWS))
        columns[f"c{number}"] = column(kind, made)
    times = [JUNE_US + hour * HOUR_US for hour in range(ROWS)]
    return pa.table({"ts": pa.array(times, pa.timestamp("us")), **columns})


def exact(array):
    """Return the values so that equal means the same bits: -0.0 is not 0.0, NaN is NaN."""
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in exact(chunk)]
    kind = array.type
    if kinds.is_dictionary(kind):
        return exact(array.dictionary_decode())
    if kinds.is_floating(kind):
        return [None if value is None else float(value).hex() for value in array.to_pylist()]
    if kinds.is_temporal(kind):
        return array.cast(pa.int64() if kind.bit_width == 64 else pa.int32()).to_pylist()
    if kinds.is_struct(kind):
        parts = [exact(array.field(place)) for place in range(kind.num_fields)]
        return [
            [part[row] for part in parts] if valid else None
            for row, valid in enumerate(array.is_valid().to_pylist())
        ]
    if kinds.is_nested(kind):
        return [exact(item.values) if item.is_valid else None for item in array]
    return array.to_pylist()


def fresh():
    disk = SimDisk(["/lake", "/incoming"])
    table = lake_on(disk)
    table.create(spec(entities=()))
    return disk, table


def read(table):
    state = table.state()
    return pa.Table.from_batches(list(table.read(state, None)), state.schema.arrow)


def check_same(found, wanted):
    assert found.schema.types == wanted.schema.types
    assert found.schema.names == wanted.schema.names
    for name in wanted.schema.names:
        assert exact(found.column(name)) == exact(wanted.column(name)), name


def as_parquet(data):
    sink = io.BytesIO()
    pq.write_table(data, sink)
    return sink.getvalue()


@settings(max_examples=120)
@given(tables())
def test_a_table_of_any_types_comes_back_as_it_went_in(data):
    _, table = fresh()
    table.append(data.to_reader(max_chunksize=2), AppendOptions())
    check_same(read(table), data)
    assert fsck(table).is_sound


@settings(max_examples=80)
@given(tables())
def test_a_parquet_file_of_any_types_reads_as_it_did_before_it_was_appended(data):
    disk, table = fresh()
    try:
        source = as_parquet(data)
    except pa.ArrowNotImplementedError:
        reject()  # nobody has such a file: Arrow cannot write views inside of lists
    disk.overwrite(INCOMING, source)
    table.append_parquet([INCOMING], AppendOptions())
    wanted = pq.read_table(io.BytesIO(source))
    check_same(read(table), wanted)
    [segment] = table.state().segments
    assert disk.read(f"/lake/prices/{segment.path}") == source


@settings(max_examples=60)
@given(tables(), st.lists(st.booleans(), min_size=ROWS, max_size=ROWS))
def test_rows_of_any_types_are_deleted_and_the_rest_comes_back_as_it_was(data, keep):
    _, table = fresh()
    table.append(data.to_reader(), AppendOptions())
    gone = iter(keep)
    table.delete(lambda batch: pa.array([not next(gone) for _ in range(batch.num_rows)]), [])
    rest = [data.slice(row, 1) for row, kept in enumerate(keep) if kept]
    check_same(read(table), pa.concat_tables([data.slice(0, 0), *rest]))
    assert fsck(table).is_sound


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("how", ["arrow", "parquet"])
def test_a_time_column_of_any_unit_and_zone_keeps_its_instants(unit, zone, how):
    per_s = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    instants = [(JUNE_US // 10**6 + hour * 3600) * per_s for hour in (-3, 0, 1)]
    data = pa.table({"ts": pa.array(instants, pa.timestamp(unit, tz=zone))})
    disk, table = fresh()
    if how == "arrow":
        table.append(data.to_reader(), AppendOptions())
        check_same(read(table), data)
    else:
        disk.overwrite(INCOMING, as_parquet(data))
        table.append_parquet([INCOMING], AppendOptions())
        check_same(read(table), pq.read_table(io.BytesIO(as_parquet(data))))
    state, held = table.coverage()
    first = JUNE_US // 10**6 // 3600
    assert held.whole.numbers().tolist() == [first - 3, first, first + 1]
    assert [segment.ts_min for segment in state.segments] == [instants[0] * (10**9 // per_s)]


WIDENINGS = [
    (pa.array([-128, None, 127], pa.int8()), pa.int64()),
    (pa.array([0, None, 2**32 - 1], pa.uint32()), pa.int64()),
    (pa.array([0, None, 2**16 - 1], pa.uint16()), pa.float32()),
    (pa.array([-0.0, None, math.inf], pa.float16()), pa.float64()),
    (pa.array([Decimal("-9.99"), None, Decimal("1.25")]), pa.decimal128(20, 5)),
    (pa.array([Decimal("-9.99"), None, Decimal("1.25")]), pa.decimal256(60, 5)),
    (pa.array([-1, None, 5], pa.date32()), pa.date64()),
    (pa.array([-1, None, 5], pa.timestamp("s")), pa.timestamp("us")),
    (pa.array([1, None, 5], pa.time32("s")), pa.time64("ns")),
    (pa.array(["a", None, ""]), pa.large_string()),
    (pa.array(["a", None, ""]), pa.dictionary(pa.int32(), pa.string())),
    (pa.array(["a", None, ""]).dictionary_encode(), pa.string_view()),
    (pa.nulls(3), pa.list_(pa.int8())),
    (pa.nulls(3), pa.dictionary(pa.int32(), pa.string())),
    (pa.nulls(3), pa.struct([("a", pa.int8())])),
]


@pytest.mark.parametrize(
    ("narrow", "wide"), WIDENINGS, ids=lambda made: str(getattr(made, "type", made))
)
@pytest.mark.parametrize("how", ["arrow", "parquet", "widened after"])
def test_a_narrower_column_reads_in_the_tables_type(narrow, wide, how):
    disk, table = fresh()
    times = pa.array([JUNE_US + hour * HOUR_US for hour in range(3)], pa.timestamp("us"))
    data = pa.table({"ts": times, "value": narrow})
    if how == "widened after":
        table.append(data.to_reader(), AppendOptions())
        table.alter("widen", lambda s, c: (s, c.widen_column("value", wide)))
    else:
        columns = [pa.field("ts", times.type), pa.field("value", wide)]
        table.adopt_columns(pa.schema(columns), evolve=False)
        disk.overwrite(INCOMING, as_parquet(data))
        if how == "parquet":
            table.append_parquet([INCOMING], AppendOptions())
        else:
            table.append(data.to_reader(), AppendOptions())
    found = read(table).column("value")
    plain = narrow.dictionary_decode() if kinds.is_dictionary(narrow.type) else narrow
    value_type = wide.value_type if kinds.is_dictionary(wide) else wide
    assert found.type == wide
    assert exact(found) == exact(plain.cast(value_type))
    assert fsck(table).is_sound


@pytest.mark.parametrize(
    "kind",
    [
        pa.decimal128(10, -2),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.month_day_nano_interval(),
        pa.list_view(pa.int8()),
    ],
    ids=str,
)
def test_a_type_that_parquet_cannot_hold_is_refused_and_nothing_is_left(kind):
    disk, table = fresh()
    before = disk.tree()
    data = pa.table({"ts": pa.array([JUNE_US], pa.timestamp("us")), "value": pa.nulls(1, kind)})
    with pytest.raises(Invalid, match="ordinary Arrow type"):
        table.append(data.to_reader(), AppendOptions())
    left = {path for path, content in disk.tree().items() if content is not None} - before.keys()
    assert left == set()
