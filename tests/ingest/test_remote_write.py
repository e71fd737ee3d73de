"""Remote write, of messages that the official protobuf library encodes, and damaged ones."""

import json
import math
import random

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from thermocline.errors import BodyTooLarge, Invalid
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.prometheus import scan_request
from thermocline.ingest.prometheus.remote_write import decode_remote_write

FIELD = descriptor_pb2.FieldDescriptorProto
STALE = np.array([0x7FF0_0000_0000_0002], np.int64).view(np.float64)[0]
SHAPES = {
    "Label": [("name", 1, "STRING", None), ("value", 2, "STRING", None)],
    "Sample": [("value", 1, "DOUBLE", None), ("timestamp", 2, "INT64", None)],
    "Exemplar": [("value", 2, "DOUBLE", None)],
    "Histogram": [("timestamp", 15, "INT64", None)],
    "About": [("type", 1, "UINT32", None), ("help_ref", 3, "UINT32", None),
              ("unit_ref", 4, "UINT32", None)],
    "Series1": [("labels", 1, "MESSAGE", "Label"), ("samples", 2, "MESSAGE", "Sample"),
                ("exemplars", 3, "MESSAGE", "Exemplar"),
                ("histograms", 4, "MESSAGE", "Histogram")],
    "Request1": [("timeseries", 1, "MESSAGE", "Series1"), ("metadata", 3, "MESSAGE", "Label")],
    "Series2": [("labels_refs", 1, "UINT32", ""), ("samples", 2, "MESSAGE", "Sample"),
                ("histograms", 3, "MESSAGE", "Histogram"),
                ("exemplars", 4, "MESSAGE", "Exemplar"), ("metadata", 5, "ONE", "About")],
    "Request2": [("symbols", 4, "STRING", ""), ("timeseries", 5, "MESSAGE", "Series2")],
}  # fmt: skip


def message_classes():
    file = descriptor_pb2.FileDescriptorProto(name="w.proto", package="w", syntax="proto3")
    for name, fields in SHAPES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of in fields:
            made = message.field.add(name=field, number=number)
            made.type = getattr(FIELD, f"TYPE_{'MESSAGE' if kind == 'ONE' else kind}")
            is_list = of is not None and kind != "ONE"
            made.label = FIELD.LABEL_REPEATED if is_list else FIELD.LABEL_OPTIONAL
            if of:
                made.type_name = f".w.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"w.{name}"))
        for name in SHAPES
    }


MESSAGES = message_classes()


def random_series(choose):
    """Return labels, and samples with stale markers and odd values."""
    found = []
    for number in range(choose.randrange(1, 30)):
        labels = {"__name__": f"m{number % 3}_total", "job": choose.choice(["api", "eu/ü"])}
        labels |= {f"l{place}": str(choose.randrange(300)) for place in range(choose.randrange(5))}
        labels["number"] = str(number)
        values = [0.0, -1.5, math.inf, float(STALE), choose.random() * 10 ** choose.randrange(300)]
        times = sorted(choose.sample(range(-1000, 1 << 41), choose.randrange(4)))
        found.append((labels, [(time_ms, choose.choice(values)) for time_ms in times]))
    return found


def encode(series, version):
    request = MESSAGES[f"Request{version}"]()
    symbols = {"": 0, "Served.": 1, "seconds": 2}
    for labels, samples in series:
        made = request.timeseries.add()
        for name, value in sorted(labels.items()):
            if version == 1:
                made.labels.add(name=name, value=value)
            else:
                references = [symbols.setdefault(text, len(symbols)) for text in (name, value)]
                made.labels_refs.extend(references)
        for time_ms, value in samples:
            made.samples.add(value=value, timestamp=time_ms)
        if version == 2:
            made.metadata.type, made.metadata.help_ref, made.metadata.unit_ref = 1, 1, 2
    if version == 2:
        request.symbols.extend(symbols)
    return request.SerializeToString()


def expected(series):
    return [
        (labels, time_ms, None if is_stale(value) else value)
        for labels, samples in series
        for time_ms, value in samples
    ]


def is_stale(value):
    return np.array([value]).view(np.int64)[0] == 0x7FF0_0000_0000_0002


def read(decoded):
    if not decoded.batches:
        return []
    rows = decoded.batches["metric_points"].to_pylist()
    found = []
    for row in rows:
        labels = json.loads(row["attributes"]) | {"__name__": row["metric"]}
        assert row["service_name"] == json.loads(row["resource"])["service.name"]
        assert row["flags"] == int(row["value"] is None)
        found.append(
            (labels | {"job": row["service_name"]}, row["ts_ns"] // 1_000_000, row["value"])
        )
    return found


@pytest.fixture(scope="module", params=["plain", "compiled"])
def form(request):
    kept = list(scan_request._compiled)
    scan_request._compiled.clear()
    if request.param == "compiled":
        scan_request.compile_scan()
    yield request.param
    scan_request._compiled[:] = kept


@pytest.mark.parametrize("version", [1, 2])
def test_every_sample_is_a_row_with_its_labels(form, version):
    for seed in range(25):
        series = random_series(random.Random(seed))
        decoded = decode_remote_write(encode(series, version), version, DecodeLimits())
        assert read(decoded) == expected(series), seed
        assert (decoded.accepted, decoded.rejected) == (len(expected(series)), 0)


def test_both_versions_and_both_orders_of_labels_give_one_series():
    labels = {"__name__": "up", "job": "a", "x": "1"}
    ids = set()
    for version in (1, 2):
        for given in (labels, dict(reversed(labels.items()))):
            made = decode_remote_write(
                encode([(given, [(1, 2.0)])], version), version, DecodeLimits()
            )
            ids.add(made.batches["metric_points"].column("series_id")[0].as_py())
    assert len(ids) == 1


def test_metadata_of_2_is_stored_and_what_is_not_supported_is_counted_by_name():
    request = MESSAGES["Request2"].FromString(
        encode([({"__name__": "a", "job": "b"}, [(1, 2.0)])], 2)
    )
    request.timeseries[0].histograms.add(timestamp=1)
    request.timeseries[0].exemplars.add(value=1)
    decoded = decode_remote_write(request.SerializeToString(), 2, DecodeLimits())
    (row,) = decoded.batches["metric_points"].to_pylist()
    assert row["description"] == "Served."
    assert json.loads(row["metric_metadata"]) == {
        "prometheus.type": "counter", "prometheus.unit": "seconds",
    }  # fmt: skip
    assert (decoded.accepted, decoded.rejected) == (1, 1)
    assert "native histograms, which are not supported (1)" in decoded.message
    assert "exemplars, which are not stored (1)" in decoded.message


def test_a_series_without_a_name_is_refused_alone():
    series = [({"job": "a"}, [(1, 1.0)]), ({"__name__": "b", "job": "a"}, [(1, 2.0)])]
    decoded = decode_remote_write(encode(series, 1), 1, DecodeLimits())
    assert (decoded.accepted, decoded.rejected) == (1, 1)
    assert "labels that are not valid (1)" in decoded.message


@pytest.mark.parametrize("time_ms", [-(2**63), 2**63 - 1, -(2**44)])
def test_a_time_that_nanoseconds_cannot_hold_is_refused_by_name(time_ms):
    series = [({"__name__": "b"}, [(time_ms, 1.0), (5, 2.0)])]
    decoded = decode_remote_write(encode(series, 1), 1, DecodeLimits())
    assert (decoded.accepted, decoded.rejected) == (1, 1)
    assert "a time beyond int64 nanoseconds (1)" in decoded.message


@pytest.mark.parametrize("version", [1, 2])
def test_a_damaged_request_is_refused_or_read_and_never_more(form, version):
    choose = random.Random(version)
    whole = encode(random_series(choose), version)
    limits = DecodeLimits()
    for _ in range(150):
        data = bytearray(whole)
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        try:
            decode_remote_write(bytes(data[: choose.randrange(len(data))]), version, limits)
            decode_remote_write(bytes(data), version, limits)
        except Invalid:
            continue


def test_more_samples_than_the_limit_are_refused():
    series = [({"__name__": "a"}, [(time_ms, 1.0) for time_ms in range(20)])]
    with pytest.raises(BodyTooLarge, match="more series and samples"):
        decode_remote_write(encode(series, 1), 1, DecodeLimits(items_max=20))
