"""`thermocline status`: the state of a running node, once or again and again.

In:   the address of a node, a key of the operator's scope `query`
Out:  rates, memory, hot and cold rows, jobs and what is wrong, as lines or as one JSON object

- Rates come from two scrapes of `/metrics`, `--every` seconds apart.
- The exit code is 6 if the node is not ready, so a script needs no text of the answer.
"""

import re
import sys
import time as clock
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.cli.argument import CommandList, JsonOption
from thermocline.cli.entity.target import open_wire
from thermocline.cli.node_address import KeyFileOption, UrlOption

if TYPE_CHECKING:
    from thermocline.client.http import Wire

EVERY_S_DEFAULT = 1.0
EVERY_S_MIN = 0.5  # a node reuses its answer to a scrape for a quarter of a second
TABLES_SHOWN_MAX = 20
RUNS_SHOWN_MAX = 5
EXIT_NOT_READY = 6
_CLEAR = "\x1b[H\x1b[2J"
_SAMPLE = re.compile(r"^(\w+)(?:\{.*\})? (\S+)$")
_VERSION = re.compile(r'^thermocline_info\{version="([^"]*)"\}', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Scrape:
    """The numbers of `/metrics` at one moment, each the sum over its labels."""

    at_s: float
    sums: Mapping[str, float]
    version: str


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a node reports at one moment; rates are since the scrape before."""

    url: str
    version: str
    is_ready: bool
    reasons: list[str]
    uptime_s: float
    memory_bytes: int
    cpu_cores: float
    rows_per_s: float
    bytes_per_s: float
    rejected_per_s: float
    queries_per_s: float
    query_workers: int
    hot_bytes: int
    hot_bytes_max: int
    flush_age_s: float
    cold: dict[str, int]
    care: str
    tables: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    warnings: list[str]


def status(
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again until you press Ctrl-C.")
    ] = False,
    every: Annotated[
        float,
        typer.Option("--every", metavar="SECONDS", min=EVERY_S_MIN, help="Between two scrapes."),
    ] = EVERY_S_DEFAULT,
    json: JsonOption = False,
) -> None:
    """Show the state of a running node: rates, memory, tables, jobs, and what is wrong.

    The exit code is 6 if the node is not ready.
    """
    with open_wire(url, key_file) as wire:
        is_ready = True
        for shown in read_statuses(wire, every):
            is_ready = shown.is_ready
            _print_status(shown, is_json=json, is_again=watch)
            if not watch:
                break
    if not is_ready:
        raise typer.Exit(EXIT_NOT_READY)


def read_statuses(wire: "Wire", every_s: float) -> Iterator[NodeStatus]:
    """Yield the node's status, one after each `every_s` seconds, without end."""
    before = _scrape(wire)
    while True:
        clock.sleep(every_s)
        now = _scrape(wire)
        yield _read_status(wire, before, now)
        before = now


def parse_scrape(text: str, at_s: float) -> Scrape:
    """Return the numbers in the text of `/metrics`."""
    sums: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found is not None:
            sums[found[1]] += float(found[2])
    version = _VERSION.search(text)
    return Scrape(at_s, dict(sums), "unknown" if version is None else version[1])


def _scrape(wire: "Wire") -> Scrape:
    text = wire.send("GET", "/metrics", is_repeatable=True).text
    return parse_scrape(text, clock.monotonic())


def _read_status(wire: "Wire", before: Scrape, now: Scrape) -> NodeStatus:
    def rate(name: str) -> float:
        # A node that started again counts from zero.
        grown = max(now.sums.get(name, 0.0) - before.sums.get(name, 0.0), 0.0)
        return round(grown / (now.at_s - before.at_s), 3)

    ready = wire.read_health("/health/ready")
    jobs = wire.read_json("/api/v1/jobs")
    freshness = wire.read_json("/api/v1/freshness")
    sums, started_s = now.sums, now.sums["process_start_time_seconds"]
    cold = ("tables", "segments", "rows", "size_bytes", "versions")
    return NodeStatus(
        url=wire.url,
        version=now.version,
        is_ready=ready["status"] == "ready",
        reasons=list(ready.get("reasons", ())),
        uptime_s=round(clock.time() - started_s, 1),
        memory_bytes=int(sums.get("process_resident_memory_bytes", 0)),
        cpu_cores=rate("process_cpu_seconds_total"),
        rows_per_s=rate("thermocline_ingested_rows_total"),
        bytes_per_s=rate("thermocline_ingested_bytes_total"),
        rejected_per_s=rate("thermocline_rejected_rows_total"),
        queries_per_s=rate("thermocline_queries_total"),
        query_workers=int(sums.get("thermocline_query_workers", 0)),
        hot_bytes=int(sums.get("thermocline_hot_bytes", 0)),
        hot_bytes_max=int(sums.get("thermocline_hot_bytes_max", 0)),
        flush_age_s=round(sums.get("thermocline_flush_age_seconds", 0.0), 1),
        cold={name: int(sums.get(f"thermocline_cold_{name}", 0)) for name in cold},
        care=_describe_care(sums),
        tables=freshness["tables"],
        runs=jobs["runs"],
        warnings=[*ready.get("warnings", ()), *_warnings(jobs, sums)],
    )


def _describe_care(sums: Mapping[str, float]) -> str:
    if "thermocline_care_up" not in sums:
        return "off"
    if not sums["thermocline_care_up"]:
        return "not running"
    failing = int(sums.get("thermocline_care_failing", 0))
    return f"running, {failing} failing" if failing else "running"


def _warnings(jobs: Mapping[str, Any], sums: Mapping[str, float]) -> Iterator[str]:
    for name, of in (("flush_error", "the last flush"), ("export_error", "the last export")):
        if jobs[name] is not None:
            yield f"{of} failed: {jobs[name]['detail']}"
    files = int(sums.get("thermocline_journal_quarantined_files", 0))
    if files:
        yield f"{files} journal files are in quarantine: `thermocline journal inspect` shows them"
    if sums.get("thermocline_journal_failed"):
        yield "the last write of the journal failed"


def _print_status(shown: NodeStatus, *, is_json: bool, is_again: bool) -> None:
    from thermocline.cli.terminal.output import print_json
    from thermocline.cli.terminal.terminal import is_terminal, print_line

    if is_json:
        print_json(asdict(shown))
        return
    if is_again and is_terminal():
        sys.stdout.write(_CLEAR)
    for line in status_lines(shown):
        print_line(line)
    sys.stdout.flush()


def status_lines(shown: NodeStatus) -> Iterator[str]:
    """Yield the lines that a person reads, the most important first."""
    from datetime import timedelta

    from thermocline.show.text import size_text

    state = "ready" if shown.is_ready else "NOT READY: " + "; ".join(shown.reasons)
    yield f"{shown.url}  {state}"
    for warning in shown.warnings:
        yield f"warning: {warning}"
    up = timedelta(seconds=int(shown.uptime_s))
    yield (
        f"node     version {shown.version}, up {up}, memory {size_text(shown.memory_bytes)}, "
        f"{shown.cpu_cores:.2f} cores"
    )
    yield (
        f"ingest   {shown.rows_per_s:,.0f} rows/s, {size_text(int(shown.bytes_per_s))}/s, "
        f"{shown.rejected_per_s:,.0f} refused/s"
    )
    yield f"queries  {shown.queries_per_s:,.1f}/s, query workers {shown.query_workers}"
    yield (
        f"hot      {size_text(shown.hot_bytes)} of {size_text(shown.hot_bytes_max)}, "
        f"the oldest row for {shown.flush_age_s:,.0f} s"
    )
    yield (
        f"cold     tables {shown.cold['tables']:,}, segments {shown.cold['segments']:,}, "
        f"rows {shown.cold['rows']:,}, {size_text(shown.cold['size_bytes'])}; care {shown.care}"
    )
    for run in shown.runs[:RUNS_SHOWN_MAX]:
        yield f"job      {run['started_at']}  {run['job']} {run['table']}: {run['state']}"
    yield from _table_lines(shown.tables)


def _table_lines(tables: list[dict[str, Any]]) -> Iterator[str]:
    newest = sorted(tables, key=lambda one: one["newest"] or "", reverse=True)
    shown = newest[:TABLES_SHOWN_MAX]
    width = max((len(one["table"]) for one in shown), default=0)
    for one in shown:
        held = f"{one['hot_rows']:,} hot and {one['cold_rows']:,} cold rows"
        yield f"table    {one['table']:<{width}}  {held}, newest {one['newest'] or 'none'}"
    if len(newest) > len(shown):
        yield f"         and {len(newest) - len(shown)} more tables"


COMMANDS: CommandList = (
    (
        "status",
        status,
        (
            "thermocline status --url http://127.0.0.1:4320 --key-file key.txt",
            "thermocline status --watch --every 5",
        ),
    ),
)
