"""Token sidecars of segments: made when rows are written, asked before a segment is read.

In:   the rows of a new segment; or a live segment and the tokens that a query needs
Out:  hashes to encode; whether the segment may hold a row with all these tokens

- A sidecar is an optional index: without one, or with one that is missing or damaged, the segment
  is read. So damage to it costs time and never a row. A warning names it, and fsck reports it.
- Its bytes are compared with the checksum in the log before the first bit of it is used.
- Columns are found by id, so that a renamed column keeps its filters.
- A deleted row's tokens stay in the filter until a compaction writes the segment again.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from thermocline.cold.segment.parquet import read_rows
from thermocline.cold.storage.storage import Storage
from thermocline.errors import Corruption, NotFound, Unsupported
from thermocline.format.log.action import Segment, TableSpec
from thermocline.format.log.state import TableState
from thermocline.format.schema import Schema
from thermocline.format.sealed_json import crc32c
from thermocline.format.tokens import (
    DAMAGE_HINT,
    HEAD_BYTES_MAX,
    can_hold_tokens,
    decode_head,
    hash_texts,
)

logger = logging.getLogger(__name__)


def hash_columns(table: pa.Table, schema: Schema, spec: TableSpec) -> dict[int, pa.UInt64Array]:
    """Return the hashes of the tokens of each column that the table indexes, by column id."""
    return {
        schema.column(name).id: hash_texts(table.column(name))
        for name in spec.token_columns
        if name in table.column_names and can_hold_tokens(table.schema.field(name).type)
    }


def may_hold_tokens(
    storage: Storage, segment: Segment, wanted: Mapping[int, Sequence[int]]
) -> bool:
    """Tell whether a segment may have a row whose columns, by id, hold all these tokens."""
    if not segment.tokens_path:
        return True
    try:
        with storage.open_segment(
            segment.tokens_path, segment.tokens_size, segment.tokens_checksum
        ) as source:
            filters = decode_head(
                source.read_at(min(HEAD_BYTES_MAX, segment.tokens_size), 0), segment.tokens_size
            )
            return all(
                filters[column].may_hold(token, lambda offset: source.read_at(1, offset)[0])
                for column, tokens in wanted.items()
                if column in filters
                for token in tokens
            )
    except (NotFound, Corruption) as error:
        logger.warning("token sidecar %s is not used: %s", segment.tokens_path, error)
    except Unsupported:
        pass  # a newer release wrote it
    return True


def read_sidecar(storage: Storage, segment: Segment) -> bytes:
    """Return the bytes of a segment's token sidecar; `Corruption` unless they are as committed."""
    data = storage.read(segment.tokens_path)
    if len(data) != segment.tokens_size or crc32c(data) != segment.tokens_checksum:
        raise Corruption(
            "a token sidecar has other bytes than the log says",
            hint=DAMAGE_HINT,
            path=segment.tokens_path,
        )
    return data


def count_missing_tokens(storage: Storage, state: TableState, segment: Segment) -> int:
    """Return how many tokens of live rows the segment's sidecar denies; `Corruption` if damaged."""
    data = read_sidecar(storage, segment)
    filters = decode_head(data, len(data))
    missing = 0
    for key, one in filters.items():
        column = state.schema.by_id.get(key)
        if column is None:
            continue  # dropped since
        found = pa.array([], pa.uint64())
        for rows in read_rows(storage, state, segment, [column.name]):
            hashes = hash_texts(rows.batch.column(0))
            found = pc.unique(pa.concat_arrays([found, hashes]))
        missing += sum(not one.may_hold(token, data.__getitem__) for token in found.to_pylist())
    return missing


def copy_tokens(source: Storage, segment: Segment, target: Storage) -> Segment:
    """Copy a segment's token sidecar; return the segment, without a sidecar that is damaged."""
    if not segment.tokens_path:
        return segment
    with suppress(NotFound, Corruption):
        target.put(segment.tokens_path, read_sidecar(source, segment))
        return segment
    logger.warning("token sidecar %s is damaged and was not copied", segment.tokens_path)
    return replace(segment, tokens_path="", tokens_size=0, tokens_checksum="")
