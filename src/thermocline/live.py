"""A table of a lake as its users meet it: cold rows and hot ones, and writes durable at once.

In:   rows, conditions, times; the lake that the table is one of
Out:  what `TimeSeriesTable` gives, of cold and hot rows together

- `write` returns when its rows are durable and visible; a write is whole or not at all.
- What changes cold rows (`delete`, `retain`, `restore`) carries the hot ones over first, so that
  it reaches every row that was acknowledged before it began.
- A version of the past has the rows that were committed then; hot rows are in none yet.
"""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

import pyarrow as pa

from thermocline.errors import Invalid, Overloaded
from thermocline.format.action import ENTITIES, Mark
from thermocline.format.layout import Version
from thermocline.format.state import TableState
from thermocline.hot.tier import HotSnapshot
from thermocline.hot.wal.frame import Lsn
from thermocline.hot.wal.tier import WalTable
from thermocline.ingest.once import Once, request_key
from thermocline.ingest.rows import fitted, rows_table
from thermocline.lake.append import Wish, columns_after
from thermocline.lake.measure import measure
from thermocline.lake.table import Table
from thermocline.snapshot import View, resolve
from thermocline.table import At, TimeSeriesTable

DIRECT_BYTES_MIN = 16 << 20


class Owner(Protocol):
    """The lake that a table is one of."""

    def hot(self, table_id: bytes) -> WalTable:
        """Return the hot half of a table, to write to."""
        ...

    def snapshot(self, table: "LakeTable") -> HotSnapshot:
        """Return the hot rows of a table."""
        ...

    def flush(self, name: str | None = None) -> dict[str, Mark]:
        """Carry hot rows into the lake."""
        ...


class LakeTable(TimeSeriesTable):
    """A table of a lake: what `TimeSeriesTable` is, and rows that are durable at once."""

    def __init__(self, owner: Owner, name: str, lake: Table) -> None:
        super().__init__(lake)
        self._owner = owner
        self.name = name
        self.table_id = bytes.fromhex(lake.state().spec.table_id)
        self.flushing = threading.Lock()
        self._entities: set[str] = set()
        self._once = Once(self._requests)
        self.is_keyed = ENTITIES in lake.state().spec.features

    def write(
        self,
        rows: Any,
        *,
        evolve: bool = False,
        wait_s: float | None = None,
        request_id: str | None = None,
    ) -> int:
        """Write rows and return how many; they are durable and visible when this returns.

        `rows` is a list of dicts, or anything that gives an Arrow stream. All of them are
        written or none. `evolve` adds columns that the table does not have. `Overloaded` when
        nothing made room within `wait_s`; then nothing was written. A write whose `request_id`
        was written before does nothing, and returns what the first one did.
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
        """Write rows as `write` does; the future is done when they are durable and visible."""
        if request_id is None:
            return self._submit(rows, evolve, wait_s, None)
        key = request_key(request_id)
        outcome = self._once.begin(key)
        if outcome is None:
            try:
                outcome = self._submit(rows, evolve, wait_s, key)
            except BaseException as error:
                outcome = Future()
                outcome.set_exception(error)
                self._once.end(key, outcome)
                raise
            outcome.add_done_callback(lambda done: self._once.end(key, done))
        return outcome

    def _submit(
        self, rows: Any, evolve: bool, wait_s: float | None, request: str | None
    ) -> "Future[int]":
        hot = self.hot()
        state = self.lake.state()
        self._check_not_keyed()
        if state.spec.overlap != "allow":
            raise Invalid(
                "this table takes whole buckets, not single rows",
                hint="append to it, or set_overlap('allow') first",
                table=self.name,
                overlap=state.spec.overlap,
            )
        given = rows_table(rows, state.schema, state.spec)
        if not given.num_rows:
            return _done(0)
        columns = columns_after(state, [given.schema], evolve=evolve)
        batch = fitted(given, columns.schema, state.spec)
        entities = self._checked_entities(state, batch)
        if columns.is_new:
            # Order matters: rows that are refused leave the table's columns as they were.
            state = self.lake.adopt(given.schema, evolve=evolve)
            batch = fitted(given, state.schema, state.spec)  # another writer may have been first
        requests = {} if request is None else {request: batch.num_rows}
        # The first figure is cheap and never the smaller one.
        is_large = batch.get_total_buffer_size() >= DIRECT_BYTES_MIN
        if is_large and batch.nbytes >= DIRECT_BYTES_MIN:
            # A write this large is a segment of its own; through the journal it would be
            # written twice.
            reader = pa.RecordBatchReader.from_batches(batch.schema, [batch])
            self.lake.append(reader, Wish(overlap="allow", requests=requests))
            self._entities |= entities
            return _done(batch.num_rows)
        written: Future[int] = Future()

        def answer(done: "Future[Lsn]") -> None:
            error = done.exception()
            if error is not None:
                written.set_exception(error)
                return
            self._entities |= entities
            written.set_result(batch.num_rows)

        hot.submit(state.schema_id, batch, wait_s=wait_s, requests=requests).add_done_callback(
            answer
        )
        return written

    def _check_not_keyed(self) -> None:
        if self.is_keyed:
            hint = "create, replace and delete entities; their table follows by exports"
            raise Invalid("the rows of this table are entities", hint=hint, table=self.name)

    def _requests(self) -> Mapping[str, int]:
        """Return the requests that the table's log and its hot rows know of."""
        view = self._view()
        hot = {key: rows for part in view.parts for key, rows in part.requests.items()}
        return {**view.state.requests, **hot}

    def _checked_entities(self, state: TableState, batch: pa.RecordBatch) -> set[str]:
        """Return the entities that are new; refuse rows without a time, and too many entities."""
        found = measure([batch], state.spec).coverage.entities
        if not state.spec.entity_columns:
            return set()
        if not self._entities:
            self._entities |= self.held().coverage.entities.keys()
        new = found.keys() - self._entities
        if len(self._entities) + len(new) > state.spec.entities_max:
            raise Overloaded(
                "more entities than the table's limit",
                hint="raise entities_max, or declare fewer or coarser entity columns",
                table=self.name,
                entities_max=state.spec.entities_max,
            )
        return new

    def hot(self) -> WalTable:
        """Return the hot half, to write to; `Invalid` where the lake is read only."""
        return self._owner.hot(self.table_id)

    def flush(self) -> Version:
        """Carry the hot rows into the lake; return the version that has them."""
        self._owner.flush(self.name)
        return self.version()

    def snapshot(self) -> HotSnapshot:
        """Return the hot rows."""
        return self._owner.snapshot(self)

    def delete(
        self, where: str | None = None, *, start: object = None, end: object = None
    ) -> Version:
        """Delete rows, hot ones too: what is hot now is flushed first."""
        self._check_not_keyed()
        self.flush()
        return super().delete(where, start=start, end=end)

    def retain(self, *, yes: bool = False) -> Version:
        """Delete the rows past the table's retention, hot ones too."""
        self._check_not_keyed()
        self.flush()
        return super().retain(yes=yes)

    def restore(self, at: At) -> Version:
        """Make the table what it was at a version or instant; what is hot now is flushed first."""
        self._check_not_keyed()
        self.flush()
        return super().restore(at)

    def _view(self, at: At = None) -> View:
        if at is not None:
            return super()._view(at)
        # Order matters: the hot rows first, then the version that may have taken some of them.
        return resolve(self.snapshot(), self.lake)


def _done(rows: int) -> "Future[int]":
    done: Future[int] = Future()
    done.set_result(rows)
    return done
