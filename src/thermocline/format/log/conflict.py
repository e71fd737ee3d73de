"""The conflict rules: whether a planned change is still valid after another commit was first.

In:   what the planned change does and read; what the commit that was first does
Out:  the broken rule, or None when the change can be committed on top unchanged

The rules compare files, time windows and settings, never the names of operations:

    rule            mine                     theirs                   because
    table_changed   anything                 sets the table           old columns, written as new
    table_changing  sets the table           anything but an expiry   checked against too little
    same_segment    takes rows from s        takes rows from s        rows go twice, or come back
    read_changed    read some time           adds or takes rows there it read other rows
    read_expired    read some time           expires versions         what it read may be gone
    same_mark       moves a source's mark    moves the same mark      two flushes of one source
    same_writer     sets a writer's number   sets the same number     a batch would count twice

Two appends with the policy `allow` read nothing, so they never conflict. An append that must not
overlap reads its own time window; a delete reads the window it searches, and an update that of its
keys; a restore reads everything, so it conflicts with any commit that adds or removes rows. A
`NoteFlush` counts as moving one shared mark, whatever its source.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from thermocline.errors import Invalid
from thermocline.format.bucket import Bucket
from thermocline.format.log.action import (
    Action,
    AddSegment,
    Expire,
    RemoveSegment,
    Segment,
    SetDeletes,
    SetMark,
    SetTable,
    SetTxn,
)
from thermocline.format.log.commit_note import NoteFlush, NoteRequests


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A half-open range of time; None is no bound."""

    start: int | None = None
    end: int | None = None

    def meets(self, first: int, last: int) -> bool:
        """Tell whether rows from `first` to `last`, both inclusive, may lie in this window."""
        return (self.end is None or first < self.end) and (self.start is None or last >= self.start)

    def intersect(self, start: int | None, end: int | None) -> "TimeWindow":
        """Return the intersection of this window and another."""
        starts = [bound for bound in (self.start, start) if bound is not None]
        ends = [bound for bound in (self.end, end) if bound is not None]
        return TimeWindow(max(starts, default=None), min(ends, default=None))


ALL_TIME = TimeWindow()


def parse_window(start: object, end: object, bucket: Bucket) -> TimeWindow:
    """Return the range of a caller's start and end, in the index of these buckets."""
    first = None if start is None else bucket.parse_position(start)
    after = None if end is None else bucket.parse_position(end)
    if first is not None and after is not None and after <= first:
        raise Invalid("the end is not after the start", hint="the end is not part of the range")
    return TimeWindow(first, after)


@dataclass(frozen=True, slots=True)
class ChangeFootprint:
    """What a change touches, and the time windows it read to decide that."""

    added: tuple[tuple[int, int], ...]
    taken: tuple[tuple[int, int], ...]
    segments: frozenset[str]
    marks: frozenset[str]
    applications: frozenset[str]
    sets_table: bool
    expires: bool
    only_expires: bool
    windows_read: tuple[TimeWindow, ...]


def find_footprint(
    actions: Iterable[Action], looked_at: tuple[TimeWindow, ...] = ()
) -> ChangeFootprint:
    """Return what these actions touch."""
    actions = tuple(actions)
    adds = [a.segment for a in actions if isinstance(a, AddSegment)]
    takes: list[RemoveSegment | Segment] = [a for a in actions if isinstance(a, RemoveSegment)]
    takes += [a.segment for a in actions if isinstance(a, SetDeletes)]
    return ChangeFootprint(
        added=tuple((segment.ts_min, segment.ts_max) for segment in adds),
        taken=tuple((taken.ts_min, taken.ts_max) for taken in takes),
        segments=frozenset(taken.segment_id for taken in takes),
        # Two exports of entities always conflict, whatever their sources: the second one was
        # planned against a version that is no longer the newest.
        marks=frozenset(
            a.source if isinstance(a, SetMark) else a.name
            for a in actions
            if isinstance(a, SetMark | NoteFlush)
        ),
        applications=frozenset(
            name
            for a in actions
            if isinstance(a, SetTxn | NoteRequests)
            for name in ((a.application,) if isinstance(a, SetTxn) else a.requests)
        ),
        sets_table=any(isinstance(a, SetTable) for a in actions),
        expires=any(isinstance(a, Expire) for a in actions),
        only_expires=all(isinstance(a, Expire) for a in actions),
        windows_read=looked_at,
    )


RULES: dict[str, Callable[[ChangeFootprint, ChangeFootprint], bool]] = {
    "table_changed": lambda mine, theirs: theirs.sets_table,
    "table_changing": lambda mine, theirs: mine.sets_table and not theirs.only_expires,
    "same_segment": lambda mine, theirs: bool(mine.segments & theirs.segments),
    "read_changed": lambda mine, theirs: any(
        window.meets(first, last)
        for window in mine.windows_read
        for first, last in (*theirs.added, *theirs.taken)
    ),
    "read_expired": lambda mine, theirs: bool(mine.windows_read) and theirs.expires,
    "same_mark": lambda mine, theirs: bool(mine.marks & theirs.marks),
    "same_writer": lambda mine, theirs: bool(mine.applications & theirs.applications),
}


def broken_rule(mine: ChangeFootprint, theirs: ChangeFootprint) -> str | None:
    """Return the name of the first rule that forbids `mine` after `theirs`, or None."""
    return next((name for name, forbids in RULES.items() if forbids(mine, theirs)), None)
