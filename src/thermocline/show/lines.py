"""Rows as lines of text: one JSON object a row, or one CSV record a row.

In:   Arrow batches
Out:  bytes, each line with its end

- CSV: `\\n` at the end of a line, UTF-8. Null is an empty field, an empty text is `""`.
- JSON: one object a row, without spaces; columns with the same name get a number (`a`, `a_2`).
"""

import re

import pyarrow as pa

from thermocline.show.value import as_json, json_values, text_values

_NEEDS_QUOTES = re.compile('[",\r\n]').search


def distinct_names(names: list[str]) -> list[str]:
    """Return unique names, as objects need them: the second `a` becomes `a_2`."""
    taken: set[str] = set(names)
    seen: set[str] = set()
    found = []
    for name in names:
        fresh, count = name, 2
        while fresh in seen or (fresh != name and fresh in taken):
            fresh, count = f"{name}_{count}", count + 1
        seen.add(fresh)
        found.append(fresh)
    return found


def json_objects(batch: pa.RecordBatch, names: list[str]) -> list[bytes]:
    """Return each row as a JSON object with these names."""
    columns = [json_values(column) for column in batch.columns]
    return [as_json(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def csv_header(names: list[str]) -> bytes:
    """Return the first line of a CSV file."""
    return ",".join(map(_format_csv_cell, names)).encode() + b"\n"


def csv_records(batch: pa.RecordBatch) -> bytes:
    """Return the rows of a batch as CSV lines."""
    if not batch.num_rows:
        return b""
    columns = [[_format_csv_cell(text) for text in text_values(column)] for column in batch.columns]
    return "\n".join(map(",".join, zip(*columns, strict=True))).encode() + b"\n"


def _format_csv_cell(text: str | None) -> str:
    if text is None:
        return ""
    if text and not _NEEDS_QUOTES(text):
        return text
    return '"' + text.replace('"', '""') + '"'
