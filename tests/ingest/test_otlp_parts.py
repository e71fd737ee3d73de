"""A request with more parts than the limits is refused before anything is built from it."""

import subprocess
import sys

import pytest
from otlp_requests import (
    NOW_NS,
    REQUESTS,
    gauge_request,
    log_request,
    otlp_json,
    pairs,
    span_request,
)

from thermocline.errors import BodyTooLarge
from thermocline.ingest.otlp import protobuf
from thermocline.ingest.otlp.batch_decode import DecodeOptions, RequestBody, decode_bodies
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.outcome import DecodedRequest
from thermocline.ingest.otlp.varint import encode_bytes

FEW = DecodeLimits(items_max=40, values_max=400, json_values_max=2_000)


def nested(numbers, inner):
    """Return a message in messages of these field numbers."""
    for number in reversed(numbers):
        inner = encode_bytes(number, inner)
    return inner


BOMBS = {
    "logs of empty records": ("logs", nested((1, 2), nested((2,), b"") * 100)),
    "empty resources": ("logs", nested((1,), b"") * 100),
    "empty scopes": ("traces", nested((1,), nested((2,), b"") * 100)),
    "attributes of a resource": ("metrics", nested((1, 1), nested((1,), b"") * 900)),
    "attributes of a record": ("logs", nested((1, 2, 2), nested((6,), b"") * 900)),
    "values of a body": ("logs", nested((1, 2, 2, 5, 5), nested((1,), b"") * 900)),
    "events of a span": ("traces", nested((1, 2, 2), nested((11,), b"") * 100)),
    "points of a gauge": ("metrics", nested((1, 2, 2, 5), nested((1,), b"") * 100)),
    "exemplars": ("metrics", nested((1, 2, 2, 5, 1), nested((5,), b"") * 100)),
    "packed buckets": ("metrics", nested((1, 2, 2, 9, 1, 6), bytes(8_000))),
    "buckets one by one": ("metrics", nested((1, 2, 2, 9, 1), b"\x30\x01" * 4_000)),
    "unknown fields": ("logs", b"\xf0\x7d\x01" * 4_000),
    "unknown fields before a fault": ("logs", b"\xf0\x7d\x01" * 4_000 + b"\x0a\x05a"),
}


def outcome(signal, data, limits, encoding="protobuf"):
    """Return the outcome of one body."""
    options = DecodeOptions(NOW_NS, limits)
    (shares,) = decode_bodies(signal, [RequestBody(encoding, "identity", data)], options)
    return shares[0].outcome


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("name", BOMBS)
def test_A12_a_request_of_too_many_parts_is_refused(monkeypatch, name, is_warm):
    signal, data = BOMBS[name]
    if is_warm:
        protobuf.warm_up()
    else:
        monkeypatch.setattr(protobuf, "_warm_signals", set())
    found = outcome(signal, data, FEW)
    if is_warm and name in ("unknown fields", "empty scopes"):
        assert found.accepted == 0  # compiled code skips them and builds nothing
    else:
        assert isinstance(found, BodyTooLarge), found
    if "fault" not in name:
        assert isinstance(outcome(signal, data, DecodeLimits()), DecodedRequest | Exception)
        REQUESTS[signal].FromString(data)  # it is a request: only its size is wrong


@pytest.mark.parametrize(
    ("signal", "request_"),
    [
        ("metrics", gauge_request(100)),
        ("logs", log_request(attributes=pairs({f"k{n}": n for n in range(600)}))),
        ("traces", span_request(events=[{"name": str(n)} for n in range(100)])),
    ],
)
def test_A12_json_is_counted_as_protobuf_is(signal, request_):
    data = otlp_json(request_)
    tight = DecodeLimits(items_max=40, values_max=400, json_values_max=1_000)
    assert isinstance(outcome(signal, data, tight, "json"), BodyTooLarge)
    assert outcome(signal, data, DecodeLimits(), "json").accepted


def test_A12_a_request_within_the_limits_has_the_same_outcome_with_and_without_them():
    data = gauge_request(30).SerializeToString()
    roomy, tight = outcome("metrics", data, DecodeLimits()), outcome("metrics", data, FEW)
    assert roomy.batches == tight.batches
    assert roomy.accepted == tight.accepted == 30


_PROGRAM = """
import resource
from thermocline.ingest.otlp.batch_decode import *
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.varint import encode_bytes
from thermocline.query.worker.memory_limit import private_bytes
import opentelemetry.proto.collector.logs.v1.logs_service_pb2, orjson, google.protobuf.message
count = 5_000_000
bombs = [
    ("protobuf", encode_bytes(1, encode_bytes(2, bytes([18, 0]) * count))),
    ("json", b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{}' + b",{}" * count + b"]}]}]}"),
]
limit = private_bytes() + (200 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
for encoding, data in bombs:
    (shares,) = decode_bodies(
        "logs", [RequestBody(encoding, "identity", data)], DecodeOptions(1, DecodeLimits())
    )
    print(type(shares[0].outcome).__name__)
"""


def test_A12_five_million_empty_records_need_no_memory():
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.stdout.split() == ["BodyTooLarge", "BodyTooLarge"], done.stderr
