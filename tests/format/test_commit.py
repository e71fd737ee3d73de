"""Commits: the bytes prove themselves; whatever happens to them, never a wrong commit."""

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from format.made import JUNE_NS, commit, instants, schema, segment, spec
from format.test_action import ACTIONS
from thermocline.errors import Corruption, Overloaded, Unsupported
from thermocline.format.layout import Version
from thermocline.format.log import commit as commit_module
from thermocline.format.log.action import AddSegment, SetMark, SetTable, SetTxn
from thermocline.format.log.commit import Commit, decode_commit, encode_commit
from thermocline.format.sealed_json import crc32c

SMALL = encode_commit(commit(7, SetMark("hot", 3), SetTxn("job", 4), metrics={"rows": 1}))
LARGE = encode_commit(commit(7, *ACTIONS))


def sealed(json):
    """Return the bytes of a commit that says this, with a checksum that is right."""
    body = orjson.dumps(json)
    return body[:-1] + b',"checksum":"' + crc32c(body).encode() + b'"}\n'


def told(**changes):
    json = orjson.loads(SMALL)
    del json["checksum"]
    return {**json, **changes}


def test_a_commit_is_one_line_of_json_that_ends_in_its_checksum():
    body = {
        "format": 1,
        "version": 7,
        "base": 6,
        "txn_id": "txn7",
        "time": "2024-06-01T00:00:07Z",
        "operation": "test",
        "actions": [
            {"SetMark": {"source": "hot", "mark": 3}},
            {"SetTxn": {"application": "job", "sequence": 4}},
        ],
        "metrics": {"rows": 1},
    }
    assert sealed(body) == SMALL
    assert SMALL.count(b"\n") == 1
    assert list(orjson.loads(SMALL))[-1] == "checksum"


def test_a_known_checksum_is_that_of_the_castagnoli_polynomial():
    assert crc32c(b"123456789") == "crc32c:e3069283"


@given(st.sets(st.sampled_from(range(len(ACTIONS)))), instants, st.text(max_size=20))
def test_every_commit_reads_back_as_itself(places, time, text):
    actions = tuple(ACTIONS[place] for place in sorted(places))
    made = commit(9, *actions, time=time, operation=text, txn_id=text, metrics={"note": text})
    assert decode_commit(encode_commit(made), 9) == made


def test_every_bit_flipped_in_every_byte_is_corruption():
    for place in range(len(SMALL)):
        for bit in range(8):
            torn = bytearray(SMALL)
            torn[place] ^= 1 << bit
            with pytest.raises(Corruption) as caught:
                decode_commit(bytes(torn), 7)
            assert caught.value.facts["path"] == "_log/00000000000000000007.json"


def test_a_commit_cut_at_any_length_is_corruption():
    for data in (SMALL, LARGE):
        for size in range(len(data)):
            with pytest.raises(Corruption):
                decode_commit(data[:size], 7)


@pytest.mark.parametrize("tail", [b"\n", b" ", b"\0", b"\0" * 512, SMALL, b"}"])
def test_bytes_after_the_end_are_corruption(tail):
    with pytest.raises(Corruption):
        decode_commit(SMALL + tail, 7)
    with pytest.raises(Corruption):
        decode_commit(tail + SMALL, 7)


@given(st.data())
def test_no_damage_makes_another_commit(data):
    whole = data.draw(st.sampled_from([SMALL, LARGE]))
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 64)))
    torn = whole[:start] + data.draw(st.binary(max_size=64)) + whole[end:]
    if torn == whole:
        return
    with pytest.raises(Corruption):
        decode_commit(torn, 7)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_commit_are_corruption(data):
    with pytest.raises(Corruption):
        decode_commit(data, 1)


def test_a_sector_of_zeros_in_the_middle_is_corruption():
    for start in range(0, len(LARGE) - 512, 64):
        with pytest.raises(Corruption):
            decode_commit(LARGE[:start] + b"\0" * 512 + LARGE[start + 512 :], 7)


def test_a_commit_under_another_commits_name_is_corruption():
    with pytest.raises(Corruption, match="another version") as caught:
        decode_commit(SMALL, 8)
    assert caught.value.facts["version"] == 7


def test_a_newer_format_is_refused_and_named_before_anything_else_is_read():
    data = sealed({"format": 2, "everything": "else is different"})
    with pytest.raises(Unsupported) as caught:
        decode_commit(data, 7)
    assert caught.value.facts["needed"] == 2
    assert caught.value.facts["supported"] == 1
    assert caught.value.facts["path"] == "_log/00000000000000000007.json"


def test_what_a_newer_version_needs_is_named_with_the_commit():
    with pytest.raises(Unsupported) as caught:
        decode_commit(sealed(told(actions=[{"AddIndex": {}}])), 7)
    assert caught.value.facts == {"action": "AddIndex", "path": "_log/00000000000000000007.json"}
    table = orjson.loads(encode_commit(commit(7, SetTable(spec(features=("tiers",)), 1, schema()))))
    with pytest.raises(Unsupported) as caught:
        decode_commit(sealed(told(actions=table["actions"])), 7)
    assert caught.value.facts["needed"] == ["tiers"]


def test_a_field_that_this_version_does_not_know_is_no_trouble():
    assert decode_commit(sealed({**told(), "signature": "abc"}), 7) == decode_commit(SMALL, 7)


def _without(name):
    json = told()
    del json[name]
    return json


@pytest.mark.parametrize(
    "json",
    [
        *(_without(name) for name in told()),
        [],
        {},
        told(format="1"),
        told(format=None),
        told(base="x"),
        told(time="yesterday"),
        told(time=7),
        told(time="0000-01-01T00:00:00Z"),
        told(actions=[7]),
        told(actions=[{}]),
        told(actions=[{"SetMark": {}, "SetTxn": {}}]),
        told(actions=[{"SetMark": None}]),
        told(actions=[{"SetMark": {"source": "hot", "mark": "x"}}]),
        told(actions=[{"AddSegment": {}}]),
        told(actions=[{"AddSegment": {"path": 7, "coverage_path": "x"}}]),
        told(actions={"SetMark": {"source": "hot", "mark": 1}}),
    ],
    ids=lambda json: str(json)[-40:],
)
def test_a_checksum_does_not_make_nonsense_a_commit(json):
    with pytest.raises(Corruption) as caught:
        decode_commit(sealed(json), 7)
    assert caught.value.facts["path"] == "_log/00000000000000000007.json"


@pytest.mark.parametrize("bucket", ["2 fortnights", "0s", "", "an hour"])
def test_a_bucket_that_is_none_is_the_logs_fault_not_the_callers(bucket):
    table = orjson.loads(encode_commit(commit(7, SetTable(spec(), 1, schema()))))
    table["actions"][0]["SetTable"]["bucket"] = bucket
    with pytest.raises(Corruption):
        decode_commit(sealed(told(actions=table["actions"])), 7)


def _places(json, at=()):
    yield at
    items = json.items() if isinstance(json, dict) else enumerate(json)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from _places(value, (*at, key))
        else:
            yield (*at, key)


def _replaced(json, at, value):
    if not at:
        return value
    copy = dict(json) if isinstance(json, dict) else list(json)
    copy[at[0]] = _replaced(copy[at[0]], at[1:], value)
    return copy


EVERYTHING = {key: value for key, value in orjson.loads(LARGE).items() if key != "checksum"}
PLACES = [place for place in _places(EVERYTHING) if place]
odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["../x", "int8", "2024-06-01T00:00:00Z", 1e300, [], {}, [[]], {"": {}}]),
)


@given(st.sampled_from(PLACES), odd_values)
def test_any_value_anywhere_is_a_commit_or_an_error_of_ours(place, value):
    try:
        found = decode_commit(sealed(_replaced(EVERYTHING, place, value)), 7)
    except (Corruption, Unsupported):
        return
    assert isinstance(found, Commit)


def test_a_commit_past_the_limit_is_refused_before_it_is_written(monkeypatch):
    monkeypatch.setattr(commit_module, "COMMIT_BYTES_MAX", 300)
    encode_commit(commit(7, SetMark("hot", 3)))
    with pytest.raises(Overloaded) as caught:
        encode_commit(commit(7, AddSegment(segment())))
    assert caught.value.facts["size_bytes_max"] == 300


def test_the_columns_of_a_commit_are_arrows_own_types():
    data = encode_commit(commit(1, SetTable(spec(), 1, schema())))
    table = decode_commit(data, 1).actions[0]
    assert table.schema.arrow.field("ts") == pa.field("ts", pa.timestamp("us"), nullable=False)
    assert decode_commit(data, 1).time == JUNE_NS + 10**9
    assert decode_commit(data, 1).version == Version(1)
