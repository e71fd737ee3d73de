"""The compiled scanner returns exactly the official decoder's rows, or leaves the request to it."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.otlp_rebuilt import items
from ingest.otlp_requests import (
    NOW_NS,
    REQUESTS,
    batches_of,
    field,
    gauge_request,
    messages,
    pairs,
)
from thermocline.errors import Invalid
from thermocline.ingest.otlp.compiled import memory
from thermocline.ingest.otlp.compiled import metrics as compiled_metrics
from thermocline.ingest.otlp.compiled.scan_metrics import scan_metrics
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.protobuf import decode_official, decode_protobuf, warm_up

LIMITS = DecodeLimits()


@pytest.fixture(autouse=True)
def _warm():
    warm_up()


def official(data, limits=LIMITS):
    """Return the official decoder's outcome, or None when it refuses the request."""
    try:
        return batches_of(decode_official("metrics", data, arrived_ns=NOW_NS, limits=limits))
    except Invalid:
        return None


def fast_or_none(data, limits=LIMITS):
    decoded = compiled_metrics.decode_metrics(data, limits)
    return None if decoded is None else batches_of(decoded)


def check(data, limits=LIMITS):
    """Check that both decoders agree; tell whether the fast one decoded the request."""
    found = fast_or_none(data, limits)
    assert found is None or found == official(bytes(data), limits)
    return found is not None


def common_request(metrics=3, points=4, *, exemplars=False, others=False):
    """Return a request as exporters send them."""
    request = gauge_request(points, resource={"service.name": "shop", "cores": 4})
    group = request.resource_metrics[0]
    group.schema_url = "https://a"
    scope = group.scope_metrics[0]
    scope.schema_url, scope.scope.name = "https://b", "till"
    for number in range(metrics):
        metric = scope.metrics.add(name=f"m{number}", unit="1", description="things")
        metric.metadata.extend(pairs({"prometheus.type": "counter"}))
        metric.sum.aggregation_temporality = 1 + number % 2
        metric.sum.is_monotonic = number % 3 == 0
        for place in range(points):
            point = metric.sum.data_points.add(
                time_unix_nano=NOW_NS + place,
                start_time_unix_nano=NOW_NS - 1 if place else 0,
                as_int=(1 << 60) + place,
                flags=place % 2 * 2,
            )
            point.attributes.extend(pairs({"a": place, "b": "é\0", "c": [1.5, None, {"x": b"y"}]}))
            if exemplars and place == 1:
                point.exemplars.add(time_unix_nano=5, as_int=7, trace_id=b"x" * 16)
        metric.sum.data_points.add(time_unix_nano=NOW_NS, flags=1)
    if others:
        histogram = scope.metrics.add(name="h").histogram
        histogram.aggregation_temporality = 2
        histogram.data_points.add(time_unix_nano=NOW_NS, count=3, bucket_counts=[3])
        scope.metrics.add(name="s").summary.data_points.add(time_unix_nano=NOW_NS, count=1)
    return request


@pytest.mark.parametrize("exemplars", [False, True])
@pytest.mark.parametrize("others", [False, True])
def test_what_exporters_send_is_taken_and_equal(exemplars, others):
    data = common_request(exemplars=exemplars, others=others).SerializeToString()
    assert check(data)
    assert check(data), "and so it is when everything is known already"
    assert check(data + gauge_request(2).SerializeToString()), "two requests in one are merged"


@pytest.mark.slow
@settings(max_examples=100)
@given(request=messages(REQUESTS["metrics"]))
def test_a_random_request_gives_what_the_official_decoder_gives(request):
    check(request.SerializeToString())
    # Concatenated requests are one request of all items that have nothing to note.
    parts = [item.SerializeToString() for item in items(request)]
    good = b"".join(part for part in parts if official(part)[2:] == (0, ""))
    assert check(good) or not good


@settings(max_examples=200)
@given(data=st.data())
def test_damaged_bytes_give_what_the_official_decoder_gives(data):
    whole = bytearray(common_request(2, 2, exemplars=True, others=True).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if kind == "flip":
            whole[place] = data.draw(st.integers(0, 255))
        elif kind == "insert":
            whole[place:place] = data.draw(st.binary(max_size=3))
        else:
            del whole[place : place + data.draw(st.integers(1, 20))]
        if not whole:
            return
    check(bytes(whole))


def test_I03_a_request_cut_at_any_byte_is_left_to_the_official_decoder():
    data = common_request(2, 2, exemplars=True, others=True).SerializeToString()
    taken = [length for length in range(1, len(data)) if check(data[:length])]
    assert taken == []


def test_nothing_past_the_end_is_read():
    data = common_request(1, 2).SerializeToString()
    for length in range(1, len(data)):
        # The same bytes continue after the end: a read past the end would find a complete request.
        cut = memoryview(data)[:length]
        assert compiled_metrics.decode_metrics(cut, LIMITS) is None


UNUSUAL = {
    "an unknown field in a point": lambda point: point + field(99, b"new"),
    "a group in a point": lambda point: point + b"\xa3\x06\xa4\x06",
    "field zero": lambda point: point + b"\x02\x01x",
    "a time that comes twice": lambda point: point + b"\x19" + (5).to_bytes(8, "little"),
    "both values": lambda point: point + b"\x31" + (5).to_bytes(8, "little"),
    "attributes apart": lambda point: point + field(7, field(1, b"z")),
    "flags of ten bytes": lambda point: point + b"\x40" + b"\xff" * 9 + b"\x01",
    "flags of 33 bits": lambda point: point + b"\x40\x80\x80\x80\x80\x10",
    "a long tag": lambda point: b"\x99\x00" + (7).to_bytes(8, "little") + point,
    "time as a varint": lambda point: point + b"\x18\x01",
    "an attribute key that is not UTF-8": lambda point: point + field(7, field(1, b"\xff")),
    "an empty attribute": lambda point: field(7, b"") + point,
}


@pytest.mark.parametrize("change", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_points_give_what_the_official_decoder_gives(change):
    point = common_request(1, 1).resource_metrics[0].scope_metrics[0].metrics[1].sum.data_points[0]
    points = field(1, change(point.SerializeToString())) + field(1, point.SerializeToString())
    for data in (field(5, points), field(7, points + b"\x10\x02"), field(7, b"\x10\x02" + points)):
        request = field(1, field(2, field(2, field(1, b"name") + data)))
        check(request)
        check(request)


def test_a_resource_that_comes_after_its_metrics_or_twice_is_found():
    group = common_request(1, 1).resource_metrics[0]
    resource = field(1, group.resource.SerializeToString())
    scopes = b"".join(field(2, one.SerializeToString()) for one in group.scope_metrics)
    assert check(field(1, scopes + resource))
    assert not check(field(1, resource + scopes + resource))


def test_I09_a_request_with_something_to_refuse_is_left_to_the_official_decoder():
    request = gauge_request(10)
    request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[3].Clear()
    data = request.SerializeToString()
    assert fast_or_none(data) is None
    assert decode_protobuf("metrics", data, arrived_ns=NOW_NS).rejected == 1


def test_I13_limits_hold_and_are_told_on_the_fast_way_too():
    data = gauge_request(3, attributes={"k": "x" * 50}).SerializeToString()
    limits = DecodeLimits(value_bytes_max=10)
    for _ in range(2):
        assert fast_or_none(data, limits) is None
        found = decode_protobuf("metrics", data, arrived_ns=NOW_NS, limits=limits)
        assert "attribute value too long, cut (3)" in found.message
    assert check(data), "other limits, other answer"


def test_what_is_remembered_is_bounded_and_then_forgotten(monkeypatch):
    monkeypatch.setattr(memory, "ENTRIES_MAX", 64)
    monkeypatch.setattr(memory, "ARENA_BYTES_MAX", 4_096)
    monkeypatch.setattr(memory, "_threads", threading.local())
    for turn in range(20):
        assert check(gauge_request(20, name=f"m{turn}").SerializeToString())
        assert len(memory._threads.memories["metrics"].entries) <= 64
    assert not check(gauge_request(100).SerializeToString()), "more than can be remembered"
    assert check(gauge_request(20).SerializeToString())


def test_a_request_that_failed_does_not_disturb_the_next():
    data = gauge_request(10, name="first").SerializeToString()
    for bad in (field(7, b"") + field(1, b"\xff"), gauge_request(1, name="\0").SerializeToString()):
        assert not check(data[:-3])
        check(data + bad)
        assert check(data)


def test_requests_decoded_together_run_what_warm_up_compiled():
    data = gauge_request(3).SerializeToString()
    assert check(data)
    compiled = list(scan_metrics.signatures)
    assert check(memoryview(bytearray(data)))
    assert list(scan_metrics.signatures) == compiled


def test_threads_do_not_disturb_each_other():
    requests = [gauge_request(50, name=f"m{n}").SerializeToString() for n in range(4)]
    expected = [official(data) for data in requests]

    def decode(turn):
        return fast_or_none(requests[turn % 4]) == expected[turn % 4]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(decode, range(80)))


def test_what_was_taken_the_fast_way_is_the_same_for_the_caller(monkeypatch):
    data = common_request().SerializeToString()
    ways = []
    decode = compiled_metrics.decode_metrics
    monkeypatch.setattr(
        compiled_metrics, "decode_metrics", lambda *given: ways.append(1) or decode(*given)
    )
    assert batches_of(decode_protobuf("metrics", data, arrived_ns=NOW_NS)) == official(data)
    assert ways == [1]


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_neither_protobuf_nor_the_compiler_is_loaded_before_it_is_needed():
    heavy = "print([m for m in ('numba', 'google.protobuf', 'opentelemetry') if m in sys.modules])"
    assert run(f"import sys, thermocline; {heavy}") == "[]\n"
    decode = "decode_protobuf('metrics', b'', arrived_ns=1)"
    code = f"import sys; from thermocline.ingest.otlp.protobuf import *; {decode}; {heavy}"
    assert "numba" not in run(code)


def test_the_cache_of_the_compiler_goes_where_it_is_told(tmp_path):
    code = """
from thermocline.ingest.otlp.compiled.protobuf_wire import read_varint
import numpy
print(read_varint(numpy.array([172, 2], numpy.uint8), 0, 2))
"""
    assert run(code, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == "(300, 2)\n"
    assert list((tmp_path / "cache").rglob("*.nbi"))


def test_the_batch_does_not_change_when_more_is_decoded():
    first = compiled_metrics.decode_metrics(gauge_request(5).SerializeToString(), LIMITS)
    before = batches_of(first)
    for number in range(50):
        compiled_metrics.decode_metrics(
            gauge_request(30, name=f"n{number}").SerializeToString(), LIMITS
        )
    assert batches_of(first) == before
    first.batches["metric_points"].validate(full=True)
