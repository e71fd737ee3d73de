"""Engines that read an Iceberg table: each returns the rows of a version as an Arrow table."""

import warnings
from datetime import UTC, datetime

import polars as pl
import pyarrow as pa
from pyiceberg.table import StaticTable


def open_static(location, **properties):
    """Return the table of a metadata file, as pyiceberg opens it."""
    return StaticTable.from_metadata(location, properties)


def read_pyiceberg(table, version=None):
    """Return the rows that pyiceberg reads."""
    return table.scan(snapshot_id=version).to_arrow()


def read_polars(table, version=None):
    """Return the rows that the native reader of polars reads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that its interface may change
        frame = pl.scan_iceberg(table, snapshot_id=version, reader_override="native")
        return frame.collect().to_arrow()


READERS = {"pyiceberg": read_pyiceberg, "polars": read_polars}


def comparable(rows: pa.Table):
    """Return rows without order, and without the order and the packing of columns."""
    names = sorted(rows.schema.names)
    return sorted(repr([_plain(row[name]) for name in names]) for row in rows.to_pylist())


def _plain(value):
    """Return a value such that equal values are equal texts."""
    match value:
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC)
        case dict():
            return sorted((key, _plain(one)) for key, one in value.items())
        case list() if value and all(isinstance(one, tuple) for one in value):
            return sorted((_plain(key), _plain(one)) for key, one in value)
        case list():
            return _plain_list(value)
    return value


def _plain_list(value):
    # polars reads a map as a list of its entries.
    if value and all(isinstance(one, dict) and one.keys() == {"key", "value"} for one in value):
        return sorted((_plain(one["key"]), _plain(one["value"])) for one in value)
    return [_plain(one) for one in value]
