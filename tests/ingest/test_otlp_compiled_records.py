"""Logs and traces by the compiled scanner: exactly the official decoder's rows, or None."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.otlp_rebuilt import items
from ingest.otlp_requests import (
    NOW_NS,
    REQUESTS,
    SPAN_ID,
    TRACE_ID,
    any_value,
    batches_of,
    field,
    log_request,
    messages,
    pairs,
    span_request,
)
from thermocline.errors import Invalid
from thermocline.ingest.otlp.compiled import memory
from thermocline.ingest.otlp.compiled import records as compiled_records
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.protobuf import decode_fast, decode_official, decode_protobuf, warm_up

LIMITS = DecodeLimits()
SIGNALS = ("logs", "traces")


@pytest.fixture(scope="module", autouse=True)
def _warm():
    warm_up()


def official(signal, data, limits=LIMITS):
    """Return the official decoder's outcome, or None when it refuses the request."""
    try:
        return batches_of(decode_official(signal, data, arrived_ns=NOW_NS, limits=limits))
    except Invalid:
        return None


def fast_or_none(signal, data, limits=LIMITS):
    decoded = compiled_records.decode_records(signal, data, limits, NOW_NS)
    if decoded is None:
        return None
    for batch in decoded.batches.values():
        batch.validate(full=True)
    return batches_of(decoded)


def check(signal, data, limits=LIMITS):
    """Check that both decoders agree; tell whether the fast one decoded the request."""
    found = fast_or_none(signal, data, limits)
    assert found is None or found == official(signal, data, limits)
    return found is not None


def logs(records=4):
    """Return a request as exporters send them, with bodies of every kind."""
    request = REQUESTS["logs"]()
    group = request.resource_logs.add(schema_url="https://a")
    group.resource.attributes.extend(pairs({"service.name": "shop", "cores": 4}))
    scope = group.scope_logs.add(schema_url="https://b")
    scope.scope.name = "till"
    bodies = ["paid", "", {"a": [1, None]}, 7, None, "naïve ☃ \0", [b"x", 1.5], True]
    for place in range(records):
        record = scope.log_records.add(
            time_unix_nano=NOW_NS + place if place % 3 else 0,
            observed_time_unix_nano=NOW_NS if place % 2 else 0,
            severity_number=place % 25,
            severity_text=("", "INFO", "é")[place % 3],
            event_name="" if place % 4 else "sold",
            dropped_attributes_count=place,
            flags=(0, 1, 0xFFFF_FFFF)[place % 3],
            trace_id=b"" if place % 5 else TRACE_ID,
            span_id=(SPAN_ID, b"", bytes(8))[place % 3],
        )
        if place % 9:
            record.body.CopyFrom(any_value(bodies[place % 8]))
        if place % 7:
            record.attributes.extend(pairs({"n": place % 3, "b": "é\0", "c": [1.5, {"x": b"y"}]}))
    group.scope_logs.add().scope.name = "empty"
    return request


def traces(spans=4):
    """Return a request as exporters send them, some spans with events and links."""
    request = REQUESTS["traces"]()
    group = request.resource_spans.add(schema_url="https://a")
    group.resource.attributes.extend(pairs({"service.name": "shop", "host.name": "h"}))
    scope = group.scope_spans.add()
    for place in range(spans):
        span = scope.spans.add(
            trace_id=TRACE_ID,
            span_id=SPAN_ID,
            parent_span_id=(b"", SPAN_ID, bytes(8))[place % 3],
            trace_state="" if place % 2 else f"a={place}",
            name=("", "pay", "é")[place % 3],
            kind=place % 8,
            start_time_unix_nano=NOW_NS,
            end_time_unix_nano=NOW_NS + place if place % 4 else 0,
            dropped_attributes_count=place,
            dropped_events_count=place,
            dropped_links_count=place,
            flags=(0, 257, 0xFFFF_FFFF)[place % 3],
        )
        span.attributes.extend(pairs({"n": place % 2}) if place % 3 else [])
        if place % 4:
            span.status.code = place % 4
            span.status.message = "" if place % 2 else f"no {place % 3}"
        if place % 5 == 1:
            span.events.add(time_unix_nano=5, name="e").attributes.extend(pairs({"a": 1}))
        if place % 5 == 2:
            span.links.add(trace_id=TRACE_ID, span_id=SPAN_ID, flags=1, trace_state="x")
    return request


MADE = {"logs": logs, "traces": traces}


@pytest.mark.parametrize("signal", SIGNALS)
def test_what_exporters_send_is_taken_and_equal(signal):
    data = MADE[signal](60).SerializeToString()
    assert check(signal, data)
    assert check(signal, data), "and so it is when everything is known already"
    assert check(signal, data + MADE[signal](3).SerializeToString()), "two in one are merged"
    decoded = decode_fast(signal, data, arrived_ns=NOW_NS, limits=LIMITS)
    assert batches_of(decoded) == official(signal, data)


@pytest.mark.parametrize("signal", SIGNALS)
def test_the_fast_way_is_the_one_that_is_used(signal, monkeypatch):
    data = MADE[signal]().SerializeToString()
    ways = []
    real = compiled_records.decode_records
    monkeypatch.setattr(
        compiled_records, "decode_records", lambda *given: ways.append(1) or real(*given)
    )
    found = decode_protobuf(signal, data, arrived_ns=NOW_NS)
    assert (batches_of(found), ways) == (official(signal, data), [1])


@pytest.mark.slow
@pytest.mark.parametrize("signal", SIGNALS)
@settings(max_examples=150)
@given(data=st.data())
def test_a_random_request_gives_what_the_official_decoder_gives(signal, data):
    request = data.draw(messages(REQUESTS[signal]))
    check(signal, request.SerializeToString())
    # Concatenated requests are one request of all items that have nothing to note.
    parts = [item.SerializeToString() for item in items(request)]
    check(signal, b"".join(part for part in parts if official(signal, part)[2:] == (0, "")))


@pytest.mark.parametrize("signal", SIGNALS)
@settings(max_examples=200)
@given(data=st.data())
def test_damaged_bytes_give_what_the_official_decoder_gives(signal, data):
    whole = bytearray(MADE[signal](9).SerializeToString())
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
    check(signal, bytes(whole))


@pytest.mark.parametrize("signal", SIGNALS)
def test_I03_a_request_cut_at_any_byte_is_left_to_the_official_decoder(signal):
    data = MADE[signal](6).SerializeToString()
    for length in range(1, len(data)):
        # The same bytes continue after the end: a read past the end would find a complete request.
        assert compiled_records.decode_records(signal, data[:length], LIMITS, NOW_NS) is None
        assert fast_or_none(signal, memoryview(data)[:length]) is None


UNUSUAL = {
    "an unknown field": lambda record: record + field(99, b"new"),
    "a group": lambda record: record + b"\xa3\x06\xa4\x06",
    "field zero": lambda record: record + b"\x02\x01x",
    "a time that comes twice": lambda record: record + b"\x09" + (5).to_bytes(8, "little"),
    "a number of ten bytes": lambda record: record + b"\x10" + b"\xff" * 9 + b"\x01",
    "a number of 33 bits": lambda record: record + b"\x50\x80\x80\x80\x80\x10",
    "attributes apart": lambda record: record + field(6, field(1, b"z")) + field(9, field(1, b"z")),
    "a text twice": lambda record: record + field(3, b"one") + field(3, b"two"),
    "a text that is not UTF-8": lambda record: record + field(3, b"\xff"),
    "a name that is not UTF-8": lambda record: record + field(5, b"\xff"),
    "a body twice": lambda record: record + field(5, field(1, b"a")) + field(5, b"\x18\x05"),
    "a body that is not UTF-8": lambda record: record + field(5, field(1, b"\xed\xa0\x80")),
    "a body of two kinds": lambda record: record + field(5, field(1, b"a") + b"\x18\x05"),
    "a body of a text twice": lambda record: record + field(5, field(1, b"a") + field(1, b"b")),
    "a body that is empty": lambda record: record + field(5, b""),
    "a status twice": lambda record: record + field(15, b"\x18\x01") + field(15, field(2, b"m")),
    "ids of a wrong length": lambda record: record + field(9, b"ab") + field(1, b"ab"),
    "a span id of zeros": lambda record: record + field(10, bytes(8)) + field(2, bytes(8)),
    "flags of four bytes": lambda record: record + b"\x45\xff\xff\xff\xff",
    "flags cut": lambda record: record + b"\x45\xff\xff",
    "time as a varint": lambda record: record + b"\x08\x01",
}


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("change", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_records_give_what_the_official_decoder_gives(signal, change):
    request = (log_request if signal == "logs" else span_request)(
        attributes=pairs({"a": 1}), flags=1
    )
    group = request.resource_logs if signal == "logs" else request.resource_spans
    scope = group[0].scope_logs[0] if signal == "logs" else group[0].scope_spans[0]
    record = (scope.log_records if signal == "logs" else scope.spans)[0].SerializeToString()
    for changed in (change(record), change(b"") + record):
        data = field(1, field(2, field(2, changed) + field(2, record)))
        check(signal, data)
        check(signal, data)


@pytest.mark.parametrize(
    ("signal", "request_"),
    [
        ("logs", log_request(time_unix_nano=1 << 63)),
        ("logs", log_request(trace_id=b"x")),
        ("logs", log_request(body=any_value("x" * 11))),
        ("logs", log_request(severity_text="x" * 11)),
        ("traces", span_request(trace_id=bytes(16))),
        ("traces", span_request(start_time_unix_nano=0)),
        ("traces", span_request(end_time_unix_nano=1)),
        ("traces", span_request(trace_state="x" * 11)),
        ("traces", span_request(name="x" * 11)),
    ],
)
def test_I09_I13_what_is_to_be_refused_or_told_is_left_to_the_official_decoder(signal, request_):
    data, limits = request_.SerializeToString(), DecodeLimits(value_bytes_max=10, body_bytes_max=10)
    for _ in range(2):
        assert fast_or_none(signal, data, limits) is None
        found = decode_protobuf(signal, data, arrived_ns=NOW_NS, limits=limits)
        assert found.is_partial
        assert batches_of(found) == official(signal, data, limits)


@pytest.mark.parametrize("signal", SIGNALS)
def test_what_is_remembered_is_bounded_and_then_forgotten(signal, monkeypatch):
    monkeypatch.setattr(memory, "ENTRIES_MAX", 64)
    monkeypatch.setattr(memory, "ARENA_BYTES_MAX", 4_096)
    monkeypatch.setattr(memory, "_threads", threading.local())
    make = log_request if signal == "logs" else span_request
    for turn in range(100):
        assert check(signal, make(attributes=pairs({"turn": turn})).SerializeToString())
        assert len(memory._threads.memories[signal].entries) <= 64
    many = [make(attributes=pairs({"n": n})).SerializeToString() for n in range(100)]
    assert not check(signal, b"".join(many)), "more than can be remembered"
    assert check(signal, many[0])


def test_threads_and_signals_do_not_disturb_each_other():
    requests = [
        (signal, MADE[signal](30 + n).SerializeToString()) for signal in SIGNALS for n in (0, 1)
    ]
    expected = [official(*one) for one in requests]

    def decode(turn):
        return fast_or_none(*requests[turn % 4]) == expected[turn % 4]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(decode, range(60)))


@pytest.mark.parametrize("signal", SIGNALS)
def test_the_batch_does_not_change_when_more_is_decoded(signal):
    first = compiled_records.decode_records(
        signal, MADE[signal](9).SerializeToString(), LIMITS, NOW_NS
    )
    before = batches_of(first)
    for number in range(40):
        compiled_records.decode_records(
            signal, MADE[signal](number).SerializeToString(), LIMITS, NOW_NS
        )
    assert batches_of(first) == before
