"""What a person wants to know about a table first, in the order they want to know it.

In:   a `Held` and the table's root
Out:  labels and texts, the same for a terminal and for a notebook
"""

from typing import TYPE_CHECKING

from thermocline.show.picture import counts
from thermocline.show.text import clock_text, moment, share_text, size_text

if TYPE_CHECKING:
    from thermocline.lake.answer import Held


def table_facts(held: "Held", root: str) -> dict[str, str]:
    """Return the facts of one version as labels and texts; the texts are not made harmless."""
    state, whole = held.state, held.coverage.whole
    spec, totals = state.spec, state.totals
    facts = {
        "root": root,
        "version": f"{state.version:,}, committed {clock_text(moment(state.time))} UTC",
        "rows": f"{totals.rows:,}",
        "segments": f"{totals.segments:,}",
        "size": size_text(totals.size_bytes),
        "time range": "nothing is held yet",
        "time column": spec.time_column,
        "bucket": str(spec.bucket),
    }
    if spec.entity_columns:
        facts["entities"] = f"{len(held.coverage.entities):,} by {', '.join(spec.entity_columns)}"
    if whole:
        first, after = whole.first(), whole.last() + 1
        begin, end = moment(spec.bucket.start(first)), moment(spec.bucket.start(after))
        facts["time range"] = f"{clock_text(begin)} to {clock_text(end)} UTC"
        covered, total = covered_of(held, first, after)
        facts["coverage"] = f"{share_text(covered, total)} of {total:,} buckets"
    facts["overlap"] = spec.overlap
    facts["retention"] = spec.retention or "keeps all rows"
    facts["timezone"] = spec.timezone or "UTC"
    return facts


def covered_of(held: "Held", first: int, after: int) -> tuple[int, int]:
    """Return how many buckets of a range are held and how many there are, over all entities."""
    parts = list(held.coverage.entities.values()) or [held.coverage.whole]
    return sum(counts(parts, first, after)), (after - first) * len(parts)
