"""dlt's destination: what dlt extracts and normalises becomes rows of a lake's tables.

In:   files of a load, the table's schema as dlt knows it
Out:  rows that are durable when their load job ends, each exactly once

    import dlt
    from thermocline.dlt_destination import destination, time_series

    pipeline = dlt.pipeline("weather", destination=destination("./lake"))
    pipeline.run(time_series(readings(), time_column="ts", entity_columns=["sensor"]))

- A job's key is its file's id, which stays when dlt tries again: a repeated file adds no row.
- A table is created with its first file. Without `time_series` its time column is the only one that
  is a time.
- Rows are appended. `replace` and `merge` are refused: dlt would believe that rows are gone.
- One process writes a lake in a folder, so its jobs run one after the other; a node takes them at
  once.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pyarrow.types as kinds

from thermocline.entry_point import connect
from thermocline.errors import Conflict, Invalid, TableNotFound
from thermocline.extras import require_extra
from thermocline.format.argument import check_path, check_text

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "thermocline"
HINT = "x-thermocline"
BUCKET_DEFAULT = "1h"
ROWS_PER_WRITE = 100_000


def time_series(
    data: Any,
    *,
    time_column: str,
    entity_columns: str | Sequence[str] = (),
    bucket: str = BUCKET_DEFAULT,
    overlap: str = "allow",
) -> Any:
    """Return a resource of dlt whose table is created with these arguments of `create_table`."""
    with require_extra("dlt", feature="the destination of dlt"):
        import dlt
    resource = data if hasattr(data, "apply_hints") else dlt.resource(data)
    entities = [entity_columns] if isinstance(entity_columns, str) else list(entity_columns)
    hint = {
        "time_column": check_text(time_column, "time_column"),
        "entity_columns": entities,
        "bucket": bucket,
        "overlap": overlap,
    }
    resource.apply_hints(additional_table_hints={HINT: hint})
    return resource


def destination(place: str | os.PathLike[str], *, api_key: str | None = None) -> Any:
    """Return a destination of dlt: a lake's folder, or the address of a node with a key."""
    with require_extra("dlt", feature="the destination of dlt"):
        import dlt
    where = check_path(place, "place")
    is_node = where.startswith(("http://", "https://"))

    def write(items: str, table: Mapping[str, Any]) -> None:
        write_file(where, api_key, items, table)

    decorate: Any = dlt.destination(
        name=NAME,
        batch_size=0,
        loader_file_format="parquet",
        max_parallel_load_jobs=None if is_node else 1,
    )
    return decorate(write)()


def write_file(place: str, api_key: str | None, path: str, table: Mapping[str, Any]) -> None:
    """Append the rows of one file of a load; a file that was written before changes nothing."""
    from dlt.common.storages.load_package import ParsedLoadJobFileName

    name = table["name"]
    disposition = table.get("write_disposition", "append")
    if disposition != "append":
        raise Invalid(
            "a table of time series only takes rows to append",
            hint="use write_disposition='append'; delete rows with DELETE or a retention",
            table=name,
            write_disposition=disposition,
        )
    job = ParsedLoadJobFileName.parse(path)
    settings: dict[str, Any] = {} if api_key is None else {"api_key": api_key}
    with pq.ParquetFile(path) as file, connect(place, **settings) as lake:
        try:
            target = lake.table(name)
        except TableNotFound:
            with suppress(Conflict):  # another job was first
                lake.create_table(name, **_spec_of(table, file.schema_arrow))
            target = lake.table(name)
        # A column of nulls has no type that a table can take; a later file may add the column.
        named = [field.name for field in file.schema_arrow if not kinds.is_null(field.type)]
        batches = file.iter_batches(ROWS_PER_WRITE, columns=named)
        for number, batch in enumerate(batches):
            # The parts of a file are the same in each try, so each has its own key.
            key = f"dlt:{job.table_name}:{job.file_id}:{number}"
            target.write(batch, evolve=True, request_id=key)


def _spec_of(table: Mapping[str, Any], schema: "pa.Schema") -> dict[str, Any]:
    """Return the arguments that create a table: those of `time_series`, or the ones found."""
    hint = table.get(HINT)
    if hint is not None:
        return dict(hint)
    times = [field.name for field in schema if kinds.is_timestamp(field.type)]
    if len(times) != 1:
        raise Invalid(
            "the table's time column is not known",
            hint="wrap the resource in thermocline.dlt_destination.time_series(..., time_column=)",
            table=table["name"],
            candidates=times,
        )
    return {"time_column": times[0], "bucket": BUCKET_DEFAULT}
