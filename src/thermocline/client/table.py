"""A table of a node, with the interface of an embedded table.

In:   rows, conditions, times
Out:  the same as `LakeTable`: Arrow tables, versions, small values

- Rows are sent as Arrow, so that types and values are exact.
- Every write carries an idempotency key: if this client sends it again, it is written once.
"""

import json
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from thermocline.client.held import read_held
from thermocline.client.http import ARROW, Wire, quote_part
from thermocline.client.parameters import wire_at, wire_time
from thermocline.cold.care.vacuum import VacuumReport
from thermocline.cold.change.update import UpdateReport, check_key
from thermocline.cold.compact.rewrite import CompactionReport
from thermocline.cold.coverage_report import HISTORY_ROWS_MAX, CoverageReport, VersionDiff
from thermocline.errors import Invalid
from thermocline.format.argument import (
    check_count,
    check_flag,
    check_function,
    check_seconds,
    check_text,
    list_names,
)
from thermocline.format.bucket import decode_bucket, parse_bucket, write_duration
from thermocline.format.instant import parse_instant, to_datetime
from thermocline.format.layout import Version
from thermocline.format.log.action import TableSpec
from thermocline.format.schema import Schema
from thermocline.format.types import plain_type
from thermocline.ingest.idempotency import request_key
from thermocline.ingest.rows import rows_table
from thermocline.names import CLIENT_KEY_PREFIX, is_table_name

COMPRESSED_BYTES_MIN = 16 << 10


class ClientTable:
    """A table by its name; every call is a request to the node."""

    def __init__(self, wire: Wire, name: str) -> None:
        self._wire = wire
        self._path = table_path(name)
        self.name = name

    def info(self, at: object = None) -> dict[str, Any]:
        """Return the table's properties and contents, with the field names of docs/api.md."""
        return dict(self._wire.read_json(self._path, at=wire_at(at)))

    def root(self) -> str:
        """Return the table's address on the node."""
        return self._wire.url + self._path

    def version(self) -> Version:
        """Return the newest version."""
        return Version(self.info()["version"])

    def schema(self, at: object = None) -> pa.Schema:
        """Return the columns, now or at a version or instant."""
        return self._wire.read_rows(f"{self._path}/schema", at=wire_at(at)).schema

    def write(
        self,
        rows: Any,
        *,
        evolve: bool = False,
        wait_s: float | None = None,
        request_id: str | None = None,
    ) -> int:
        """Write rows and return how many; they are durable and visible when this returns.

        As `LakeTable.write`. Without a `request_id` the client generates one, so that a retry is
        written once. `Overloaded` is retried until the client's timeout.
        """
        how = _check_write_options(evolve, wait_s, request_id)
        given = _without_views(self._arrow_table(rows, evolve=evolve))
        return self._write(given, *how) if given.num_rows else 0

    def submit(
        self,
        rows: Any,
        *,
        evolve: bool = False,
        wait_s: float | None = None,
        request_id: str | None = None,
    ) -> "Future[int]":
        """Write rows as `write` does; the future is done when they are durable and visible.

        A few writes are sent at once, and a few more wait; past that this call blocks.
        """
        how = _check_write_options(evolve, wait_s, request_id)
        given = _without_views(self._arrow_table(rows, evolve=evolve))
        if not given.num_rows:
            done: Future[int] = Future()
            done.set_result(0)
            return done
        return self._wire.submit(lambda: self._write(given, *how))

    def _write(
        self, given: pa.Table, evolve: bool, wait_s: float | None, request_id: str | None
    ) -> int:
        data, headers = _encode_rows(given)
        headers["Idempotency-Key"] = request_id or f"{CLIENT_KEY_PREFIX}{uuid.uuid4().hex}"
        answer = self._wire.send(
            "POST",
            f"{self._path}/rows",
            params={"evolve": evolve, "wait_s": wait_s},
            content=data,
            headers=headers,
            is_repeatable=True,
        )
        return int(answer.json()["rows"])

    def _arrow_table(self, rows: Any, *, evolve: bool) -> pa.Table:
        if hasattr(rows, "__arrow_c_stream__"):
            if type(rows).__module__.partition(".")[0] != "pandas":
                return rows_table(rows, Schema(), _NO_SPEC)
            # The index of a frame may be the time column, whose name the node knows.
            named = replace(_NO_SPEC, time_column=self.info()["time_column"])
            return rows_table(rows, Schema(), named)
        # Python values get the table's types, which the node has to be asked for.
        info = self.info()
        bucket, zone = decode_bucket(info["bucket"], info["index_type"]), info["timezone"]
        spec = TableSpec("", info["time_column"], bucket, timezone=zone)
        known = list(self.schema())
        schema = Schema().add_columns(known) if known else Schema()
        return rows_table(rows, schema, spec, may_widen=evolve)

    def update_rows(
        self,
        rows: Any,
        *,
        columns: str | Sequence[str] | None = None,
        key: str | Sequence[str] | None = None,
        expected_version: int | None = None,
    ) -> UpdateReport:
        """Give rows new values by their key, as `TimeSeriesTable.update_rows` does."""
        return self._update("update", rows, columns, key, expected_version)

    def upsert(
        self,
        rows: Any,
        *,
        columns: str | Sequence[str] | None = None,
        key: str | Sequence[str] | None = None,
        expected_version: int | None = None,
    ) -> UpdateReport:
        """Do what `update_rows` does, and insert the rows whose key does not exist."""
        return self._update("upsert", rows, columns, key, expected_version)

    def _update(
        self, verb: str, rows: Any, columns: Any, key: Any, expected_version: Any
    ) -> UpdateReport:
        if expected_version is not None:
            check_count(expected_version, "expected_version", 1)
        info = self.info()
        check_key(key, (*info["entity_columns"], info["time_column"]))
        given = _without_views(self._arrow_table(rows, evolve=False))
        chosen = None if columns is None else ",".join(list_names(columns, "columns"))
        data, headers = _encode_rows(given)
        answer = self._wire.send(
            "POST",
            f"{self._path}/{verb}",
            params={"columns": chosen, "expected_version": expected_version},
            content=data,
            headers=headers,
            is_repeatable=expected_version is None,
        ).json()
        return UpdateReport(
            Version(expected_version or info["version"]),
            Version(answer["version"]),
            answer["matched"],
            answer["inserted"],
            answer["unchanged"],
        )

    def flush(self) -> Version:
        """Flush the hot rows into the lake; return the version that has them."""
        return Version(self._wire.change(f"{self._path}/flush")["version"])

    def delete(
        self, where: str | None = None, *, start: object = None, end: object = None
    ) -> Version:
        """Delete the rows for which the SQL condition holds, in a stretch of time if given."""
        if where is not None:
            check_text(where, "where")
        body = {"where": where, "start": wire_time(start), "end": wire_time(end)}
        return self._post_change("delete", body)

    def restore(self, at: object) -> Version:
        """Restore the table to a version or instant, as a new version."""
        return self._post_change("restore", {"at": wire_at(at)})

    def retain(self, *, yes: bool = False) -> Version:
        """Delete the rows past the table's retention; `yes` confirms that all of them may go."""
        return self._post_change("retain", {"yes": check_flag(yes, "yes")})

    def _post_change(self, verb: str, body: dict[str, Any]) -> Version:
        return Version(self._wire.change(f"{self._path}/{verb}", body)["version"])

    def set_retention(self, retention: str | timedelta | None) -> Version:
        """Set how long rows are kept, such as `90d` or a `timedelta`; None keeps all rows."""
        kept = None if retention is None else write_duration(retention, "retention")
        return self._post_change("retention", {"retention": kept})

    def compact(
        self, progress: Callable[[str, int, int], None] = lambda what, done, total: None
    ) -> CompactionReport:
        """Rewrite small segments as few large ones; the rows stay the same.

        `progress` is called only at the end: the node answers once.
        """
        check_function(progress, "progress")
        found = self._wire.change(f"{self._path}/compact", {})
        progress("merging", found["commits"], found["commits"])
        return CompactionReport(**found)

    def vacuum(
        self,
        *,
        dry_run: bool = True,
        grace: str | timedelta | None = None,
        allow_short_grace: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> VacuumReport:
        """Remove files that no kept version names; by default only list them.

        `progress` is called only at the end: the node answers once.
        """
        check_function(progress, "progress")
        body = {
            "dry_run": check_flag(dry_run, "dry_run"),
            "grace": None if grace is None else write_duration(grace, "grace"),
            "allow_short_grace": check_flag(allow_short_grace, "allow_short_grace"),
        }
        found = self._wire.change(f"{self._path}/vacuum", body)
        if found["files"] and not dry_run:
            progress(len(found["files"]), len(found["files"]))
        return VacuumReport(
            found["is_dry_run"], found["oldest"], tuple(found["files"]), found["size_bytes"]
        )

    def history(self, limit: int = HISTORY_ROWS_MAX) -> pa.Table:
        """Return the commits, newest first, as an Arrow table."""
        return self._wire.read_rows(f"{self._path}/history", limit=check_count(limit, "limit"))

    def diff(self, old: object, new: object = None) -> VersionDiff:
        """Return what changed from one version or instant to another, or to the newest."""
        found = self._wire.read_json(f"{self._path}/diff", old=wire_at(old), new=wire_at(new))
        parts: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found.items()
        }
        return VersionDiff(**parts)

    def coverage(self, at: object = None, *, per_entity: bool = True) -> pa.Table:
        """Return the stretches that are held: entity columns, start, end, buckets."""
        check_flag(per_entity, "per_entity")
        return self._wire.read_rows(f"{self._path}/coverage", at=wire_at(at), per_entity=per_entity)

    def gaps(
        self,
        start: object = None,
        end: object = None,
        *,
        entity: object = None,
        per_entity: bool = True,
        at: object = None,
    ) -> pa.Table:
        """Return the stretches that are missing: entity columns, start, end, buckets."""
        return self._wire.read_rows(
            f"{self._path}/gaps",
            **_stretch_params(start, end, entity, at),
            per_entity=check_flag(per_entity, "per_entity"),
        )

    def coverage_ratio(
        self, start: object = None, end: object = None, *, entity: object = None, at: object = None
    ) -> float:
        """Return the share of buckets that are held, from 0.0 to 1.0."""
        return float(
            self._wire.read_json(f"{self._path}/ratio", **_stretch_params(start, end, entity, at))[
                "ratio"
            ]
        )

    def is_covered(
        self, start: object, end: object, *, entity: object = None, at: object = None
    ) -> bool:
        """Tell whether every bucket is held, by every entity unless one is named."""
        found = self._wire.read_json(
            f"{self._path}/ratio", **_stretch_params(start, end, entity, at)
        )
        return bool(found["is_covered"])

    def last_fully_covered_window(
        self,
        length: str | timedelta | int,
        *,
        before: object = None,
        entity: object = None,
        at: object = None,
    ) -> tuple[Any, Any] | None:
        """Return the newest window of this length (`6h`) that is held in full, or None."""
        found = self._wire.read_json(
            f"{self._path}/window",
            length=_write_length(length),
            before=wire_time(before),
            entity=_entity_param(entity),
            at=wire_at(at),
        )
        if found["start"] is None:
            return None
        start, end = (_read_edge(found[name]) for name in ("start", "end"))
        return start, end

    def held(self, at: object = None) -> CoverageReport:
        """Return a report of what is held, now or at a version or instant."""
        return read_held(self, at)

    def silent_entities(self, start: object, end: object = None, *, at: object = None) -> pa.Table:
        """Return the entities without a row in the stretch, and when each was last seen."""
        times = {"start": wire_time(start), "end": wire_time(end)}
        return self._wire.read_rows(f"{self._path}/silent", **times, at=wire_at(at))

    def holes(self) -> pa.Table:
        """Return the writes that were lost before they were flushed: source, numbers, when."""
        return self._wire.read_rows(f"{self._path}/holes")

    def __repr__(self) -> str:
        return f"ClientTable({self.name!r} at {self._wire.url})"


def _encode_rows(rows: pa.Table) -> tuple[bytes, dict[str, str]]:
    """Return rows as the body of a request, and its headers."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    headers = {"Content-Type": ARROW}
    if len(data) >= COMPRESSED_BYTES_MIN:
        data = pa.compress(data, codec="zstd", asbytes=True)
        headers["Content-Encoding"] = "zstd"
    return data, headers


def _write_length(length: str | timedelta | int) -> str:
    is_number = isinstance(length, int) and not isinstance(length, bool)
    return str(length) if is_number else str(parse_bucket(length, "length"))


def _read_edge(text: str) -> Any:
    """Return the edge of a window: a datetime, or a whole number of an integer index."""
    return int(text) if text.lstrip("-").isdigit() else to_datetime(parse_instant(text))


def table_path(name: str) -> str:
    """Return the URL path of a table; `Invalid` for a name that no table can have."""
    if not isinstance(name, str) or not is_table_name(name):
        # HTTP clients and proxies resolve dots and slashes, so the path could be another one.
        raise Invalid(
            "this cannot be the name of a table",
            hint="use letters, digits and underscores, at most 63, no digit first",
            name=str(name)[:80],
        )
    return f"/api/v1/tables/{quote_part(name)}"


def _check_write_options(
    evolve: bool, wait_s: float | None, request_id: str | None
) -> tuple[bool, float | None, str | None]:
    """Return the checked options of a write; `Invalid` before anything is sent."""
    if request_id is not None:
        request_key(request_id)
        if not (request_id.isascii() and request_id.isprintable()):
            hint = "use a random id, such as a UUID, for each request"
            raise Invalid("an idempotency key must be printable ASCII", hint=hint)
    waiting_s = None if wait_s is None else check_seconds(wait_s, "wait_s")
    return check_flag(evolve, "evolve"), waiting_s, request_id


_NO_SPEC = TableSpec("", "", parse_bucket("1h"))


def _stretch_params(start: object, end: object, entity: object, at: object) -> dict[str, Any]:
    times = {"start": wire_time(start), "end": wire_time(end)}
    return times | {"entity": _entity_param(entity), "at": wire_at(at)}


def _entity_param(entity: object) -> str | None:
    if entity is None:
        return None
    try:
        return json.dumps(list(entity) if isinstance(entity, tuple) else entity, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        hint = "pass the value of the entity column, or a dict of them"
        raise Invalid(
            "this value cannot name an entity", hint=hint, argument="entity", why=str(error)
        ) from error


def _without_views(rows: pa.Table) -> pa.Table:
    """Return rows without view types, which a node refuses because they can expand."""
    fields = [field.with_type(_type_without_views(field.type)) for field in rows.schema]
    wanted = pa.schema(fields, rows.schema.metadata)
    return rows if wanted.equals(rows.schema) else rows.cast(wanted)


def _type_without_views(kind: pa.DataType) -> pa.DataType:
    if kinds.is_dictionary(kind):
        return kind
    views = kinds.is_string_view(kind) or kinds.is_binary_view(kind) or kinds.is_nested(kind)
    return plain_type(kind) if views else kind
