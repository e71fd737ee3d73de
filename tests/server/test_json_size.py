"""How much a JSON text holds is known before any of it is made, whatever its texts hold."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.ingest import json_size
from thermocline.ingest.json_size import json_values_max

TEXTS = st.text(st.sampled_from('\\",{[]}: \nab'), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def counted(value):
    """Return how many values there are in a value, itself included."""
    if isinstance(value, dict):
        return 1 + sum(counted(one) for one in value.values())
    if isinstance(value, list):
        return 1 + sum(counted(one) for one in value)
    return 1


def marks(text):
    """Return one more than the marks outside of texts, by reading byte after byte."""
    count, is_inside, is_escaped = 1, False, False
    for byte in text:
        if is_escaped:
            is_escaped = False
        elif byte == ord("\\"):
            is_escaped = True
        elif byte == ord('"'):
            is_inside = not is_inside
        elif byte in b",{[" and not is_inside:
            count += 1
    return count


@pytest.fixture(params=[1, 3, 7, 1 << 20])
def block_bytes(request, monkeypatch):
    """Count by blocks of several sizes: texts and backslashes go over their ends."""
    monkeypatch.setattr(json_size, "BLOCK_BYTES", request.param)
    return request.param


@pytest.mark.usefixtures("block_bytes")
@given(VALUES)
def test_a_text_never_holds_more_values_than_were_counted(value):
    data = json.dumps(value).encode()
    assert counted(value) <= json_values_max(data) == marks(data)


@given(st.lists(VALUES, max_size=4))
def test_json_lines_are_counted_together(values):
    data = b"\n".join(json.dumps(one).encode() for one in values)
    assert json_values_max(data) == 1 + sum(marks(json.dumps(one).encode()) - 1 for one in values)


def test_counting_takes_the_memory_of_a_block():
    data = b"[" + b'{"a":1},' * (4 << 20) + b'"x\\"' + b"\\" * (4 << 20)
    tracemalloc.start()
    try:
        assert json_values_max(data) == 2 + 2 * (4 << 20)
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()
