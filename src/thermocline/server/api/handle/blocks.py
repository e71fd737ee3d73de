"""Coverage as blocks, entity by time: buckets held, missing, and held only by unflushed rows.

In:   a stretch of time, the number of blocks, which entities
Out:  for each entity and block, the number of buckets held, and of those held only by hot rows

- Block i of n has the buckets from i*count//n up to (i+1)*count//n of the stretch: whole buckets,
  each in exactly one block. If the stretch has fewer buckets than n, each bucket is a block.
- Hot and cold rows are from one snapshot: the cold half is the version that matches the hot rows.
- The answer needs only metadata and hot rows: no Parquet file is opened.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from thermocline.cold.coverage_report import CoverageReport
from thermocline.format.coverage import Buckets, entity_values
from thermocline.server.api.handle.table import parse_at
from thermocline.server.api.types.request_types import AtText, Instant, StrictRequest, Text
from thermocline.server.api.types.route import ApiRequest
from thermocline.show.picture import count_buckets

BLOCKS_MAX = 500
LANES_MAX = 200
OFFSET_MAX = 1 << 40


class BlocksParams(StrictRequest):
    """A stretch, its blocks, and the entities: a text their values contain, offset and limit."""

    start: Instant | None = None
    end: Instant | None = None
    blocks: Annotated[int, Meta(ge=1, le=BLOCKS_MAX)] = 120
    limit: Annotated[int, Meta(ge=1, le=LANES_MAX)] = 50
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX)] = 0
    contains: Text | None = None
    order: Literal["worst", "name"] = "worst"
    at: AtText | None = None


class LaneResponse(Struct):
    """One entity: for each block the buckets held, and those held only by hot rows."""

    entity: dict[str, Any]
    held: list[int]
    unflushed: list[int]
    buckets_held: int


class Blocks(Struct):
    """Coverage of a stretch as lanes of blocks; `entities` is the total number of lanes.

    `edges` are where the blocks begin, and where the last one ends.
    """

    version: int
    bucket: str
    bucket_s: int | None
    start: str | None
    end: str | None
    buckets: int
    edges: list[str]
    blocks: int
    entities: int
    is_verified: bool
    lanes: list[LaneResponse]


def blocks(call: ApiRequest) -> Blocks:
    """Return the coverage of a table as blocks."""
    asked, table = call.params, call.table
    held = table.held(parse_at(asked.at))
    # Order matters: the newest snapshot first, then its lake version without the hot rows.
    cold = table.held(held.state.version) if asked.at is None else held
    bucket = held.state.spec.bucket
    first, after = held.span(asked.start, asked.end)
    count = after - first
    cut = min(count, asked.blocks)
    edges = [first + place * count // cut for place in range(cut + 1)] if cut else []
    chosen, total = _choose_entities(held, asked, first, after)
    return Blocks(
        version=held.state.version,
        bucket=str(bucket),
        bucket_s=bucket.width_s,
        start=bucket.format_position(bucket.start(first)) if count else None,
        end=bucket.format_position(bucket.start(after)) if count else None,
        buckets=count,
        edges=[bucket.format_position(bucket.start(edge)) for edge in edges],
        blocks=cut,
        entities=total,
        is_verified=held.is_verified and not held.state.holes,
        lanes=[_lane(held, cold, key, edges) for key in chosen],
    )


def _choose_entities(
    held: CoverageReport, asked: BlocksParams, first: int, after: int
) -> tuple[list[str | None], int]:
    """Return the entities of this page, in order, and their total number."""
    if not held.has_entities:
        return ([None] if held.coverage.whole else []), 1
    keys = sorted(held.coverage.entities)
    if asked.contains:
        wanted = asked.contains.casefold()
        keys = [key for key in keys if any(wanted in _text(v) for v in entity_values(key))]
    if asked.order == "worst":
        sums = (
            count_buckets([held.coverage.entities[key] for key in keys], first, after)
            if keys
            else []
        )
        keys = [key for _, key in sorted(zip(sums, keys, strict=True))]
    return list(keys[asked.offset : asked.offset + asked.limit]), len(keys)


def _text(value: object) -> str:
    return "null" if value is None else str(value).casefold()


def _lane(
    held: CoverageReport, cold: CoverageReport, key: str | None, edges: Sequence[int]
) -> LaneResponse:
    if key is None:
        every, flushed = held.coverage.whole, cold.coverage.whole
        entity: dict[str, Any] = {}
    else:
        every = held.coverage.entities[key]
        flushed = cold.coverage.entities.get(key) or Buckets()
        entity = dict(zip(held.state.spec.entity_columns, entity_values(key), strict=True))
    all_held = _count_blocks(every, edges)
    hot = [0] * len(all_held) if held is cold else _count_blocks(every - flushed, edges)
    return LaneResponse(entity, all_held, hot, sum(all_held))


def _count_blocks(buckets: Buckets, edges: Sequence[int]) -> list[int]:
    return [buckets.count(low, high) for low, high in pairwise(edges)]
