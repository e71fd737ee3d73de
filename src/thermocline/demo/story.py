"""The steps of the demonstration, from an empty folder to a summary.

In:   a folder to work in
Out:  text for people; an error if a count is not as claimed

- Everything is real: a node in a separate process with an embedded PostgreSQL, OpenTelemetry's SDK,
  SIGKILL, Spark. Every claim is counted first, and a wrong count ends the demonstration.
"""

import math
import os
import random
import subprocess
import sys
import threading
import time as clock
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from thermocline.client import Client
from thermocline.demo.demo_node import ServedNode
from thermocline.demo.telemetry import send_telemetry
from thermocline.entry_point import connect
from thermocline.errors import Corruption, OutcomeUnknown, ThermoclineError, Unavailable
from thermocline.show.text import visible

STEPS = 9
INDENT = " " * 6
SEED = 11
SETTINGS = """postgres = "embedded"
export_age_s = "1h"

[[pipeline.rollups]]
name = "readings_1h"
source = "readings"
every = "1h"
by = ["host"]
aggregates = { n = "count(*)", mean = "avg(celsius)", high = "max(celsius)" }
"""
HOSTS = ("cellar", "kitchen", "roof", "till")
DAYS = 3
SILENT_HOURS = {"roof": range(30, 41), "cellar": range(55, 60)}
ORDER = {
    "type": "object",
    "properties": {
        "host": {"type": "string", "x-hot": True},
        "state": {"enum": ["open", "paid", "sent"]},
        "total": {"type": "string", "x-type": "decimal(18,2)"},
    },
    "required": ["host", "state", "total"],
}
ORDERS = 60
ACKNOWLEDGED_BEFORE_THE_KILL = 150
KILL_LIMIT_S = 60.0


class Story:
    """One run of the demonstration, in one folder."""

    def __init__(self, folder: Path) -> None:
        # PostgreSQL does not run as root: if we are root, another user must read the folder.
        if os.getuid() == 0:
            folder.chmod(0o755)
        self._settings = folder / "node.toml"
        self._settings.write_text(SETTINGS)
        self.node = ServedNode(folder, self._settings)
        self._acknowledged: list[int] = []
        self._began_s = clock.monotonic()
        self._steps_done = 0

    def run(self) -> None:
        """Run all steps; the node still runs at the end."""
        self._start_node()
        records = self._send_telemetry()
        self._write_readings()
        self._write_entities()
        self._run_query()
        self._kill_node()
        self._run_pipeline()
        self._begin_step("Which hours are missing? The table answers from its metadata alone.")
        _run_command("gaps", str(self.node.data / "readings"), "--format", "box")
        self._show_summary(records)

    def _begin_step(self, title: str, *explanation: str) -> None:
        self._steps_done += 1
        print(f"\n[{self._steps_done}/{STEPS}] {title}")
        _say(*explanation, "")

    def _start_node(self) -> None:
        self._begin_step(
            "A node starts: one process, one folder, and an embedded PostgreSQL from a wheel."
        )
        print(f"$ thermocline {' '.join(self.node.command())}")
        with _show_time("waiting until it is ready"):
            self.node.start()
        _say(f"OpenTelemetry goes to {self.node.otlp}, SQL and console are at", self.node.url)

    def _send_telemetry(self) -> int:
        self._begin_step(
            "A shop sends metrics, logs and traces with OpenTelemetry's own SDK.",
            "Every acknowledged record is on disk, and the next query reads it.",
        )
        with _show_time("400 visits"):
            sent = send_telemetry(self.node.otlp)
        counted = self._query(
            "select (select count(*) from logs) as logs, (select count(*) from spans) as spans, "
            "(select sum(value_int)::bigint from metric_points where metric = 'shop.visits') visits"
        )
        _show_rows(counted)
        _check_same("telemetry", counted.to_pylist(), [sent])
        return sum(sent.values())

    def _write_readings(self) -> None:
        self._begin_step(
            "Thermometers report every minute for three days. Two of them were silent for a while.",
            "Their rows are flushed to Parquet; the newest rows are still hot.",
        )
        rows = _make_readings()
        with connect(self.node.url) as lake:
            lake.create_table(
                "readings", time_column="ts", bucket="1h", entity_columns=["host"], overlap="allow"
            )
            table = lake.table("readings")
            with _show_time(f"{rows.num_rows:,} rows"):
                # In many parts, as they would arrive: small files for the pipeline to merge.
                step = -(-rows.num_rows // 12)
                for first in range(0, rows.num_rows, step):
                    table.write(rows.slice(first, step))
                    table.flush()
            table.write(_make_newest_readings())

    def _write_entities(self) -> None:
        self._begin_step("Orders are entities: they change. A JSON Schema checks every write.")
        with connect(self.node.url) as lake:
            orders = lake.register("orders", ORDER)
            ids = [
                orders.create({"host": HOSTS[n % 4], "state": "open", "total": f"{n}.50"}).id
                for n in range(ORDERS)
            ]
            for one in ids[::3]:
                orders.patch(one, {"state": "paid"})
            orders.delete(ids[-1])
            try:
                orders.create({"host": "till", "state": "lost"})
            except ThermoclineError as error:
                _say(f"refused: {error.message}")
                for one in error.facts.get("problems", []):
                    _say(f"   {one['pointer']}: {one['expected']}, got {one['got']}")
        counted = self._query(
            "select state, count(*) as orders from orders group by all order by 1"
        )
        _show_rows(counted)

    def _run_query(self) -> None:
        self._begin_step(
            "One SQL query reads everything: Parquet, the newest rows, and the current entities."
        )
        query = (
            "select r.host, count(*) as readings, round(avg(celsius), 2) as mean,\n"
            "  (select count(*) from orders o where o.host = r.host and state = 'paid') as paid\n"
            "from readings r group by all order by 1"
        )
        _say(*query.splitlines(), "")
        with connect(self.node.url) as lake, lake.answer(query) as answer:
            rows = answer.read_all()
            _show_rows(rows)
            tables = answer.report.tables
        for name, read in sorted(tables.items()):
            _say(
                f"{name}: {read.cold_rows:,} rows from Parquet, {read.hot_rows:,} hot, "
                f"version {read.version}"
            )
        _check_same("readings", rows.column("readings").to_pylist(), _expected_readings())

    def _kill_node(self) -> None:
        self._begin_step("A client writes row after row, and the node is killed with kill -9.")
        with connect(self.node.url) as lake:
            lake.create_table("ticks", time_column="ts", bucket="1m")
        writer = threading.Thread(target=self._write_ticks)
        writer.start()
        enough = threading.Event()
        while len(self._acknowledged) < ACKNOWLEDGED_BEFORE_THE_KILL and writer.is_alive():
            enough.wait(0.01)
        self.node.kill()
        writer.join(KILL_LIMIT_S)
        _say(f"The node is dead. It had acknowledged {len(self._acknowledged):,} rows.")
        with _show_time("starting it again"):
            self.node.start()
        found = self._query("select number from ticks").column("number").to_pylist()
        lost = set(self._acknowledged) - set(found)
        twice = len(found) - len(set(found))
        _say(f"{len(found):,} rows are there: {len(lost)} lost, {twice} twice.")
        if len(found) > len(self._acknowledged):
            _say("(One row was written, but its answer did not arrive.)")
        _check_same("lost rows", [len(lost), twice], [0, 0])

    def _write_ticks(self) -> None:
        with connect(self.node.url) as lake:
            table = lake.table("ticks")
            for number in range(1_000_000):
                try:
                    table.write([{"ts": datetime.now(UTC), "number": number}])
                except (Unavailable, OutcomeUnknown):
                    return  # the node is gone: this row was not acknowledged
                self._acknowledged.append(number)

    def _run_pipeline(self) -> None:
        self._begin_step(
            "The pipeline on Spark exports entities, merges small files,",
            "and rolls up the hours that changed. It needs no installed Java.",
        )
        before = self._files("readings")
        place = ("--data", str(self.node.data), "--config", str(self._settings))
        _run_command("pipeline", "run", *place, "--format", "box")
        after = self._files("readings")
        _say(f"readings: {before} files before, {after} after; the same rows.")
        counted = self._query(
            "select count(*) as hours, sum(n)::bigint as readings, max(high) as high "
            "from readings_1h"
        )
        _show_rows(counted)

    def _files(self, name: str) -> int:
        with Client(self.node.url) as lake:
            return int(lake.table(name).info()["segments"])

    def _show_summary(self, records: int) -> None:
        self._begin_step("Done.")
        _say(
            f"{records:,} records by OpenTelemetry, none lost, none duplicated.",
            f"{len(self._acknowledged):,} writes up to a kill -9, none lost, none duplicated.",
            f"It took {clock.monotonic() - self._began_s:.0f} seconds. `thermocline demo --keep` "
            "leaves the node running,",
            "with the console in your browser.",
            "Next: README.md, docs/, and `thermocline --help`.",
        )

    def _query(self, query: str) -> pa.Table:
        with connect(self.node.url) as lake:
            return lake.sql(query)


def _say(*lines: str) -> None:
    for line in lines:
        print(f"{INDENT}{visible(line)}".rstrip(), flush=True)


@contextmanager
def _show_time(what: str) -> Iterator[None]:
    """Show what the block does while it runs, and how long it took."""
    print(f"{INDENT}{what} ...", end="", flush=True)
    began_s = clock.monotonic()
    try:
        yield
    except BaseException:
        print(" failed", flush=True)
        raise
    print(f" {clock.monotonic() - began_s:.1f} s", flush=True)


def _show_rows(table: pa.Table) -> None:
    texts = [[_text(value) for value in row.values()] for row in table.to_pylist()]
    columns = list(zip(table.column_names, *texts, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines: Sequence[Sequence[str]] = (table.column_names, ["-" * width for width in widths], *texts)
    for line in lines:
        _say("  ".join(f"{word:<{width}}" for word, width in zip(line, widths, strict=True)))


def _text(value: object) -> str:
    return (
        f"{value:,.2f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def _run_command(*words: str) -> None:
    """Show a command, run it, and stop if it fails."""
    print(f"$ thermocline {' '.join(words)}", flush=True)
    done = subprocess.run(  # noqa: S603  our own command
        [sys.executable, "-m", "thermocline.cli.main", *words], check=False
    )
    if done.returncode:
        hint = "see its error above"
        raise Unavailable("a command failed", hint=hint, exit_code=done.returncode)


def _make_readings() -> pa.Table:
    """Return one row a minute for each thermometer, without the hours in which it was silent."""
    first = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=DAYS)
    noise = random.Random(SEED)  # noqa: S311  the same readings each time
    return pa.Table.from_pylist(
        [
            {
                "ts": first + timedelta(hours=hour, minutes=minute),
                "host": host,
                "celsius": round(
                    14 + 3 * place + 4 * math.sin(hour / 12 * math.pi) + noise.gauss(0, 0.3), 2
                ),
            }
            for hour in range(DAYS * 24)
            for place, host in enumerate(HOSTS)
            if hour not in SILENT_HOURS.get(host, ())
            for minute in range(60)
        ]
    )


def _make_newest_readings() -> list[dict[str, Any]]:
    now = datetime.now(UTC)
    return [{"ts": now, "host": host, "celsius": 20.0 + place} for place, host in enumerate(HOSTS)]


def _expected_readings() -> list[int]:
    hours = DAYS * 24
    return [(hours - len(SILENT_HOURS.get(host, ()))) * 60 + 1 for host in HOSTS]


def _check_same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Corruption(
            "the demonstration did not read the rows that it wrote",
            hint="this is a bug: please report what you see here",
            what=what,
            found=found,
            expected=expected,
        )
