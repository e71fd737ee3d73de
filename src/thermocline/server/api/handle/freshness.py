"""The freshness of each table: its hot and cold rows, the last flush and the last compaction.

In:   a call on a route
Out:  for each table, the newest row time in each half, and the time of each stage's last step

- With `sync` set to `always`, acknowledged rows are durable. Under another policy the operating
  system, or the next interval, makes them durable.
- Every row acknowledged by `as_of` is visible to the next query.
- The last flush and compaction are searched in a bounded number of the newest commits.
"""

import time as clock

from msgspec import Struct

from thermocline.config import Sync
from thermocline.format.instant import format_instant
from thermocline.lake_table import LakeTable
from thermocline.server.api.types.route import ApiRequest
from thermocline.show.scrub import scrub
from thermocline.snapshot import resolve_view

COMMITS_MAX = 200
TABLES_MAX = 500


class Step(Struct):
    """A commit: its version, operation and time."""

    version: int
    operation: str
    at: str


class TableFreshness(Struct, omit_defaults=True):
    """One table: its rows in each half, the newest index in each, and the last steps.

    `hot_s` is how long the oldest hot row of this node has waited for its flush. `warning` is there
    when rows of another node of the lake may be missing.
    """

    table: str
    hot_rows: int
    cold_rows: int
    hot_s: float | None
    newest: str | None
    newest_cold: str | None
    version: int
    committed: str
    flushed: Step | None
    compacted: Step | None
    warning: str = ""


class Freshness(Struct):
    """Every table, at one moment; `sync` says when rows are durable."""

    as_of: str
    sync: str
    tables: list[TableFreshness]


def freshness(call: ApiRequest) -> Freshness:
    """Return the freshness of each table."""
    lake, settings = call.lake, call.parts.settings
    sync = Sync.ALWAYS if settings is None else settings.lake.wal.sync
    as_of = format_instant(clock.time_ns())
    names = lake.tables()[:TABLES_MAX]
    return Freshness(as_of, sync.value, [_table_freshness(lake.table(name)) for name in names])


def _table_freshness(table: LakeTable) -> TableFreshness:
    # Order matters: the hot rows first, then the lake, which a flush may move them to meanwhile.
    view = resolve_view(table.snapshot(is_strict=False), table.cold)
    state, parts = view.state, view.parts
    cold = max((segment.ts_max for segment in state.segments), default=None)
    column, bucket = state.spec.time_column, state.spec.bucket
    hot = [p.bounds(column)[1] for p in parts if column in p.batch.schema.names]
    newest = max([*hot, *([] if cold is None else [cold])], default=None)
    since_s = None if table.is_keyed else table.hot().hot_since_s
    flushed, compacted = _steps(table)
    return TableFreshness(
        table=table.name,
        hot_rows=sum(part.batch.num_rows for part in parts),
        cold_rows=state.totals.rows,
        hot_s=None if since_s is None else round(clock.monotonic() - since_s, 3),
        newest=None if newest is None else bucket.format_position(newest),
        newest_cold=None if cold is None else bucket.format_position(cold),
        version=state.version,
        committed=format_instant(state.time),
        flushed=flushed,
        compacted=compacted,
        warning=scrub(view.warning),
    )


def _steps(table: LakeTable) -> tuple[Step | None, Step | None]:
    """Return the newest commit that added rows, and the newest compaction."""
    flushed: Step | None = None
    compacted: Step | None = None
    for place, commit in enumerate(table.cold.commits()):
        if place >= COMMITS_MAX or (flushed and compacted):
            break
        step = Step(commit.version, commit.operation, format_instant(commit.time))
        if commit.operation.startswith("compact"):
            compacted = compacted or step
        elif any(action.name == "AddSegment" for action in commit.actions):
            flushed = flushed or step
    return flushed, compacted
