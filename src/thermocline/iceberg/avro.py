"""Manifests and manifest lists of Iceberg: their Avro schemas, and their bytes both ways.

In:   entries of data files and of delete files, and rows of a manifest list
Out:  Avro files of format version 2

A table has no partitions: pruning uses the bounds of columns.
"""

import io
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias

import orjson

from thermocline.errors import Corruption
from thermocline.extras import require_extra

Record: TypeAlias = dict[str, Any]
ADDED, EXISTING, DELETED = 1, 0, 2
DATA, DELETES = 0, 1
FORMAT_VERSION = 2
DAMAGE_HINT = "remove the folder of Iceberg metadata and publish the table again"


def _optional(name: str, kind: Any, number: int) -> Record:
    return {"name": name, "type": ["null", kind], "default": None, "field-id": number}


def _plain(name: str, kind: Any, number: int) -> Record:
    return {"name": name, "type": kind, "field-id": number}


def _by_column(name: str, number: int, key: int, value: int, kind: str) -> Record:
    pair = {
        "type": "record",
        "name": f"k{key}_v{value}",
        "fields": [_plain("key", "int", key), _plain("value", kind, value)],
    }
    return _optional(name, {"type": "array", "logicalType": "map", "items": pair}, number)


_DATA_FILE = {
    "type": "record",
    "name": "r2",
    "fields": [
        _plain("content", "int", 134),
        _plain("file_path", "string", 100),
        _plain("file_format", "string", 101),
        _plain("partition", {"type": "record", "name": "r102", "fields": []}, 102),
        _plain("record_count", "long", 103),
        _plain("file_size_in_bytes", "long", 104),
        _by_column("value_counts", 109, 119, 120, "long"),
        _by_column("null_value_counts", 110, 121, 122, "long"),
        _by_column("lower_bounds", 125, 126, 127, "bytes"),
        _by_column("upper_bounds", 128, 129, 130, "bytes"),
        _optional("sort_order_id", "int", 140),
        _optional("referenced_data_file", "string", 143),
    ],
}
_ENTRY = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        _plain("status", "int", 0),
        _optional("snapshot_id", "long", 1),
        _optional("sequence_number", "long", 3),
        _optional("file_sequence_number", "long", 4),
        _plain("data_file", _DATA_FILE, 2),
    ],
}
_LIST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _plain("manifest_path", "string", 500),
        _plain("manifest_length", "long", 501),
        _plain("partition_spec_id", "int", 502),
        _plain("content", "int", 517),
        _plain("sequence_number", "long", 515),
        _plain("min_sequence_number", "long", 516),
        _plain("added_snapshot_id", "long", 503),
        _plain("added_files_count", "int", 504),
        _plain("existing_files_count", "int", 505),
        _plain("deleted_files_count", "int", 506),
        _plain("added_rows_count", "long", 512),
        _plain("existing_rows_count", "long", 513),
        _plain("deleted_rows_count", "long", 514),
    ],
}


def load_fastavro() -> ModuleType:
    """Return the Avro library; `Unsupported` names the extra that installs it."""
    with require_extra("iceberg", feature="Iceberg metadata"):
        import fastavro

    return fastavro


@cache
def _parse_schema(name: str) -> Any:
    return load_fastavro().parse_schema({"entry": _ENTRY, "list": _LIST}[name])


def encode_manifest(entries: Sequence[Record], content: int, schema: Record) -> bytes:
    """Return the bytes of a manifest; `schema` is the table's Iceberg schema."""
    metadata = {
        "schema": orjson.dumps(schema).decode(),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": str(FORMAT_VERSION),
        "content": ("data", "deletes")[content],
    }
    return _encode(_parse_schema("entry"), entries, metadata)


def describe_manifest(
    path: str, size_bytes: int, entries: Sequence[Record], content: int, version: int
) -> Record:
    """Return the row of a manifest in a manifest list."""
    files, rows = [0, 0, 0], [0, 0, 0]
    for entry in entries:
        files[entry["status"]] += 1
        rows[entry["status"]] += entry["data_file"]["record_count"]
    live = [e["sequence_number"] for e in entries if e["status"] != DELETED]
    return {
        "manifest_path": path,
        "manifest_length": size_bytes,
        "partition_spec_id": 0,
        "content": content,
        "sequence_number": version,
        "min_sequence_number": min(live, default=version),
        "added_snapshot_id": version,
        "added_files_count": files[ADDED],
        "existing_files_count": files[EXISTING],
        "deleted_files_count": files[DELETED],
        "added_rows_count": rows[ADDED],
        "existing_rows_count": rows[EXISTING],
        "deleted_rows_count": rows[DELETED],
    }


def encode_list(manifests: Sequence[Record], version: int) -> bytes:
    """Return the bytes of a manifest list."""
    metadata = {
        "format-version": str(FORMAT_VERSION),
        "snapshot-id": str(version),
        "sequence-number": str(version),
    }
    return _encode(_parse_schema("list"), manifests, metadata)


def _encode(schema: Any, records: Sequence[Record], metadata: dict[str, str]) -> bytes:
    sink = io.BytesIO()
    load_fastavro().writer(sink, schema, records, codec="deflate", metadata=metadata)
    return sink.getvalue()


def decode_records(data: bytes, path: str) -> list[Record]:
    """Return the records of a manifest or of a manifest list; `Corruption` if it is damaged."""
    fastavro = load_fastavro()
    try:
        return list(fastavro.reader(io.BytesIO(data)))
    except (ValueError, EOFError, TypeError, LookupError, OSError) as error:
        raise Corruption(
            "not a file of Iceberg metadata",
            hint=DAMAGE_HINT,
            path=path,
        ) from error
