"""Requests decoded together have the same rows, counts and errors as each alone."""

import gzip

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.otlp_requests import (
    NOW_NS,
    REQUESTS,
    comparable,
    field,
    gauge_request,
    log_request,
    messages,
    otlp_json,
    span_request,
)
from thermocline.errors import BodyTooLarge, Invalid, ThermoclineError
from thermocline.ingest.otlp import batch_decode
from thermocline.ingest.otlp.batch_decode import DecodeOptions, RequestBody, decode_bodies, is_whole
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.outcome import DecodedRequest
from thermocline.ingest.otlp.protobuf import warm_up


@pytest.fixture(scope="module", autouse=True)
def _warm():
    warm_up()


def decode(signal, bodies, **way):
    return [share for shares in rounds(signal, bodies, **way) for share in shares]


def rounds(signal, bodies, **way):
    return decode_bodies(signal, bodies, DecodeOptions(NOW_NS, DecodeLimits(), **way))


def body(data, coding="identity"):
    return RequestBody("protobuf", coding, data)


def rows_of(shares):
    """Return all rows by table, sorted so that order does not matter."""
    found = {}
    for share in shares:
        if isinstance(share.outcome, DecodedRequest):
            for name, batch in share.outcome.batches.items():
                found.setdefault(name, []).extend(comparable(batch.to_pylist()))
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


def told(shares):
    """Return the response for the client at each position."""
    found = {}
    for share in shares:
        for place in share.positions:
            outcome = share.outcome
            if isinstance(outcome, ThermoclineError):
                found[place] = (type(outcome), outcome.message)
            else:
                found[place] = (outcome.rejected, outcome.message)
    return found


def test_whole_requests_are_one_share():
    bodies = [body(gauge_request(3, name=f"m{n}").SerializeToString()) for n in range(5)]
    [share] = decode("metrics", bodies)
    assert share.positions == (0, 1, 2, 3, 4)
    assert share.outcome.accepted == 15
    names = set(share.outcome.batches["metric_points"].column("metric").to_pylist())
    assert names == {"m0", "m1", "m2", "m3", "m4"}


@pytest.mark.parametrize(("signal", "make"), [("logs", log_request), ("traces", span_request)])
def test_other_signals_are_decoded_together_too(signal, make):
    shares = decode(signal, [body(make().SerializeToString())] * 4)
    assert [share.positions for share in shares] == [(0, 1, 2, 3)]
    assert shares[0].outcome.accepted == 4


def test_compressed_requests_are_decoded_together_with_others():
    data = gauge_request(3).SerializeToString()
    bodies = [
        body(data),
        body(gzip.compress(data), "gzip"),
        RequestBody("json", "", otlp_json(gauge_request(2))),
    ]
    shares = decode("metrics", bodies)
    assert sorted(share.positions for share in shares) == [(0, 1), (2,)]
    assert sum(share.outcome.accepted for share in shares) == 8


def test_I03_a_cut_request_takes_nothing_from_the_one_after_it():
    # Its last field is longer than the body: concatenated, it would swallow the next request.
    good = gauge_request(2).SerializeToString()
    bodies = [body(good), body(good[:-3]), body(good)]
    shares = decode("metrics", bodies)
    assert told(shares)[1][0] is Invalid
    assert sum(s.outcome.accepted for s in shares if isinstance(s.outcome, DecodedRequest)) == 4


def test_one_that_is_refused_in_part_leaves_the_others_untold():
    bad = gauge_request(3)
    bad.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[1].time_unix_nano = 0
    good = body(gauge_request(3).SerializeToString())
    shares = decode("metrics", [good, body(bad.SerializeToString()), good])
    found = told(shares)
    assert (found[0], found[2]) == ((0, ""), (0, ""))
    assert found[1][0] == 1
    assert sum(share.outcome.accepted for share in shares) == 8


def test_a_bomb_and_an_unknown_coding_are_refused_alone():
    good = body(gauge_request(1).SerializeToString())
    bomb = body(gzip.compress(bytes(1 << 20)), "gzip")
    shares = decode("metrics", [good, bomb, body(b"x", "br")], body_bytes_max=10_000)
    found = told(shares)
    assert (found[0], found[1][0], found[2][0]) == ((0, ""), BodyTooLarge, Invalid)


def test_more_than_the_limit_is_decoded_in_several_steps(monkeypatch):
    data = gauge_request(10).SerializeToString()
    monkeypatch.setattr(batch_decode, "TOGETHER_BYTES_MAX", 2 * len(data))
    shares = decode("metrics", [body(data)] * 5)
    assert [share.positions for share in shares] == [(0, 1), (2, 3), (4,)]


def padded(size_bytes):
    """Return a request of one point that is this large, most of it an unknown field."""
    data = gauge_request(1).SerializeToString()
    return data + field(15, bytes(size_bytes - len(data) - 5))


@pytest.mark.parametrize("is_together", [True, False])
def test_I01_bodies_are_inflated_by_rounds_of_a_limited_size(monkeypatch, is_together):
    sizes = []
    real = batch_decode.inflate

    def counted(data, coding, *, limit_bytes):
        found = real(data, coding, limit_bytes=limit_bytes)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(batch_decode, "inflate", counted)
    monkeypatch.setattr(batch_decode, "ROUND_BYTES_MAX", 1_000_000)
    given = [400_000, 400_000, 400_000, 3_000_000, 100, 999_000, 100_000]
    bodies = [body(gzip.compress(padded(size)), "gzip") for size in given]
    seen, places = [], []
    for shares in rounds("metrics", bodies, is_together=is_together):
        places.append(sorted(place for share in shares for place in share.positions))
        seen.append(len(sizes))
        assert all(share.outcome.rejected == 0 for share in shares)
    assert places == [[0, 1], [2], [3], [4, 5], [6]]
    # When a round is yielded, at most one body beyond it is inflated.
    assert seen == [3, 4, 5, 7, 7]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", True),
        (field(1, b"abc"), True),
        (field(1, b"abc") + b"\x78\x05", True),
        (b"\x09" + bytes(8), True),
        (b"\x0d" + bytes(4), True),
        (field(1, b"abc")[:-1], False),
        (b"\x0a", False),
        (b"\x0a\xff", False),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", False),
        (b"\x0b\x0c", False),
        (b"\x0f", False),
        (b"\x02\x00", False),
        (b"\x09" + bytes(7), False),
        (b"\x78\xff", False),
        (field(1, b"") * 64, True),
        (field(1, b"") * 65, False),
    ],
)
def test_a_message_is_whole_when_its_fields_end_with_it(data, expected):
    assert is_whole(data) is expected


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data(), signal=st.sampled_from(sorted(REQUESTS)))
def test_together_and_alone_give_the_same_rows_and_tell_the_same(data, signal):
    made = data.draw(st.lists(messages(REQUESTS[signal]), min_size=2, max_size=4))
    bodies = [body(one.SerializeToString()) for one in made]
    if data.draw(st.booleans()):
        cut = data.draw(st.integers(0, len(bodies) - 1))
        end = data.draw(st.integers(0, len(bodies[cut].data)))
        bodies[cut] = body(bodies[cut].data[:end])
    combined = decode(signal, bodies)
    alone = decode(signal, bodies, is_together=False)
    assert sorted(place for share in combined for place in share.positions) == [*range(len(bodies))]
    assert told(combined) == told(alone)
    assert rows_of(combined) == rows_of(alone)
    for share in combined:
        if isinstance(share.outcome, DecodedRequest):
            assert all(isinstance(b, pa.RecordBatch) for b in share.outcome.batches.values())
