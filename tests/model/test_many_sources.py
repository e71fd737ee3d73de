"""An exact reading over several journals: every short history of sources, takeovers and a reader.

A source is a journal: numbered objects, each created only if its number is free. Its owner puts a
row, acknowledges it, and flushes: it freezes its rows, commits them with the source's mark, and
retires them. A source registers before its first row. An owner may stop for any time between two
steps and go on, or die. A successor takes a source over: it creates the next number itself, which
is the fence, replays what is there, flushes it, and removes the source from the list.

A reader lists the sources, takes the snapshot of each, and reads the newest version. It gets no
answer while no process has the rows of a listed source. Every answer must have each row that was
acknowledged before it began, and no row twice.

Each wrong design leaves out one rule, and the search must find its harm.
"""

from collections import deque
from dataclasses import dataclass, replace

import pytest

FENCE = 0
WRITES = (2, 1)
FLUSHES_MAX = 2

RIGHT = "right"
VERSION_FIRST = "the version is read before the snapshots"
VERSION_BETWEEN = "the version is read between two snapshots"
LIST_AFTER_VERSION = "the sources are listed after the version is read"
LIST_KEPT = "the list of sources is older than the query"
LEASE_PROVES_DEATH = "a source whose lease has ended is left out"
FENCE_BY_CLOCK = "the fence is a clock: the old owner's next number is still free"
MARK_IGNORED = "a flush commits what it froze, whatever the mark has become"
REPLAY_AFTER_FLUSH = "a takeover replays from the mark that it read before its flush, again"
REGISTER_LATE = "a source registers after its first acknowledgement"
LEAVE_EARLY = "a successor removes the source before its rows are committed"

WRONG = [
    VERSION_FIRST,
    VERSION_BETWEEN,
    LIST_AFTER_VERSION,
    LIST_KEPT,
    LEASE_PROVES_DEATH,
    FENCE_BY_CLOCK,
    MARK_IGNORED,
    REPLAY_AFTER_FLUSH,
    REGISTER_LATE,
    LEAVE_EARLY,
]


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that serves a source."""

    hot: tuple[int, ...] = ()
    base: int = 0  # the mark that its rows follow
    frozen: tuple[int, ...] = ()
    is_committed: bool = False
    putting: int = 0  # durable, and not acknowledged yet
    is_stopped: bool = False  # it has learned that it was fenced
    has_replayed_again: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A journal, and the processes that serve it; `heir` has taken it over."""

    journal: tuple[int, ...] = ()
    owner: Owner | None = None
    heir: Owner | None = None
    has_started: bool = False
    is_listed: bool = False
    has_lease: bool = False
    is_dead: bool = False


@dataclass(frozen=True, slots=True)
class Reader:
    """A query: what was acknowledged before it, and what it has read so far."""

    before: tuple[tuple[int, int], ...]
    listed: tuple[int, ...] | None = None
    shots: tuple[tuple[int, tuple[int, ...]], ...] = ()
    version: tuple | None = None  # the marks and the rows of a version


@dataclass(frozen=True, slots=True)
class World:
    """Everything: the sources, the newest version, and at most one query."""

    sources: tuple[Source, ...]
    marks: tuple[int, ...] = (0, 0)
    cold: tuple[tuple[int, int], ...] = ()
    acked: tuple[tuple[int, int], ...] = ()
    flushes: int = 0
    kept_list: tuple[int, ...] = ()
    reader: Reader | None = None


def start() -> World:
    """One source serves; the other joins at some time."""
    first = Source((), Owner(), None, True, True, True)
    return World((first, Source()), kept_list=(0,))


def put(values, place, value):
    """Return a tuple with another value in one place."""
    return (*values[:place], value, *values[place + 1 :])


def changed(world, s, source, **more):
    """Return the world with another state of one source."""
    return replace(world, sources=put(world.sources, s, source), **more)


def next_worlds(world, design):
    """Yield every world that one step leads to."""
    for s, source in enumerate(world.sources):
        yield from life_steps(world, s, source, design)
        for who in ("owner", "heir"):
            process = getattr(source, who)
            if process is not None:
                yield from flush_steps(world, s, source, who, process, design)
        if source.owner is not None and not source.owner.is_stopped:
            yield from write_steps(world, s, source, source.owner, design)
    yield from reader_steps(world, design)


def life_steps(world, s, source, design):
    """A source joins, loses its lease, dies, is taken over, and leaves the list."""
    if not source.has_started:
        is_listed = design != REGISTER_LATE
        joined = replace(source, owner=Owner(), has_started=True)
        yield changed(world, s, replace(joined, is_listed=is_listed, has_lease=is_listed))
        return
    if not source.is_listed and source.heir is None and any(a[0] == s for a in world.acked):
        yield changed(world, s, replace(source, is_listed=True, has_lease=True))
    if source.has_lease:
        yield changed(world, s, replace(source, has_lease=False))
    if source.owner is not None and not source.has_lease:
        yield changed(world, s, replace(source, owner=None, is_dead=True))
    if source.is_listed and not source.has_lease and source.heir is None:
        rows = tuple(n for n in source.journal if n > world.marks[s])
        heir = Owner(rows, world.marks[s])
        journal = source.journal
        if design != FENCE_BY_CLOCK:
            journal = (*journal, FENCE)
        yield changed(world, s, replace(source, heir=heir, journal=journal))
    heir = source.heir
    if heir is not None and source.is_listed and (not heir.hot or design == LEAVE_EARLY):
        yield changed(world, s, replace(source, is_listed=False))


def write_steps(world, s, source, owner, design):
    """The owner puts the next number, and acknowledges it."""
    if owner.putting:
        lsn = owner.putting
        served = replace(owner, hot=(*owner.hot, lsn), putting=0)
        acked = tuple(sorted((*world.acked, (s, lsn))))
        yield changed(world, s, replace(source, owner=served), acked=acked)
        return
    rows = sum(1 for one in source.journal if one != FENCE)
    if rows == WRITES[s]:
        return
    if FENCE in source.journal:  # the number is taken
        yield changed(world, s, replace(source, owner=replace(owner, is_stopped=True)))
        return
    put = replace(owner, putting=rows + 1)
    yield changed(world, s, replace(source, owner=put, journal=(*source.journal, rows + 1)))


def flush_steps(world, s, source, who, process, design):
    """A process freezes its rows, commits them with the mark, and retires them."""

    def with_process(new, **more):
        return changed(world, s, replace(source, **{who: new}), **more)

    if not process.frozen:
        if process.hot and world.flushes < FLUSHES_MAX:
            yield with_process(replace(process, frozen=process.hot), flushes=world.flushes + 1)
        if who == "heir" and design == REPLAY_AFTER_FLUSH and not process.has_replayed_again:
            rows = tuple(n for n in source.journal if n != FENCE)
            yield with_process(
                replace(process, hot=rows, base=world.marks[s], has_replayed_again=True)
            )
        return
    if process.is_committed:
        rest = tuple(n for n in process.hot if n > process.frozen[-1])
        base = max(process.base, process.frozen[-1])
        yield with_process(replace(process, hot=rest, base=base, frozen=(), is_committed=False))
        return
    mark = process.frozen[-1]
    done = replace(process, is_committed=True)
    if design != REPLAY_AFTER_FLUSH or who == "owner":
        if world.marks[s] >= mark and design != MARK_IGNORED:
            yield with_process(done)
            return
        if world.marks[s] != process.base and design != MARK_IGNORED:
            # Another process has flushed a part of these rows: look again from its mark.
            rest = tuple(n for n in process.hot if n > world.marks[s])
            yield with_process(replace(process, hot=rest, base=world.marks[s], frozen=()))
            return
    marks = put(world.marks, s, max(world.marks[s], mark))
    cold = tuple(sorted((*world.cold, *((s, n) for n in process.frozen))))
    yield with_process(done, marks=marks, cold=cold)


def reader_steps(world, design):
    """The query begins, lists, takes snapshots, and reads the version."""
    reader = world.reader
    if reader is None:
        listed = world.kept_list if design == LIST_KEPT else None
        yield replace(world, reader=Reader(world.acked, listed))
        return
    now = (world.marks, world.cold)
    if reader.version is None and (
        (design == VERSION_FIRST and reader.listed is not None)
        or (design == VERSION_BETWEEN and reader.shots)
        or design == LIST_AFTER_VERSION
    ):
        yield replace(world, reader=replace(reader, version=now))
        return
    if reader.listed is None:
        found = tuple(
            s
            for s, source in enumerate(world.sources)
            if source.is_listed and (source.has_lease or design != LEASE_PROVES_DEATH)
        )
        yield replace(world, reader=replace(reader, listed=found))
        return
    taken = {s for s, _ in reader.shots}
    waiting = [s for s in reader.listed if s not in taken]
    if waiting:
        source = world.sources[waiting[0]]
        for process in {source.owner, source.heir} - {None}:
            shots = (*reader.shots, (waiting[0], process.hot))
            yield replace(world, reader=replace(reader, shots=shots))
    elif reader.version is None:
        yield replace(world, reader=replace(reader, version=now))


def find_harm(world):
    """Return what is wrong with a finished answer; None if it is not finished, or right."""
    reader = world.reader
    if reader is None or reader.version is None or reader.listed is None:
        return None
    if len(reader.shots) < len(reader.listed):
        return None
    marks, cold = reader.version
    rows = [*cold, *((s, n) for s, hot in reader.shots for n in hot if n > marks[s])]
    if len(rows) != len(set(rows)):
        return "twice"
    return "lost" if set(reader.before) - set(rows) else ""


def search(design, *, is_first_enough):
    """Return how many worlds and answers there are, and how many answers have which harm."""
    seen, waiting = {start()}, deque([start()])
    answers, harms = 0, {}
    while waiting:
        world = waiting.popleft()
        harm = find_harm(world)
        if harm is not None:
            answers += 1
            if harm:
                harms[harm] = harms.get(harm, 0) + 1
                if is_first_enough:
                    break
            continue
        for found in next_worlds(world, design):
            if found not in seen:
                seen.add(found)
                waiting.append(found)
    return len(seen), answers, harms


def test_N07_N08_every_answer_over_many_sources_has_each_acknowledged_row_once():
    worlds, answers, harms = search(RIGHT, is_first_enough=False)
    assert not harms
    assert worlds > 50_000
    assert answers > 10_000


@pytest.mark.parametrize("design", WRONG)
def test_N05_N06_N07_N08_each_design_without_a_rule_gives_a_wrong_answer(design):
    _, _, harms = search(design, is_first_enough=True)
    assert harms
