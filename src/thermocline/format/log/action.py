"""What one commit does to a table: its actions, as values and as JSON.

    SetTable       what the table is: spec and schema
    AddSegment     a segment is live from here on
    RemoveSegment  a segment is no longer live
    SetDeletes     these rows of a live segment are deleted
    SetMark        the flush of a hot source that this version contains
    SetTxn         the last sequence of an application, for writers that must write once
    Expire         versions before this one can no longer be read
    NoteHole       writes of a hot source that were lost before they were flushed
    NoteRequests   the idempotency keys of the writes in this version, so that a retry is recognised
    NoteFlush      the changes of entities that this version contains, or that it changes no row

- An unknown field is kept in `extra` and written back.
- Opening a table that requires an unknown feature fails; the error names the feature.
- Every path is checked before it is written and after it is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NewType, TypeAlias

from thermocline.errors import Corruption, Unsupported
from thermocline.format import instant, layout
from thermocline.format.bucket import (
    INTEGER_FEATURE,
    LONG_FEATURE,
    TIME,
    Bucket,
    decode_bucket,
    parse_duration_s,
)
from thermocline.format.coverage import ENTITIES_MAX_DEFAULT
from thermocline.format.instant import TimeNs
from thermocline.format.layout import Version
from thermocline.format.log.commit_note import (
    NoteFlush,
    NoteHole,
    NoteRequests,
    decode_note,
    encode_note,
)
from thermocline.format.schema import Schema, decode_schema, encode_schema
from thermocline.format.types import TypeJson, has_extension
from thermocline.format.writer_settings import DEFAULT_WRITER, WriterSettings, encode_writer

Mark = NewType("Mark", int)
Json: TypeAlias = dict[str, Any]

EXTENSION_FEATURE = "uuid_json"
"""The feature of a table that has, or has had, a UUID or JSON column."""
UNIQUE_FEATURE = "unique"
"""The feature of a table with at most one row in each bucket of each entity."""
ENTITIES_FEATURE = "entities"
"""The feature of a table whose rows are entities: each commit that moves rows has a NoteFlush."""
FEATURES_SUPPORTED: frozenset[str] = frozenset(
    {ENTITIES_FEATURE, INTEGER_FEATURE, LONG_FEATURE, UNIQUE_FEATURE, EXTENSION_FEATURE}
)
OVERLAP_POLICIES = ("reject", "allow", "replace")


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What a table is, apart from its columns."""

    table_id: str
    time_column: str
    bucket: Bucket
    entity_columns: tuple[str, ...] = ()
    overlap: str = "reject"
    timezone: str | None = None
    retention: str | None = None
    entities_max: int = ENTITIES_MAX_DEFAULT
    features: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    is_unique: bool = False
    writer: WriterSettings = DEFAULT_WRITER
    token_columns: tuple[str, ...] = ()

    @property
    def retention_s(self) -> int | None:
        """The age in seconds past which rows are deleted, or None to keep all."""
        return parse_duration_s(self.retention) if self.retention else None


@dataclass(frozen=True, slots=True)
class Segment:
    """One immutable Parquet file of a table.

    `ts_min` and `ts_max` bound the positions of its rows, deleted ones included: times, or whole
    numbers if not `is_time`. `stats` bounds other columns by id; `absent` and `stored` say how its
    columns differ from schema `schema_id`. Without a token sidecar, `tokens_path` is empty.
    """

    segment_id: str
    path: str
    ts_min: TimeNs
    ts_max: TimeNs
    row_count: int
    file_size: int
    checksum: str
    coverage_path: str
    coverage_checksum: str
    schema_id: int
    level: int = 0
    stats: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    absent: tuple[int, ...] = ()
    stored: Mapping[str, TypeJson] = field(default_factory=dict)
    deletes: str = ""
    deleted_count: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    is_time: bool = True
    tokens_path: str = ""
    tokens_size: int = 0
    tokens_checksum: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all its files: Parquet, coverage and, if it has them, tokens."""
        tokens = (self.tokens_path,) if self.tokens_path else ()
        return (self.path, self.coverage_path, *tokens)


@dataclass(frozen=True, slots=True)
class SetTable:
    """Sets the table's spec and schema from this version on."""

    name: ClassVar[str] = "SetTable"
    spec: TableSpec
    schema_id: int
    schema: Schema


@dataclass(frozen=True, slots=True)
class AddSegment:
    """A segment is live from here on."""

    name: ClassVar[str] = "AddSegment"
    segment: Segment


@dataclass(frozen=True, slots=True)
class RemoveSegment:
    """A segment is no longer live; its counts let running totals be kept without the state."""

    name: ClassVar[str] = "RemoveSegment"
    segment_id: str
    path: str
    row_count: int
    deleted_count: int
    file_size: int
    coverage_checksum: str
    ts_min: TimeNs
    ts_max: TimeNs
    is_time: bool = True


@dataclass(frozen=True, slots=True)
class SetDeletes:
    """Rows of a live segment are deleted; `segment` is its new description."""

    name: ClassVar[str] = "SetDeletes"
    segment: Segment
    before_count: int
    before_coverage_checksum: str


@dataclass(frozen=True, slots=True)
class SetMark:
    """This version contains the flushes of a hot source up to `mark`."""

    name: ClassVar[str] = "SetMark"
    source: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class SetTxn:
    """This version contains an application's writes up to `sequence`."""

    name: ClassVar[str] = "SetTxn"
    application: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Expire:
    """Versions before `before` can no longer be read: their files may be gone."""

    name: ClassVar[str] = "Expire"
    before: Version


Action: TypeAlias = (
    SetTable
    | AddSegment
    | RemoveSegment
    | SetDeletes
    | SetMark
    | SetTxn
    | Expire
    | NoteHole
    | NoteRequests
    | NoteFlush
)


def require_types(spec: TableSpec, schema: Schema) -> TableSpec:
    """Return the spec with the feature that the types of its columns need."""
    is_needed = any(has_extension(column.type) for column in schema.columns)
    if not is_needed or EXTENSION_FEATURE in spec.features:
        return spec
    return replace(spec, features=(*spec.features, EXTENSION_FEATURE))


def removal(segment: Segment) -> RemoveSegment:
    """Return the action that removes a live segment."""
    return RemoveSegment(
        segment.segment_id,
        segment.path,
        segment.row_count,
        segment.deleted_count,
        segment.file_size,
        segment.coverage_checksum,
        segment.ts_min,
        segment.ts_max,
        segment.is_time,
    )


def encode_action(action: Action) -> Json:
    """Return the action as JSON: one key, the action's name."""
    match action:
        case SetTable(spec, schema_id, schema):
            body = {**encode_spec(spec), "schema_id": schema_id, "schema": encode_schema(schema)}
        case AddSegment(segment):
            body = encode_segment(segment)
        case RemoveSegment():
            layout.check_relative_path(action.path)
            body = {slot: getattr(action, slot) for slot in _REMOVAL_FIELDS}
            body |= _encode_bounds(action)
        case SetDeletes(segment, count, checksum):
            body = {
                "segment": encode_segment(segment),
                "before_count": count,
                "before_coverage_checksum": checksum,
            }
        case SetMark(source, mark):
            body = {"source": source, "mark": mark}
        case SetTxn(application, sequence):
            body = {"application": application, "sequence": sequence}
        case Expire(before):
            body = {"before": before}
        case NoteHole() | NoteRequests() | NoteFlush():
            body = encode_note(action)
    return {action.name: body}


def decode_action(json: Json) -> Action:
    """Return the action of its JSON; `Unsupported` for an action of a newer format."""
    ((name, body),) = json.items()
    match name:
        case "SetTable":
            schema = decode_schema(body["schema"])
            return SetTable(decode_spec(body), int(body["schema_id"]), schema)
        case "AddSegment":
            return AddSegment(decode_segment(body))
        case "RemoveSegment":
            known = {slot: body[slot] for slot in _REMOVAL_FIELDS}
            layout.check_relative_path(known["path"])
            return RemoveSegment(**(known | _decode_bounds(body)))
        case "SetDeletes":
            return SetDeletes(
                decode_segment(body["segment"]),
                int(body["before_count"]),
                str(body["before_coverage_checksum"]),
            )
        case "SetMark":
            return SetMark(str(body["source"]), Mark(int(body["mark"])))
        case "SetTxn":
            return SetTxn(str(body["application"]), int(body["sequence"]))
        case "Expire":
            return Expire(Version(int(body["before"])))
        case NoteHole.name | NoteRequests.name | NoteFlush.name:
            return decode_note(name, body)
    raise Unsupported("an action of a newer format", hint="use a newer Thermocline", action=name)


_SPEC_PLAIN = ("table_id", "time_column", "overlap", "timezone", "retention", "entities_max")
_SPEC_KNOWN = {
    *_SPEC_PLAIN,
    "bucket",
    "index_type",
    "entity_columns",
    "features",
    "schema_id",
    "schema",
    "writer",
    "token_columns",
}


def encode_spec(spec: TableSpec) -> Json:
    """Return the spec as JSON."""
    return {
        **spec.extra,
        **{name: getattr(spec, name) for name in _SPEC_PLAIN},
        "bucket": str(spec.bucket),
        **({} if spec.bucket.is_time else {"index_type": spec.bucket.index_type}),
        "entity_columns": list(spec.entity_columns),
        "features": list(spec.features),
        **({"writer": encode_writer(spec.writer)} if spec.writer != DEFAULT_WRITER else {}),
        **({"token_columns": list(spec.token_columns)} if spec.token_columns else {}),
    }


def decode_spec(body: Json) -> TableSpec:
    """Return the spec of its JSON; `Unsupported` names the required features it does not know."""
    missing = sorted(set(body["features"]) - FEATURES_SUPPORTED)
    if missing:
        raise Unsupported(
            "the table needs features this version does not have",
            hint="use a newer Thermocline",
            needed=missing,
            supported=sorted(FEATURES_SUPPORTED),
        )
    if body["overlap"] not in OVERLAP_POLICIES:
        raise Corruption("unknown overlap policy in a commit", overlap=body["overlap"])
    return TableSpec(
        **{name: body[name] for name in _SPEC_PLAIN},
        bucket=decode_bucket(body["bucket"], body.get("index_type", TIME)),
        entity_columns=tuple(body["entity_columns"]),
        features=tuple(body["features"]),
        is_unique=UNIQUE_FEATURE in body["features"],
        writer=WriterSettings(**body["writer"]) if "writer" in body else DEFAULT_WRITER,
        extra={name: value for name, value in body.items() if name not in _SPEC_KNOWN},
        token_columns=tuple(body.get("token_columns", ())),
    )


_REMOVAL_FIELDS = tuple(slot for slot in RemoveSegment.__slots__ if slot != "is_time")
_SEGMENT_FIELDS = tuple(slot for slot in Segment.__slots__ if slot not in ("extra", "is_time"))
_SEGMENT_OPTIONAL = {
    "level": 0,
    "deleted_count": 0,
    "deletes": "",
    "tokens_path": "",
    "tokens_size": 0,
    "tokens_checksum": "",
}


def encode_segment(segment: Segment) -> Json:
    """Return the segment as JSON; fields at their default are omitted."""
    for path in segment.paths:
        layout.check_relative_path(path)
    body: Json = {"format": "parquet", **segment.extra}
    for name in _SEGMENT_FIELDS:
        value = getattr(segment, name)
        if name in ("stats", "stored", "absent", *_SEGMENT_OPTIONAL) and not value:
            continue
        body[name] = list(value) if isinstance(value, tuple) else value
    return body | _encode_bounds(segment)


def decode_segment(body: Json) -> Segment:
    """Return the segment of its JSON."""
    for name in ("path", "coverage_path", "tokens_path"):
        if name != "tokens_path" or name in body:
            layout.check_relative_path(body[name])
    if body.get("format", "parquet") != "parquet":
        raise Unsupported(
            "a segment of a newer format", hint="use a newer Thermocline", format=body["format"]
        )
    known: Json = {name: body[name] for name in _SEGMENT_FIELDS if name in body}
    known |= _decode_bounds(body)
    known["absent"] = tuple(body.get("absent", ()))
    known["stats"] = {key: (low, high) for key, (low, high) in body.get("stats", {}).items()}
    skipped = {*_SEGMENT_FIELDS, "format"}
    extra = {name: value for name, value in body.items() if name not in skipped}
    return Segment(**known, extra=extra)


def with_deletes(segment: Segment, **changes: Any) -> SetDeletes:
    """Return the action that replaces a live segment's deletion vector and coverage."""
    return SetDeletes(replace(segment, **changes), segment.deleted_count, segment.coverage_checksum)


def _encode_bounds(segment: Segment | RemoveSegment) -> Json:
    """Return the bounds of a segment as commits have them: times as text, or whole numbers."""
    bounds = {"ts_min": segment.ts_min, "ts_max": segment.ts_max}
    if not segment.is_time:
        return bounds
    return {name: instant.format_instant(time) for name, time in bounds.items()}


def _decode_bounds(body: Json) -> Json:
    bounds = {name: body[name] for name in ("ts_min", "ts_max")}
    if all(type(bound) is int for bound in bounds.values()):
        return {**bounds, "is_time": False}
    return {name: instant.parse_instant(text) for name, text in bounds.items()}
