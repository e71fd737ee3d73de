"""Reads tables over HTTP: their list, properties, coverage, gaps and history.

In:   a call on a route
Out:  typed values, and Arrow tables, which are encoded in the client's format

- Every answer equals the embedded one: both call the same method of the same table.
- No answer has a path of the machine; segment names are relative to the table's folder.
"""

from dataclasses import asdict
from typing import Any

import msgspec
import pyarrow as pa

from thermocline.errors import Invalid
from thermocline.format.types import parse_type
from thermocline.lake_table import LakeTable
from thermocline.server.api.types import response_types
from thermocline.server.api.types.route import ApiRequest, TruncatedRows
from thermocline.show.scrub import scrub
from thermocline.snapshot import resolve_view


def tables(call: ApiRequest) -> response_types.Tables:
    """List the caller's tables."""
    lake = call.lake
    return response_types.Tables([_table_brief(lake.table(name)) for name in lake.tables()])


def _table_brief(table: LakeTable) -> response_types.TableBrief:
    # One snapshot: no row counts as hot and cold.
    view = resolve_view(table.snapshot(is_strict=False), table.cold)
    state = view.state
    return response_types.TableBrief(
        table.name,
        state.version,
        state.totals.rows,
        sum(part.batch.num_rows for part in view.parts),
        state.spec.time_column,
        str(state.spec.bucket),
        scrub(view.warning),
    )


def create_table(call: ApiRequest) -> response_types.TableInfo:
    """Create a table."""
    given = {
        name: value
        for name, value in msgspec.structs.asdict(call.body).items()
        if value is not None and name != "name"
    }
    lake = call.lake
    quota = call.parts.quota.of(call.caller.tenant)
    quota.check_tables(len(lake.tables()) + 1)
    quota.check_entities(given.get("entities_max") or 0)
    if call.body.schema is not None:
        fields = [(c.name, parse_type(c.type), c.metadata or None) for c in call.body.schema]
        quota.check_columns(len(fields))
        given["schema"] = pa.schema([pa.field(n, kind, metadata=kept) for n, kind, kept in fields])
    return _table_info(lake.create_table(call.body.name, **given))


def rename_table(call: ApiRequest) -> response_types.TableInfo:
    """Give a table another name."""
    return _table_info(call.lake.rename_table(call.path["name"], call.body.to))


def drop_table(call: ApiRequest) -> None:
    """Remove a table from the lake; it can be brought back until a vacuum."""
    call.lake.drop_table(call.path["name"])


def dropped_tables(call: ApiRequest) -> pa.Table:
    """List the dropped tables that can be brought back."""
    return call.lake.dropped_tables()


def undrop_table(call: ApiRequest) -> response_types.TableInfo:
    """Bring back a dropped table."""
    _check_room(call)
    return _table_info(call.lake.undrop_table(call.path["name"], call.body.to))


def copy_table(call: ApiRequest) -> response_types.TableInfo:
    """Make a new table with the rows of another."""
    _check_room(call)
    body = call.body
    at = None if body.at is None else parse_at(body.at)
    return _table_info(call.lake.copy_table(call.path["name"], body.to, at=at))


def vacuum_dropped(call: ApiRequest) -> response_types.PurgedResponse:
    """Remove the files of dropped tables."""
    body = call.body
    found = call.lake.vacuum_dropped(
        dry_run=body.dry_run, grace=body.grace, allow_short_grace=body.allow_short_grace
    )
    return response_types.PurgedResponse(body.dry_run, found)


def _check_room(call: ApiRequest) -> None:
    """Raise `Overloaded` when the tenant may not have one more table."""
    quota = call.parts.quota.of(call.caller.tenant)
    quota.check_tables(len(call.lake.tables()) + 1)


def table(call: ApiRequest) -> response_types.TableInfo:
    """Return a table's properties and contents."""
    return _table_info(call.table, parse_at(call.params.at))


def _table_info(table: LakeTable, at: int | str | None = None) -> response_types.TableInfo:
    return msgspec.convert(table.info(at), response_types.TableInfo)


def schema(call: ApiRequest) -> pa.Table:
    """Return the columns, as a table without rows."""
    return call.table.schema(parse_at(call.params.at)).empty_table()


def coverage(call: ApiRequest) -> pa.Table:
    """Return the stretches that are held."""
    asked = call.params
    return call.table.coverage(parse_at(asked.at), per_entity=asked.per_entity)


def gaps(call: ApiRequest) -> pa.Table:
    """Return the stretches that are missing."""
    asked = call.params
    return call.table.gaps(
        asked.start,
        asked.end,
        entity=parse_entity(asked.entity),
        per_entity=asked.per_entity,
        at=parse_at(asked.at),
    )


def ratio(call: ApiRequest) -> response_types.Ratio:
    """Return the share of buckets that are held."""
    asked, table = call.params, call.table
    which = {"entity": parse_entity(asked.entity), "at": parse_at(asked.at)}
    share = table.coverage_ratio(asked.start, asked.end, **which)
    if asked.start is None or asked.end is None:
        return response_types.Ratio(share, None)
    return response_types.Ratio(share, table.is_covered(asked.start, asked.end, **which))


def window(call: ApiRequest) -> response_types.WindowResponse:
    """Return the newest fully held window of a length."""
    asked = call.params
    found = call.table.last_fully_covered_window(
        asked.length,
        before=asked.before,
        entity=parse_entity(asked.entity),
        at=parse_at(asked.at),
    )
    if found is None:
        return response_types.WindowResponse(None, None)
    start, end = (
        str(one) if isinstance(one, int) else one.isoformat().replace("+00:00", "Z")
        for one in found
    )
    return response_types.WindowResponse(start, end)


def silent(call: ApiRequest) -> pa.Table:
    """Return the entities without a row in a stretch."""
    asked = call.params
    return call.table.silent_entities(asked.start, asked.end, at=parse_at(asked.at))


def holes(call: ApiRequest) -> pa.Table:
    """Return the writes that were lost before they were flushed."""
    return call.table.holes()


def history(call: ApiRequest) -> TruncatedRows:
    """Return the commits, the newest first, and whether there are older ones."""
    limit = call.params.limit
    found = call.table.history(limit + 1)
    return TruncatedRows(found.slice(0, limit), found.num_rows > limit)


def diff(call: ApiRequest) -> response_types.DiffResponse:
    """Return what changed from one version to another."""
    found = call.table.diff(parse_at(call.params.old), parse_at(call.params.new))
    return msgspec.convert(asdict(found), response_types.DiffResponse)


def parse_at(text: int | str | None) -> int | str | None:
    """Return a version where the text is one, else the text: an instant."""
    if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    if isinstance(text, int) and not 0 <= text < 1 << 62:
        hint = "`history` lists the versions"
        raise Invalid("a version is out of range", hint=hint, version=text)
    return text


def parse_entity(text: str | None) -> Any:
    """Return an entity: JSON where the text is JSON, else the text itself."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return text
