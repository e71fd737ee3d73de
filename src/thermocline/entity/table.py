"""The table of an entity type: writes go to PostgreSQL, exports to the lake, reads combine both.

In:   documents, keys, queries; PostgreSQL and the lake's table of the type
Out:  versions of written entities; answers that are exact, or have a warning

- A write goes to PostgreSQL: when it returns, it is durable and every later read has it.
- A read combines one snapshot of PostgreSQL with the lake version that it names: it returns the
  committed state of one moment, whatever is written, exported or compacted meanwhile.
- A read costs time for each dirty key, so the number of changes that wait for an export is limited:
  above one limit the log has a warning, above another writes are refused.
- `at` reads only the lake, at the last export up to a version or an instant.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa

from thermocline.cold.care.pin import pin_version
from thermocline.cold.entity_view import EntityView, HiddenPositions, read_entity_rows
from thermocline.cold.table import ColdTable
from thermocline.entity.columns import fit_table
from thermocline.entity.contract_copy import read_contract_copies
from thermocline.entity.degraded_read import (
    LAKE_ALONE,
    OLD_ANSWER,
    POSTGRES_ALONE,
    FindAnswerCache,
    ScanAnswerCache,
    find_best_answer,
)
from thermocline.entity.export import (
    VIEW_TRIES_MAX,
    ViewBuilder,
    cold_view,
    export,
    roll_forward,
)
from thermocline.entity.history import (
    diff_revisions,
    find_entities,
    revision_at,
    whole_history,
)
from thermocline.entity.model import (
    EntityRevision,
    ExportResult,
    FindAnswer,
    PropertyChange,
    ReadMode,
    ScanAnswer,
    mode_of,
)
from thermocline.errors import (
    Conflict,
    Invalid,
    NotFound,
    Overloaded,
    ThermoclineError,
    Unavailable,
    Unsupported,
)
from thermocline.format.argument import list_names
from thermocline.format.bucket import parse_duration_s
from thermocline.format.instant import to_datetime, to_instant
from thermocline.format.layout import Version
from thermocline.format.log.action import Mark
from thermocline.format.log.state import TableState
from thermocline.hot.postgres.export.dirty import Pressure
from thermocline.hot.postgres.export.evict import evict, lake_version
from thermocline.hot.postgres.export.forget import forget
from thermocline.hot.postgres.export.source import EntitySource
from thermocline.hot.postgres.page.page import Page, PageRequest
from thermocline.hot.postgres.revision.revisions import (
    expire_revisions,
    history_floor,
    read_retention,
    read_revisions,
    set_retention,
)
from thermocline.hot.postgres.schema.layout import Layout
from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session.connect import Connection
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.store.idempotency import remove_old_requests
from thermocline.hot.postgres.store.interface import EntityInterface
from thermocline.hot.postgres.store.operation import (
    Operation,
    StoredEntity,
    WriteResult,
)
from thermocline.hot.postgres.store.store import EntityStore
from thermocline.hot.tier import HotPart, HotSnapshot, HotVersion
from thermocline.names import parse_id

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EntitySettings:
    """The settings of an entity type.

    An export is due when `export_changes` wait for it, or any change for `export_age_s`. Above
    `changes_warn` the log has a warning, above `changes_max` writes are refused. Rows older than
    `evict_age_s` are evicted from PostgreSQL once the lake has them; None keeps all rows. The last
    versions of `gone_keys_max` deleted keys are kept. With `is_read_only` every write is refused.
    """

    mode: str = "strict"
    export_changes: int = 10_000
    export_age_s: float = 60.0
    changes_warn: int = 200_000
    changes_max: int = 1_000_000
    look_s: float = 1.0
    evict_age_s: float | None = None
    gone_keys_max: int = 1_000_000
    is_read_only: bool = False


class EntityTable(EntityInterface):
    """The entities of one type. Any thread may use it.

    `store` has its rows in PostgreSQL, or is the error by which PostgreSQL could not be reached.
    """

    def __init__(
        self,
        name: str,
        table: ColdTable,
        store: EntityStore | Unavailable,
        settings: EntitySettings | None = None,
    ) -> None:
        self.settings = settings or EntitySettings()
        self.table = table
        self._name = name
        self._store = store
        self._change_limit = ChangeLimit(self.settings, self._pressure)
        self._scan_cache = ScanAnswerCache()
        self._find_cache = FindAnswerCache()
        self._exporting = threading.Lock()
        self._places = HiddenPositions(table.storage)
        self._last_parts: tuple[pa.Table, tuple[HotPart, ...]] | None = None
        self._last_snapshot: HotSnapshot | None = None

    @property
    def name(self) -> str:
        """The type's name."""
        return self._name

    @cached_property
    def store(self) -> EntityStore:
        """The rows in PostgreSQL; `Unavailable` if it was not there when this table was opened."""
        if isinstance(self._store, Unavailable):
            why = self._store
            raise Unavailable(why.message, hint=why.hint, **why.facts) from why
        return self._store

    @cached_property
    def source(self) -> EntitySource:
        """The changes in PostgreSQL that wait for an export; `Unavailable` like `store`."""
        return EntitySource(self.store)

    @cached_property
    def _views(self) -> ViewBuilder:
        return ViewBuilder(self.source, self.table)

    @property
    def layout(self) -> Layout:
        """The type as last read from PostgreSQL: its columns and every version of its contract."""
        return self._copied_layout if isinstance(self._store, Unavailable) else self._store.layout

    @cached_property
    def _copied_layout(self) -> Layout:
        """The type by the copies of its contracts, without PostgreSQL's columns."""
        try:
            return Layout(0, self._name, "", (), read_contract_copies(self.table))
        except NotFound as error:
            raise Unavailable(error.message, hint=error.hint, type=self._name) from error

    # Writing.

    def write_many(
        self, operations: Sequence[Operation], *, atomic: bool, idempotency_key: str | None = None
    ) -> list[WriteResult | ThermoclineError]:
        """Run operations in order, in one transaction; return the result of each."""
        self.admit_writes(len(operations))
        return self.store.write_many(operations, atomic=atomic, idempotency_key=idempotency_key)

    def admit_writes(self, count: int) -> None:
        """Count writes to come; `Overloaded` if too many changes wait for an export."""
        self._change_limit.admit(count)

    # Reading.

    def read(self, id: str, *, at: object = None) -> StoredEntity | None:  # noqa: A002
        """Return one entity as it is now, or as it was at a version or instant; None if absent.

        `Unavailable` when PostgreSQL or the lake is needed and down. Then `find` may still answer,
        with a warning.
        """
        if at is None:
            return self._find(id).entity
        return self._find_cold(id, self.table.state(at))

    def find(self, id: str, *, mode: ReadMode | str | None = None) -> FindAnswer:  # noqa: A002
        """Return one entity, or None in the answer, with the time of which the answer is exact."""
        wanted = self._read_mode(mode)
        try:
            answer = self._find(id)
        except Unavailable:
            if wanted is ReadMode.CACHED and (last := self._find_cache.last(id)) is not None:
                return last
            if wanted is not ReadMode.BEST_EFFORT:
                raise
            view = cold_view(self.table, self.table.state(), LAKE_ALONE)
            found = self._find_cold(id, view.state)
            return FindAnswer(found, to_datetime(view.as_of), view.warning)
        self._find_cache.remember(id, answer)
        return answer

    def _find(self, key: str) -> FindAnswer:
        found = self.source.find(parse_id(key))
        entity = found.entity
        if entity is None and found.is_moved:
            entity = self._find_cold(key, self._views.state(found.head))
        return FindAnswer(entity, found.taken_at)

    def _find_cold(self, key: str, state: TableState) -> StoredEntity | None:
        return find_entities(self.table, state, self.layout, [parse_id(key)]).get(key)

    def read_page(self, request: PageRequest) -> Page:
        """Return the requested page; `Unsupported` if rows may have been evicted."""
        if self.settings.evict_age_s is not None:
            hint = "query with SQL, or keep all rows in PostgreSQL (evict_age_s=None)"
            raise Unsupported("a page cannot contain rows that were evicted", hint=hint)
        return self.store.read_page(request)

    def view(self, *, mode: ReadMode | str | None = None) -> EntityView:
        """Return the two halves of one read: a lake state, the keys to hide in it, the hot rows.

        In `best_effort`, if PostgreSQL is down, it is only the lake, with a warning.
        """
        try:
            return self._views.view()
        except Unavailable:
            if self._read_mode(mode) is not ReadMode.BEST_EFFORT:
                raise
            return cold_view(self.table, self.table.state(), LAKE_ALONE)

    def snapshot(self, *, mode: ReadMode | str | None = None) -> HotSnapshot:
        """Return what SQL reads in addition to the lake: the hot rows, and the version to read.

        In `cached`, if PostgreSQL is down, it is the last exact snapshot, with a warning.
        """
        try:
            made = self._snapshot(mode)
        except Unavailable:
            last = self._last_snapshot
            if last is None or last.pairing is None or self._read_mode(mode) is not ReadMode.CACHED:
                raise
            if last.pairing.version < self.table.state().oldest:
                raise  # its lake version was vacuumed
            return replace(last, pairing=replace(last.pairing, warning=OLD_ANSWER))
        if made.pairing is not None and not made.pairing.warning:
            self._last_snapshot = made
        return made

    def _snapshot(self, mode: ReadMode | str | None) -> HotSnapshot:
        for _ in range(VIEW_TRIES_MAX):
            view = self.view(mode=mode)
            if view.state.schema_id in self.table.state(int(view.state.version)).schemas:
                break
            # The contract is newer than the table's columns; SQL reads only committed columns.
            fit_table(self.table, self.store.layout.contract)
            roll_forward(self.source, self.table)
        else:
            raise Conflict("the type keeps changing", hint="try again", type=self.name)
        before = view.state.segments.changed
        hidden = {
            key: segment.deletes
            for key, segment in self._places.state(view).segments.changed.items()
            if before.get(key) is not segment
        }
        version = HotVersion(view.state.version, view.as_of, hidden, view.warning)
        return HotSnapshot(self.name, Mark(0), self._hot_parts(view), version)

    def _hot_parts(self, view: EntityView) -> tuple[HotPart, ...]:
        """Return the rows of a view as parts; the same rows give the same part objects.

        So rows that were already shared with a worker process are not copied again.
        """
        last = self._last_parts
        if last is None or last[0] is not view.rows:
            parts = tuple(
                HotPart(Mark(0), view.state.schema_id, batch, batch.nbytes)
                for batch in view.rows.combine_chunks().to_batches()
                if batch.num_rows
            )
            last = self._last_parts = (view.rows, parts)
        return last[1]

    def scan(
        self,
        columns: str | Sequence[str] | None = None,
        *,
        at: object = None,
        mode: ReadMode | str | None = None,
    ) -> ScanAnswer:
        """Return all rows, or some of their columns, with the time of which they are exact."""
        names = None if columns is None else list_names(columns, "columns")
        if at is not None:
            return self._read_view(cold_view(self.table, self.table.state(at), ""), names)
        question = ("scan", names)
        answer = find_best_answer(
            self._read_mode(mode),
            lambda: self._read_exact(names),
            lake_alone=lambda: self._read_view(
                cold_view(self.table, self.table.state(), LAKE_ALONE), names
            ),
            postgres_alone=lambda: self._read_hot(names),
            remembered=lambda: self._scan_cache.last(question),
        )
        if answer.is_exact:
            self._scan_cache.remember(question, answer)
        return answer

    def history(self, id: str) -> list[EntityRevision]:  # noqa: A002
        """Return every recorded change of an entity, oldest first: what, when, and who made it.

        Before the first recorded change, it has the revisions that exports carried.
        """
        key = parse_id(id)

        def read() -> list[EntityRevision]:
            found = self.source.find(key)
            return whole_history(self.table, found, key, read_revisions(self.store, key))

        return self._retry_expired(read)

    def at(self, id: str, instant: object) -> EntityRevision | None:  # noqa: A002
        """Return an entity as it was at an instant, exact to the change; None before its creation.

        `NotFound` if the history does not reach back so far.
        """
        when = to_datetime(to_instant(instant))
        return revision_at(self.history(id), when, lambda: history_floor(self.store))

    def diff(self, id: str, old: int, new: int) -> list[PropertyChange]:  # noqa: A002
        """Return the properties that differ between two versions of an entity."""
        return diff_revisions(self.history(id), parse_id(id), old, new)

    def keep_history(self, length: str | timedelta | None) -> float:
        """Set for how long changes are kept; None sets the default. Return it in seconds.

        Older changes leave the history and the feed at the next exports.
        """
        self._change_limit.check_writable()
        set_retention(self.store, None if length is None else float(parse_duration_s(length)))
        return read_retention(self.store)

    # Moving rows.

    def export(self) -> ExportResult | None:
        """Export all current changes to the lake in one version; None if there are no changes.

        When this returns, the lake has every write that returned before this call.
        """
        self._change_limit.check_writable()
        with self._exporting:
            exported = export(self.source, self.table)
        if exported is not None:
            self.forget()
        return exported

    def export_if_due(self) -> ExportResult | None:
        """Export if enough changes wait, or one waits long enough; None if no export is due."""
        pressure = self._pressure()
        is_due = pressure.changes >= self.settings.export_changes or (
            pressure.changes > 0 and pressure.age_s >= self.settings.export_age_s
        )
        return self.export() if is_due else None

    def _pressure(self) -> Pressure:
        return self.source.pressure()

    def recover(self) -> Version:
        """Finish the export of a process that died; return the lake's version.

        Any process may call it at any time. Reads are exact without it.
        """
        return roll_forward(self.source, self.table)

    def evict(self, written_before: datetime | None = None) -> int:
        """Evict rows written before a time that the lake has too; return how many.

        Without a time, rows older than `evict_age_s`; none if it is not set.
        """
        if written_before is None:
            if self.settings.evict_age_s is None:
                return 0
            written_before = datetime.now(UTC) - timedelta(seconds=self.settings.evict_age_s)
        return evict(self.store, written_before)

    def forget(self) -> int:
        """Forget the deleted keys above `gone_keys_max`; return how many. See `forget.py`.

        Changes past the type's retention and old idempotency keys are removed, too.
        Every export calls it. If writers hold the lock, the next export tries again.
        """
        with suppress(ThermoclineError):
            self.store.pool.run(self.store.tenant, remove_old_requests)
        with suppress(ThermoclineError):
            expire_revisions(self.store)
        with suppress(ThermoclineError):
            return forget(self.store, self.settings.gone_keys_max)
        return 0

    def _read_mode(self, mode: ReadMode | str | None) -> ReadMode:
        return mode_of(self.settings.mode if mode is None else mode)

    def _retry_expired(self, read: Callable[[], T]) -> T:
        """Read; read again if the version to read has expired meanwhile."""
        for _ in range(VIEW_TRIES_MAX):
            oldest = self.table.state().oldest
            try:
                return read()
            except NotFound:
                if self.table.state().oldest == oldest:
                    raise  # no version has expired: files are missing
                roll_forward(self.source, self.table)
        return read()

    def _read_exact(self, names: tuple[str, ...] | None) -> ScanAnswer:
        return self._retry_expired(lambda: self._read_view(self._views.view(), names))

    def _read_view(self, view: EntityView, names: tuple[str, ...] | None) -> ScanAnswer:
        chosen = _choose_columns(view.state, names)
        with pin_version(self.table, view.state.version):
            batches = list(read_entity_rows(self.table.storage, view, chosen))
        fields = [view.state.schema.arrow.field(name) for name in chosen]
        rows = pa.Table.from_batches(batches, pa.schema(fields))
        return ScanAnswer(rows, to_datetime(view.as_of), view.state.version, view.warning)

    def _read_hot(self, names: tuple[str, ...] | None) -> ScanAnswer:
        _, taken_at, rows = self.source.read_all()
        if names is not None:
            _check_names(names, rows.column_names)
            rows = rows.select(list(names))
        return ScanAnswer(rows, taken_at, None, POSTGRES_ALONE)


class ChangeLimit:
    """The limit of changes that wait for an export. Any thread may use it.

    Their number is read once in `look_s`, or at once if the last number plus the writes since then
    may be above a limit. Between these reads, writes of other processes are not counted.
    """

    def __init__(
        self,
        settings: EntitySettings,
        pressure: Callable[[], Pressure],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._pressure = pressure
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_s: float | None = None
        self._changes = 0
        self._has_warned = False

    def check_writable(self) -> None:
        """Raise `Invalid` if the lake is open for reading only."""
        if self._settings.is_read_only:
            hint = "connect without read_only"
            raise Invalid("the lake is open for reading only", hint=hint)

    def admit(self, writes: int = 1) -> None:
        """Count the writes to come; `Overloaded` above `changes_max`."""
        self.check_writable()
        with self._lock:
            self._changes += writes
            now_s = self._clock()
            is_old = self._looked_s is None or now_s - self._looked_s >= self._settings.look_s
            must_look = is_old or self._changes > self._settings.changes_warn
        if not must_look:
            return
        found = self._pressure().changes
        with self._lock:
            self._changes, self._looked_s = found + writes, now_s
            self._warn_once(found)
        if found + writes > self._settings.changes_max:
            raise Overloaded(
                "too many changes wait for an export",
                hint="export now, or more often; then write again",
                changes=found,
                changes_max=self._settings.changes_max,
            )

    def _warn_once(self, changes: int) -> None:
        is_past = changes > self._settings.changes_warn
        if is_past and not self._has_warned:
            logger.warning(
                "%d changes wait for an export (changes_warn=%d); reads slow down",
                changes,
                self._settings.changes_warn,
            )
        self._has_warned = is_past


def open_entity_table(
    pool: Pool, tenant: Tenant, name: str, table: ColdTable, settings: EntitySettings | None
) -> EntityTable:
    """Return the entities of a type in PostgreSQL, whose lake table is given."""

    def read_cold(
        connection: Connection, keys: Sequence[str]
    ) -> dict[str, tuple[int, dict[str, Any]]]:
        """Return rows that are only in the lake, for a writer that loads them."""
        layout = store.layout
        state = table.state(int(lake_version(connection, layout)))
        found = find_entities(table, state, layout, keys)
        return {key: (one.schema_version, one.document) for key, one in found.items()}

    store = EntityStore(pool, tenant, name, cold=read_cold)
    return EntityTable(name, table, store, settings)


def _choose_columns(state: TableState, names: tuple[str, ...] | None) -> list[str]:
    known = [column.name for column in state.schema.columns]
    if names is None:
        return known
    _check_names(names, known)
    return list(names)


def _check_names(names: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        hint = "name columns that the type has"
        raise Invalid("no such column", hint=hint, columns=unknown, known=list(known))
