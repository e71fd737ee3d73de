"""Prometheus' HTTP API for queries, so that clients of Prometheus read a lake's metrics.

In:   the parameters of `/api/v1/query` and the other routes, in the address or as a form
Out:  documents in Prometheus' format; an error is one, too, with Prometheus' kind of error

- A query counts as a query of the tenant, ends at the smaller of its client's timeout and the
  node's, and ends soon after its client has disconnected.
- All evaluations of a node share one budget of samples.
"""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Send

from thermocline import __version__
from thermocline.errors import Invalid, Overloaded, QueryTimeout
from thermocline.lake import Lake
from thermocline.promql.answer import data_document, instant_document, range_document
from thermocline.promql.evaluate import (
    LOOKBACK_MS,
    EvaluationLimits,
    evaluate_instant,
    evaluate_range,
)
from thermocline.promql.labels import NAME, Labels, Matcher
from thermocline.promql.lake_source import LakeSource
from thermocline.promql.notes import Notes
from thermocline.promql.reader import TIMEOUT_S_DEFAULT, SampleBudget, open_source
from thermocline.promql.syntax import parse_matchers
from thermocline.server.api.http.incoming import (
    ClientGone,
    field_values,
    read_body,
    wait_for_disconnect,
)
from thermocline.server.api.http.reply import send_answer
from thermocline.server.api.types.request_types import PrometheusParams
from thermocline.server.api.types.route import ApiRequest, ApiResponse, Streamed

FORM = "application/x-www-form-urlencoded"
FORM_BYTES_MAX = 1 << 20
FORM_FIELDS_MAX = 1_000
ANSWER_BYTES_MAX = 1 << 30
LISTED_MS = 24 * 3_600_000
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w|y)")
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_TIME_S_MAX = 2**53 / 1000
CHARGED_BYTES_MIN = 256 << 10
_budget = SampleBudget()

Work = Callable[[Lake, PrometheusParams, EvaluationLimits], bytes]


def _answering(work: Work) -> Streamed:
    """Return the handler of a route that is answered on a thread for evaluations."""

    async def handle(call: ApiRequest, send: Send) -> None:
        asked = await _read_parameters(call)
        stopped = threading.Event()
        limits = EvaluationLimits(
            lookback_ms=_milliseconds(asked.lookback_delta, "lookback_delta", LOOKBACK_MS),
            is_stopped=stopped.is_set,
        )
        with call.parts.quota.of(call.caller.tenant).count_query():
            gone = asyncio.ensure_future(wait_for_disconnect(call.receive))
            began_s, outcome = time.monotonic(), "error"
            try:
                doing = call.parts.evaluating.start(
                    lambda: work(call.lake, asked, limits), tenant=call.caller.tenant
                )
                either: set[asyncio.Future[Any]] = {doing, gone}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not doing.done():
                    outcome = "gone"
                    raise ClientGone
                data = await doing
                outcome = "ok"
            except QueryTimeout:
                outcome = "timeout"
                raise
            except Overloaded:
                outcome = "overloaded"
                raise
            finally:
                stopped.set()
                gone.cancel()
                call.parts.metrics.count_query(outcome, time.monotonic() - began_s)
        await _send(call, send, data)

    return handle


async def _send(call: ApiRequest, send: Send, data: bytes) -> None:
    if len(data) > ANSWER_BYTES_MAX:
        raise Overloaded(
            "the answer is larger than the limit",
            hint="use a longer step, or select fewer series",
            bytes_max=ANSWER_BYTES_MAX,
        )
    reserved = (
        call.parts.budget.reserve(len(data), tenant=call.caller.tenant)
        if len(data) > CHARGED_BYTES_MIN
        else None
    )
    try:
        await send_answer(send, ApiResponse(data))
    finally:
        if reserved is not None:
            reserved.release()


async def _read_parameters(call: ApiRequest) -> PrometheusParams:
    """Return the parameters of the address, and over them those of the form."""
    asked: PrometheusParams = call.params
    if call.route.method != "POST":
        return asked
    reservation = call.parts.budget.reserve(tenant=call.caller.tenant)
    try:
        _, data = await read_body(
            call.receive, call.headers, (FORM,), FORM_BYTES_MAX, reservation=reservation
        )
    finally:
        reservation.release()
    try:
        pairs = parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX)
        given = msgspec.to_builtins(asked) | field_values(pairs, PrometheusParams)
        return msgspec.convert(given, PrometheusParams, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        raise Invalid(
            "the form cannot be read", hint="see docs/promql.md", why=str(error)
        ) from error


def _time_ms(text: str | None, name: str, default_ms: int) -> int:
    """Return the milliseconds of a time: seconds since 1970, or RFC 3339."""
    if text is None:
        return default_ms
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise _bad_parameter(name, text) from error
        if moment.tzinfo is None:
            raise _bad_parameter(name, text) from None
        seconds = moment.timestamp()
    if not -_TIME_S_MAX < seconds < _TIME_S_MAX:
        raise _bad_parameter(name, text)
    return round(seconds * 1000)


def _milliseconds(text: str | None, name: str, default_ms: int) -> int:
    """Return the milliseconds of a duration: a number of seconds, or a text such as 1h30m."""
    if text is None:
        return default_ms
    parts = _DURATION.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    else:
        try:
            seconds = float(text)
        except ValueError as error:
            raise _bad_parameter(name, text) from error
    if not 0 < seconds < _TIME_S_MAX:
        raise _bad_parameter(name, text)
    return max(1, round(seconds * 1000))


def _bad_parameter(name: str, text: str) -> Invalid:
    return Invalid(
        f'invalid parameter "{name}"',
        hint="give seconds, RFC 3339 for a time, or a duration such as 5m",
        why=f"cannot parse {text[:100]!r}",
    )


def _require(text: str | None, name: str) -> str:
    if text is None:
        raise Invalid(f'invalid parameter "{name}"', hint=f"give {name}", why="it is missing")
    return text


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _timeout_s(lake: Lake, asked: PrometheusParams) -> float:
    pool = lake.node.pool
    most_s = TIMEOUT_S_DEFAULT if pool is None else pool.timeout_s
    return min(most_s, _milliseconds(asked.timeout, "timeout", round(most_s * 1000)) / 1000)


def _evaluate_instant(lake: Lake, asked: PrometheusParams, limits: EvaluationLimits) -> bytes:
    time_ms = _time_ms(asked.time, "time", _now_ms())
    text = _require(asked.query, "query")
    timeout_s = _timeout_s(lake, asked)
    with open_source(lake, timeout_s=timeout_s, limits=limits, budget=_budget) as (source, bound):
        answer = evaluate_instant(source, text, time_ms, bound)
        return instant_document(answer, asked.limit or 0)


def _evaluate_range(lake: Lake, asked: PrometheusParams, limits: EvaluationLimits) -> bytes:
    start_ms = _time_ms(_require(asked.start, "start"), "start", 0)
    end_ms = _time_ms(_require(asked.end, "end"), "end", 0)
    step_ms = _milliseconds(_require(asked.step, "step"), "step", 0)
    text = _require(asked.query, "query")
    timeout_s = _timeout_s(lake, asked)
    with open_source(lake, timeout_s=timeout_s, limits=limits, budget=_budget) as (source, bound):
        answer = evaluate_range(source, text, start_ms, end_ms, step_ms, bound)
        return range_document(answer, asked.limit or 0)


def _list(
    lake: Lake, asked: PrometheusParams, limits: EvaluationLimits, *, needs_match: bool = False
) -> tuple[list[Labels], Notes]:
    """Return the labels of the series that match any of the selectors."""
    if needs_match and not asked.match:
        raise Invalid("no match[] parameter provided", hint='give match[]={job="api"}')
    end_ms = _time_ms(asked.end, "end", _now_ms())
    start_ms = _time_ms(asked.start, "start", end_ms - LISTED_MS)
    notes = Notes()
    with _source_of(lake, asked, limits) as (source, _):
        return source.list_series(_alternatives(asked.match), start_ms, end_ms, notes), notes


def _source_of(
    lake: Lake, asked: PrometheusParams, limits: EvaluationLimits
) -> AbstractContextManager[tuple[LakeSource, EvaluationLimits]]:
    return open_source(lake, timeout_s=_timeout_s(lake, asked), limits=limits, budget=_budget)


def _alternatives(texts: Sequence[str]) -> list[Sequence[Matcher]]:
    """Return the matchers of selectors; without any, every series matches."""
    found: list[Sequence[Matcher]] = []
    for text in texts:
        selector = parse_matchers(text)
        found += selector.alternatives or (selector.matchers,)
    return found or [()]


def _list_document(items: Sequence[object], asked: PrometheusParams, notes: Notes) -> bytes:
    if asked.limit and len(items) > asked.limit:
        items = items[: asked.limit]
        notes.warnings["results truncated due to limit"] = None
    return data_document(items, notes)


def _list_series(lake: Lake, asked: PrometheusParams, limits: EvaluationLimits) -> bytes:
    found, notes = _list(lake, asked, limits, needs_match=True)
    return _list_document([dict(labels) for labels in found], asked, notes)


def _list_labels(lake: Lake, asked: PrometheusParams, limits: EvaluationLimits) -> bytes:
    found, notes = _list(lake, asked, limits)
    return _list_document(sorted({name for labels in found for name, _ in labels}), asked, notes)


def _list_metadata(lake: Lake, asked: PrometheusParams, limits: EvaluationLimits) -> bytes:
    end_ms = _time_ms(asked.end, "end", _now_ms())
    start_ms = _time_ms(asked.start, "start", 0)
    with _source_of(lake, asked, limits) as (source, _):
        found = _metadata(source, start_ms, end_ms, asked.metric)
    names = sorted(found)[: asked.limit or None]
    return data_document({name: found[name] for name in names})


def _metadata(
    source: LakeSource, start_ms: int, end_ms: int, only: str | None
) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for metrics in source.metrics(start_ms, end_ms):
        for one in metrics:
            if only in (None, one.name):
                entry = {"type": one.prometheus_type, "unit": one.unit or "", "help": ""}
                known = found.setdefault(one.name, [])
                if entry not in known:
                    known.append(entry)
    return found


async def label_values(call: ApiRequest, send: Send) -> None:
    """Answer with the values of a label."""
    name = call.path["label"]

    def work(lake: Lake, asked: PrometheusParams, limits: EvaluationLimits) -> bytes:
        if name == NAME and not asked.match:
            with _source_of(lake, asked, limits) as (source, _):
                end_ms = _time_ms(asked.end, "end", _now_ms())
                start_ms = _time_ms(asked.start, "start", end_ms - LISTED_MS)
                groups = source.metrics(start_ms, end_ms)
            names = {part for metrics in groups for one in metrics for part in one.names}
            return _list_document(sorted(names), asked, Notes())
        found, notes = _list(lake, asked, limits)
        values = {value for labels in found for key, value in labels if key == name}
        return _list_document(sorted(values), asked, notes)

    await _answering(work)(call, send)


def build_info(call: ApiRequest) -> ApiResponse:  # noqa: ARG001
    """Answer as a Prometheus of the 2.x line does: clients choose their requests by it."""
    version = {
        "version": "2.55.0",
        "revision": f"thermocline {__version__}",
        "branch": "",
        "buildUser": "",
        "buildDate": "",
        "goVersion": "",
    }
    return ApiResponse(data_document(version))


query = _answering(_evaluate_instant)
query_range = _answering(_evaluate_range)
series = _answering(_list_series)
labels = _answering(_list_labels)
metadata = _answering(_list_metadata)
