"""Tables renamed, dropped, brought back, copied and purged, with every call failed or killed.

A lake has two tables with flushed rows and with rows in the journal. After each failure a start
finds the lake as it was before the change or as it is after: no row is lost or in two tables, no
start is refused, and the change can be made again.
"""

import errno
from dataclasses import dataclass
from functools import cache

import pytest

from crash.lake_operations import NOW_NS, abandon, made_disk, opened, read, rows
from fixtures import sim_states
from fixtures.sim_disk import SimDisk
from fixtures.sim_fault import MUTATING, Died
from thermocline.cold.catalog import Catalog
from thermocline.errors import NotFound, TableNotFound, ThermoclineError

CALLS_MAX = 400
CUTS_PER_CALL = 2
GONE = "gone: "


@pytest.fixture(autouse=True)
def _few_dry_samples(monkeypatch):
    monkeypatch.setattr(sim_states, "DRY_SAMPLES_MAX", 12)


@dataclass(frozen=True)
class Verb:
    """A change of a lake's tables; `before` prepares the lake for it."""

    name: str
    act: object
    before: object = lambda lake: None


def drop(lake):
    lake.drop_table("prices")


def drop_and_reuse(lake):
    drop(lake)
    table = lake.create_table("prices", time_column="ts", bucket="1h")
    table.write(rows([70]))


def purge(lake):
    lake._catalog._now_ns = lambda: NOW_NS + 10**15  # each start begins its clock again
    lake.vacuum_dropped(dry_run=False, grace="0s", allow_short_grace=True)


VERBS = [
    Verb("rename", lambda lake: lake.rename_table("prices", "quotes")),
    Verb("rename to capitals", lambda lake: lake.rename_table("prices", "PRICES")),
    Verb("drop", drop),
    Verb("undrop", lambda lake: lake.undrop_table("prices"), drop),
    Verb("undrop as", lambda lake: lake.undrop_table("prices", "older"), drop_and_reuse),
    Verb("copy", lambda lake: lake.copy_table("prices", "copied")),
    Verb("purge", purge, drop),
]
by_name = pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)


@cache
def frozen(verb):
    """Return a lake of two tables with cold and hot rows, made ready for the verb."""
    disk = made_disk()
    lake = opened(disk)
    lake.table("prices").write(rows([2]))
    lake.table("trades").write(rows([12]))
    lake.flush()
    lake.table("prices").write(rows([4]))
    verb.before(lake)
    abandon(lake)
    return disk.killed().freeze()


def base(verb):
    return SimDisk.thaw(frozen(verb))


def seen(disk, *, beside=False):
    """Return what a start finds: the rows by table, and the names that can be brought back.

    With `beside` a process that only reads must find the same.
    """
    lake = opened(disk)
    found = {name: sorted(numbers) for name, numbers in read(lake).items()}
    found |= {GONE + name: [] for name in lake.dropped_tables()["table"].to_pylist()}
    if beside:
        reader = opened(disk, is_read_only=True)
        assert {name: sorted(numbers) for name, numbers in read(reader).items()} == {
            name: numbers for name, numbers in found.items() if not name.startswith(GONE)
        }
        abandon(reader)
    abandon(lake)
    return found


@cache
def contents(verb):
    """Return what is seen before and after the verb."""
    disk = base(verb)
    before = seen(disk.killed())
    lake = opened(disk)
    verb.act(lake)
    abandon(lake)
    after = seen(disk.killed())
    assert before != after
    return before, after


def check_goes_on(disk, verb, before):
    """Assert that the tables are whole, that rows can be written, and the verb be repeated."""
    lake = opened(disk)
    for name in lake.tables():
        assert lake.table(name).fsck().is_sound, name
    lake.table("trades").write(rows([90]))
    lake.flush()
    assert 90 in read(lake)["trades"]
    if seen_names(lake) == {name for name in before if not name.startswith(GONE)}:
        try:
            verb.act(lake)
        except NotFound:
            assert verb.name == "purge"
    Catalog(lake.root(), disk).check_names()
    abandon(lake)


def seen_names(lake):
    return set(lake.tables())


@by_name
def test_a_verb_killed_at_its_kth_call_has_happened_or_not(verb):
    before, after = contents(verb)
    for call in range(1, CALLS_MAX):
        disk = base(verb)
        lake = opened(disk)
        disk.die(call)
        died = False
        try:
            verb.act(lake)
        except Died:
            died = True
        left = disk.killed()
        abandon(lake)
        assert seen(left.clone(), beside=call % 4 == 1) in (before, after), call
        if call % 8 == 0 or not died:
            check_goes_on(left, verb, before)
        if not died:
            assert call > 5
            return
    pytest.fail("the verb makes too many calls")


@by_name
def test_a_verb_whose_power_is_cut_at_any_call_has_happened_or_not(verb):
    before, after = contents(verb)
    disk = base(verb)
    moments = []

    def note(operation, path):
        if operation in MUTATING:
            moments.append(disk.freeze())

    lake = opened(disk)
    disk.hooks = note
    verb.act(lake)
    disk.hooks = None
    moments.append(disk.freeze())
    abandon(lake)
    for place, volume in enumerate(moments):
        if place % 2 and verb.name == "copy":
            continue  # it makes many calls for each file
        for left in SimDisk.thaw(volume).crash_states(CUTS_PER_CALL, seed=place):
            assert seen(left) in (before, after), (place, left.story)
    # What was answered is durable.
    for left in SimDisk.thaw(moments[-1]).crash_states(CUTS_PER_CALL, seed=1):
        assert seen(left) == after


@pytest.mark.parametrize(
    ("verb", "how"),
    [
        (verb, how)
        for verb in VERBS
        for how in ("once", "sticky", "landed")
        if how == "landed" or verb.name in ("rename", "drop")
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_a_verb_whose_kth_call_fails_has_happened_or_not_and_the_lake_goes_on(verb, how):
    before, after = contents(verb)
    for call in range(1, CALLS_MAX):
        disk = base(verb)
        lake = opened(disk)
        disk.fail(
            call, errno.EIO, mutating_only=True, sticky=how == "sticky", landed=how == "landed"
        )
        raised = None
        try:
            verb.act(lake)
        except ThermoclineError as error:
            raised = error
        struck = bool(disk.struck)
        disk.heal()
        found = {name: sorted(numbers) for name, numbers in read(lake).items()}
        abandon(lake)
        again = seen(disk.killed())
        assert {k: v for k, v in again.items() if not k.startswith(GONE)} == found, (call, raised)
        if raised is None:
            assert again == after, call
        else:
            assert again in (before, after), (call, raised)
        if not struck:
            return
    pytest.fail("the verb makes too many calls")


def drops_the_name_first(patch):
    def drop(self, name):
        named = self.find_entry(name)
        self._remove_name(named.name)
        raise TableNotFound("died before the file of the drop")

    patch.setattr(Catalog, "drop", drop)


def renames_without_a_note(patch):
    def rename(self, name, to):
        old = self.find_entry(name)
        named = type(old)(to, old.table_id, old.folder)
        self._storage.put_new(f"names/{to}.json", self._encode_entry(named))
        self._remove_name(old.name)
        return named

    patch.setattr(Catalog, "rename", rename)


@pytest.mark.parametrize(
    ("mutant", "place"), [(drops_the_name_first, 2), (renames_without_a_note, 0)]
)
def test_simpler_orders_are_caught(mutant, place, monkeypatch):
    verb = VERBS[place]
    contents(verb)
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ThermoclineError)):
        test_a_verb_killed_at_its_kth_call_has_happened_or_not(verb)
