"""The API's requests as types: JSON bodies and query parameters.

In:   nothing; values only
Out:  the types that requests are decoded into

- Every field of a request is here, with its limits; any other field is refused by name.
- The OpenAPI document is generated from these types, so it cannot differ from them.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from thermocline.format.schema import COLUMNS_MAX
from thermocline.names import (
    ENTITY_ID_LENGTH_MAX,
    OPERATIONS_MAX,
    PAGE_LIMIT_MAX,
    TABLE_NAME,
    TENANT_NAME,
    Scope,
)

# Python's `$` also matches before a final line end, and JSON Schema does not know `\Z`.
QUERY_ID_PATTERN = r"^(?![^\n]*\n)[A-Za-z0-9_-]{8,64}$"
ROWS_MAX_MAX = 100_000
SQL_CHARACTERS_MAX = 1_000_000
TIMEOUT_S_MAX = 3_600.0
HISTORY_MAX = 100_000
JOBS_MAX = 1_000
WAIT_S_MAX = 30.0

Text = Annotated[str, Meta(max_length=10_000)]
Instant = Annotated[str, Meta(max_length=100, description="an instant, as ISO 8601")]
At = Annotated[
    int | Instant, Meta(description="a version (a whole number) or an instant; else the newest")
]
AtText = Annotated[
    str, Meta(max_length=100, description="a version or an instant; else the newest")
]
Name = Annotated[str, Meta(max_length=300, description=f"a name like ^{TABLE_NAME}$")]
Format = Literal["json", "ndjson", "csv", "arrow", "parquet"]
Mode = Annotated[
    Literal["strict", "best_effort", "cached"],
    Meta(description="how to answer when PostgreSQL or the lake is down"),
]


class StrictRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """The base of every request: unknown fields are refused."""


# Bodies


class HotRequest(StrictRequest):
    """A table by its id, and the parts of its hot rows that the caller has."""

    table: Annotated[str, Meta(max_length=32)]
    known: Annotated[list[tuple[int, int, int]], Meta(max_length=100_000)] = []


class QueryRequest(StrictRequest):
    """One SELECT, its parameters, and the form and limits of its answer."""

    sql: Annotated[str, Meta(max_length=SQL_CHARACTERS_MAX)]
    params: Annotated[
        list[Any] | dict[str, Any] | None,
        Meta(description="values for `?` (a list) or `$name` (an object)"),
    ] = None
    timeout_s: Annotated[float, Meta(gt=0, le=TIMEOUT_S_MAX)] | None = None
    format: Annotated[Format, Meta(description="wins over the Accept header")] | None = None
    rows_max: (
        Annotated[
            int,
            Meta(ge=0, le=ROWS_MAX_MAX, description="stop after so many rows, and say so"),
        ]
        | None
    ) = None
    query_id: (
        Annotated[str, Meta(pattern=QUERY_ID_PATTERN, description="to cancel it by; else made")]
        | None
    ) = None
    mode: Mode | None = None


class NewColumnRequest(StrictRequest):
    """A column to declare: its name, and its type as a text such as `int64`, or as commits do."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    type: str | dict[str, Any]
    metadata: dict[str, str] = {}


class NewTableRequest(StrictRequest):
    """A table to create."""

    name: Name
    time_column: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    bucket: (
        Annotated[
            str | int, Meta(description="such as `1h` or `1mo`, or the steps of an integer index")
        ]
        | None
    ) = None
    index_column: Annotated[str, Meta(max_length=255, description="as `time_column`")] | None = None
    index_type: Literal["timestamp", "int64", "uint64"] | None = None
    entity_columns: Annotated[list[Text], Meta(max_length=100)] = []
    timezone: Annotated[str, Meta(max_length=100)] | None = None
    overlap: Literal["allow", "reject", "replace"] = "allow"
    retention: Annotated[str, Meta(max_length=20, description="such as `90d`")] | None = None
    entities_max: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None
    schema: (
        Annotated[
            list[NewColumnRequest],
            Meta(max_length=COLUMNS_MAX, description="the columns; else the first rows add them"),
        ]
        | None
    ) = None
    unique: bool = False
    writer: Annotated[
        dict[str, str | int | bool], Meta(description='such as `{"compression": "snappy"}`')
    ] = {}
    token_columns: Annotated[
        list[Text], Meta(max_length=64, description="columns of texts to search by tokens")
    ] = []


class RuleRequest(StrictRequest):
    """A rule of alerts; docs/alerts.md says which fields a kind takes."""

    kind: Literal["sql", "promql", "gap", "silence", "deadman"]
    every: Annotated[str, Meta(max_length=20, description="such as `1m`")] | None = None
    for_: Annotated[str, Meta(max_length=20, description="such as `5m`")] | None = field(
        default=None, name="for"
    )
    query: Annotated[str, Meta(max_length=20_000)] | None = None
    table: Name | None = None
    within: Annotated[str, Meta(max_length=20)] | None = None
    lag: Annotated[str, Meta(max_length=20)] | None = None
    repeat: Annotated[str, Meta(max_length=20)] | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    webhooks: Annotated[list[Text], Meta(max_length=5)] = []


class TailParams(StrictRequest):
    """Which rows of a live tail to send, and for how long."""

    where: Annotated[str, Meta(max_length=100_000, description="a condition in SQL")] | None = None
    columns: (
        Annotated[str, Meta(max_length=10_000, description="names with commas; else all")] | None
    ) = None
    seconds: Annotated[float, Meta(ge=1, le=3_600)] = 3_600.0


class RuleTestRequest(StrictRequest):
    """A rule, by its name or in full, and the stretch of the past to run it over."""

    start: Instant
    end: Instant
    name: Annotated[str, Meta(max_length=100)] | None = None
    rule: RuleRequest | None = None


class DeleteRequest(StrictRequest):
    """Which rows to delete: those that match the condition, within the stretch if there is one."""

    where: Annotated[str, Meta(max_length=100_000)] | None = None
    start: Instant | None = None
    end: Instant | None = None


class RestoreRequest(StrictRequest):
    """The version or instant to restore the table to."""

    at: At


class RetainRequest(StrictRequest):
    """Whether all rows past the table's retention may be deleted."""

    yes: bool = False


class RetentionRequest(StrictRequest):
    """How long rows are kept; null keeps all rows."""

    retention: Annotated[str, Meta(max_length=20, description="such as `90d`")] | None = None


class CompactRequest(StrictRequest):
    """Nothing to choose: the node finds the segments that are worth merging."""


class VacuumRequest(StrictRequest):
    """How long to keep versions; files are removed only with `dry_run: false`."""

    dry_run: bool = True
    grace: Annotated[str, Meta(max_length=20, description="such as `7d`")] | None = None
    allow_short_grace: bool = False


class RenameTableRequest(StrictRequest):
    """The new name of a table."""

    to: Name


class UndropTableRequest(StrictRequest):
    """The name under which a dropped table comes back; its old one by default."""

    to: Name | None = None


class CopyTableRequest(StrictRequest):
    """The name of the copy, and the version or instant to copy; the newest by default."""

    to: Name
    at: At | None = None


class NewKeyRequest(StrictRequest):
    """A key to create: its scopes and lifetime. Only operators may name another tenant."""

    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=3)]
    note: Annotated[str, Meta(max_length=200)] = ""
    lifetime_s: Annotated[float, Meta(gt=0, lt=1e10)] | None = None
    tenant: Annotated[str, Meta(max_length=100)] | None = None


class NewTenantRequest(StrictRequest):
    """A tenant to create."""

    name: Annotated[str, Meta(max_length=100, description=f"a name like ^{TENANT_NAME}$")]


# Query parameters


class NoParams(StrictRequest):
    """No parameters."""


class AtParams(StrictRequest):
    """As of when."""

    at: AtText | None = None


class CoverageParams(StrictRequest):
    """As of when, and whether to list each entity."""

    at: AtText | None = None
    per_entity: bool = True


class UpdateParams(StrictRequest):
    """Which columns to set, as names with commas between; the version the update must follow."""

    columns: Text | None = None
    expected_version: Annotated[int, Meta(ge=1, lt=1 << 62)] | None = None


class StretchParams(StrictRequest):
    """A half-open stretch of time, of one entity if named (as JSON), as of when."""

    start: Instant | None = None
    end: Instant | None = None
    entity: Text | None = None
    per_entity: bool = True
    at: AtText | None = None


class WindowParams(StrictRequest):
    """The length of a fully held window, before when, of which entity."""

    length: Annotated[str, Meta(max_length=20, description="such as `6h`")]
    before: Instant | None = None
    entity: Text | None = None
    at: AtText | None = None


class SilentParams(StrictRequest):
    """A stretch of time in which entities may have been silent."""

    start: Instant
    end: Instant | None = None
    at: AtText | None = None


class HistoryParams(StrictRequest):
    """The number of commits, newest first."""

    limit: Annotated[int, Meta(ge=1, le=HISTORY_MAX)] = 1_000


class JobsParams(StrictRequest):
    """The number of pipeline tasks, newest first."""

    limit: Annotated[int, Meta(ge=1, le=JOBS_MAX)] = 100


class DiffParams(StrictRequest):
    """From which version or instant to which."""

    old: AtText
    new: AtText | None = None


class RowsParams(StrictRequest):
    """Whether to add columns that the table lacks; how long to wait for memory."""

    evolve: bool = False
    wait_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] | None = None


class PrometheusParams(Struct, kw_only=True):
    """The parameters of Prometheus' routes for queries; others are ignored, as Prometheus does."""

    query: str | None = None
    time: str | None = None
    start: str | None = None
    end: str | None = None
    step: str | None = None
    timeout: str | None = None
    lookback_delta: str | None = None
    limit: Annotated[int, Meta(ge=0, le=10_000_000)] | None = None
    metric: str | None = None
    match: list[str] = field(default_factory=list, name="match[]")


# Entities

EntityId = Annotated[str, Meta(min_length=1, max_length=ENTITY_ID_LENGTH_MAX)]
Field = Annotated[str, Meta(max_length=1_000)]


class EntityParams(StrictRequest):
    """As of when, or how to answer when PostgreSQL or the lake is down."""

    at: AtText | None = None
    mode: Mode | None = None


class CreateParams(StrictRequest):
    """The key of the new entity; the node generates one if it is omitted."""

    id: EntityId | None = None


class PatchParams(StrictRequest):
    """Whether a missing entity is created from the patch."""

    upsert: bool = False


class RevisionParams(StrictRequest):
    """The instant of which the one revision is wanted; every revision by default."""

    at: Annotated[str, Meta(max_length=64)] | None = None


class DiffVersionParams(StrictRequest):
    """The two versions of an entity to compare."""

    old: Annotated[int, Meta(ge=1, le=1 << 62)]
    new: Annotated[int, Meta(ge=1, le=1 << 62)]


class KeepHistoryRequest(StrictRequest):
    """For how many seconds the changes of a type are kept; null is the default, 30 days."""

    kept_s: Annotated[float, Meta(ge=0, le=3_200_000_000)] | None


class FeedParams(StrictRequest):
    """Where the feed resumes, names of types with commas between them, and how long to wait."""

    after: Annotated[str, Meta(max_length=20_000)] | None = None
    types: Text | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    wait_s: Annotated[float, Meta(ge=0, le=60)] = 0.0


class FeedStreamParams(StrictRequest):
    """Where the stream begins, and names of types with commas between them."""

    after: Annotated[str, Meta(max_length=20_000)] | None = None
    types: Text | None = None


class VersionParams(StrictRequest):
    """The version of a contract; the newest by default."""

    version: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None


class ToolParams(StrictRequest):
    """The version of a contract, and the model vendor's form of a tool."""

    version: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    form: Literal["anthropic", "openai"] = "anthropic"


class PageParams(StrictRequest):
    """A page: conditions, or a filter as JSON; names of fields with commas, `-` for descending.

    Every other parameter is a condition on a field: `status=open`, `total[gt]=10`.
    """

    where: dict[str, str] = {}
    filter: Text | None = None
    sort: Text | None = None
    fields: Text | None = None
    after: Annotated[str, Meta(max_length=20_000)] | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_LIMIT_MAX)] = 100
    refs: Text | None = None
    total: bool = False


class SearchRequest(StrictRequest):
    """A page. `filter` is `{"field", "op", "value"}`, or `{"and": [...]}`, `or`, `not` of such."""

    filter: dict[str, Any] | None = None
    sort: Annotated[list[Field], Meta(max_length=8)] = []
    fields: Annotated[list[Field], Meta(max_length=2_000)] | None = None
    after: Annotated[str, Meta(max_length=20_000)] | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE_LIMIT_MAX)] = 100
    refs: Annotated[list[Field], Meta(max_length=10)] = []
    total: bool = False


class BulkOperation(StrictRequest):
    """One operation; for a create without a key the node generates one."""

    op: Literal["create", "replace", "patch", "upsert", "delete", "check"]
    id: EntityId | None = None
    document: dict[str, Any] | None = None
    if_match: Annotated[int, Meta(ge=0, le=1 << 62)] | None = None


class BulkRequest(StrictRequest):
    """Operations to do in order: all of them or none, unless `atomic` is false."""

    operations: Annotated[list[BulkOperation], Meta(max_length=OPERATIONS_MAX)]
    atomic: bool = True


class TypedOperationRequest(BulkOperation, kw_only=True):
    """One operation of a transaction, on an entity of a type."""

    type: Annotated[str, Meta(min_length=1, max_length=63)]


class TransactionRequest(StrictRequest):
    """Operations on entities of several types: all of them are done, or none."""

    operations: Annotated[list[TypedOperationRequest], Meta(max_length=OPERATIONS_MAX)]


class ScanRequest(StrictRequest):
    """Which columns, as of when, or how to answer when PostgreSQL or the lake is down."""

    columns: Annotated[list[Field], Meta(max_length=2_000)] | None = None
    at: At | None = None
    mode: Mode | None = None
