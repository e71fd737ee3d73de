"""Wrong designs that the harness must catch: a check nobody has seen fail is not a check.

Each mutant is a storage or a log with one mistake that somebody has shipped; the loops that the
right code passes must fail on it.
"""

import random

import pytest

from crash.operations import base_disk, contents, opened, seen
from fixtures.lake import closes, lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from fixtures.sim_fault import Died
from thermocline.cold.change.append import AppendOptions, AppendPlanner
from thermocline.cold.log.commit_log import CommitLog
from thermocline.cold.storage.local import LocalStorage
from thermocline.errors import ThermoclineError
from thermocline.format import layout

CALLS_MAX = 200
STATES_PER_CALL = 12


class CommitsBeforeSyncing(LocalStorage):
    """Names the commit before its bytes are durable."""

    def _write_synced(self, absolute, data):
        if "_log/." not in absolute:
            super()._write_synced(absolute, data)
            return
        writer = self._disk.create(absolute)
        writer.write(data)
        writer.close()


class NeverSyncsTheFolder(LocalStorage):
    """Answers before the commit's name is durable."""

    def put_new(self, path, data):
        sync, self._disk.sync_folder = self._disk.sync_folder, lambda folder: None
        try:
            return super().put_new(path, data)
        finally:
            self._disk.sync_folder = sync


class NamesDataThatIsNotDurable(LocalStorage):
    """Writes segments without syncing them."""

    def put(self, path, data):
        absolute = self._absolute(path)
        self._make_folders(absolute.rsplit("/", 1)[0])
        writer = self._disk.create(absolute)
        writer.write(data)
        writer.close()


class ForgetsNewFolders(LocalStorage):
    """Makes folders without syncing the folders above them."""

    def _sync_names(self, folders):
        self._durable_folders.update(folders)


class WritesInPlace(LocalStorage):
    """Creates the commit under its final name and then fills it."""

    def put_new(self, path, data):
        absolute = self._absolute(path)
        self._make_folders(absolute.rsplit("/", 1)[0])
        if self._disk.size(absolute) is not None:
            return False
        self._write_synced(absolute, data)
        self._disk.sync_folder(absolute.rsplit("/", 1)[0])
        return True


def survives_power_cuts(storage) -> bool:
    """Run one append on a storage and cut the power at every call, as the real loop does."""
    before, after = contents("append")
    for call in range(1, CALLS_MAX):
        disk = base_disk()
        table = opened(disk)
        table.storage = table.log._storage = table.index._storage = storage("/lake/prices", disk)
        disk.die(call, mutating_only=True)
        answered = True
        try:
            table.append(rows([10, 11]).to_reader(), AppendOptions())
        except Died:
            answered = False
        for left in disk.crash_states(STATES_PER_CALL, seed=call):
            try:
                found = seen(left)
            except ThermoclineError:
                return False
            if found != after and (answered or found != before):
                return False
        if answered:
            return True
    return False


def test_the_right_storage_survives_every_power_cut():
    assert survives_power_cuts(LocalStorage)


@pytest.mark.parametrize(
    "mutant",
    [
        CommitsBeforeSyncing,
        NeverSyncsTheFolder,
        NamesDataThatIsNotDurable,
        ForgetsNewFolders,
        WritesInPlace,
    ],
)
def test_a_storage_that_skips_a_step_is_caught_by_the_power_cuts(mutant):
    assert not survives_power_cuts(mutant)


class ChecksThenRenames(LocalStorage):
    """Decides who wins by looking first and renaming after: two writers can win."""

    def put_new(self, path, data):
        absolute = self._absolute(path)
        temporary = f"{absolute}.{random.random()}.tmp"
        self._write_synced(temporary, data)
        if self._disk.size(absolute) is not None:
            return False
        self.between()
        self._disk.rename(temporary, absolute)
        self._disk.sync_folder(absolute.rsplit("/", 1)[0])
        return True

    def between(self):
        """What another writer does between the look and the rename."""


@pytest.mark.parametrize("storage", [LocalStorage, ChecksThenRenames])
def test_T01_check_then_rename_loses_a_commit_and_link_does_not(storage):
    disk = SimDisk(["/lake"])
    first, second = lake_on(disk), lake_on(disk)
    first.create(spec())
    mine = storage("/lake/prices", disk)
    mine.between = lambda: second.append(rows([2]).to_reader(), AppendOptions())
    first.storage = first.log._storage = mine
    first.append(rows([1]).to_reader(), AppendOptions())
    if storage is LocalStorage:
        second.append(rows([2]).to_reader(), AppendOptions())
        assert closes(lake_on(disk)) == [1.0, 2.0]
    else:
        assert closes(lake_on(disk)) == [1.0], "the second commit was overwritten"


class ChecksOverlapOnce(AppendPlanner):
    """Checks for overlap against the first state only."""

    def _check_overlap(self, state, new):
        if not getattr(self, "is_checked", False):
            super()._check_overlap(state, new)
            self.is_checked = True


@pytest.mark.parametrize(
    ("appending", "twice"), [(AppendPlanner, False), (ChecksOverlapOnce, True)]
)
def test_T16_an_overlap_check_that_is_not_repeated_lets_two_writers_into_one_bucket(
    appending, twice, monkeypatch
):
    disk = SimDisk(["/lake"])
    table, rival = lake_on(disk), lake_on(disk)
    table.create(spec())
    land = table.log.try_commit

    def beaten(commit):
        table.log.try_commit = land
        rival.append(rows([1]).to_reader(), AppendOptions())
        return land(commit)

    table.log.try_commit = beaten
    monkeypatch.setattr("thermocline.cold.table.AppendPlanner", appending)
    if twice:
        table.append(rows([1]).to_reader(), AppendOptions())
    else:
        with pytest.raises(ThermoclineError, match="already holds"):
            table.append(rows([1]).to_reader(), AppendOptions())
    assert closes(lake_on(disk)) == [1.0] * (2 if twice else 1)


class BelievesTheHint(CommitLog):
    """Takes CURRENT for the truth."""

    def head(self):
        return self._head or self._replay(self.read_current().version)


def test_T02_a_log_that_believes_its_hint_is_blocked_for_ever_by_a_crash_before_it():
    disk = base_disk()
    disk.overwrite("/lake/prices/" + layout.CURRENT_PATH, b'{"version": 5}')
    table = opened(disk)
    table.log = table.index._log = BelievesTheHint(table.storage, checkpoint_every=5)
    with pytest.raises(ThermoclineError):
        table.append(rows([10]).to_reader(), AppendOptions())
    assert opened(disk).append(rows([10]).to_reader(), AppendOptions()).version == 7
