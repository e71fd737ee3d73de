"""A lake whose process is killed or whose power goes, at every call it makes, twice over.

Every story is played once and cut before each of its changing calls. A state is a disk with a tree
that no other state of its story has; what a start finds in it is held against every promise that
was given by the time it could arise. Of states that differ in outcome some begin a second life,
which is cut in the same way from the first call of its recovery on; and some are proven by a whole
run: open, read, write, flush, open again, fsck.
"""

import random
from dataclasses import dataclass, field
from itertools import count

import pytest

from crash.lake_operations import (
    STORY,
    TABLES,
    Life,
    Looker,
    Promise,
    abandon,
    made_disk,
    make,
    opened,
    proven,
    random_story,
    read,
    write_back,
)
from fixtures import sim_states
from fixtures.sim_disk import SimDisk
from fixtures.sim_fault import MUTATING
from thermocline.errors import ThermoclineError

SHARDS = 5
STORIES_PER_SHARD = 2
STATES_PER_CALL = 80
STATES_MIN_PER_SHARD = 13_000  # all shards together: 65,000
SECOND_LIVES_PER_STORY = 4
SECOND_STATES_PER_CALL = 30
PROVEN_PER_STORY = 12
SECOND_STEPS = (
    ("write", "prices", 1),
    ("flush", "trades", 0),
    ("flush", "prices", 0),
    ("write", "trades", 1),
)


@pytest.fixture(autouse=True)
def _few_dry_samples(monkeypatch):
    """Few things are pending at a time: what chance has not found soon, it does not find."""
    monkeypatch.setattr(sim_states, "DRY_SAMPLES_MAX", 12)


@dataclass
class Cuts:
    """Looks at every state of a story and counts those that differ."""

    looker: Looker
    found: dict[int, object] = field(default_factory=dict)
    outcomes: dict[object, tuple[SimDisk, Promise]] = field(default_factory=dict)

    def look(self, disk, moment, *, is_cut):
        """Hold what a start would find against the promise of a moment."""
        look, parts = self.looker.looks(disk)
        if look not in self.found:
            self.found[look] = self.looker.found(disk, parts)
        found = self.found[look]
        broken = moment.promise.broken_by(found.numbers)
        assert broken is None, (broken, moment.call, disk.story)
        outcome = (str(found.numbers), found.outline, is_cut)
        if outcome not in self.outcomes:
            self.outcomes[outcome] = (disk.clone(), moment.promise)

    def some(self, rng, how_many):
        """Return states of different outcome by chance, as many kills as cuts."""
        picked = []
        for wanted in (False, True):
            those = [state for key, state in self.outcomes.items() if key[-1] is wanted]
            picked += rng.sample(those, min(how_many // 2, len(those)))
        return picked

    def all_of(self, moments, limit, seed):
        """Kill, and cut the power, at each of these moments."""
        for place, moment in enumerate(moments):
            self.look(moment.disk(), moment, is_cut=False)
            for left in moment.cuts(limit, seed * 10_000 + place):
                self.look(left, moment, is_cut=True)


def told(story, seed, *, open_lake=opened):
    """Play a story on a lake of two tables; return its moments."""
    life = Life(made_disk(), open_lake=open_lake)
    life.play(story, random.Random(seed))
    assert life.errors == []
    return life.end()


def second_lives(cuts, seed, how_many):
    """Begin again from some of the states, and cut again: in recovery, and in what follows."""
    rng = random.Random(seed)
    for disk, promise in cuts.some(rng, how_many):
        life = Life(disk, promise, numbers=count(10**5))
        life.play(SECOND_STEPS)
        assert life.errors == []
        cuts.all_of(life.end(), SECOND_STATES_PER_CALL, seed)


def run_story(story, seed):
    """Cut a story everywhere, then some of what it left; return how many states there were."""
    cuts = Cuts(Looker(made_disk()))
    cuts.all_of(told(story, seed), STATES_PER_CALL, seed)
    for disk, promise in cuts.some(random.Random(seed), PROVEN_PER_STORY):
        proven(disk.clone(), promise)
    second_lives(cuts, seed, SECOND_LIVES_PER_STORY)
    return len(cuts.found)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_W01_W02_W04_W05_W22_F01_F02_F03_no_cut_at_any_call_loses_or_doubles_a_row(shard):
    states = 0
    for seed in range(shard * STORIES_PER_SHARD, (shard + 1) * STORIES_PER_SHARD):
        states += run_story(random_story(random.Random(seed)), seed)
    assert states >= STATES_MIN_PER_SHARD


# The moments that have a name


def flush_moments():
    """Play one write of two hours and its flush; return the moments."""
    life = Life(made_disk())
    life.write("prices", 4)
    write_back(life.disk)
    life.moments.clear()
    life.flush("prices")
    life.write("prices", 1)
    return life.end()


def place_of(moments, operation, part):
    """Return the place of the first call of this kind on such a path."""
    return next(
        place
        for place, moment in enumerate(moments)
        if moment.call[0] == operation and part in moment.call[1]
    )


def is_in_the_lake(disk, how_many):
    """Tell whether the rows of the flush are in a version, and prove that it has all or none."""
    lake = opened(disk.clone())
    state = lake.table("prices").cold.state()
    abandon(lake)
    assert state.totals.rows in (0, how_many)
    assert bool(state.marks) is (state.totals.rows > 0), "the mark is of another version"
    return state.totals.rows > 0


def cuts_of(moment):
    return [moment.disk(), *moment.cuts(20, 1)]


def test_F01_a_crash_after_the_parquet_files_and_before_the_commit_leaves_the_rows_hot():
    moments = flush_moments()
    moment = moments[place_of(moments, "link", "_log/0000")]
    assert sum(path.endswith(".parquet") for path in moment.disk().tree()) == 2
    for disk in cuts_of(moment):
        assert not is_in_the_lake(disk, 4)
        proven(disk, moment.promise)


def test_F02_a_crash_after_the_commit_and_before_the_trim_reads_no_row_twice():
    moments = flush_moments()
    linked = place_of(moments, "link", "_log/0000")
    # Two calls on, the name of the commit is durable.
    assert moments[linked + 1].call[0] == "sync_folder"
    moment = moments[linked + 2]
    assert any(path.endswith(".wal") for path in moment.disk().tree())
    for disk in cuts_of(moment):
        assert is_in_the_lake(disk, 4)
        proven(disk, moment.promise)


def test_F03_a_crash_after_the_trim_loses_nothing():
    moments = flush_moments()
    moment = moments[-1]
    for disk in cuts_of(moment):
        proven(disk, moment.promise)


def test_F05_one_commit_takes_all_hours_of_a_flush_at_whatever_call_it_is_cut():
    moments = flush_moments()
    seen = {is_in_the_lake(disk, 4) for moment in moments for disk in moment.cuts(3, 1)}
    assert seen == {False, True}
    lake = opened(moments[-1].disk())
    assert len(list(lake.table("prices").cold.state().segments)) == 2
    abandon(lake)


def test_F15_no_version_ever_names_a_file_that_is_not_whole():
    moments = flush_moments()
    looked = 0
    for moment in moments[place_of(moments, "link", "_log/0000") :]:
        for disk in moment.cuts(6, 1):
            lake = opened(disk)
            for name in TABLES:
                assert lake.table(name).fsck().is_sound
            abandon(lake)
            looked += 1
    assert looked > 40


def test_F16_a_name_that_is_taken_fails_the_flush_and_overwrites_nothing(monkeypatch):
    life = Life(made_disk(), is_recorded=False)
    with monkeypatch.context() as patched:
        patched.setattr("thermocline.cold.segment.stage.new_id", lambda *_: "0" * 32)
        life.write("prices", 1)
        life.flush("prices")
        life.numbers = count(101, 2)  # the same hour, so that the names are the same
        life.write("prices", 1)
        with pytest.raises(ThermoclineError):
            life.flush("prices")
        life.look()
    life.flush("prices")
    life.look()
    promise = life.promise
    life.end()
    proven(life.disk.killed(), promise)


def test_W05_a_last_frame_torn_at_any_byte_is_cut_and_what_was_answered_is_kept():
    life = Life(made_disk())
    life.write("prices", 1)
    write_back(life.disk)
    life.moments.clear()
    life.write("prices", 2)
    moments = life.end()
    moment = moments[place_of(moments, "sync", "/journal/")]
    (path,) = [path for path in moment.disk().tree() if path.endswith(".wal")]
    before = moments[place_of(moments, "write", "/journal/")].disk().size(path)
    for size_bytes in range(before, moment.disk().size(path)):
        disk = moment.disk()
        disk.truncate(path, size_bytes)
        lake = opened(disk)
        moment.promise.check(read(lake), size_bytes)
        assert lake.tier.recovery_report.cut_bytes == size_bytes - before
        abandon(lake)
    proven(disk.killed(), moment.promise)


def test_W22_a_recovery_that_dies_at_each_of_its_calls_is_followed_by_the_same_again():
    looker = Looker(made_disk())
    moments = told(STORY, 5)
    died = 0
    for moment in moments[:: len(moments) // 25]:
        first = moment.disk()
        wanted = looker.found(first).numbers
        life = Life(first, moment.promise)
        for recovering in life.end():
            again = recovering.disk()
            assert looker.found(again).numbers == wanted
            died += 1
            recovering.promise.check(wanted)
    assert died > 100


def test_a_lake_that_dies_while_it_is_made_can_be_made_again():
    disk, moments = SimDisk(["/"]), []

    def note(operation, path):
        if operation in MUTATING:
            moments.append(disk.freeze())

    disk.hooks = note
    abandon(make(disk))
    for place, volume in enumerate(moments):
        for left in [SimDisk.thaw(volume), *SimDisk.thaw(volume).crash_states(4, seed=place)]:
            lake = opened(left)
            for name in set(TABLES) - set(lake.tables()):
                lake.create_table(name, time_column="ts", bucket="1h")
            lake.close()
            if place % 10 == 0:
                proven(left, Promise())
