"""Writes the rows of files to a table of a node: all of them are checked before the first is sent.

In:   files, a table of a node
Out:  the number of rows, durable and visible

- The rows are sent in parts. Each part has an idempotency key that follows from the files, so a
  command that failed in between is run again, and writes the parts that are missing.
- Files that change make other keys: their rows are other rows.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from thermocline.ingest.files.input_files import InputFile, batch_name
from thermocline.ingest.files.open_rows import open_file_rows

if TYPE_CHECKING:
    from thermocline.client.table import ClientTable

PART_ROWS_MAX = 262_144
PART_BYTES_MAX = 32 << 20


def write_files(
    table: "ClientTable",
    files: Sequence[InputFile],
    *,
    types: Mapping[str, object],
    evolve: bool,
    txn: str | None,
    progress: Callable[[int, int], None],
) -> int:
    """Write the rows of files and return how many; no row is sent if one does not fit.

    `txn` is another name for the write, which is done once under that name.
    """
    state = table.held().state
    may_add = evolve or not state.schema.columns
    name = txn or batch_name(files, table.root())
    checked = open_file_rows(files, state, types=types, evolve=evolve)
    for _ in checked.batches:
        pass  # the first row that does not fit raises here, before any row is sent
    rows = open_file_rows(files, state, types=types, evolve=evolve, progress=progress)
    held: list[pa.RecordBatch] = []
    sent = part = 0
    for batch in rows.batches:
        held.append(batch)
        size_bytes = sum(one.nbytes for one in held)
        if sum(one.num_rows for one in held) >= PART_ROWS_MAX or size_bytes >= PART_BYTES_MAX:
            sent += _send(table, held, f"{name}:{part}", may_add=may_add)
            held, part = [], part + 1
    return sent + _send(table, held, f"{name}:{part}", may_add=may_add)


def _send(table: "ClientTable", held: list[pa.RecordBatch], key: str, *, may_add: bool) -> int:
    if not held:
        return 0
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    return table.write(pa.Table.from_batches(held), evolve=may_add, request_id=f"append-{digest}")
