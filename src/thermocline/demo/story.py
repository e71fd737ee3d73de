"""The steps of the demonstration, from an empty folder to a summary.

In:   a folder to work in
Out:  text for people; an error if a count is not as claimed

- Everything is real: a node in a separate process with an embedded PostgreSQL, OpenTelemetry's SDK,
  SIGKILL, Spark. Every claim is counted first, and a wrong count ends the demonstration.
"""

import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from thermocline.client import Client
from thermocline.demo.demo_node import ServedNode
from thermocline.demo.narration import Screen
from thermocline.demo.telemetry import SentCounts, send_telemetry
from thermocline.entry_point import connect
from thermocline.errors import Corruption, OutcomeUnknown, ThermoclineError, Unavailable

STEPS = 9
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
        self.screen = Screen(STEPS)
        self._folder = folder
        # PostgreSQL does not run as root: if we are root, another user must read the folder.
        if os.getuid() == 0:
            folder.chmod(0o755)
        settings = folder / "node.toml"
        settings.write_text(SETTINGS)
        self.node = ServedNode(folder, settings)
        self._settings = settings
        self._acknowledged: list[int] = []

    def run(self) -> None:
        """Run all steps; the node still runs at the end."""
        self.start_node()
        sent = self.send_telemetry()
        self.write_readings()
        self.write_entities()
        self.run_query()
        self.kill_node()
        self.run_pipeline()
        self.show_coverage()
        self.show_summary(sent)

    def start_node(self) -> None:
        """Start the node."""
        self.screen.step(
            "A node starts: one process, one folder, and an embedded PostgreSQL from a wheel."
        )
        self.screen.command("thermocline " + " ".join(self.node.command()))
        with self.screen.time_step("waiting until it is ready"):
            self.node.start()
        self.screen.say(f"OpenTelemetry goes to {self.node.otlp}, SQL and console are at")
        self.screen.say(self.node.url)

    def send_telemetry(self) -> SentCounts:
        """Send metrics, logs and traces."""
        self.screen.step(
            "A shop sends metrics, logs and traces with OpenTelemetry's own SDK.",
            "Every acknowledged record is on disk, and the next query reads it.",
        )
        with self.screen.time_step("400 visits"):
            sent = send_telemetry(self.node.otlp)
        counted = self._rows(
            "select (select count(*) from logs) as logs, (select count(*) from spans) as spans, "
            "(select sum(value_int)::bigint from metric_points where metric = 'shop.visits') visits"
        )
        self.screen.rows(counted)
        wanted = {"logs": sent.logs, "spans": sent.spans, "visits": sent.visits}
        _check_same("telemetry", counted.to_pylist(), [wanted])
        return sent

    def write_readings(self) -> None:
        """Write three days of readings, some of them missing."""
        self.screen.step(
            "Thermometers report every minute for three days. Two of them were silent for a while.",
            "Their rows are flushed to Parquet; the newest rows are still hot.",
        )
        rows = make_readings()
        with connect(self.node.url) as lake:
            lake.create_table(
                "readings", time_column="ts", bucket="1h", entity_columns=["host"], overlap="allow"
            )
            table = lake.table("readings")
            with self.screen.time_step(f"{rows.num_rows:,} rows"):
                # In many parts, as they would arrive: small files for the pipeline to merge.
                step = -(-rows.num_rows // 12)
                for first in range(0, rows.num_rows, step):
                    table.write(rows.slice(first, step))
                    table.flush()
            table.write(_make_newest_readings())

    def write_entities(self) -> None:
        """Write entities and change some."""
        self.screen.step("Orders are entities: they change. A JSON Schema checks every write.")
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
                self.screen.say(f"refused: {error.message}")
                for one in error.facts.get("problems", []):
                    self.screen.say(f"   {one['pointer']}: {one['expected']}, got {one['got']}")
        counted = self._rows("select state, count(*) as orders from orders group by all order by 1")
        self.screen.rows(counted)

    def run_query(self) -> None:
        """Run one query over all data."""
        self.screen.step(
            "One SQL query reads everything: Parquet, the newest rows, and the current entities."
        )
        query = (
            "select r.host, count(*) as readings, round(avg(celsius), 2) as mean,\n"
            "  (select count(*) from orders o where o.host = r.host and state = 'paid') as paid\n"
            "from readings r group by all order by 1"
        )
        for line in (*query.splitlines(), ""):
            self.screen.say(line)
        with connect(self.node.url) as lake, lake.answer(query) as answer:
            rows = answer.read_all()
            self.screen.rows(rows)
            tables = answer.report.tables
        for name, read in sorted(tables.items()):
            self.screen.say(
                f"{name}: {read.cold_rows:,} rows from Parquet, {read.hot_rows:,} hot, "
                f"version {read.version}"
            )
        _check_same("readings", rows.column("readings").to_pylist(), _expected_readings())

    def kill_node(self) -> None:
        """Kill the node while a client writes, and count the rows."""
        self.screen.step("A client writes row after row, and the node is killed with kill -9.")
        with connect(self.node.url) as lake:
            lake.create_table("ticks", time_column="ts", bucket="1m")
        writer = threading.Thread(target=self._write_ticks)
        writer.start()
        enough = threading.Event()
        while len(self._acknowledged) < ACKNOWLEDGED_BEFORE_THE_KILL and writer.is_alive():
            enough.wait(0.01)
        self.node.kill()
        writer.join(KILL_LIMIT_S)
        self.screen.say(f"The node is dead. It had acknowledged {len(self._acknowledged):,} rows.")
        with self.screen.time_step("starting it again"):
            self.node.start()
        found = self._rows("select number from ticks").column("number").to_pylist()
        lost = set(self._acknowledged) - set(found)
        twice = len(found) - len(set(found))
        self.screen.say(f"{len(found):,} rows are there: {len(lost)} lost, {twice} twice.")
        if len(found) > len(self._acknowledged):
            self.screen.say("(One row was written, but its answer did not arrive.)")
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

    def run_pipeline(self) -> None:
        """Run the pipeline on Spark."""
        self.screen.step(
            "The pipeline on Spark exports entities, merges small files,",
            "and rolls up the hours that changed. It needs no installed Java.",
        )
        before = self._files("readings")
        place = ("--data", str(self.node.data), "--config", str(self._settings))
        self._command("pipeline", "run", *place, "--format", "box")
        after = self._files("readings")
        self.screen.say(f"readings: {before} files before, {after} after; the same rows.")
        counted = self._rows(
            "select count(*) as hours, sum(n)::bigint as readings, max(high) as high "
            "from readings_1h"
        )
        self.screen.rows(counted)

    def _files(self, name: str) -> int:
        with Client(self.node.url) as lake:
            return int(lake.table(name).info()["segments"])

    def show_coverage(self) -> None:
        """Draw the coverage: what is held and what is missing."""
        self.screen.step(
            "Which hours are missing? The table answers from its metadata alone.",
        )
        self._command("gaps", str(self.node.data / "readings"), "--format", "box")

    def show_summary(self, sent: SentCounts) -> None:
        """Say what was shown, and what to read next."""
        self.screen.step("Done.")
        took_s = self.screen.elapsed_s()
        records = sent.logs + sent.spans + sent.visits
        for line in (
            f"{records:,} records by OpenTelemetry, none lost, none duplicated.",
            f"{len(self._acknowledged):,} writes up to a kill -9, none lost, none duplicated.",
            f"It took {took_s:.0f} seconds. `thermocline demo --keep` leaves the node running,",
            "with the console in your browser.",
            "Next: README.md, docs/, and `thermocline --help`.",
        ):
            self.screen.say(line)

    def _rows(self, query: str) -> pa.Table:
        with connect(self.node.url) as lake:
            return lake.sql(query)

    def _command(self, *words: str) -> None:
        """Show a command, run it, and stop if it fails."""
        self.screen.command("thermocline " + " ".join(words))
        self.screen.flush()
        done = subprocess.run(  # noqa: S603  our own command
            [sys.executable, "-m", "thermocline.cli.main", *words], check=False
        )
        if done.returncode:
            hint = "see its error above"
            raise Unavailable("a command failed", hint=hint, exit_code=done.returncode)


def make_readings() -> pa.Table:
    """Return one row a minute for each thermometer, without the hours in which it was silent."""
    first = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=DAYS)
    generator = np.random.default_rng(11)
    parts: list[dict[str, Any]] = []
    for hour in range(DAYS * 24):
        for place, host in enumerate(HOSTS):
            if hour in SILENT_HOURS.get(host, ()):
                continue
            noise = generator.normal(0, 0.3, 60)
            swing = 4 * np.sin(hour / 24 * 2 * np.pi)
            parts += [
                {
                    "ts": first + timedelta(hours=hour, minutes=minute),
                    "host": host,
                    "celsius": round(14 + 3 * place + swing + noise[minute], 2),
                }
                for minute in range(60)
            ]
    return pa.Table.from_pylist(parts)


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
