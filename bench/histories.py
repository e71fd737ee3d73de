"""Makes tables that would take years to make: long logs, and ten years of minutes.

In:   an empty folder and a size
Out:  a table in it that opens and answers as if it had been written day by day

- Everything is encoded by the library's own functions; what is left out is the waiting: commits
  are written without fsync, and only the newest checkpoint of a long log is written.
- A long log begins with a real table and a real append. Its later commits add one segment each,
  an hour after the one before. Opening never looks at segment files, so these have none.
- The ten years of minutes are appended month by month, 1,000 entities a month. Each commit and
  the shortcuts beside it are made by the library's own transaction; only the rows are missing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from thermocline.cold.change.append import AppendOptions
from thermocline.cold.log.checkpoint import write_checkpoint
from thermocline.cold.log.commit_log import CHECKPOINT_EVERY
from thermocline.cold.log.transaction import CommitPlan, transact
from thermocline.cold.segment.stage import Stage, new_id
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.format import layout
from thermocline.format.bucket import parse_bucket
from thermocline.format.coverage import Buckets, Coverage, entity_key, unite_buckets
from thermocline.format.instant import NS_PER_S, TimeNs
from thermocline.format.layout import Version
from thermocline.format.log.action import AddSegment, Segment, TableSpec
from thermocline.format.log.commit import Commit, encode_commit
from thermocline.format.log.state import TableState, fold

HOUR_NS = 3_600 * NS_PER_S
DECADE_START = datetime(2015, 1, 1, tzinfo=UTC)
MINUTE_S = 60
GAPS_A_YEAR = 2
GAP_MINUTES_MAX = 180


@dataclass(frozen=True, slots=True)
class Decade:
    """A table of minutes, the stretch it covers, and how many gaps were made in it."""

    root: Path
    start: datetime
    end: datetime
    gaps: int


class LongLog:
    """A table whose log can be made longer; each `reach` leaves it ready to be opened."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._table = ColdTable(LocalStorage(str(root)))
        self._table.create(TableSpec("", "ts", parse_bucket("1h")))
        source = root / "first.parquet"
        first = pa.array([946_684_800_000_000], type=pa.timestamp("us"))
        pq.write_table(pa.table({"ts": first, "value": [1.0]}), source)
        self._state = self._table.append_parquet([str(source)], AppendOptions(overlap="allow"))
        self._segment = next(iter(self._state.segments))

    def reach(self, version: int) -> None:
        """Add commits until the table is at this version, with the checkpoints due by then."""
        due = version - version % CHECKPOINT_EVERY
        if due > self._state.version:
            self._extend(due)
            write_checkpoint(self._table.storage, self._state)
        self._extend(version)
        self._table.storage.put_hint(layout.CURRENT_PATH, b'{"version":%d}' % version)

    def _extend(self, version: int) -> None:
        self._state = fold(self._state, self._written(self._state, version))

    def _written(self, state: TableState, newest: int) -> Iterator[Commit]:
        for version in range(state.version + 1, newest + 1):
            commit = Commit(
                Version(version),
                Version(version - 1),
                new_id(),
                TimeNs(state.time + (version - state.version) * NS_PER_S),
                "append",
                (AddSegment(self._hour(version)),),
                {"segments": 1, "rows": 1, "replaced": 0},
            )
            (self._root / layout.commit_path(version)).write_bytes(encode_commit(commit))
            yield commit

    def _hour(self, version: int) -> Segment:
        moved, name = version * HOUR_NS, new_id()
        first = TimeNs(self._segment.ts_min + moved)
        return replace(
            self._segment,
            segment_id=name,
            path=layout.segment_path(first, name),
            ts_min=first,
            ts_max=TimeNs(self._segment.ts_max + moved),
            coverage_path=layout.segment_coverage_path(name),
        )


def make_decade(root: Path, *, entities: int, years: int) -> Decade:
    """Make a table of minutes for so many entities and years, appended month by month."""
    rng = np.random.default_rng(years * entities)
    table = ColdTable(LocalStorage(str(root)))
    table.create(TableSpec("", "ts", parse_bucket("1m"), entity_columns=("sensor",)))
    sensors = [f"sensor-{number:04d}" for number in range(entities)]
    keys = [entity_key([sensor]) for sensor in sensors]
    months = [_month(number) for number in range(12 * years + 1)]
    _append_first_minute(table, sensors, root / "first.parquet")
    gaps = 0
    for start, end in pairwise(months):
        first, after = _minute(start), _minute(end)
        held = {}
        for key in keys:
            held[key], made = _with_gaps(rng, first, after)
            gaps += made
        _append(table, Coverage(MINUTE_S, unite_buckets(held.values()), held), first, after)
    return Decade(root, months[0], months[-1], gaps)


def _append_first_minute(table: ColdTable, sensors: list[str], source: Path) -> None:
    """Append real rows, one a sensor, from which the table takes its columns."""
    first = pa.array([DECADE_START] * len(sensors), type=pa.timestamp("us", tz="UTC"))
    values = pa.array([0.0] * len(sensors))
    pq.write_table(pa.table({"ts": first, "sensor": sensors, "value": values}), source)
    table.append_parquet([str(source)], AppendOptions())


def _append(table: ColdTable, coverage: Coverage, first: int, after: int) -> None:
    path, checksum = Stage(table.storage).put_coverage(coverage)
    name, start = new_id(), TimeNs(first * MINUTE_S * NS_PER_S)
    segment = Segment(
        name,
        layout.segment_path(start, name),
        start,
        TimeNs((after - 1) * MINUTE_S * NS_PER_S),
        sum(len(buckets) for buckets in coverage.entities.values()),
        1,
        "crc32c:00000000",
        path,
        checksum,
        table.state().schema_id,
    )
    state = transact(table.log, lambda _: CommitPlan("append", (AddSegment(segment),))).state
    table.index.write_shortcut(state)


def _with_gaps(rng: np.random.Generator, first: int, after: int) -> tuple[Buckets, int]:
    """Return a month of minutes with a gap strictly inside it, or without, and how many."""
    held = Buckets.from_range(first, after)
    if rng.random() >= GAPS_A_YEAR / 12:
        return held, 0
    width = int(rng.integers(1, GAP_MINUTES_MAX + 1))
    begin = int(rng.integers(first + 1, after - width - 1))
    return held - Buckets.from_range(begin, begin + width), 1


def _month(number: int) -> datetime:
    return DECADE_START.replace(year=DECADE_START.year + number // 12, month=number % 12 + 1)


def _minute(instant: datetime) -> int:
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(minutes=1)
