"""A model of entities in two places: every way their steps can follow each other, searched.

A world is what PostgreSQL and the lake hold. Processes are lists of steps: writers' transactions,
exporters, a compactor, a process that rolls forward, a reader. A step is atomic and a process may
stop for ever between two of them, which is what a crash is. `search` takes the steps of several
processes in every order there is and counts the orders in which the reader is told a state of the
entities that was not the committed one at any moment of its reading.

Orders that lead to one world are searched once and counted as many times as there are, so the
numbers are those of a search of every single order.

A `Design` is the protocol with an ingredient taken away, or the reference's, which has no log: its
readers take every file there is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import factorial, prod
from typing import NamedTuple

KEYS = ("A", "B")
ABSENT = 0
Values = tuple[int, ...]
"""The value of each key; `ABSENT` where there is no such entity."""


@dataclass(frozen=True)
class Design:
    """What a protocol does; the defaults are ours."""

    has_log: bool = True
    is_fenced: bool = True
    has_tombstones: bool = True
    marks: str = "ids"
    newest: str = "log"
    reads: str = "snapshot"


OURS = Design()
NO_FENCE = Design(is_fenced=False)
NO_FENCE_BY_NUMBER = Design(is_fenced=False, newest="number")
NO_SNAPSHOT = Design(reads="statements")
MARKS_BY_KEY = Design(marks="keys")
NO_TOMBSTONES = Design(has_tombstones=False)
REFERENCE = Design(False, False, False, "keys", "clock", "statements")


class Row(NamedTuple):
    """A row, in PostgreSQL or in a file; deleted when its value is `ABSENT`."""

    value: int
    number: int
    clock: int


class Layer(NamedTuple):
    """The rows of one file, by the place of their key; a deleted one is a tombstone."""

    rows: tuple[tuple[int, Row], ...]


class Version(NamedTuple):
    """A version of the lake: its files, oldest first, and the change ids its commit records."""

    layers: tuple[Layer, ...]
    changes: frozenset[int]
    is_flush: bool


class World(NamedTuple):
    """What PostgreSQL and the lake hold, and every state that was ever committed."""

    rows: tuple[Row, ...]
    dirty: frozenset[tuple[int, int]]
    changes: int
    head: int
    log: tuple[Version, ...]
    files: tuple[Layer | None, ...]
    history: tuple[Values, ...]


Step = Callable[[World, object], tuple[World, object]]
Process = Sequence[Step]


def beginning() -> World:
    """Return a world of two entities that are in both places, with nothing dirty."""
    rows = tuple(Row(1, 1, 0) for _ in KEYS)
    layer = Layer(tuple(enumerate(rows)))
    first = Version((layer,), frozenset(), is_flush=True)
    return World(rows, frozenset(), 0, 0, (first,), (layer,), ((1,) * len(KEYS),))


def writes(*, clock: int | None = None, **values: int) -> Step:
    """Return one transaction that gives keys new values; `clock` is what its clock shows."""

    def step(world: World, local: object) -> tuple[World, object]:
        rows, dirty, change = list(world.rows), set(world.dirty), world.changes
        for name, value in values.items():
            place = KEYS.index(name)
            change += 1
            now = change if clock is None else clock
            rows[place] = Row(value, rows[place].number + 1, now)
            dirty.add((change, place))
        state = tuple(row.value for row in rows)
        return world._replace(
            rows=tuple(rows),
            dirty=frozenset(dirty),
            changes=change,
            history=(*world.history, state),
        ), local

    return step


class Exporting(NamedTuple):
    """What an exporter knows: the version it builds on, what it read, what it committed."""

    base: int
    changes: frozenset[int]
    rows: tuple[tuple[int, Row], ...]
    version: int | None = None


def exports(design: Design, *, dies_after: str = "", keys_max: int | None = None) -> Process:
    """Return the steps of one export: read, write, commit, retire; it may die on the way."""

    def read(world: World, _: object) -> tuple[World, object]:
        places = sorted({place for _, place in world.dirty})[:keys_max]
        changes = frozenset(change for change, place in world.dirty if place in places)
        rows = tuple((place, world.rows[place]) for place in places)
        return world, Exporting(world.head, changes, rows)

    def write(world: World, mine: Exporting) -> tuple[World, object]:
        if design.has_log:
            return world, mine  # a file under a new name: nobody sees it
        return world._replace(files=(*world.files, _layer(design, mine))), mine

    def commit(world: World, mine: Exporting) -> tuple[World, object]:
        # Neutral versions, which compactions make, leave every row as it was: built on as they are.
        is_late = any(version.is_flush for version in world.log[mine.base + 1 :])
        if not mine.changes or (design.is_fenced and is_late):
            return world, mine  # its version is taken: dropped, and begun again by somebody
        layers = (*world.log[-1].layers, _layer(design, mine))
        new = Version(layers, mine.changes, is_flush=True)
        return world._replace(log=(*world.log, new)), mine._replace(version=len(world.log))

    def retire(world: World, mine: Exporting) -> tuple[World, object]:
        return _retired(design, world, mine), mine

    steps = {"read": read, "write": write, "commit": commit, "retire": retire}
    if not design.has_log:
        del steps["commit"]
    kept = list(steps)
    if dies_after:
        kept = kept[: kept.index(dies_after) + 1]
    return [steps[name] for name in kept]


def _retired(design: Design, world: World, mine: Exporting) -> World:
    """Return the world once PostgreSQL knows of an export."""
    if design.has_log and mine.version is None:
        return world
    if design.marks == "keys":
        exported = {place for place, _ in mine.rows}
        dirty = frozenset(one for one in world.dirty if one[1] not in exported)
        return world._replace(dirty=dirty, head=max(world.head, mine.version or 0))
    if not design.has_log:
        dirty = frozenset(one for one in world.dirty if one[0] not in mine.changes)
        return world._replace(dirty=dirty)
    return _rolled_forward(world, mine.version)


def _layer(design: Design, mine: Exporting) -> Layer:
    kept = mine.rows
    if not design.has_tombstones:
        kept = tuple(one for one in kept if one[1].value != ABSENT)
    return Layer(kept)


def _rolled_forward(world: World, version: int | None) -> World:
    """Return the world once PostgreSQL has followed the log up to a version."""
    target = len(world.log) - 1 if version is None else version
    gone: frozenset[int] = frozenset()
    for one in range(world.head + 1, target + 1):
        gone |= world.log[one].changes
    dirty = frozenset(one for one in world.dirty if one[0] not in gone)
    return world._replace(dirty=dirty, head=max(world.head, target))


def recovers(design: Design) -> Process:
    """Return the step of whoever finds the log ahead of PostgreSQL."""

    def step(world: World, local: object) -> tuple[World, object]:
        return (_rolled_forward(world, None) if design.has_log else world), local

    return [step]


def compacts(design: Design) -> Process:
    """Return the steps of a compaction, which drops tombstones: plan, commit, roll forward."""

    def plan(world: World, _: object) -> tuple[World, object]:
        if design.has_log:
            return world, (len(world.log), world.log[-1].layers)
        present = tuple(place for place, layer in enumerate(world.files) if layer is not None)
        return world, (present, tuple(world.files[place] for place in present))

    def commit(world: World, mine: tuple) -> tuple[World, object]:
        whole = _folded(design, mine[1])
        layer = Layer(tuple(one for one in sorted(whole.items()) if one[1].value != ABSENT))
        if not design.has_log:
            return world._replace(files=(*world.files, layer)), mine
        if len(world.log) != mine[0]:
            return world, None  # put-if-absent: the version is taken
        new = Version((layer,), frozenset(), is_flush=False)
        return world._replace(log=(*world.log, new)), mine

    def finish(world: World, mine: tuple | None) -> tuple[World, object]:
        if design.has_log:
            return (world if mine is None else _rolled_forward(world, mine[0])), mine
        files = tuple(
            None if place in mine[0] else layer for place, layer in enumerate(world.files)
        )
        return world._replace(files=files), mine

    return [plan, commit, finish]


def _folded(design: Design, layers: Sequence[Layer]) -> dict[int, Row]:
    found: dict[int, Row] = {}
    for layer in layers:
        for place, row in layer.rows:
            old = found.get(place)
            if design.newest == "number" and old and old.number > row.number:
                continue
            # A tie goes to whichever file is listed first, as it does in an engine.
            if design.newest == "clock" and old and old.clock >= row.clock:
                continue
            found[place] = row
    return found


class Reading(NamedTuple):
    """What a reader has so far; `first` and `last` are the moments of history it touched."""

    first: int
    last: int
    dirty: frozenset[int] = frozenset()
    hot: tuple[tuple[int, int], ...] = ()
    layers: tuple[Layer, ...] = ()

    def told(self, design: Design) -> Values:
        """Return the state of the entities that this reading says."""
        cold = _folded(design, self.layers)
        hot = dict(self.hot)
        return tuple(
            hot[place] if place in self.dirty else cold.get(place, Row(ABSENT, 0, 0)).value
            for place in range(len(KEYS))
        )


def reads(design: Design) -> Process:
    """Return the steps of one reading: PostgreSQL in one snapshot or in statements, the lake."""

    def now(world: World) -> int:
        return len(world.history) - 1

    def layers(world: World) -> tuple[Layer, ...]:
        if design.has_log:
            return world.log[world.head].layers
        return tuple(layer for layer in world.files if layer is not None)

    def hot(world: World, dirty: frozenset[int]) -> tuple[tuple[int, int], ...]:
        return tuple((place, world.rows[place].value) for place in sorted(dirty))

    def snapshot(world: World, _: object) -> tuple[World, object]:
        dirty = frozenset(place for _, place in world.dirty)
        # The version is in the snapshot; versions do not change, so when it is read is no matter.
        found = layers(world) if design.has_log else ()
        return world, Reading(now(world), now(world), dirty, hot(world, dirty), found)

    def lake(world: World, mine: Reading) -> tuple[World, object]:
        return world, mine if design.has_log else mine._replace(layers=layers(world))

    def dirty(world: World, _: object) -> tuple[World, object]:
        places = frozenset(place for _, place in world.dirty)
        return world, Reading(now(world), now(world), places)

    def files(world: World, mine: Reading) -> tuple[World, object]:
        return world, mine._replace(layers=layers(world), last=now(world))

    def rows(world: World, mine: Reading) -> tuple[World, object]:
        return world, mine._replace(hot=hot(world, mine.dirty), last=now(world))

    return [snapshot, lake] if design.reads == "snapshot" else [dirty, files, rows]


@dataclass(frozen=True)
class Found:
    """How many orders there are, in how many the reader is told wrong, and one of these."""

    schedules: int
    wrong: int
    example: tuple[int, ...] = ()


def search(design: Design, *processes: Process) -> Found:
    """Try the steps of the processes in every order; the last process ends with a reading."""
    lengths = tuple(len(process) for process in processes)

    @cache
    def tried(world: World, knows: tuple, taken: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        if taken == lengths:
            return (0, ()) if _is_right(design, world, knows[-1]) else (1, ())
        wrong, example = 0, None
        for place, process in enumerate(processes):
            if taken[place] < lengths[place]:
                then, local = process[taken[place]](world, knows[place])
                found, rest = tried(
                    then, _replaced(knows, place, local), _replaced(taken, place, taken[place] + 1)
                )
                # Orders lead to one world: each of their ways on counts for each of them.
                wrong += found
                if found and (example is None or len(set(rest)) < len(set(example))):
                    example = (place, *rest)
        return wrong, example or ()

    wrong, example = tried(beginning(), (None,) * len(processes), (0,) * len(processes))
    schedules = factorial(sum(lengths)) // prod(factorial(length) for length in lengths)
    return Found(schedules, wrong, example)


def crowd(design: Design) -> list[Process]:
    """Return two writers, two exporters, a compactor and a reader."""
    return [
        [writes(A=2), writes(A=ABSENT)],
        [writes(A=3, B=3)],
        exports(design),
        exports(design),
        compacts(design),
        reads(design),
    ]


def larger_crowd(design: Design) -> list[Process]:
    """Return the crowd with longer writers, and with whoever rolls forward."""
    first, second, *others, reading = crowd(design)
    return [first, [*second, writes(B=ABSENT)], *others, recovers(design), reading]


def full_search() -> Found:
    """Search the larger crowd: 231,567,336,000 orders, in a minute or two."""
    return search(OURS, *larger_crowd(OURS))


def _replaced(values: tuple, place: int, value: object) -> tuple:
    return (*values[:place], value, *values[place + 1 :])


def _is_right(design: Design, world: World, reading: Reading) -> bool:
    return reading.told(design) in world.history[reading.first : reading.last + 1]
