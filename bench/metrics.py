"""Times questions about metrics: a rate by label with restarts, and the list of series.

In:   samples of one counter, made here: every series has one each 15 s, and restarts now and then
Out:  the section "metrics" of the results

- `promql` is the same question as victoria-metrics gets, evaluated in this process.
- `thermocline` is `rate` in a session of this process. `window functions` is the same question in
  plain SQL on the same files, and `scan` reads series, time and value and adds them up.
- `victoria-metrics` (Debian's) gets the same samples as JSON lines and is asked over HTTP with its
  cache of results off. It takes part if it is installed.
- `remote write` is requests of 1,000 series with a sample each, one after the other, to a node and
  to victoria-metrics; a node answers when the samples are durable, victoria-metrics before.
- Contenders take turns. The first answer of each is not counted, except for the first list.
- Processor time tells more than the clock where other programs use the cores.
"""

import http.client
import json
import statistics
import struct
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import measure
from measure import Sample
from receivers import Receiver, available
from thermocline.ingest.otlp.tables import TABLES
from thermocline.ingest.otlp.varint import encode_bytes, encode_varint
from thermocline.promql.evaluate import evaluate_range
from thermocline.promql.lake_source import LakeSource
from thermocline.promql.notes import Notes
from thermocline.query.session import Session
from thermocline.table import TimeSeriesTable

START_S = int(time.time()) // 3_600 * 3_600 - 48 * 3_600  # victoria-metrics drops old samples
STEP_S = 15
SERIES, TICKS, TICKS_A_SEGMENT = 1_000, 10_000, 256
QUICK_SERIES, QUICK_TICKS = 40, 960
SERVICES = 20
TURNS, QUICK_TURNS = 5, 2
RESTART_SHARE = 0.0005
NEAR_SHARE = 0.05
METRIC = "bench.requests"
RATE = "rate by service and hour"
LIST = "list of series with labels"
WRITE = "remote write"
IDLE_WAIT_S, IDLE_CPU_S = 90.0, 0.05
WRITTEN_SERIES, BODIES, QUICK_BODIES = 1_000, 200, 20
VICTORIA = "victoria-metrics"
OURS, PLAIN, SCAN, PROMQL = "thermocline", "window functions", "scan", "promql"
EXPRESSION = "sum by ({by}) (increase({name}[1h]))"
SQL = {
    (OURS, RATE): f"""
        select service_name, ts, sum(increase) as n from rate('metric_points', '1h')
        where metric = '{METRIC}' group by all order by all""",
    (PLAIN, RATE): f"""
        with samples as (
            select service_name, series_id, ts, value, lag(value) over w as before
            from metric_points where metric = '{METRIC}' and is_monotonic
            window w as (partition by series_id order by ts_ns))
        select service_name, time_bucket(interval '1 hour', ts) as ts,
            sum(case when value < before then value else value - before end) as n
        from samples where before is not null group by all order by all""",
    (SCAN, RATE): "select bit_xor(series_id), max(ts_ns), sum(value) from metric_points",
    (OURS, LIST): "select distinct metric, service_name, attributes from metric_series()",
    (PLAIN, LIST): "select distinct metric, service_name, attributes from metric_points",
}


RATIOS = (
    (RATE, OURS, VICTORIA, 2.0),
    (RATE, PROMQL, VICTORIA, 2.0),
    (RATE, OURS, PLAIN, 0.5),
    (LIST, OURS, PLAIN, 0.1),
    (WRITE, OURS, VICTORIA, 1.0),
)
"""Question, contender, the one that it is compared with, and the target."""


@dataclass(frozen=True, slots=True)
class Made:
    """The samples: one row of values for each tick, one column for each series."""

    values: np.ndarray
    ids: np.ndarray

    @property
    def count(self) -> int:
        """How many samples there are."""
        return self.values.size


def make_samples(series: int, ticks: int) -> Made:
    """Return counters that grow by up to 20 a tick and sometimes begin again at 0."""
    random = np.random.default_rng(1)
    steps = random.integers(0, 20, (ticks, series)).astype(np.float64)
    totals = np.cumsum(steps, axis=0)
    restarts = random.random((ticks, series)) < RESTART_SHARE
    lost = np.maximum.accumulate(np.where(restarts, totals, 0.0), axis=0)
    return Made(totals - lost, random.integers(-(2**63), 2**63 - 1, series))


def write_table(made: Made, folder: Path) -> None:
    """Write the samples as a table of metrics, in segments as a flush sorts them."""
    kind = TABLES["metric_points"]
    table = TimeSeriesTable.create(str(folder / "metric_points"), **kind.creation_options())
    ticks, series = made.values.shape
    for first in range(0, ticks, TICKS_A_SEGMENT):
        part = made.values[first : first + TICKS_A_SEGMENT]
        number = np.tile(np.arange(series), len(part))
        tick = np.repeat(np.arange(first, first + len(part)), series)
        order = np.lexsort((tick, number % SERVICES))
        number, tick, value = number[order], tick[order], part.ravel()[order]
        time_us = (START_S + tick * STEP_S) * 1_000_000
        nothing = np.zeros(len(number), dtype=np.int32)
        columns = {
            "ts": pa.array(time_us).cast(pa.timestamp("us", tz="UTC")),
            "ts_ns": pa.array(time_us * 1_000),
            "service_name": _words([f"service-{n}" for n in range(SERVICES)], number % SERVICES),
            "metric": _words([METRIC], nothing),
            "type": _words(["sum"], nothing),
            "temporality": _words(["cumulative"], nothing),
            "is_monotonic": pa.array(np.ones(len(number), dtype=bool)),
            "series_id": pa.array(made.ids[number]),
            "attributes": _words([f'{{"pod":"p{n}"}}' for n in range(series)], number),
            "value": pa.array(value),
        }
        table.append(
            pa.table(
                [
                    columns[field.name].cast(field.type)
                    if field.name in columns
                    else pa.nulls(len(number), field.type)
                    for field in kind.schema
                ],
                schema=kind.schema,
            )
        )


def _words(words: list[str], places: np.ndarray) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), pa.array(words))


def send_victoria(made: Made, port: int) -> None:
    """Import the samples, one series a line, and wait until they can be asked for."""
    times = [(START_S + tick * STEP_S) * 1_000 for tick in range(len(made.values))]
    for number in range(made.values.shape[1]):
        labels = {"service_name": f"service-{number % SERVICES}", "pod": f"p{number}"}
        line = {
            "metric": {"__name__": "bench_requests", **labels},
            "values": made.values[:, number].tolist(),
            "timestamps": times,
        }
        _ask(port, "POST", "/api/v1/import", json.dumps(line).encode())
    _ask(port, "GET", "/internal/force_flush")


def _ask(port: int, method: str, path: str, body: bytes | None = None) -> bytes:
    one = http.client.HTTPConnection("127.0.0.1", port, timeout=300.0)
    try:
        one.request(method, path, body)
        answer = one.getresponse()
        found = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{path}: {answer.status} {found[:200]!r}")
        return found
    finally:
        one.close()


def victoria_questions(port: int, ticks: int) -> dict[str, Callable[[], float]]:
    """Return the questions to VictoriaMetrics; each returns the sum of its answer."""
    hours = ticks * STEP_S // 3_600
    asked = urllib.parse.urlencode(
        {
            "query": EXPRESSION.format(by="service_name", name="bench_requests"),
            "start": START_S + 3_600,
            "end": START_S + hours * 3_600,
            "step": "1h",
            "nocache": "1",
        }
    )
    span = urllib.parse.urlencode(
        {"match[]": "bench_requests", "start": START_S, "end": START_S + ticks * STEP_S}
    )

    def rate() -> float:
        found = json.loads(_ask(port, "GET", f"/api/v1/query_range?{asked}"))["data"]["result"]
        return sum(float(value) for one in found for _, value in one["values"])

    def listed() -> float:
        return len(json.loads(_ask(port, "GET", f"/api/v1/series?{span}"))["data"])

    return {RATE: rate, LIST: listed}


def our_questions(session: Session) -> dict[tuple[str, str], Callable[[], float]]:
    """Return the questions in SQL; each returns the sum of its last column, or the rows."""

    def question(sql: str) -> Callable[[], float]:
        def ask() -> float:
            found = session.sql(sql)
            column = found.column(found.num_columns - 1)
            is_number = pa.types.is_floating(column.type)
            return float(sum(column.to_pylist())) if is_number else found.num_rows

        return ask

    return {key: question(sql) for key, sql in SQL.items()}


def promql_questions(session: Session, ticks: int) -> dict[str, Callable[[], float]]:
    """Return the questions in PromQL over the same table; each returns the sum of its answer."""
    hours = ticks * STEP_S // 3_600
    start_ms, end_ms = (START_S + 3_600) * 1_000, (START_S + hours * 3_600) * 1_000

    def ask(text: str, parameters: list[object], rows_max: int) -> pa.Table:  # noqa: ARG001
        return session.sql(text, parameters)

    source = LakeSource(ask, ["metric_points"])
    expression = EXPRESSION.format(by="pod", name="bench_requests_total")

    def rate() -> float:
        value = evaluate_range(source, expression, start_ms, end_ms, 3_600_000).value
        return float(value.values[value.has].sum())

    def count_series() -> float:
        return len(source.list_series([()], START_S * 1_000, end_ms + 3_600_000, Notes()))

    return {RATE: rate, LIST: count_series}


def time_turns(
    asks: dict[tuple[str, str], Callable[[], float]],
    cpu_of: Callable[[str], float],
    turns: int,
) -> tuple[list[Sample], dict[tuple[str, str], float]]:
    """Return the samples of all questions in turns, and what each answered."""
    samples: list[Sample] = []
    answers: dict[tuple[str, str], float] = {}
    for task in (RATE, LIST):
        names = [name for name, one in asks if one == task]
        for turn, order in measure.orders(names, turns + 1):
            for name in order:
                cpu, began = cpu_of(name), time.perf_counter()
                answers[name, task] = asks[name, task]()
                wall = time.perf_counter() - began
                kind = f"first {task}" if not turn else task
                samples.append(Sample(name, kind, turn, wall, cpu_of(name) - cpu))
    return samples, answers


def write_bodies(series: int, bodies: int) -> list[bytes]:
    """Return requests of remote write 1.0: one sample of each series, a step apart."""
    heads = []
    for number in range(series):
        labels = {
            "__name__": "bench_written_total",
            "instance": f"10.0.0.{number % 250}:9100",
            "job": f"service-{number % SERVICES}",
            "pod": f"p{number}",
        }
        pairs = (
            encode_bytes(1, encode_bytes(1, key.encode()) + encode_bytes(2, text.encode()))
            for key, text in labels.items()
        )
        heads.append(b"".join(pairs))
    found = []
    for turn in range(bodies):
        time_ms = encode_varint((START_S + turn * STEP_S) * 1_000)
        sample = encode_bytes(2, b"\x09" + struct.pack("<d", float(turn)) + b"\x10" + time_ms)
        whole = b"".join(encode_bytes(1, head + sample) for head in heads)
        found.append(pa.compress(whole, codec="snappy", asbytes=True))
    return found


def await_idle(receiver: Receiver) -> None:
    """Wait until a receiver has used no processor for a second, at most for `IDLE_WAIT_S`."""
    end_s = time.monotonic() + IDLE_WAIT_S
    while time.monotonic() < end_s:
        cpu = receiver.cpu_s()
        time.sleep(1.0)
        if receiver.cpu_s() - cpu < IDLE_CPU_S:
            return


def time_writes(receiver: Receiver, bodies: list[bytes], turns: int) -> list[Sample]:
    """Send the bodies over one connection, in turns; the first turn is not counted."""
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    samples = []
    await_idle(receiver)  # a node compiles its decoders after its start
    one = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=300.0)
    for turn in range(turns + 1):
        cpu, began = receiver.cpu_s(), time.perf_counter()
        for body in bodies:
            one.request("POST", "/api/v1/write", body, headers)
            answer = one.getresponse()
            answer.read()
            if answer.status != 204:
                raise SystemExit(f"{receiver.name} answers {answer.status} to remote write")
        wall = time.perf_counter() - began
        task = WRITE if turn else f"first {WRITE}"
        samples.append(Sample(receiver.name, task, turn, wall, receiver.cpu_s() - cpu))
    one.close()
    return samples


def report(samples: list[Sample], made: Made, share: float) -> str:
    """Return the section."""
    count, series = made.count, made.values.shape[1]
    lines = [
        "## Metrics",
        "",
        measure.provenance("metrics.py", {}),
        "",
        f"{count:,} samples of {series:,} series, one each {STEP_S} s, with restarts.",
        "",
        "| question | contender | wall ms | CPU ms |",
        "| --- | --- | ---: | ---: |",
    ]
    tasks = (RATE, f"first {LIST}", LIST, WRITE)
    for task in tasks:
        for name in dict.fromkeys(one.contender for one in samples if one.task == task):
            wall = measure.median_s(samples, name, task) * 1e3
            cpu = measure.median_cpu_s(samples, name, task) * 1e3
            lines.append(f"| {task} | {name} | {wall:,.1f} | {cpu:,.1f} |")
    lines += ["", "| ratio of CPU | target | measured | |", "| --- | ---: | ---: | --- |"]
    for task, ours, other, most in RATIOS:
        if any(one.contender == other and one.task == task for one in samples):
            ratio = measure.median_cpu_s(samples, ours, task) / max(
                measure.median_cpu_s(samples, other, task), 1e-3
            )
            met = "met" if ratio <= most else "missed"
            lines.append(f"| {task}: {ours} / {other} | at most {most:g} | {ratio:.2f} | {met} |")
    noise = "quiet" if share < measure.NOISY_SHARE else "noisy"
    return "\n".join([*lines, "", f"Other processes used {share:.0%} of the cores ({noise})."])


def main() -> None:
    """Make the samples, ask in turns, compare, and write the section."""
    options = measure.options(__doc__.splitlines()[0]).parse_args()
    size = (QUICK_SERIES, QUICK_TICKS) if options.quick else (SERIES, TICKS)
    made = make_samples(*size)
    with (
        tempfile.TemporaryDirectory(prefix="thermocline-metrics-") as scratch,
        ExitStack() as stack,
    ):
        folder = Path(scratch)
        measure.progress("write the table")
        write_table(made, folder)
        session = stack.enter_context(Session())
        session.register_tstable("metric_points", str(folder / "metric_points"))
        asks = our_questions(session)
        for task, ask in promql_questions(session, size[1]).items():
            asks[PROMQL, task] = ask
        victoria = None
        if VICTORIA in available():
            victoria = stack.enter_context(Receiver(VICTORIA, folder))
            measure.progress("send the samples to victoria-metrics")
            send_victoria(made, victoria.port)
            for task, ask in victoria_questions(victoria.port, size[1]).items():
                asks[VICTORIA, task] = ask

        def cpu_of(name: str) -> float:
            return victoria.cpu_s() if name == VICTORIA and victoria else time.process_time()

        measure.await_quiet(options.patience)
        with measure.Noise() as noise:
            turns = QUICK_TURNS if options.quick else TURNS
            samples, answers = time_turns(asks, cpu_of, turns)
            bodies = write_bodies(WRITTEN_SERIES, QUICK_BODIES if options.quick else BODIES)
            if victoria is not None:
                samples += time_writes(victoria, bodies, turns)
            samples += time_writes(stack.enter_context(Receiver(OURS, folder)), bodies, turns)
    ours, plain = answers[OURS, RATE], answers[PLAIN, RATE]
    if abs(ours - plain) > 1e-6 * abs(plain) or answers[OURS, LIST] != answers[PLAIN, LIST]:
        sys.exit(f"the answers differ: {answers}")
    if abs(answers[PROMQL, RATE] - ours) > NEAR_SHARE * ours:
        sys.exit(f"PromQL answers something else: {answers}")
    theirs = answers.get((VICTORIA, RATE), ours)
    # It is asked for whole hours, and the newest hour of the samples is not one.
    if abs(theirs - ours) > NEAR_SHARE * ours or answers.get((VICTORIA, LIST), size[0]) != size[0]:
        sys.exit(f"victoria-metrics answers something else: {answers}")
    measure.write_section(options.results, "metrics", report(samples, made, noise.share))
    spent = statistics.median(one.wall_s for one in samples)
    measure.progress(f"done; a question took {spent * 1e3:.0f} ms in the middle")


if __name__ == "__main__":
    main()
