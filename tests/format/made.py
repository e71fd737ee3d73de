"""Made values for tests of the format: segments, specs, commits, and strategies for random ones."""

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
from hypothesis import strategies as st

from thermocline.format.bucket import Bucket
from thermocline.format.instant import NS_PER_S, TIME_MAX, TIME_MIN, TimeNs
from thermocline.format.layout import Version, segment_coverage_path, segment_path
from thermocline.format.log.action import Segment, TableSpec
from thermocline.format.log.commit import Commit
from thermocline.format.schema import Schema, create_schema

JUNE_NS = 1_717_200_000 * NS_PER_S
"""2024-06-01T00:00:00Z."""

FIRST_TIME = datetime(2024, 6, 1, tzinfo=UTC)

instants = st.one_of(
    st.integers(TIME_MIN, TIME_MAX),
    st.integers(-10 * NS_PER_S, 10 * NS_PER_S),
    st.sampled_from([TIME_MIN, TIME_MIN + 1, -1, 0, 1, TIME_MAX - 1, TIME_MAX]),
).map(TimeNs)


def spec(**changes) -> TableSpec:
    """Return what a table of prices is."""
    return replace(TableSpec("t1", "ts", Bucket(3600), ("symbol",)), **changes)


def schema() -> Schema:
    """Return the columns of a table of prices."""
    columns = [("ts", pa.timestamp("us")), ("symbol", pa.string()), ("close", pa.float64())]
    return create_schema(pa.schema(columns), "ts")


def segment(name="s1", first=JUNE_NS, last=None, **changes) -> Segment:
    """Return a segment that holds rows from `first` to `last`, both included."""
    made = Segment(
        segment_id=name,
        path=segment_path(TimeNs(first), name),
        ts_min=TimeNs(first),
        ts_max=TimeNs(first if last is None else last),
        row_count=10,
        file_size=1_000,
        checksum="crc32c:0000000a",
        coverage_path=segment_coverage_path(name),
        coverage_checksum="crc32c:0000000b",
        schema_id=1,
    )
    return replace(made, **changes)


def commit(version=1, *actions, **changes) -> Commit:
    """Return a commit of these actions on top of the version before."""
    time = TimeNs(JUNE_NS + version * NS_PER_S)
    made = Commit(Version(version), Version(version - 1), f"txn{version}", time, "test", actions)
    return replace(made, **changes)


_NUMBERS = [getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]
_UNITS = ("s", "ms", "us", "ns")

leaf_types = st.one_of(
    st.sampled_from(
        [
            pa.null(),
            pa.bool_(),
            *_NUMBERS,
            pa.float16(),
            pa.float32(),
            pa.float64(),
            pa.string(),
            pa.large_string(),
            pa.string_view(),
            pa.binary(),
            pa.large_binary(),
            pa.binary_view(),
            pa.date32(),
            pa.date64(),
            pa.time32("s"),
            pa.time32("ms"),
            pa.time64("us"),
            pa.time64("ns"),
        ]
    ),
    st.builds(
        pa.timestamp,
        st.sampled_from(_UNITS),
        st.sampled_from([None, "UTC", "Europe/Berlin", "+05:30", "America/Argentina/Ushuaia"]),
    ),
    st.builds(pa.duration, st.sampled_from(_UNITS)),
    st.integers(1, 64).map(pa.binary),
    st.one_of(
        *(
            st.tuples(st.integers(1, digits), st.integers(-5, digits)).map(
                lambda pair, make=make: make(*pair)
            )
            for make, digits in (
                (pa.decimal32, 9),
                (pa.decimal64, 18),
                (pa.decimal128, 38),
                (pa.decimal256, 76),
            )
        )
    ),
)

names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8)


def _nested(inner):
    fields = st.builds(
        lambda name, kind, nullable: pa.field(name, kind, nullable or kind == pa.null()),
        names,
        inner,
        st.booleans(),
    )
    keys = st.sampled_from([pa.string(), pa.int32(), pa.date32(), pa.large_binary()])
    return st.one_of(
        fields.map(pa.list_),
        fields.map(pa.large_list),
        st.tuples(fields, st.integers(1, 9)).map(lambda pair: pa.list_(*pair)),
        st.lists(fields, min_size=1, max_size=4, unique_by=lambda field: field.name).map(pa.struct),
        st.tuples(keys, fields, st.booleans()).map(
            lambda three: pa.map_(three[0], three[1], keys_sorted=three[2])
        ),
        st.tuples(st.sampled_from(_NUMBERS), inner, st.booleans()).map(
            lambda three: pa.dictionary(*three)
        ),
    )


arrow_types = st.recursive(leaf_types, _nested, max_leaves=8)
