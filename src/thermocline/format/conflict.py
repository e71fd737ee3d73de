"""Whether a change may still land after another one landed first: rules, as a table.

In:   what a change was going to do and what it looked at; a commit that landed meanwhile
Out:  the rule that is broken, or None: the change may land on top as it is

The rules speak of files, stretches of time and settings touched, never of the names of
operations:

    rule            mine                     theirs                   because
    table_changed   anything                 sets the table           old columns, written as new
    table_changing  sets the table           anything but an expiry   checked against too little
    same_segment    takes rows from s        takes rows from s        rows go twice, or come back
    read_changed    looked at some time      adds or takes rows there the look saw other rows
    read_expired    looked at some time      expires versions         what it read may be gone
    same_mark       moves a source's mark    moves the same mark      two flushes of one source
    same_writer     sets a writer's number   sets the same number     a batch would count twice

Two appends that looked at nothing (policy `allow`) never conflict. An append that must not
overlap looked at its own stretch of time; a delete looked at the stretch it searched; a restore
looked at everything, so that no row comes or goes beside it. A note of a flush of entities counts
as a move of one mark, whatever their source.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from thermocline.format.action import (
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
from thermocline.format.note import NoteFlush, NoteRequests


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open stretch of time; None is no bound."""

    start: int | None = None
    end: int | None = None

    def meets(self, first: int, last: int) -> bool:
        """Tell whether rows from `first` to `last`, both included, may lie in it."""
        return (self.end is None or first < self.end) and (self.start is None or last >= self.start)

    def narrowed(self, start: int | None, end: int | None) -> "Window":
        """Return the part of this stretch that lies in another as well."""
        starts = [bound for bound in (self.start, start) if bound is not None]
        ends = [bound for bound in (self.end, end) if bound is not None]
        return Window(max(starts, default=None), min(ends, default=None))


EVERYTHING = Window()


@dataclass(frozen=True, slots=True)
class Touched:
    """What a change touches, and what it looked at to decide that."""

    added: tuple[tuple[int, int], ...]
    taken: tuple[tuple[int, int], ...]
    segments: frozenset[str]
    marks: frozenset[str]
    applications: frozenset[str]
    sets_table: bool
    expires: bool
    only_expires: bool
    looked_at: tuple[Window, ...]


def touched(actions: Iterable[Action], looked_at: tuple[Window, ...] = ()) -> Touched:
    """Return what these actions touch."""
    actions = tuple(actions)
    adds = [a.segment for a in actions if isinstance(a, AddSegment)]
    takes: list[RemoveSegment | Segment] = [a for a in actions if isinstance(a, RemoveSegment)]
    takes += [a.segment for a in actions if isinstance(a, SetDeletes)]
    return Touched(
        added=tuple((segment.ts_min, segment.ts_max) for segment in adds),
        taken=tuple((taken.ts_min, taken.ts_max) for taken in takes),
        segments=frozenset(taken.segment_id for taken in takes),
        # Two flushes of entities exclude each other, whatever their sources: the second one was
        # made against a version that is not the newest any more.
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
        looked_at=looked_at,
    )


RULES: dict[str, Callable[[Touched, Touched], bool]] = {
    "table_changed": lambda mine, theirs: theirs.sets_table,
    "table_changing": lambda mine, theirs: mine.sets_table and not theirs.only_expires,
    "same_segment": lambda mine, theirs: bool(mine.segments & theirs.segments),
    "read_changed": lambda mine, theirs: any(
        window.meets(first, last)
        for window in mine.looked_at
        for first, last in (*theirs.added, *theirs.taken)
    ),
    "read_expired": lambda mine, theirs: bool(mine.looked_at) and theirs.expires,
    "same_mark": lambda mine, theirs: bool(mine.marks & theirs.marks),
    "same_writer": lambda mine, theirs: bool(mine.applications & theirs.applications),
}


def broken_rule(mine: Touched, theirs: Touched) -> str | None:
    """Return the name of the first rule that forbids `mine` after `theirs`, or None."""
    return next((name for name, forbids in RULES.items() if forbids(mine, theirs)), None)
