"""The API's JSON answers as types.

In:   nothing; values only
Out:  the types that answers are encoded from

- The OpenAPI document is generated from these types, so it cannot differ from them.
- `encode.py` writes answers with variable columns; `RowsResponse` here describes its output.
"""

from typing import Any, Literal

from msgspec import Struct, field


class ProblemResponse(Struct, omit_defaults=True):
    """An error in the form of RFC 9457, with its kind, its facts and a hint.

    `problems` lists the errors of a document or contract: `pointer`, and `expected` and `got`, or
    the `reason`.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str = ""
    facts: dict[str, Any] = {}
    request_id: str = ""
    problems: list[dict[str, str]] = []


class ColumnResponse(Struct):
    """A column of an answer or of a table."""

    name: str
    type: str
    nullable: bool = True


class RowsResponse(Struct):
    """Rows under named columns; `report` describes the tables that a query read."""

    columns: list[ColumnResponse]
    rows: list[dict[str, Any]]
    row_count: int
    is_truncated: bool
    query_id: str | None = None
    report: "ReportResponse | None" = None
    metadata: dict[str, str] = {}


class TableRead(Struct):
    """One table as a query read it: with every change acknowledged or committed by `as_of`.

    `warning` says what may be missing; it is empty for an exact answer.
    """

    version: int
    as_of: str
    hot_rows: int
    cold_rows: int
    files: int
    files_pruned: int
    warning: str


class ReportResponse(Struct):
    """The tables that a query read."""

    tables: dict[str, TableRead]


class QueryState(Struct):
    """A query that is running, or that failed recently."""

    query_id: str
    state: Literal["running", "failed"]
    seconds: float
    error: ProblemResponse | None = None


class Queries(Struct):
    """The tenant's queries."""

    queries: list[QueryState]


class TableBrief(Struct, omit_defaults=True):
    """A table in a list; `warning` as in its properties."""

    name: str
    version: int
    rows: int
    hot_rows: int
    time_column: str
    bucket: str
    warning: str = ""


class Tables(Struct):
    """The tenant's tables, in order of their names."""

    tables: list[TableBrief]


class TableInfo(Struct, omit_defaults=True):
    """A table's properties and contents; `rows` counts the cold rows of the newest version.

    `warning` is there when hot rows of another node of the lake may be missing.
    """

    name: str
    hot_rows: int
    version: int
    committed: str
    rows: int
    segments: int
    size_bytes: int
    start: str | None
    end: str | None
    buckets: int
    buckets_held: int
    ratio: float
    time_column: str
    bucket: str
    index_type: str
    entity_columns: list[str]
    entities: int
    overlap: str
    retention: str | None
    timezone: str | None
    columns: list[ColumnResponse]
    warning: str = ""


class Ratio(Struct):
    """The share of buckets that are held, and whether all of them are."""

    ratio: float
    is_covered: bool | None


class WindowResponse(Struct):
    """A stretch of time; both ends are null if there is none."""

    start: str | None
    end: str | None


class UpdatedResponse(Struct):
    """The version after an update; rows matched, inserted, and matched but left alone."""

    version: int
    matched: int
    inserted: int
    unchanged: int


class DiffResponse(Struct):
    """The changes between two versions, by segments and counts."""

    old: int
    new: int
    added: list[str]
    removed: list[str]
    changed: list[str]
    rows: int
    size_bytes: int
    columns: list[str]
    buckets_gained: int
    buckets_lost: int


class WrittenResponse(Struct):
    """The number of rows that are durable and visible now."""

    rows: int


class ChangedResponse(Struct):
    """The table's newest version after a change."""

    version: int


class Flushed(Struct):
    """The marks that tables reached; `version` if one table was flushed."""

    marks: dict[str, int]
    version: int | None = None


class CompactedResponse(Struct):
    """What a compaction did: the newest version, and sums over its commits."""

    version: int
    commits: int
    segments_before: int
    segments: int
    rows: int
    purged: int
    size_bytes_before: int
    size_bytes: int


class VacuumedResponse(Struct):
    """Files that were removed, or would be; paths are relative to the table's folder."""

    is_dry_run: bool
    oldest: int
    files: list[str]
    size_bytes: int


class PurgedResponse(Struct):
    """Dropped tables whose files were removed, or would be."""

    is_dry_run: bool
    tables: list[str]


class KeyInfo(Struct):
    """A key without its secret."""

    key_id: str
    tenant: str
    scopes: list[str]
    state: Literal["valid", "expired", "revoked"]
    note: str
    created: str
    expires: str | None
    revoked: str | None
    last_used: str | None


class KeysResponse(Struct):
    """The tenant's keys, expired and revoked ones included; an operator sees all tenants' keys."""

    keys: list[KeyInfo]


class MadeKey(Struct):
    """A new key. `key` has its secret, which no later answer shows."""

    key: str
    info: KeyInfo


class TenantsResponse(Struct):
    """The tenants of the node."""

    tenants: list[str]


class Setting(Struct):
    """A setting, its value, and the origin of the value."""

    setting: str
    value: Any
    origin: str


class Config(Struct):
    """Every setting of the node."""

    settings: list[Setting]


class FlushJob(Struct):
    """A table's hot rows, and how long the oldest has been hot."""

    table: str
    hot_rows: int
    hot_bytes: int
    hot_s: float | None


class JobRun(Struct):
    """One task of the pipeline that has ended: `done` or `failed`."""

    started_at: str
    job: str
    table: str
    state: str
    took_ms: int
    version: int | None
    numbers: dict[str, int]
    error_code: str | None
    error_message: str | None
    master: str | None


class Use(Struct):
    """One class of cost: what the tenant holds, what all tenants hold, and what they share."""

    held: int
    held_by_all: int
    total: int


class Usage(Struct):
    """What the caller's tenant uses of the node now, its quotas, and what they have refused.

    A quota of 0 is no limit. `shares` has the classes of cost that all tenants share.
    """

    tenant: str
    queries: int
    tables: int
    hot_bytes: int
    quotas: dict[str, int]
    refused: dict[str, int]
    shares: dict[str, Use]


class Jobs(Struct):
    """The hot rows by table, the errors of periodic flushes and exports, the newest job runs."""

    flushes: list[FlushJob]
    flush_error: ProblemResponse | None
    export_error: ProblemResponse | None
    hot_bytes: int
    hot_bytes_max: int
    runs: list[JobRun]
    notes: list[str] = field(default_factory=list)


# Entities


class EntityTypesResponse(Struct):
    """The names of the tenant's entity types, in order."""

    types: list[str]


class ContractColumnResponse(Struct):
    """A column of an entity type; a hot column also exists in PostgreSQL."""

    id: int
    name: str
    type: str
    is_hot: bool


class ContractResponse(Struct):
    """One version of an entity type's contract; `mode` is its compatibility mode."""

    type: str
    version: int
    mode: str
    document: dict[str, Any]
    columns: list[ContractColumnResponse]


class Contracts(Struct):
    """Every version of a contract, the oldest first."""

    versions: list[ContractResponse]


class CheckedResponse(Struct):
    """The result of a check; `registered` is the version that the document would follow."""

    is_sound: bool
    registered: int | None
    problems: list[dict[str, str]]
    changes: list[dict[str, Any]]


class EntityResponse(Struct):
    """One entity as it is stored."""

    id: str
    ver: int
    schema_version: int
    written_at: str
    document: dict[str, Any]


class EntityAnswerResponse(EntityResponse):
    """One entity with every change committed by `as_of`.

    `warning` is empty for an exact answer; `as_of` is null when a version was requested.
    """

    as_of: str | None = None
    warning: str = ""


class EntityWritten(Struct):
    """The result of a write; `deed` is created, replaced, patched, deleted or checked."""

    id: str
    ver: int
    deed: str


class BulkResult(Struct):
    """The result of one operation; `error` if it failed."""

    status: int
    id: str | None = None
    ver: int | None = None
    deed: str | None = None
    error: ProblemResponse | None = None


class BulkDone(Struct):
    """The result of each operation, in order."""

    results: list[BulkResult]


class EntityPage(Struct):
    """Entities in order; `after` asks for the next page, null when this is the last.

    `refs` has the entities referred to by type and key.
    """

    entities: list[EntityResponse]
    after: str | None
    total: int | None
    refs: dict[str, dict[str, EntityResponse]]


class RevisionResponse(Struct):
    """An entity from an instant on; without a document if deleted, without a version while hot.

    `op` is created, updated or deleted; `key` is the id of the key that wrote, `request_id` its
    request. They are null for changes from before changes were recorded.
    """

    ver: int | None
    document: dict[str, Any] | None
    at: str
    version: int | None
    op: str | None
    key: str | None
    request_id: str | None


class Revisions(Struct):
    """Every recorded change of an entity, oldest first."""

    revisions: list[RevisionResponse]


class PropertyChangeResponse(Struct):
    """A property that differs: its JSON pointer, and its values in both versions."""

    pointer: str
    old: Any
    new: Any
    is_added: bool
    is_removed: bool


class EntityDiff(Struct):
    """The properties that differ between two versions of an entity."""

    changes: list[PropertyChangeResponse]


class HistoryKept(Struct):
    """For how many seconds the changes of a type are kept."""

    kept_s: float


class ChangeResponse(Struct):
    """One committed change of an entity; the feed resumes after it at `position`."""

    position: str
    type: str
    id: str
    ver: int
    op: str
    at: str
    document: dict[str, Any] | None
    key: str | None
    request_id: str | None
    schema_version: int | None


class Changes(Struct):
    """Committed changes in the order of the feed; `position` resumes after the last one."""

    changes: list[ChangeResponse]
    position: str


class FeedPlace(Struct):
    """The position of now in the feed."""

    position: str


class ExportedResponse(Struct):
    """The number of exported changes, and the version of the lake that has them."""

    version: int
    as_of: str
    keys: int
    rows: int
    changes: int


class ExportDone(Struct):
    """The export; null when nothing had changed."""

    exported: ExportedResponse | None
