"""The commit log: one arbiter, whatever became of its hint, its checkpoints or its files."""

import orjson
import pytest

from crash.operations import base_disk, opened, seen
from fixtures.lake import closes, lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.log.transaction import CommitPlan, transact
from thermocline.errors import (
    Conflict,
    Corruption,
    NotFound,
    OutcomeUnknown,
    Unsupported,
)
from thermocline.format import layout
from thermocline.format.instant import parse_instant
from thermocline.format.log.commit import decode_commit
from thermocline.format.sealed_json import crc32c

ROOT = "/lake/prices/"
CURRENT = ROOT + layout.CURRENT_PATH


def commit_file(version):
    return ROOT + layout.commit_path(version)


def checkpoint_file(version):
    return ROOT + layout.checkpoint_path(version)


def rewritten(disk, version, **changes):
    """Write a commit again with other fields and a right checksum, as another program might."""
    json = orjson.loads(disk.read(commit_file(version)))
    del json["checksum"]
    body = orjson.dumps({**json, **changes})
    disk.overwrite(
        commit_file(version), body[:-1] + b',"checksum":"' + crc32c(body).encode() + b'"}\n'
    )


@pytest.fixture
def disk() -> SimDisk:
    return base_disk()


@pytest.mark.parametrize(
    "hint",
    [
        None,
        b"",
        b"\x00\xff garbage",
        b"{}",
        b'{"version": "seven"}',
        b'{"version": 2}',
        b'{"version": -1}',
        b'{"version": 0}',
        b"[6]",
        b"6",
    ],
    ids=str,
)
def test_T06_a_wrong_hint_is_never_believed_and_is_written_again(disk, hint):
    before = seen(disk)
    disk.remove(CURRENT) if hint is None else disk.overwrite(CURRENT, hint)
    assert seen(disk) == before
    opened(disk).append(rows([50]).to_reader(), AppendOptions())
    assert orjson.loads(disk.read(CURRENT))["version"] == 7


def test_T02_a_commit_that_the_hint_does_not_know_is_read_and_never_overwritten(disk):
    disk.overwrite(CURRENT, b'{"version": 5}')
    sixth = disk.read(commit_file(6))
    table = opened(disk)
    assert table.state().version == 6
    assert table.append(rows([50]).to_reader(), AppendOptions()).version == 7
    assert disk.read(commit_file(6)) == sixth


@pytest.mark.parametrize("offset", [0, 40, 200, -3, -12])
def test_T04_a_flipped_byte_in_a_commit_is_found_and_named_and_older_versions_stay(disk, offset):
    size = disk.size(commit_file(6))
    disk.flip_byte(commit_file(6), offset % size)
    with pytest.raises(Corruption) as error:
        opened(disk).state()
    assert layout.commit_path(6) in str(error.value)
    table = opened(disk)
    assert table.log.commit(5).version == 5
    assert table.log._replay(5).version == 5


def test_T03_a_torn_commit_is_found_at_any_length(disk):
    whole = disk.read(commit_file(6))
    for size in range(0, len(whole) - 1, 7):
        with pytest.raises(Corruption):
            decode_commit(whole[:size], 6)


@pytest.mark.parametrize("missing", [1, 3, 5])
def test_T05_a_commit_missing_in_the_middle_is_an_error_not_a_shorter_history(missing):
    disk = SimDisk(["/lake"])
    table = lake_on(disk)
    table.create(spec())
    for hour in range(5):
        table.append(rows([hour]).to_reader(), AppendOptions())
    disk.remove(commit_file(missing))
    for hint in (True, False):
        if not hint:
            disk.remove(CURRENT)
        with pytest.raises(Corruption) as error:
            lake_on(disk).state()
        assert layout.commit_path(missing) in str(error.value)


@pytest.mark.parametrize("missing", [1, 2])
def test_T05_an_earlier_version_whose_commit_is_missing_is_corruption(disk, missing):
    table = opened(disk)
    table.log.write_checkpoint(table.state().version)
    disk.remove(commit_file(missing))
    with pytest.raises(Corruption) as caught:
        opened(disk).state(missing)
    assert caught.value.facts["path"] == layout.commit_path(missing)


def test_T05_the_newest_commit_but_one_missing_is_seen_although_the_hint_is_behind():
    disk = SimDisk(["/lake"])
    table = lake_on(disk)
    table.create(spec())
    for hour in range(4):
        table.append(rows([hour]).to_reader(), AppendOptions())
    disk.overwrite(CURRENT, b'{"version": 3}')
    disk.remove(commit_file(4))
    with pytest.raises(Corruption):
        lake_on(disk).state()


class LosesTheAnswer:
    """A storage whose atomic create lands, and then the answer is lost."""

    def __init__(self, storage, times):
        self._storage = storage
        self.times = times

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def put_new(self, path, data):
        answer = self._storage.put_new(path, data)
        if self.times:
            self.times -= 1
            raise OutcomeUnknown("the answer was lost", path=path)
        return answer


@pytest.mark.parametrize("times", [1, 2])
def test_T07_a_commit_whose_answer_was_lost_finds_itself_by_its_txn_id(disk, times):
    table = opened(disk)
    table.log._storage = LosesTheAnswer(table.storage, times)
    assert table.append(rows([50]).to_reader(), AppendOptions()).version == 7
    assert closes(opened(disk)).count(50.0) == 1


def test_T07_an_outcome_that_stays_unknown_is_said_to_be_and_nothing_staged_is_removed(disk):
    table = opened(disk)
    table.log._storage = LosesTheAnswer(table.storage, 99)
    with pytest.raises(OutcomeUnknown) as error:
        table.append(rows([50]).to_reader(), AppendOptions())
    assert error.value.facts["version"] == 7
    assert closes(opened(disk)).count(50.0) == 1


def test_T08_when_all_tries_are_lost_it_is_definite_and_what_was_staged_is_removed(disk):
    table, rival = opened(disk), opened(disk)
    land, rounds = table.log.try_commit, iter(range(1000))

    def beaten(commit):
        rival.append(
            rows([200 + next(rounds)], "RIVAL").to_reader(), AppendOptions(overlap="allow")
        )
        return land(commit)

    table.log.try_commit = beaten
    before = {path for path in disk.tree() if path.endswith(".parquet") and "data/" in path}
    with pytest.raises(Conflict, match="definitely not made"):
        table.append(rows([50]).to_reader(), AppendOptions(overlap="allow"))
    mine = {path for path in disk.tree() if path.endswith(".parquet") and "data/" in path} - before
    named = {f"/lake/prices/{s.path}" for s in rival.state().segments}
    assert mine <= named, "a staged file was left behind"
    assert closes(opened(disk)).count(50.0) == 0


@pytest.mark.parametrize("damage", ["remove", "truncate", "flip_footer", "flip_page", "garbage"])
def test_T09_a_checkpoint_that_is_damaged_is_ignored_and_the_state_is_the_same(disk, damage):
    before = seen(disk)
    path = checkpoint_file(5)
    size = disk.size(path)
    match damage:
        case "remove":
            disk.remove(path)
        case "truncate":
            disk.truncate(path, size // 2)
        case "flip_footer":
            disk.flip_byte(path, size - 40)
        case "flip_page":
            disk.flip_byte(path, 30)
        case "garbage":
            disk.overwrite(path, b"PAR1 not really PAR1")
    assert seen(disk) == before
    assert opened(disk).state().totals.rows == 9


def test_T09_a_checkpoint_of_another_version_under_this_name_is_not_believed(disk):
    before = seen(disk)
    table = opened(disk)
    table.append(rows([50]).to_reader(), AppendOptions())
    table.log.write_checkpoint(7)
    disk.overwrite(checkpoint_file(5), disk.read(checkpoint_file(7)))
    disk.remove(checkpoint_file(7))
    disk.remove(commit_file(7))
    disk.remove(ROOT + layout.table_coverage_path(7))
    disk.remove(CURRENT)
    assert seen(disk) == before


def test_T10_a_checkpoint_is_of_exactly_one_version_though_commits_land_meanwhile(disk):
    table, rival = opened(disk), opened(disk)
    state = table.state()
    rival.append(rows([50]).to_reader(), AppendOptions())
    table.log._checkpoint(state)
    disk.remove(checkpoint_file(5))
    assert [f for f in fsck(opened(disk)).findings if not f.is_harmless] == []
    assert opened(disk).state(6).totals == state.totals
    assert opened(disk).state().version == 7


def test_T11_a_reader_that_opened_before_a_checkpoint_was_thinned_out_reads_on(disk):
    before = seen(disk)
    table = opened(disk)
    table.state()
    disk.remove(checkpoint_file(5))
    assert sorted(s.path for s in table.state().segments) == sorted(
        s.path for s in opened(disk).state().segments
    )
    assert seen(disk) == before


def test_checkpoints_are_thinned_out_and_every_version_can_still_be_read():
    disk = SimDisk(["/lake"])
    table = lake_on(disk, checkpoint_every=2)
    table.create(spec(overlap="allow"))
    for hour in range(100):
        table.append(rows([hour]).to_reader(), AppendOptions())
    kept = [name for name in disk.tree() if "checkpoint" in name]
    assert len(kept) < 25
    again = lake_on(disk, checkpoint_every=2)
    for version in range(1, 102):
        assert again.state(version).totals.rows == version - 1


def test_T23_opening_reads_no_commit_older_than_the_newest_checkpoint():
    disk = SimDisk(["/lake"])
    table = lake_on(disk, checkpoint_every=10)
    table.create(spec(overlap="allow"))
    for hour in range(62):
        table.append(rows([hour]).to_reader(), AppendOptions())
    reader = lake_on(disk, checkpoint_every=10)
    disk.calls.clear()
    assert reader.state().version == 63
    read = [path for call, path in disk.calls if call == "read" and path.endswith(".json")]
    assert {int(path[-10:-5]) for path in read} <= {61, 62, 63, 64}
    assert not any(call == "entries" for call, _ in disk.calls)


def test_T24_a_newer_format_is_refused_with_the_version_that_is_needed(disk):
    rewritten(disk, 6, format=2)
    with pytest.raises(Unsupported) as error:
        opened(disk).state()
    assert error.value.facts["needed"] == 2
    assert error.value.facts["supported"] == 1


def test_T24_an_unknown_required_feature_is_refused_by_name(disk):
    first = orjson.loads(disk.read(commit_file(1)))
    first["actions"][0]["SetTable"]["features"] = ["time-machine"]
    rewritten(disk, 1, actions=first["actions"])
    disk.remove(checkpoint_file(5))
    with pytest.raises(Unsupported, match="time-machine"):
        opened(disk).state()


def test_T24_an_unknown_action_is_refused_by_name(disk):
    rewritten(disk, 6, actions=[{"SetGravity": {"g": 9.81}}])
    with pytest.raises(Unsupported, match="SetGravity"):
        opened(disk).state()


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "/etc/passwd", "data//x", "data/../x", "a\\b"]
)
def test_T22_a_path_that_leaves_the_table_is_refused_when_the_log_is_read(disk, path):
    commit = orjson.loads(disk.read(commit_file(6)))
    commit["actions"][0]["AddSegment"]["path"] = path
    rewritten(disk, 6, actions=commit["actions"])
    with pytest.raises(Corruption, match="leaves the table"):
        opened(disk).state()


def test_commit_times_go_up_whatever_the_clock_does(disk):
    table = lake_on(disk, now_ns=lambda: parse_instant("1999-01-01"))
    newest = table.state().time
    assert table.append(rows([50]).to_reader(), AppendOptions()).time > newest
    times = [table.log.commit(version).time for version in range(1, 8)]
    assert times == sorted(set(times))


def test_an_instant_names_the_newest_version_committed_by_then(disk):
    table = opened(disk)
    times = {version: table.log.commit(version).time for version in range(1, 7)}
    for version, time in times.items():
        assert table.log.version_at(time) == version
        assert table.log.version_at(time + 1) == version
    with pytest.raises(NotFound, match="did not exist"):
        table.log.version_at(times[1] - 1)


def test_a_planner_that_wants_nothing_commits_nothing(disk):
    log = opened(disk).log
    outcome = transact(log, lambda state: None)
    assert (outcome.state.version, outcome.is_committed) == (6, False)
    assert transact(log, lambda state: CommitPlan("note", ())).is_committed
