"""The coverage of a version: the union of its segments' sidecars, without opening Parquet files.

In:   a state; sidecars of segments, which the log names with their checksums
Out:  a `Coverage`

- The sidecar of a whole version is an optional shortcut. It stores the digest of the segments it
  was computed from, and is used only when that digest equals the state's.
- The coverage of a version is derived from an earlier one and the commits between them. Where
  segments were removed, their buckets are counted again from the live segments that meet them.
- A missing or damaged sidecar is rebuilt from its segment, with a warning. The rebuilt bytes must
  have the checksum that the log names.
- A sidecar that contradicts the log about its segment (times, rows) is used, with a warning, and
  every report computed from it is marked as not verified.
"""

import logging
import threading
from collections.abc import Iterable
from contextlib import suppress

from thermocline.cold.log.commit_log import CommitLog
from thermocline.cold.segment.parquet import measure_segment
from thermocline.cold.storage.storage import Storage
from thermocline.errors import Corruption, NotFound, ThermoclineError
from thermocline.format import layout
from thermocline.format.coverage import (
    Coverage,
    EntityRuns,
    decode_coverage,
    empty_coverage,
    encode_bitmaps,
    encode_coverage,
    sidecar_checksum,
    unite_buckets,
    unite_entities,
)
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    Action,
    AddSegment,
    RemoveSegment,
    Segment,
    SetDeletes,
    TableSpec,
)
from thermocline.format.log.state import TableState, coverage_digest

LOOK_BACK_COMMITS_MAX = 128
WRITE_EVERY = 16
ENTITIES_ENCODED_EACH_TIME_MAX = 1_024
SIDECARS_CACHED_MAX = 1_024

logger = logging.getLogger(__name__)


class CoverageIndex:
    """Computes what a version covers, starting from the last coverage it computed."""

    def __init__(self, storage: Storage, log: CommitLog) -> None:
        self._storage = storage
        self._log = log
        self._lock = threading.RLock()
        self._known: dict[str, Coverage] = {}
        self._doubted: dict[str, str] = {}
        self._last: tuple[Version, Coverage] | None = None

    def at(self, state: TableState) -> Coverage:
        """Return the coverage of exactly this state."""
        with self._lock:
            if self._last and self._last[1].digest == state.totals.digest:
                return self._last[1]
            coverage = self._derive_from_earlier(state) or self._unite_segments(
                state, state.segments
            )
            coverage = coverage.with_digest(state.totals.digest)
            self._last = (state.version, coverage)
            return coverage

    def of_segment(self, state: TableState, segment: Segment) -> Coverage:
        """Return the coverage of one live segment, from its sidecar or else from its file."""
        known = self._known.get(segment.coverage_path)
        if known is None:
            known = self._read_sidecar(segment) or self._rebuild_sidecar(state, segment)
            self._compare(state, segment, known)
            self.remember(segment, known)
        return known

    def sidecar(self, state: TableState, segment: Segment) -> bytes:
        """Return the bytes of a segment's sidecar, rebuilt from its file if need be."""
        with suppress(NotFound, Corruption):
            data = self._storage.read(segment.coverage_path)
            if sidecar_checksum(data) == segment.coverage_checksum:
                decode_coverage(data)
                return data
        return encode_coverage(self._rebuild_sidecar(state, segment))

    def is_verified(self, state: TableState) -> bool:
        """Tell whether every sidecar that `at` read for this state agrees with the log."""
        with self._lock:
            live = {path: state.segments.find(key) for path, key in self._doubted.items()}
        return not any(segment and segment.coverage_path == path for path, segment in live.items())

    def _compare(self, state: TableState, segment: Segment, coverage: Coverage) -> None:
        what = find_contradiction(state.spec, segment, coverage)
        if not what:
            return
        logger.warning("coverage sidecar %s %s; run fsck on the table", segment.coverage_path, what)
        self._doubted[segment.coverage_path] = segment.segment_id

    def remember(self, segment: Segment, coverage: Coverage) -> None:
        """Cache the coverage of a segment that was just written."""
        while len(self._known) >= SIDECARS_CACHED_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[segment.coverage_path] = coverage

    def write_shortcut(self, state: TableState) -> None:
        """Write the shortcut for this version where that is cheap, or due; errors are ignored."""
        with suppress(ThermoclineError):
            coverage = self.at(state)
            if not self.is_verified(state):
                return  # readers treat a shortcut as verified
            is_due = state.version % WRITE_EVERY == 0
            if not is_due and _count_fresh(coverage) > ENTITIES_ENCODED_EACH_TIME_MAX:
                return
            path = layout.table_coverage_path(state.version)
            self._storage.put_hint(path, encode_coverage(coverage))
            if (state.version - 1) % WRITE_EVERY:
                self._storage.delete(layout.table_coverage_path(state.version - 1))

    def _derive_from_earlier(self, state: TableState) -> Coverage | None:
        """Return the coverage derived from an earlier one, or None when there is none near."""
        actions: list[Action] = []
        digest = state.totals.digest
        for version in range(state.version, max(0, state.version - LOOK_BACK_COMMITS_MAX), -1):
            earlier = self._read_shortcut(version, digest)
            if earlier is not None:
                return self._apply_actions(state, earlier, actions) if actions else earlier
            try:
                commit = self._log.commit(version)
            except NotFound:
                return None  # the log was truncated
            actions.extend(commit.actions)
            for action in commit.actions:
                digest ^= _digest_change(action)
        return None

    def _read_shortcut(self, version: int, digest: int) -> Coverage | None:
        if self._last and self._last[0] == version and self._last[1].digest == digest:
            return self._last[1]
        try:
            coverage = decode_coverage(self._storage.read(layout.table_coverage_path(version)))
        except ThermoclineError:
            return None  # only a hint: it may be missing, damaged, newer or out of reach
        return coverage if coverage.digest == digest else None

    def _apply_actions(
        self, state: TableState, earlier: Coverage, actions: list[Action]
    ) -> Coverage:
        lost = [
            (a.ts_min, a.ts_max)
            if isinstance(a, RemoveSegment)
            else (a.segment.ts_min, a.segment.ts_max)
            for a in actions
            if isinstance(a, RemoveSegment | SetDeletes)
        ]
        added = [a.segment.segment_id for a in actions if isinstance(a, AddSegment)]
        live = [segment for key in added if (segment := state.segments.find(key)) is not None]
        coverage = earlier.union(self._unite_segments(state, live))
        if not lost:
            return coverage
        start, end = min(first for first, _ in lost), max(last for _, last in lost) + 1
        return self._recount_range(state, coverage, start, end)

    def _recount_range(self, state: TableState, before: Coverage, start: int, end: int) -> Coverage:
        """Return `before` with every bucket that meets the range counted from live segments."""
        first, after = state.spec.bucket.span(start, end)
        low = state.spec.bucket.start(first)
        high = state.spec.bucket.start(after)
        meeting = self._unite_segments(state, state.segments.overlapping(low, high))
        return _cut_range(before, first, after).union(meeting)

    def _unite_segments(self, state: TableState, segments: Iterable[Segment]) -> Coverage:
        parts = [self.of_segment(state, segment) for segment in segments]
        if not parts:
            return empty_coverage(state.spec.bucket.code)
        entities = unite_entities([part.entities for part in parts])
        return Coverage(state.spec.bucket.code, unite_buckets(p.whole for p in parts), entities)

    def _read_sidecar(self, segment: Segment) -> Coverage | None:
        try:
            data = self._storage.read(segment.coverage_path)
            if sidecar_checksum(data) == segment.coverage_checksum:
                return decode_coverage(data)
        except (NotFound, Corruption):
            pass
        return None

    def _rebuild_sidecar(self, state: TableState, segment: Segment) -> Coverage:
        logger.warning(
            "coverage sidecar %s is missing or damaged; rebuilt from %s",
            segment.coverage_path,
            segment.path,
        )
        coverage = measure_segment(self._storage, state, segment).coverage
        # Which version the writer knew is not recorded, so both are compared.
        rebuilt = (encode(coverage) for encode in (encode_coverage, encode_bitmaps))
        expected = segment.coverage_checksum
        data = next((one for one in rebuilt if sidecar_checksum(one) == expected), None)
        if data is None:
            raise Corruption(
                "a segment does not hold the buckets that the log says",
                hint="restore the segment and its sidecar from a copy",
                path=segment.path,
                coverage_path=segment.coverage_path,
            )
        with suppress(ThermoclineError):
            self._storage.put_hint(segment.coverage_path, data)
        return coverage


def find_contradiction(spec: TableSpec, segment: Segment, coverage: Coverage) -> str:
    """Return how a sidecar contradicts what the log says of its segment; empty if it agrees."""
    whole, rows = coverage.whole, segment.row_count - segment.deleted_count
    if coverage.bucket_code != spec.bucket.code:
        return "has buckets of another width than the table"
    if not whole:
        return "holds no bucket though the log counts rows" if rows else ""
    first, last = spec.bucket.number_of(segment.ts_min), spec.bucket.number_of(segment.ts_max)
    is_inside = first <= whole.first() and whole.last() <= last
    # Deleted rows may leave buckets at the ends empty; otherwise the ends must match the log.
    has_ends = bool(segment.deletes) or (whole.first() == first and whole.last() == last)
    if not is_inside or not has_ends:
        return "holds other times than the log says"
    if len(whole) > rows:
        return "holds more buckets than the log counts rows"
    return ""


def _count_fresh(coverage: Coverage) -> int:
    """Return how many entities have to be encoded again for a shortcut."""
    if isinstance(coverage.entities, EntityRuns):
        return len(coverage.entities)
    return sum(not buckets.is_encoded for buckets in coverage.entities.values())


def _cut_range(coverage: Coverage, first: int, end: int) -> Coverage:
    """Return the coverage outside a range of buckets."""
    entities = {key: buckets.outside(first, end) for key, buckets in coverage.entities.items()}
    kept = {key: buckets for key, buckets in entities.items() if buckets}
    return Coverage(coverage.bucket_code, coverage.whole.outside(first, end), kept)


def _digest_change(action: Action) -> int:
    match action:
        case AddSegment(segment):
            return coverage_digest(segment.segment_id, segment.coverage_checksum)
        case RemoveSegment():
            return coverage_digest(action.segment_id, action.coverage_checksum)
        case SetDeletes(segment, _, before):
            gone = coverage_digest(segment.segment_id, before)
            return gone ^ coverage_digest(segment.segment_id, segment.coverage_checksum)
    return 0
