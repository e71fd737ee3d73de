"""The main facts about a table, the most important first.

In:   what a version holds; for people, the table's root
Out:  labels and texts, the same for a terminal and for a notebook; values by name, the same for the
      command line, the API and Python
"""

from typing import TYPE_CHECKING, Any

from thermocline.format.instant import format_instant
from thermocline.show.picture import count_buckets
from thermocline.show.text import (
    clock_text,
    display_time,
    position_text,
    share_text,
    size_text,
)

if TYPE_CHECKING:
    from thermocline.cold.coverage_report import CoverageReport


def table_facts(held: "CoverageReport", root: str) -> dict[str, str]:
    """Return the facts of one version as labels and texts; control characters are not escaped."""
    state, whole = held.state, held.coverage.whole
    spec, totals = state.spec, state.totals
    facts = {
        "root": root,
        "version": f"{state.version:,}, committed {clock_text(display_time(state.time))} UTC",
        "rows": f"{totals.rows:,}",
        "segments": f"{totals.segments:,}",
        "size": size_text(totals.size_bytes),
        "time range" if spec.bucket.is_time else "range": "nothing is held yet",
        "time column"
        if spec.bucket.is_time
        else f"index, {spec.bucket.index_type}": spec.time_column,
        "bucket": str(spec.bucket),
    }
    if spec.entity_columns:
        facts["entities"] = f"{len(held.coverage.entities):,} by {', '.join(spec.entity_columns)}"
    if whole:
        first, after = whole.first(), whole.last() + 1
        begin, end = (position_text(spec.bucket, spec.bucket.start(one)) for one in (first, after))
        if spec.bucket.is_time:
            facts["time range"] = f"{begin} to {end} UTC"
        else:
            facts["range"] = f"{begin} to {end}"
        covered, total = count_covered(held, first, after)
        facts["coverage"] = f"{share_text(covered, total)} of {total:,} buckets"
    facts["overlap"] = spec.overlap
    facts["retention"] = spec.retention or "keeps all rows"
    if spec.bucket.is_time:
        facts["timezone"] = spec.timezone or "UTC"
    return facts


def table_values(held: "CoverageReport") -> dict[str, Any]:
    """Return the facts of one version by name, as values that JSON can hold."""
    state, whole = held.state, held.coverage.whole
    spec, totals = state.spec, state.totals
    first, after = (whole.first(), whole.last() + 1) if whole else (0, 0)
    covered, total = count_covered(held, first, after) if whole else (0, 0)
    return {
        "version": state.version,
        "committed": format_instant(state.time),
        "rows": totals.rows,
        "segments": totals.segments,
        "size_bytes": totals.size_bytes,
        "start": spec.bucket.format_position(spec.bucket.start(first)) if whole else None,
        "end": spec.bucket.format_position(spec.bucket.start(after)) if whole else None,
        "buckets": total,
        "buckets_held": covered,
        "ratio": covered / total if total else 0.0,
        "time_column": spec.time_column,
        "bucket": str(spec.bucket),
        "index_type": spec.bucket.index_type,
        "entity_columns": list(spec.entity_columns),
        "entities": len(held.coverage.entities),
        "overlap": spec.overlap,
        "retention": spec.retention,
        "timezone": spec.timezone,
        "columns": [
            {"name": column.name, "type": str(column.type), "nullable": column.nullable}
            for column in state.schema.columns
        ],
    }


def count_covered(held: "CoverageReport", first: int, after: int) -> tuple[int, int]:
    """Return how many buckets of a range are held, and how many there are, over all entities."""
    parts = list(held.coverage.entities.values()) or [held.coverage.whole]
    return sum(count_buckets(parts, first, after)), (after - first) * len(parts)
