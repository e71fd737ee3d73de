"""Decodes and writes a group of requests of one tenant and signal; each gets its own result.

In:   bodies; a sink, which has the tenant's tables
Out:  by each body's position: the accepted and rejected counts, or the error

- One write for each table carries the rows of a whole round. A body's result is given when every
  write that carries its rows is durable.
- If a write fails before the journal because of its rows (values that do not fit, a limit of the
  table), it is repeated for each body alone: one client's rows do not fail another's. The refused
  rows of a single body are counted and reported as OpenTelemetry's partial success.
- If a write fails for another reason, its clients are asked to send again, even if another table
  has some of their rows already: half a request is never reported as accepted.
- A table is created when its first rows arrive.
- A group is decoded and written in rounds, so that its inflated bodies are not in memory all at
  once.
"""

import threading
import time as clock
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from thermocline.errors import (
    Conflict,
    EntityLimitReached,
    Invalid,
    NotFound,
    Overloaded,
    ThermoclineError,
    Unavailable,
)
from thermocline.ingest.otlp.batch_decode import (
    DecodedGroup,
    DecodeOptions,
    RequestBody,
    decode_bodies,
)
from thermocline.ingest.otlp.outcome import ITEMS, DecodedRequest, DecodeLimits
from thermocline.ingest.otlp.tables import TABLES
from thermocline.ingest.rows import TrustedRows

Result = DecodedRequest | ThermoclineError
Settle = Callable[[Sequence[tuple[int, Result]]], None]


class IngestTable(Protocol):
    """A table that takes rows."""

    def submit(
        self,
        rows: Any,
        *,
        request_id: str | None = None,
        evolve: bool = False,
        wait_s: float | None = None,
    ) -> "Future[int]":
        """Queue rows; the future is done when they are durable and visible.

        An error in the rows is raised here, before anything is queued. Rows of a request id that
        was written before are not written again.
        """
        ...


class IngestLake(Protocol):
    """The tables of one tenant."""

    def table(self, name: str) -> IngestTable:
        """Return a table; `NotFound` when no table has this name."""
        ...

    def create_table(self, name: str, **creation: Any) -> IngestTable:
        """Create a table; `Conflict` when a table has this name."""
        ...


class TenantLakes(Protocol):
    """The lakes of all tenants, which the rows are written to."""

    def lake(self, tenant: str) -> IngestLake:
        """Return a tenant's lake; `NotFound` when there is no such tenant."""
        ...


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A body, and its position in the group."""

    position: int
    body: RequestBody


class GroupWriter:
    """Decodes and writes groups. Safe to use from any thread."""

    def __init__(
        self, sink: TenantLakes, *, limits: DecodeLimits, body_bytes_max: int, write_wait_s: float
    ) -> None:
        self._sink = sink
        self._limits = limits
        self._body_bytes_max = body_bytes_max
        self._write_wait_s = write_wait_s

    def write_group(
        self,
        tenant: str,
        signal: str,
        members: Sequence[GroupMember],
        request_id: str | None,
        settle: Settle,
    ) -> None:
        """Decode and write a group. `settle` gets each member's result once, on any thread."""
        gathering = _GroupResults(settle, [member.position for member in members])
        try:
            group = _RequestGroup(tenant, signal, members, request_id)
            for shares in self._decode(signal, members):
                for share in shares:
                    places = [members[place].position for place in share.positions]
                    gathering.put(places, share.outcome)
                self._write_tables(group, shares, gathering)
        except ThermoclineError as error:
            gathering.fail(error)
        except Exception as error:  # noqa: BLE001  every waiting client must get a result
            gathering.fail(_internal_error("a request could not be taken", error))
        finally:
            gathering.finish_write()

    def _decode(
        self, signal: str, members: Sequence[GroupMember], *, is_together: bool = True
    ) -> Iterator[list[DecodedGroup]]:
        way = DecodeOptions(clock.time_ns(), self._limits, self._body_bytes_max, is_together)
        return decode_bodies(signal, [member.body for member in members], way)

    def _write_tables(
        self, group: "_RequestGroup", shares: list[DecodedGroup], gathering: "_GroupResults"
    ) -> None:
        tables = _rows_by_table(shares, group.members)
        for name, (rows, members) in tables.items():
            places = [member.position for member in members]
            try:
                self._submit(group, name, rows, places, gathering)
            except (Invalid, Overloaded) as error:
                if not _is_about_rows(error):
                    gathering.fail(error, places)
                elif len(members) == 1:
                    gathering.refuse(places[0], rows.num_rows, error)
                else:
                    self._write_each(replace(group, members=members), name, gathering)
            except ThermoclineError as error:
                if len(members) == 1 or len(tables) == 1:
                    gathering.fail(error, places)
                else:  # a client without rows for this table need not send again
                    self._write_each(replace(group, members=members), name, gathering)

    def _write_each(self, group: "_RequestGroup", name: str, gathering: "_GroupResults") -> None:
        """Write the table's rows of each member alone, to find the member that it refuses."""
        rounds = self._decode(group.signal, group.members, is_together=False)
        for share in (one for shares in rounds for one in shares):
            place = group.members[share.positions[0]].position
            gathering.separate(place, share.outcome)
            if isinstance(share.outcome, DecodedRequest) and name in share.outcome.batches:
                batch = share.outcome.batches[name]
                rows = pa.Table.from_batches([batch])
                try:
                    self._submit(group, name, rows, [place], gathering)
                except (Invalid, Overloaded) as error:
                    if _is_about_rows(error):
                        gathering.refuse(place, rows.num_rows, error)
                    else:
                        gathering.fail(error, [place])
                except ThermoclineError as error:
                    gathering.fail(error, [place])

    def _submit(
        self,
        group: "_RequestGroup",
        name: str,
        rows: pa.Table,
        places: Sequence[int],
        gathering: "_GroupResults",
    ) -> None:
        table = self._table(group.tenant, name)
        future = table.submit(
            TrustedRows(rows), request_id=group.request_id, evolve=True, wait_s=self._write_wait_s
        )
        gathering.add_write()

        def settle_group(finished: "Future[int]") -> None:
            error = finished.exception()
            if isinstance(error, ThermoclineError):
                gathering.fail(error, places)
            elif error is not None:
                gathering.fail(_internal_error("a write failed", error), places)
            gathering.finish_write()

        future.add_done_callback(settle_group)

    def _table(self, tenant: str, name: str) -> IngestTable:
        lake = self._sink.lake(tenant)
        try:
            return lake.table(name)
        except NotFound:
            try:
                return lake.create_table(name, **TABLES[name].creation_options())
            except Conflict:
                return lake.table(name)  # another worker was first


@dataclass(frozen=True, slots=True)
class _RequestGroup:
    tenant: str
    signal: str
    members: Sequence[GroupMember]
    request_id: str | None


class _GroupResults:
    """The results of a group, settled when the last of its writes is done."""

    def __init__(self, settle: Settle, places: Sequence[int]) -> None:
        self._settle = settle
        self._lock = threading.Lock()
        self._open = 1  # `take` itself; each write adds one
        lost = Unavailable("the request was not processed")
        self._results: dict[int, Result] = dict.fromkeys(places, lost)
        self._joined: set[int] = set()

    def put(self, places: Sequence[int], outcome: Result) -> None:
        """Set the outcome of bodies that were decoded together; the first has their total count."""
        for place in places:
            self._results[place] = _without_rows(outcome, is_first=place == places[0])
        if len(places) > 1:
            self._joined.update(places)

    def separate(self, place: int, outcome: Result) -> None:
        """Replace a shared outcome by the body's own, so that its counts are its own."""
        with self._lock:
            if place in self._joined:
                self._joined.discard(place)
                if isinstance(self._results[place], DecodedRequest):
                    self._results[place] = _without_rows(outcome, is_first=True)

    def refuse(self, place: int, rows: int, error: ThermoclineError) -> None:
        """Record that a table refused a body's rows for good."""
        with self._lock:
            result = self._results[place]
            if isinstance(result, DecodedRequest):
                what = f"refused {rows} {ITEMS[result.signal]}: {error.message}"
                message = f"{result.message}; {what}" if result.message else what
                self._results[place] = replace(
                    result,
                    accepted=max(0, result.accepted - rows),
                    rejected=result.rejected + rows,
                    message=message,
                )

    def fail(self, error: ThermoclineError, places: Sequence[int] | None = None) -> None:
        """Record that these bodies, or all decoded ones, must be sent again."""
        with self._lock:
            for place in self._results if places is None else places:
                if isinstance(self._results[place], DecodedRequest):
                    self._results[place] = error

    def add_write(self) -> None:
        """Count one more write in progress."""
        with self._lock:
            self._open += 1

    def finish_write(self) -> None:
        """Count a write as finished; after the last one, settle the results."""
        with self._lock:
            self._open -= 1
            is_last = not self._open
        if is_last:
            self._settle(list(self._results.items()))


def _without_rows(outcome: DecodedRequest | ThermoclineError, *, is_first: bool) -> Result:
    """Return an outcome without its rows; the first of several bodies has their total count."""
    if not isinstance(outcome, DecodedRequest):
        return outcome
    accepted = outcome.accepted if is_first else 0
    return DecodedRequest(outcome.signal, {}, accepted, outcome.rejected, outcome.message)


def _rows_by_table(
    shares: list[DecodedGroup], members: Sequence[GroupMember]
) -> dict[str, tuple[pa.Table, list[GroupMember]]]:
    """Return the rows of all shares by table, and the members they came from."""
    found: dict[str, tuple[list[pa.RecordBatch], list[GroupMember]]] = {}
    for share in shares:
        if isinstance(share.outcome, DecodedRequest):
            for name, batch in share.outcome.batches.items():
                batches, whose = found.setdefault(name, ([], []))
                batches.append(batch)
                whose += [members[place] for place in share.positions]
    return {name: (pa.Table.from_batches(rows), whose) for name, (rows, whose) in found.items()}


def _internal_error(message: str, error: BaseException) -> Unavailable:
    """Return the client's error for a bug; the bug itself is its cause."""
    told = Unavailable(message, why=repr(error))
    told.__cause__ = error
    return told


def _is_about_rows(error: ThermoclineError) -> bool:
    """Tell whether the rows cause the error, so that sending them again cannot succeed."""
    return isinstance(error, Invalid | EntityLimitReached)
