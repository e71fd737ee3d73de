"""Decodes OTLP in protobuf to batches.

In:   the bytes of an `Export{Metrics,Logs,Trace}ServiceRequest`, inflated
Out:  `DecodedRequest`: batches by table, with counts and a message for the client

- Bytes that are no such message, that are nested deeper than protobuf's own limit, or whose items
  are all of another signal: `Invalid`, and nothing of them is taken.
- An item with a text that is not UTF-8 is refused alone, and counted (`bad_text.py`).
- A request with more parts than the limits is refused before the official library builds anything
  from it (`part_count.py`).
- Fields that this version does not know are ignored, as the specification says. A resource that
  has such fields and no scopes is reported; a request of nothing else is `Invalid`.
- Requests in the common shape are decoded by compiled code once `warm_up` has returned; the
  outcome is the same.
- The protobuf library is imported when the first request is decoded, the compiler by `warm_up`.
"""

from typing import Any

from thermocline.errors import Invalid
from thermocline.ingest.inflate import Data
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.outcome import DecodedRequest, Tally
from thermocline.ingest.otlp.part_count import check_parts
from thermocline.ingest.prometheus.scan_request import compile_scan

SIGNALS = ("metrics", "logs", "traces")

_warm_signals: set[str] = set()  # signals; a set's `add` and `in` need no lock


def decode_protobuf(
    signal: str, data: bytes, *, arrived_ns: int, limits: DecodeLimits | None = None
) -> DecodedRequest:
    """Return the rows of a request; `Invalid` when the bytes are not a request of this signal.

    `signal` is one of `SIGNALS`. `arrived_ns` is the time of log records without a time.
    """
    limits = limits or DecodeLimits()
    if signal in _warm_signals:
        decoded = _decode_compiled(signal, data, arrived_ns, limits)
        if decoded is not None:
            return decoded
    return decode_official(signal, data, arrived_ns=arrived_ns, limits=limits)


def decode_fast(
    signal: str, data: Data, *, arrived_ns: int, limits: DecodeLimits
) -> DecodedRequest | None:
    """Return the rows of a request without anything to refuse or to note, else None.

    None does not mean that the request is invalid. After `warm_up` returned, this never uses the
    official library, so that a None is cheap.
    """
    if signal in _warm_signals:
        return _decode_compiled(signal, data, arrived_ns, limits)
    if signal == "metrics":
        return None
    try:
        decoded = decode_official(signal, bytes(data), arrived_ns=arrived_ns, limits=limits)
    except Invalid:
        return None
    return None if decoded.is_partial else decoded


def _decode_compiled(
    signal: str, data: Data, arrived_ns: int, limits: DecodeLimits
) -> DecodedRequest | None:
    if signal == "metrics":
        from thermocline.ingest.otlp.compiled.metrics import decode_metrics

        return decode_metrics(data, limits)
    from thermocline.ingest.otlp.compiled.records import decode_records

    return decode_records(signal, data, limits, arrived_ns)


def warm_up() -> None:
    """Compile the fast decoder, signal by signal; until then the official decoder handles a signal.

    Compiling takes up to half a minute once for an installation, and less than a second with the
    cached result. Call it in a thread beside the first requests.
    """
    request = empty_message("metrics")
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="warm")
    metric.gauge.data_points.add(time_unix_nano=1, as_int=1)
    _warm_up_signal("metrics", request)
    request = empty_message("logs")
    record = request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=1)
    record.body.string_value = "warm"
    _warm_up_signal("logs", request)
    request = empty_message("traces")
    request.resource_spans.add().scope_spans.add().spans.add(
        trace_id=bytes([1] * 16), span_id=bytes([1] * 8), start_time_unix_nano=1
    )
    _warm_up_signal("traces", request)
    compile_scan()


def _warm_up_signal(signal: str, request: Any) -> None:
    from thermocline.ingest.otlp.compiled.part_scan import scan_parts

    data = request.SerializeToString()
    _decode_compiled(signal, data, 1, DecodeLimits())
    check_parts(signal, data, DecodeLimits(items_max=8), scan_parts)
    _warm_signals.add(signal)


def decode_official(
    signal: str, data: bytes, *, arrived_ns: int, limits: DecodeLimits
) -> DecodedRequest:
    """Return the same rows, always decoded by the official protobuf library."""
    _check_request(signal, data, limits)
    tally = Tally(signal)
    return message_batches(signal, _parse_message(signal, data, tally), arrived_ns, limits, tally)


def _check_request(signal: str, data: bytes, limits: DecodeLimits) -> None:
    if signal not in _warm_signals:
        check_parts(signal, data, limits)
        return
    from thermocline.ingest.otlp.compiled.part_scan import scan_parts

    check_parts(signal, data, limits, scan_parts)


def message_batches(
    signal: str, message: Any, arrived_ns: int, limits: DecodeLimits, tally: Tally
) -> DecodedRequest:
    """Return the rows of a parsed request; the tally may already have refused items."""
    decoded = _decode_message(signal, message, arrived_ns, limits, tally)
    if tally.is_foreign:
        raise _not_a_request_error(signal)
    if tally.unknown is not None:
        raise Invalid(
            "all items are under names that OTLP does not have",
            hint="name the fields as OTLP 1.x does; update the exporter",
            signal=signal,
            got=tally.unknown,
        )
    return decoded


def _decode_message(
    signal: str, message: Any, arrived_ns: int, limits: DecodeLimits, tally: Tally
) -> DecodedRequest:
    if signal == "metrics":
        from thermocline.ingest.otlp.metrics import metrics_batches

        return metrics_batches(message, limits, tally)
    if signal == "logs":
        from thermocline.ingest.otlp.records import logs_batches

        return logs_batches(message, limits, arrived_ns, tally)
    from thermocline.ingest.otlp.spans import traces_batches

    return traces_batches(message, limits, tally)


def empty_message(signal: str) -> Any:
    """Return an empty request of a signal."""
    if signal == "metrics":
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
            ExportMetricsServiceRequest,
        )

        return ExportMetricsServiceRequest()
    if signal == "logs":
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
            ExportLogsServiceRequest,
        )

        return ExportLogsServiceRequest()
    if signal == "traces":
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        return ExportTraceServiceRequest()
    raise Invalid("no such signal", hint="use metrics, logs or traces", signal=signal)


def _parse_message(signal: str, data: bytes, tally: Tally) -> Any:
    from google.protobuf.message import DecodeError

    from thermocline.ingest.otlp.bad_text import MalformedMessage, remove_bad_texts

    message = empty_message(signal)
    try:
        message.ParseFromString(data)
    except DecodeError:
        message = empty_message(signal)
        try:
            message.ParseFromString(remove_bad_texts(signal, message, data, tally))
        except (DecodeError, MalformedMessage) as error:
            raise _not_a_request_error(signal) from error
    return message


def _not_a_request_error(signal: str) -> Invalid:
    return Invalid(
        "the body is not a request of this signal in protobuf",
        hint="check that the exporter's signal and content type match the path",
        signal=signal,
    )
