"""A node's tables and SQL over them, with the interface of an embedded lake.

In:   an address, a key; names, rows, SQL
Out:  `ClientTable`s, Arrow tables and streams; errors of the same kinds as embedded
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from thermocline.client.http import Wire, problem_error, quote_part
from thermocline.client.parameters import wire_at, wire_params
from thermocline.client.query_answer import ClientAnswer
from thermocline.client.table import ClientTable, table_path
from thermocline.entity.model import ReadMode, mode_of
from thermocline.errors import Invalid, NotFound, Overloaded, ThermoclineError
from thermocline.format.argument import check_flag, check_renamed_flag, check_seconds, check_text
from thermocline.format.bucket import write_duration
from thermocline.format.log.action import Mark
from thermocline.format.schema import encode_schema
from thermocline.format.writer_settings import encode_writer
from thermocline.table import At, ColumnTypes, declare_columns, new_spec

if TYPE_CHECKING:
    from thermocline.client.entity import ClientEntityTable
    from thermocline.hot.postgres.revision.change import EntityChange, FeedPage
    from thermocline.hot.postgres.store.operation import WriteResult

TIMEOUT_S_DEFAULT = 90.0
ANSWER_BYTES_MAX = 2 << 30

Params = Sequence[Any] | Mapping[str, Any] | None


class Client:
    """A lake on a node. Safe to use from many threads.

    `timeout_s` is how long to wait for bytes from the node, and for how long a repeatable request
    is retried.
    """

    def __init__(
        self, url: str, api_key: str | None = None, timeout_s: float = TIMEOUT_S_DEFAULT
    ) -> None:
        check_text(url, "url")
        if api_key is not None:
            check_text(api_key, "api_key")
        if not url.startswith(("http://", "https://")) or "@" in url:
            hint = "use a URL like http://127.0.0.1:4320, and pass the key as api_key"
            raise Invalid("the address is not the URL of a node", hint=hint)
        self._wire = Wire(url, api_key, check_seconds(timeout_s, "timeout_s"))

    @property
    def flush_error(self) -> ThermoclineError | None:
        """The error of the node's last periodic flush; None when it succeeded."""
        problem = self._wire.read_json("/api/v1/jobs")["flush_error"]
        return problem_error(problem) if problem else None

    def root(self) -> str:
        """Return the node's address."""
        return self._wire.url

    def tables(self) -> list[str]:
        """Return the names of the tables, in order."""
        return [one["name"] for one in self._wire.read_json("/api/v1/tables")["tables"]]

    def table(self, name: str) -> ClientTable:
        """Return a table; `NotFound` when no table has this name."""
        info = self._wire.read_json(table_path(name))
        return ClientTable(self._wire, info["name"])

    def create_table(
        self,
        name: str,
        *,
        time_column: str | None = None,
        bucket: str | timedelta | int | None = None,
        entity_columns: str | Sequence[str] | None = (),
        overlap: str = "allow",
        schema: ColumnTypes | None = None,
        **more: Any,
    ) -> ClientTable:
        """Create a table; takes the arguments of `Lake.create_table`."""
        spec = new_spec(time_column, bucket, entity_columns, overlap=overlap, **more)
        body: dict[str, Any] = {
            "name": name,
            "time_column": spec.time_column,
            "bucket": str(spec.bucket),
            "index_type": spec.bucket.index_type,
            "entity_columns": spec.entity_columns,
            "overlap": overlap,
            "timezone": spec.timezone,
            "retention": spec.retention,
            "entities_max": more.get("entities_max"),
            "unique": spec.is_unique,
            "writer": encode_writer(spec.writer),
            "token_columns": spec.token_columns,
        }
        if schema is not None:
            declared = encode_schema(declare_columns(schema, spec))["columns"]
            kept = ("name", "type", "metadata")
            body["schema"] = [{k: c[k] for k in kept if k in c} for c in declared]
        info = self._wire.change("/api/v1/tables", body)
        return ClientTable(self._wire, info["name"])

    def rename_table(self, name: str, to: str) -> ClientTable:
        """Give a table another name; its rows, hot ones too, and its history stay."""
        info = self._wire.change(f"{table_path(name)}/rename", {"to": check_text(to, "to")})
        return ClientTable(self._wire, info["name"])

    def drop_table(self, name: str) -> None:
        """Remove a table from the lake; `undrop_table` brings it back until a vacuum."""
        self._wire.change(table_path(name), method="DELETE")

    def dropped_tables(self) -> pa.Table:
        """Return the dropped tables that can be brought back: table, dropped; the newest first."""
        return self._wire.read_rows("/api/v1/dropped")

    def undrop_table(self, name: str, to: str | None = None) -> ClientTable:
        """Bring back the table that was dropped last under a name, as `to` if that is given."""
        body = {"to": None if to is None else check_text(to, "to")}
        info = self._wire.change(f"{table_path(name)}/undrop", body)
        return ClientTable(self._wire, info["name"])

    def copy_table(self, name: str, to: str, *, at: At = None) -> ClientTable:
        """Make a new table with the rows of another, now or at a version or instant."""
        body = {"to": check_text(to, "to"), "at": wire_at(at)}
        info = self._wire.change(f"{table_path(name)}/copy", body)
        return ClientTable(self._wire, info["name"])

    def vacuum_dropped(
        self,
        *,
        dry_run: bool = True,
        grace: str | timedelta | None = None,
        allow_short_grace: bool = False,
    ) -> list[str]:
        """Remove the files of tables that were dropped longer ago than the grace period."""
        body = {
            "dry_run": check_flag(dry_run, "dry_run"),
            "grace": None if grace is None else write_duration(grace, "grace"),
            "allow_short_grace": check_flag(allow_short_grace, "allow_short_grace"),
        }
        return list(self._wire.change("/api/v1/dropped/vacuum", body)["tables"])

    def entity_types(self) -> list[str]:
        """Return the names of the entity types, in order."""
        return list(self._wire.read_json("/api/v1/entities")["types"])

    def register(self, name: str, document: Any) -> "ClientEntityTable":
        """Register a JSON Schema as a type of entities, or as its next version."""
        from thermocline.client.entity import register_type

        return register_type(self._wire, name, document)

    def entity(self, name: str) -> "ClientEntityTable":
        """Return the entities of a type; `NotFound` when no type of this name is registered.

        The client needs the libraries of entities, too: it decodes documents by their contract.
        """
        from thermocline.client.entity import ClientEntityTable

        return ClientEntityTable(self._wire, name)

    def transact(
        self, operations: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> "list[WriteResult]":
        """Write entities of several types in one transaction: all of them or none.

        See `Lake.transact`. With an `idempotency_key` the request is retried until the timeout.
        """
        from thermocline.client.entity import transact_over

        return transact_over(self._wire, operations, idempotency_key)

    def changes(
        self,
        types: str | Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 100,
        *,
        wait_s: float = 0.0,
    ) -> "FeedPage":
        """Return the next committed changes of entities; see `Lake.changes`."""
        from thermocline.client.entity import read_changes

        return read_changes(self._wire, types, after, limit, wait_s)

    def feed_position(self) -> str:
        """Return the feed's position of now; see `Lake.feed_position`."""
        return str(self._wire.read_json("/api/v1/feed/position")["position"])

    def follow(
        self,
        types: str | Sequence[str] | None = None,
        after: str | None = None,
        *,
        idle_s: float | None = None,
    ) -> "Iterator[EntityChange]":
        """Yield committed changes of entities one by one, and wait for more; see `Lake.follow`."""
        from thermocline.entity.follow import follow_pages

        return follow_pages(self.changes, types, after, idle_s)

    def sql(
        self, query: str, params: Params = None, *, mode: ReadMode | str | None = None
    ) -> pa.Table:
        """Return the answer of one SELECT over the node's tables, hot and cold rows alike."""
        with self.answer(query, params, mode=mode) as reader:
            batches: list[pa.RecordBatch] = []
            size_bytes = 0
            for batch in reader:
                batches.append(batch)
                size_bytes += batch.nbytes
                if size_bytes > ANSWER_BYTES_MAX:
                    raise Overloaded(
                        "the answer is larger than the limit",
                        hint="use sql_reader to read it as a stream, or select less",
                        bytes_max=ANSWER_BYTES_MAX,
                    )
            return pa.Table.from_batches(batches, reader.schema)

    def sql_reader(
        self, query: str, params: Params = None, *, mode: ReadMode | str | None = None
    ) -> pa.RecordBatchReader:
        """Return the answer of one SELECT as a stream of batches."""
        return self.answer(query, params, mode=mode)

    def answer(
        self,
        query: str,
        params: Params = None,
        *,
        timeout_s: float | None = None,
        query_id: str | None = None,
        mode: ReadMode | str | None = None,
    ) -> ClientAnswer:
        """Return the answer as a stream with a report of the tables it was read from.

        `mode` says how to answer queries of entities when the node's PostgreSQL is down.
        """
        limit_s = None if timeout_s is None else check_seconds(timeout_s, "timeout_s")
        if query_id is not None:
            check_text(query_id, "query_id")
        body = {
            "sql": check_text(query, "query"),
            "params": wire_params(params),
            "timeout_s": limit_s,
            "query_id": query_id or uuid.uuid4().hex,
        }
        if mode is not None:
            body["mode"] = mode_of(mode).value
        return ClientAnswer(
            self._wire.open_answer("/api/v1/query", body, timeout_s=limit_s or 0.0),
            self._find_query_error,
        )

    def cancel(self, query_id: str) -> bool:
        """End a running query within a second; False when no query of this id is running."""
        try:
            self._wire.change(f"/api/v1/queries/{quote_part(query_id)}", method="DELETE")
        except NotFound:
            return False
        return True

    def _find_query_error(self, query_id: str) -> ThermoclineError | None:
        """Return the error of a query whose answer was truncated, if the node knows it."""
        try:
            state = self._wire.read_json(f"/api/v1/queries/{quote_part(query_id)}")
            return problem_error(state["error"]) if state["error"] else None
        except ThermoclineError:
            return None

    def flush(self, name: str | None = None) -> dict[str, Mark]:
        """Flush hot rows into the lake, of one table or of all; return the marks reached."""
        path = "/api/v1/flush" if name is None else f"{table_path(name)}/flush"
        marks = self._wire.change(path)["marks"]
        return {table: Mark(mark) for table, mark in marks.items()}

    def close(self, *, flush: bool = True, is_flushed: bool | None = None) -> None:
        """Close the connections after all submitted writes are sent; the node keeps running.

        `flush` has no effect, because the node decides when it flushes. The argument exists for
        programs that also run embedded. `is_flushed` is its old name.
        """
        check_renamed_flag(flush, "flush", is_flushed, "is_flushed")
        self._wire.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._wire.url!r})"

    def _repr_html_(self) -> str:
        from thermocline.show import list_html

        found = self._wire.read_json("/api/v1/tables")["tables"]
        lines = [
            (one["name"], f"{one['rows'] + one['hot_rows']:,} rows, version {one['version']:,}")
            for one in found
        ]
        return list_html("lake of a node", self._wire.url, lines)
