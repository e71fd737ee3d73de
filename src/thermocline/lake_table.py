"""The public table of a lake: cold and hot rows together, and writes that are durable at once.

In:   rows, conditions, times; the cold half and the hot half of the table
Out:  the results of `TimeSeriesTable`, over cold and hot rows together

- `write` returns when its rows are durable and visible; a write is atomic.
- `delete`, `retain` and `restore` change cold rows, so they flush the hot rows first. They reach
  every row that was acknowledged before they began.
- A past version has the rows that were committed then. No version has rows that are still hot.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from thermocline.cold.care.pin import Pin
from thermocline.cold.change.append import AppendOptions, brings_columns, plan_columns
from thermocline.cold.change.export_plan import check_not_entities
from thermocline.cold.change.update import UpdateReport
from thermocline.cold.segment.measure import list_entities
from thermocline.cold.segment.row_reader import RowReader
from thermocline.cold.table import ColdTable
from thermocline.errors import (
    Conflict,
    Invalid,
    OutcomeUnknown,
    Overloaded,
    TableNotFound,
    ThermoclineError,
    Unavailable,
)
from thermocline.flush import flush
from thermocline.format.argument import check_flag, check_seconds
from thermocline.format.layout import Version
from thermocline.format.log.action import Mark
from thermocline.format.log.state import TableState
from thermocline.format.schema import may_become_double
from thermocline.hot.tier import HotSnapshot
from thermocline.hot.wal.follower import FollowedTable
from thermocline.hot.wal.tier import WalTable
from thermocline.ingest.entity_limit import EntityLimit
from thermocline.ingest.idempotency import RequestLedger, request_key
from thermocline.ingest.rows import TrustedRows, fit_rows, rows_table
from thermocline.names import CLIENT_KEY_PREFIX
from thermocline.snapshot import TableView, resolve_view
from thermocline.table import At, RowCondition, TimeSeriesTable

DIRECT_BYTES_MIN = 16 << 20
GATE_WAIT_S = 30.0

OpenCondition: TypeAlias = Callable[[str, pa.Schema], AbstractContextManager[RowCondition]]


class OpenReaders:
    """The open readers and pins of a lake, which end when it closes."""

    def __init__(self, check_open: Callable[[], None]) -> None:
        """`check_open` raises when the lake is closed."""
        self.check_open = check_open
        self._lock = threading.Lock()
        self._held: weakref.WeakSet[RowReader | Pin] = weakref.WeakSet()

    def keep(self, held: RowReader | Pin) -> None:
        """Register a reader or pin for release when the lake closes."""
        with self._lock:
            self._held.add(held)
        # Order matters: a lake that closes meanwhile may have read `_held` before this.
        self.check_open()

    def close(self) -> None:
        """End the readers and release the pins."""
        with self._lock:
            held = list(self._held)
        for one in held:
            if isinstance(one, RowReader):
                one.end(Unavailable("the lake is closed", hint="connect again"))
            else:
                one.release()


class OtherSources(Protocol):
    """The other journals of a lake that several nodes serve."""

    def snapshots(self, table_id: str, *, is_strict: bool) -> tuple[tuple[HotSnapshot, ...], str]:
        """Return the hot rows of a table in all of them, and a warning if one is missing."""
        ...

    def flush(self, table_id: str) -> None:
        """Have all of them flush a table; `Unavailable` when one cannot be reached."""
        ...

    def alone(self, operation: str) -> AbstractContextManager[None]:
        """Keep other nodes away while the block runs; `Conflict` when there is one."""
        ...

    def check_owned(self) -> None:
        """Raise `Conflict` when another process has taken over this node's journal."""
        ...


@dataclass(frozen=True, slots=True)
class NoJournal:
    """The hot half of a table in a process without a journal: all hot rows are in other nodes."""

    table_id: bytes

    def snapshot(self) -> HotSnapshot:
        """Return no rows."""
        return HotSnapshot("", Mark(0))


class LakeTable(TimeSeriesTable):
    """A table of a lake: a `TimeSeriesTable` with hot rows, which are durable at once."""

    is_keyed = False
    """Whether its rows are those of an entity type, which are written by key."""

    def __init__(
        self,
        name: str,
        cold: ColdTable,
        hot: WalTable | FollowedTable | NoJournal,
        readers: OpenReaders,
        open_condition: OpenCondition | None = None,
        others: OtherSources | None = None,
    ) -> None:
        """`open_condition` compiles the conditions of deletes, in place of this process.

        `others` are the journals of other nodes of the same lake.
        """
        super().__init__(cold)
        self.name = name
        self._conditions = open_condition
        self._hot = hot
        self._others = others
        self._readers = readers
        self._flush_lock = threading.Lock()
        self._gate = WriteGate()
        self._entity_limit = EntityLimit(self._list_held_entities)
        self._request_ledger = RequestLedger(self._requests)
        self._is_dropped = False

    @property
    def cold(self) -> ColdTable:
        """The table's files and log; `Unavailable` when its lake is closed."""
        self._check_there()
        return self._cold

    def _check_there(self) -> None:
        self._readers.check_open()
        if self._is_dropped:
            hint = "`undrop_table` brings it back, or ask the lake for the table of this name"
            raise TableNotFound("the table was dropped", hint=hint, table=self.name)

    def mark_dropped(self) -> None:
        """Refuse every further call: the lake has dropped the table."""
        self._is_dropped = True

    def block_writes(self) -> AbstractContextManager[None]:
        """Block new writes while the block runs, after waiting for those that run."""
        return self._gate.exclusive()

    def info(self, at: At = None) -> dict[str, Any]:
        """Return what the table is and holds, under the names of the HTTP API.

        All numbers are of one reading: no row counts as both hot and cold. `rows` counts cold rows.
        There is a `warning` when hot rows of another node of the lake may be missing.
        """
        from thermocline.show.facts import table_values

        view = self._view(at) if at is not None else self._degraded_view()
        return {
            "name": self.name,
            "hot_rows": _count_hot_rows(view),
            **table_values(self._report_coverage(view)),
            **({"warning": view.warning} if view.warning else {}),
        }

    def write(
        self,
        rows: Any,
        *,
        evolve: bool = False,
        wait_s: float | None = None,
        request_id: str | None = None,
    ) -> int:
        """Write rows and return how many; they are durable and visible when this returns.

        `rows` is a list of dicts, or anything with an Arrow stream. Either all rows are written or
        none. `evolve` adds columns that the table lacks. `Overloaded` when the journal has no room
        within `wait_s`; then nothing was written. `request_id` is an idempotency key: a repeated
        write does nothing, and returns the result of the first one.
        """
        return self.submit(rows, evolve=evolve, wait_s=wait_s, request_id=request_id).result()

    def submit(
        self,
        rows: Any,
        *,
        evolve: bool = False,
        wait_s: float | None = None,
        request_id: str | None = None,
    ) -> "Future[int]":
        """Write rows as `write` does; the future completes when they are durable and visible."""
        check_flag(evolve, "evolve")
        if wait_s is not None:
            wait_s = check_seconds(wait_s, "wait_s")
        if request_id is None:
            return self._submit(rows, evolve, wait_s, None)
        key = request_key(request_id)
        if self._others is not None and not request_id.startswith(CLIENT_KEY_PREFIX):
            # Another node may have the request. If one cannot be reached, this raises.
            known = _list_requests(self._view()).get(key)
            if known is not None:
                return _completed_future(known)
        outcome = self._request_ledger.begin(key)
        if outcome is None:
            try:
                outcome = self._submit(rows, evolve, wait_s, key)
            except BaseException as error:
                outcome = Future()
                outcome.set_exception(error)
                self._request_ledger.end(key, outcome)
                raise
            outcome.add_done_callback(lambda done: self._request_ledger.end(key, done))
        return outcome

    def _submit(
        self, rows: Any, evolve: bool, wait_s: float | None, request: str | None
    ) -> "Future[int]":
        hot = self.hot()
        if evolve and not isinstance(rows, TrustedRows):
            self._check_accepts_rows(self.cold.state())
            rows = self._widen_to_doubles(rows)
        self._gate.enter()
        try:
            outcome = self._submit_within(hot, rows, evolve, wait_s, request)
        except BaseException:
            self._gate.leave()
            raise
        outcome.add_done_callback(lambda done: self._gate.leave())
        return outcome

    def _widen_to_doubles(self, rows: Any) -> pa.Table:
        """Return rows as a table, after widening integer columns to doubles where they need it."""
        state = self.cold.state()
        given = rows_table(rows, state.schema, state.spec, may_widen=True)
        for field in given.schema:
            known = state.schema.by_name.get(field.name)
            if known is not None and may_become_double(known.type, field.type):
                self.widen_column(field.name, field.type)
        return given

    def alone(self, operation: str) -> AbstractContextManager[None]:
        """Keep other nodes away while the block runs; `Conflict` when there is one."""
        return nullcontext() if self._others is None else self._others.alone(operation)

    def widen_column(self, name: str, kind: pa.DataType) -> Version:
        """Widen the type of a column, also for hot rows: they are flushed first."""
        with self.alone("widen a column"), self._gate.exclusive():
            # Order matters: writes are blocked, so that no row arrives between check and change.
            self.flush()
            return super().widen_column(name, kind)

    def _check_accepts_rows(self, state: TableState) -> None:
        spec = state.spec
        if spec.overlap != "allow":
            raise Invalid(
                "this table accepts whole buckets only, not single rows",
                hint="append to it, or set_overlap('allow') first",
                table=self.name,
                overlap=spec.overlap,
            )

    def _submit_within(
        self,
        hot: WalTable,
        rows: Any,
        evolve: bool,
        wait_s: float | None,
        request: str | None,
    ) -> "Future[int]":
        """Submit rows; the gate ensures that only such writes change the table's columns now."""
        self._check_there()  # again: a drop may have held the gate until now
        # Read once: it looks for newer commits, and threads that write at once wait for each other.
        state = self.cold.state()
        self._check_accepts_rows(state)
        is_made = isinstance(rows, TrustedRows)
        given = rows.table if is_made else rows_table(rows, state.schema, state.spec)
        if not given.num_rows:
            if brings_columns(given.schema, state):
                self.cold.adopt_columns(given.schema, evolve=evolve)
            return _completed_future(0)
        columns = plan_columns(state, [given.schema], evolve=evolve)
        batch = fit_rows(given, columns.schema, state.spec, is_valid=is_made)
        new = self._reserve_entities(state, batch)
        try:
            if columns.is_new:
                # Order matters: rejected rows must not change the table's columns.
                state = self.cold.adopt_columns(given.schema, evolve=evolve)
                # Another writer may have added the new columns first.
                batch = fit_rows(given, state.schema, state.spec, is_valid=is_made)
            requests = {} if request is None else {request: batch.num_rows}
            outcome = self._write_batch(hot, state, batch, wait_s, requests)
        except BaseException:
            self._entity_limit.settle(new, is_written=False)
            raise
        if new:
            outcome.add_done_callback(
                lambda done: self._entity_limit.settle(new, is_written=_may_be_written(done))
            )
        return outcome

    def _write_batch(
        self,
        hot: WalTable,
        state: TableState,
        batch: pa.RecordBatch,
        wait_s: float | None,
        requests: Mapping[str, int],
    ) -> "Future[int]":
        """Write rows that fit: to the journal, or directly as a segment if there are many."""
        # `get_total_buffer_size` is cheap, and never less than `nbytes`.
        is_large = batch.get_total_buffer_size() >= DIRECT_BYTES_MIN
        if is_large and batch.nbytes >= DIRECT_BYTES_MIN:
            # The journal would write so many rows twice: to the journal, then to a segment.
            reader = pa.RecordBatchReader.from_batches(batch.schema, [batch])
            self.cold.append(reader, AppendOptions(overlap="allow", requests=requests))
            hot.announce(batch)
            return _completed_future(batch.num_rows)
        return hot.submit(
            state.schema_id, batch, wait_s=wait_s, requests=requests, result=batch.num_rows
        )

    def _degraded_view(self) -> TableView:
        """Return the view that may lack rows of another node; then it has a warning."""
        return resolve_view(self.snapshot(is_strict=False), self.cold)

    def _own_view(self) -> TableView:
        """Return the view without the hot rows of other nodes, for a write: it waits for none."""
        return resolve_view(self._hot.snapshot(), self.cold)

    def _requests(self) -> Mapping[str, int]:
        """Return the idempotency keys that the table's log and this node's hot rows have."""
        return _list_requests(self._own_view())

    def _list_held_entities(self) -> Iterable[str]:
        return self._report_coverage(self._own_view()).coverage.entities.keys()

    def _reserve_entities(self, state: TableState, batch: pa.RecordBatch) -> set[str]:
        """Reserve and return the new entities; raise for null times and for too many entities."""
        found = list_entities(batch, state.spec)
        if not found:
            return found
        return self._entity_limit.reserve(found, state.spec.entities_max, self.name)

    def hot(self) -> WalTable:
        """Return the hot half, for writing; `Invalid` if the lake is read-only."""
        self._check_there()
        if not isinstance(self._hot, WalTable):
            raise read_only_error()
        return self._hot

    def flush(self) -> Version:
        """Flush the hot rows into the lake; return the version that has them.

        Other nodes of the lake flush theirs by themselves; `flush_everywhere` waits for them.
        """
        self.flush_hot()
        return self.version()

    def flush_everywhere(self) -> Version:
        """Flush the hot rows of every node of the lake; return a version that has them.

        `Unavailable` when a node cannot be reached: then some rows may still be hot.
        """
        self.flush_hot()
        if self._others is not None:
            self._others.flush(self.cold.state().spec.table_id)
        return self.version()

    def flush_hot(self) -> Mark | None:
        """Flush every row that is hot now; return the mark reached, or None if none was hot."""
        hot = self.hot()
        if self._others is not None:
            self._others.check_owned()
        with self._flush_lock:
            last = hot.snapshot().parts[-1:]
            mark = flush(hot, self.cold)
            # Rows may have been frozen by an earlier flush, before the caller's newest rows came.
            while last and mark is not None and mark < last[0].mark:
                mark = flush(hot, self.cold)
        return mark

    def snapshot(self, *, is_strict: bool = True) -> HotSnapshot:
        """Return the hot rows: from memory, a journal's files, and the other nodes of the lake.

        `Unavailable` names a node that cannot be reached; if not `is_strict`, the result has a
        warning in place of that node's rows.
        """
        self._check_there()
        found = self._hot.snapshot()
        if self._others is None:
            return found
        table_id = self.cold.state().spec.table_id
        others, warning = self._others.snapshots(table_id, is_strict=is_strict)
        return replace(found, others=others, warning=warning)

    def delete(
        self, where: str | None = None, *, start: object = None, end: object = None
    ) -> Version:
        """Delete rows, including hot ones: hot rows are flushed first."""
        check_not_entities(self.cold.state().spec, "delete")
        self.flush_everywhere()
        return super().delete(where, start=start, end=end)

    def _open_condition(
        self, where: str, schema: pa.Schema
    ) -> AbstractContextManager[RowCondition]:
        if self._conditions is None:
            return super()._open_condition(where, schema)
        return self._conditions(where, schema)

    def _update(
        self, rows: Any, columns: Any, key: Any, expected_version: Any, *, inserts: bool
    ) -> UpdateReport:
        state = self.cold.state()
        rows = rows_table(rows, state.schema, state.spec)
        if expected_version is None:
            self.flush_everywhere()  # hot rows have keys, too
        elif self.snapshot().row_count:
            raise Conflict(
                "the table has hot rows that no version contains yet",
                hint="flush first, then read the version again",
                expected=expected_version,
                found=self.version(),
            )
        return super()._update(rows, columns, key, expected_version, inserts=inserts)

    def retain(self, *, yes: bool = False) -> Version:
        """Delete the rows past the table's retention, including hot ones."""
        check_flag(yes, "yes")
        check_not_entities(self.cold.state().spec, "retain")
        self.flush_everywhere()
        return super().retain(yes=yes)

    def restore(self, at: At) -> Version:
        """Restore the table to a version or instant; hot rows are flushed first."""
        check_not_entities(self.cold.state().spec, "restore")
        self.flush_everywhere()
        return super().restore(at)

    def scan(
        self,
        columns: str | Sequence[str] | None = None,
        where: str | None = None,
        *,
        start: object = None,
        end: object = None,
        at: At = None,
    ) -> RowReader:
        """Return the rows of one version as a stream; it ends when the lake is closed."""
        reader = super().scan(columns, where, start=start, end=end, at=at)
        self._readers.keep(reader)
        return reader

    @contextmanager
    def pin(self, at: At = None) -> Iterator[Version]:
        """Keep a version's files from being vacuumed in the block, or until the lake closes."""
        cold = self.cold
        pin = Pin(cold, version := cold.state(at).version)
        try:
            self._readers.keep(pin)
            yield version
        finally:
            pin.release()

    def __repr__(self) -> str:
        try:
            view = self._view()
        except ThermoclineError as error:
            return f"LakeTable({self.name!r}, {self.root()!r}: {error.message})"
        state, hot_rows = view.state, _count_hot_rows(view)
        return (
            f"LakeTable({self.name!r}, version={state.version}, rows={state.totals.rows:,}, "
            f"hot_rows={hot_rows:,}, bucket={state.spec.bucket})"
        )

    def _repr_html_(self) -> str | None:
        from thermocline.show import table_html

        try:
            view = self._view()
        except ThermoclineError:
            return None  # a notebook then shows the text of `repr`, which has the reason
        hot_rows = _count_hot_rows(view)
        return table_html(
            self._report_coverage(view), self.root(), name=self.name, hot_rows=hot_rows
        )

    def _view(self, at: At = None) -> TableView:
        if at is not None:
            return super()._view(at)
        # Order matters: the hot rows first, then the version to which some of them may have moved.
        return resolve_view(self.snapshot(), self.cold)


def _list_requests(view: TableView) -> dict[str, int]:
    hot = {key: rows for part in view.parts for key, rows in part.requests.items()}
    return {**view.state.requests, **hot}


def _count_hot_rows(view: TableView) -> int:
    return sum(part.batch.num_rows for part in view.parts)


class WriteGate:
    """Allows many writes of a table at once, or one change of its columns exclusively.

    A write counts as running until its outcome is known: until then no snapshot has its rows.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._writes = 0
        self._is_closed = False

    def enter(self) -> None:
        """Begin a write; `Overloaded` when a change of the columns does not finish in time."""
        with self._changed:
            self._wait_for(lambda: not self._is_closed)
            self._writes += 1

    def leave(self) -> None:
        """End a write."""
        with self._changed:
            self._writes -= 1
            self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Block new writes, and wait for running ones; `Overloaded` as for `enter`."""
        with self._changed:
            self._wait_for(lambda: not self._is_closed)
            self._is_closed = True
        try:
            with self._changed:
                self._wait_for(lambda: not self._writes)
            yield
        finally:
            with self._changed:
                self._is_closed = False
                self._changed.notify_all()

    def _wait_for(self, is_free: Callable[[], bool]) -> None:
        if not self._changed.wait_for(is_free, GATE_WAIT_S):
            raise Overloaded(
                "timed out: a change of the table's columns waits for writes, or writes for it",
                hint="try again",
                waited_s=GATE_WAIT_S,
            )


def read_only_error() -> Invalid:
    """Return the error of a write to a lake that is open for reading only."""
    hint = "connect without read_only, if no other process writes"
    return Invalid("the lake is open for reading only", hint=hint)


def _may_be_written(done: "Future[int]") -> bool:
    error = done.exception()
    return error is None or isinstance(error, OutcomeUnknown)


def _completed_future(rows: int) -> "Future[int]":
    done: Future[int] = Future()
    done.set_result(rows)
    return done
