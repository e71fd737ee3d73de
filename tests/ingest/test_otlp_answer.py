"""OTLP's clients can parse the responses."""

import orjson
import pytest
from google.protobuf import json_format
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from thermocline.ingest.otlp.answer import MESSAGE_BYTES_MAX, encode_failure, encode_success
from thermocline.ingest.otlp.outcome import DecodedRequest

RESPONSES = {
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
    "logs": (ExportLogsServiceResponse, "rejected_log_records"),
    "traces": (ExportTraceServiceResponse, "rejected_spans"),
}


def parsed(kind, data, encoding):
    if encoding == "json":
        return json_format.Parse(data, kind())
    message = kind()
    message.ParseFromString(data)
    return message


@pytest.mark.parametrize("signal", RESPONSES)
def test_a_full_success_has_no_partial_success(signal):
    whole = DecodedRequest(signal, {}, 5, 0, "")
    assert (encode_success(whole, "protobuf"), encode_success(whole, "json")) == (b"", b"{}")


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
@pytest.mark.parametrize("signal", RESPONSES)
@pytest.mark.parametrize("rejected", [0, 1, 300, 1 << 40])
def test_I09_a_partial_success_says_how_many_and_why(signal, encoding, rejected):
    kind, field = RESPONSES[signal]
    answer = parsed(
        kind, encode_success(DecodedRequest(signal, {}, 5, rejected, "wéll"), encoding), encoding
    )
    assert answer.HasField("partial_success")
    assert getattr(answer.partial_success, field) == rejected
    assert answer.partial_success.error_message == "wéll"


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_a_failure_is_a_status_of_rpc(encoding):
    status = parsed(Status, encode_failure(3, "not good", encoding), encoding)
    assert (status.code, status.message, len(status.details)) == (3, "not good", 0)


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_I11_a_failure_with_a_delay_carries_retry_info(encoding):
    status = parsed(Status, encode_failure(14, "later", encoding, retry_after_s=1.25), encoding)
    info = RetryInfo()
    assert status.details[0].Unpack(info)
    assert (info.retry_delay.seconds, info.retry_delay.nanos) == (1, 250_000_000)


def test_a_long_message_is_cut_between_characters():
    answer = orjson.loads(encode_failure(3, "é" * MESSAGE_BYTES_MAX, "json"))
    assert answer["message"] == "é" * (MESSAGE_BYTES_MAX // 2)
