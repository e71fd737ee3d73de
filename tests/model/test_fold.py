"""Folding, checkpoints and the search for segments, against the plainest model: a dict.

Random histories of real actions. The model keeps every live segment in a dict and recomputes
every sum; a checkpoint is written, read back and folded on. The wrong designs below are caught.
"""

import random
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from format.made import commit, schema, segment, spec
from thermocline.cold.log.checkpoint import (
    encode_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from thermocline.cold.storage.local import LocalStorage
from thermocline.disk import OsDisk
from thermocline.errors import Corruption
from thermocline.format import layout
from thermocline.format.instant import NS_PER_US, TIME_MAX, TIME_MIN, TimeNs
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    AddSegment,
    Expire,
    Mark,
    SetMark,
    SetTable,
    SetTxn,
    removal,
    with_deletes,
)
from thermocline.format.log.state import Totals, coverage_digest, fold

NAMES = [f"s{place}" for place in range(8)]
times = st.one_of(
    st.integers(-5_000, 5_000), st.sampled_from([TIME_MIN, TIME_MAX]), st.integers(0, 10**18)
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "hide", "mark", "txn", "expire", "table", "nothing"]),
        st.sampled_from(NAMES),
        times,
        st.integers(0, 5_000),
        st.booleans(),
    ),
    max_size=30,
)


class Model:
    """What a table is, kept the plainest way."""

    def __init__(self):
        self.live, self.marks, self.txns = {}, {}, {}
        self.oldest, self.spec, self.schemas = 1, spec(), {1: schema()}
        self.commits = [commit(1, SetTable(self.spec, 1, schema()))]

    def run(self, steps):
        for kind, name, time, number, joins in steps:
            action = getattr(self, kind)(name, time, number)
            if action is None:
                continue
            last = self.commits[-1]
            if joins and last.version > 1:
                self.commits[-1] = replace(last, actions=(*last.actions, action))
            else:
                self.commits.append(commit(last.version + 1, action))
        return self

    def add(self, name, time, number):
        if name in self.live:
            return self.hide(name, time, number)
        last = TimeNs(min(time + number, TIME_MAX))
        made = segment(
            name,
            TimeNs(time),
            last,
            row_count=number + 1,
            file_size=number,
            coverage_checksum=f"crc32c:{number:08x}",
            extra={"note": name} if number % 2 else {},
            stats={"2": (name, name)} if number % 3 else {},
        )
        self.live[name] = made
        return AddSegment(made)

    def remove(self, name, time, number):
        return removal(self.live.pop(name)) if name in self.live else None

    def hide(self, name, time, number):
        if name not in self.live or self.live[name].deleted_count >= self.live[name].row_count - 1:
            return None
        action = with_deletes(
            self.live[name],
            deletes="AAAA",
            deleted_count=self.live[name].deleted_count + 1,
            coverage_checksum=f"crc32c:{number + 7:08x}",
        )
        self.live[name] = action.segment
        return action

    def mark(self, name, time, number):
        self.marks[name] = number
        return SetMark(name, Mark(number))

    def txn(self, name, time, number):
        self.txns[name] = number
        return SetTxn(name, number)

    def expire(self, name, time, number):
        self.oldest = max(self.oldest, number)
        return Expire(Version(number))

    def table(self, name, time, number):
        number = max(self.schemas) + 1
        self.spec = replace(self.spec, overlap="allow", extra={"note": name, "deep": {"n": [1]}})
        self.schemas[number] = schema().rename_column("close", f"close_{number}")
        return SetTable(self.spec, number, self.schemas[number])

    def nothing(self, name, time, number):
        return None

    @property
    def totals(self):
        live = self.live.values()
        digest = 0
        for one in live:
            digest ^= coverage_digest(one.segment_id, one.coverage_checksum)
        return Totals(
            len(live),
            sum(one.row_count - one.deleted_count for one in live),
            sum(one.file_size for one in live),
            digest,
        )

    def overlapping(self, start, end):
        return {
            name
            for name, one in self.live.items()
            if (start is None or one.ts_max >= start) and (end is None or one.ts_min < end)
        }


def check(state, model):
    """Compare a state with the model in everything it can be asked."""
    assert state.version == len(model.commits) == model.commits[-1].version
    assert state.time == model.commits[-1].time
    assert (state.spec, state.schemas) == (model.spec, model.schemas)
    assert state.schema == model.schemas[max(model.schemas)]
    assert (state.marks, state.txns, state.oldest) == (model.marks, model.txns, model.oldest)
    assert state.totals == model.totals
    found = list(state.segments)
    assert {one.segment_id: one for one in found} == model.live
    assert len(found) == len(model.live)
    for name in NAMES:
        assert state.segments.find(name) == model.live.get(name)
        assert (name in state.segments) == (name in model.live)


def refuse():
    raise AssertionError("the checkpoint is good; the log must not be replayed")


@given(steps)
def test_a_fold_is_what_the_plainest_model_says(history):
    model = Model().run(history)
    check(fold(None, model.commits), model)


@given(steps, st.integers(1, 31))
def test_folding_in_two_parts_is_folding_in_one(history, cut):
    model = Model().run(history)
    cut = min(cut, len(model.commits))
    halfway = fold(None, model.commits[:cut])
    check(fold(halfway, model.commits[cut:]), model)
    assert encode_checkpoint(fold(halfway, model.commits[cut:])) == encode_checkpoint(
        fold(None, model.commits)
    )


@given(steps)
@settings(max_examples=40)
def test_a_checkpoint_is_the_folded_state(tmp_path_factory, history):
    model = Model().run(history)
    state = fold(None, model.commits)
    storage = LocalStorage(str(tmp_path_factory.mktemp("lake")), OsDisk())
    write_checkpoint(storage, state)
    read = read_checkpoint(storage, state.version, refuse)
    check(read, model)
    assert encode_checkpoint(read) == encode_checkpoint(state)


@given(steps, st.integers(1, 31))
@settings(max_examples=60)
def test_folding_on_from_a_checkpoint_is_folding_from_the_start(tmp_path_factory, history, cut):
    model = Model().run(history)
    cut = min(cut, len(model.commits))
    storage = LocalStorage(str(tmp_path_factory.mktemp("lake")), OsDisk())
    write_checkpoint(storage, fold(None, model.commits[:cut]))
    state = fold(read_checkpoint(storage, Version(cut), refuse), model.commits[cut:])
    check(state, model)
    again = LocalStorage(str(tmp_path_factory.mktemp("lake")), OsDisk())
    write_checkpoint(again, state)
    check(read_checkpoint(again, state.version, refuse), model)


@given(steps, st.integers(1, 31), st.none() | times, st.none() | times)
@settings(max_examples=60)
def test_the_segments_of_a_stretch_are_those_a_look_at_each_would_find(
    tmp_path_factory, history, cut, start, end
):
    model = Model().run(history)
    cut = min(cut, len(model.commits))
    storage = LocalStorage(str(tmp_path_factory.mktemp("lake")), OsDisk())
    write_checkpoint(storage, fold(None, model.commits[:cut]))
    for state in (
        fold(None, model.commits),
        fold(read_checkpoint(storage, Version(cut), refuse), model.commits[cut:]),
    ):
        found = [one.segment_id for one in state.segments.overlapping(start, end)]
        assert sorted(found) == sorted(model.overlapping(start, end))


@given(steps, st.randoms(use_true_random=False))
def test_the_digest_does_not_depend_on_the_order(history, shuffle):
    live = list(Model().run(history).live.values())
    one = fold(None, [commit(1, SetTable(spec(), 1, schema()), *map(AddSegment, live))])
    shuffle.shuffle(live)
    other = fold(None, [commit(1, SetTable(spec(), 1, schema()), *map(AddSegment, live))])
    assert one.totals == other.totals
    assert encode_checkpoint(one) == encode_checkpoint(other)


def test_a_torn_checkpoint_is_not_believed(tmp_path):
    history = [("add", name, place * 1_000, place, False) for place, name in enumerate(NAMES[:3])]
    state = fold(None, Model().run(history).commits)
    whole = encode_checkpoint(state)
    storage = LocalStorage(str(tmp_path), OsDisk())
    for data in [whole[:size] for size in range(0, len(whole), 41)] + [whole + b"\0"]:
        storage.put_hint(layout.checkpoint_path(state.version), data)
        assert read_checkpoint(storage, state.version, refuse) is None


def test_damage_to_the_pages_of_a_checkpoint_changes_no_answer(tmp_path):
    """Its state is right because its checksum is; its segments come from the log instead."""
    history = [("add", name, place * 1_000, place, False) for place, name in enumerate(NAMES)]
    model = Model().run(history)
    state = fold(None, model.commits)
    whole = encode_checkpoint(state)
    metadata = pq.read_metadata(pa.BufferReader(whole)).row_group(0)
    for place in range(metadata.num_columns):
        chunk = metadata.column(place)
        end = chunk.data_page_offset + chunk.total_compressed_size
        torn = whole[: end - 9] + bytes(8) + whole[end - 1 :]
        storage = LocalStorage(str(tmp_path / str(place)), OsDisk())
        storage.put(layout.checkpoint_path(state.version), torn)
        replays = []

        def replay(replays=replays):
            replays.append(1)
            return state.segments

        read = read_checkpoint(storage, state.version, replay)
        check(read, model)
        assert len(read.segments.overlapping(0, 10**18)) == len(NAMES)
        assert replays == [1]


def test_a_bit_flipped_anywhere_in_a_checkpoint_changes_no_answer(tmp_path):
    """Nothing in Parquet says whether its footer is right; the state's own checksums must."""
    history = [("add", name, place * 1_000, place, False) for place, name in enumerate(NAMES[:3])]
    model = Model().run(history)
    state = fold(None, model.commits)
    whole = encode_checkpoint(state)
    storage = LocalStorage(str(tmp_path), OsDisk())
    for place in random.Random(7).sample(range(len(whole)), 600):
        torn = whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        storage.put_hint(layout.checkpoint_path(state.version), torn)
        read = read_checkpoint(storage, state.version, lambda: state.segments)
        if read is not None:
            check(read, model)
            found = read.segments.overlapping(0, 1_001)
            assert {one.segment_id for one in found} == model.overlapping(0, 1_001)


def test_a_checkpoint_under_another_name_is_not_believed(tmp_path):
    model = Model()
    storage = LocalStorage(str(tmp_path), OsDisk())
    storage.put(layout.checkpoint_path(2), encode_checkpoint(fold(None, model.commits)))
    assert read_checkpoint(storage, Version(2), refuse) is None


def order_dependent_digest(segments):
    total = 0
    for one in segments:
        total = (total * 31 + coverage_digest(one.segment_id, one.coverage_checksum)) % 2**64
    return total


def rounded_the_same_way(model, start, end):
    """Find segments by bounds both rounded down: misses a row in a bound's last microsecond."""
    return {
        name
        for name, one in model.live.items()
        if one.ts_max // NS_PER_US >= -(-start // NS_PER_US)
        and one.ts_min // NS_PER_US < end // NS_PER_US
    }


QUICK = settings(phases=[Phase.generate], max_examples=2_000, deadline=None)


def test_a_digest_that_depends_on_the_order_would_be_caught():
    def differs(history):
        live = list(Model().run(history).live.values())
        return order_dependent_digest(live) != order_dependent_digest(live[::-1])

    assert len(Model().run(find(steps, differs, settings=QUICK)).live) > 1


def test_bounds_that_are_rounded_the_same_way_would_be_caught():
    def differs(pair):
        model, start = Model().run(pair[0]), pair[1]
        found = rounded_the_same_way(model, start, start + 1)
        return found != model.overlapping(start, start + 1)

    history, start = find(st.tuples(steps, st.integers(0, 5_000)), differs, settings=QUICK)
    assert Model().run(history).overlapping(start, start + 1)


def test_numbers_of_a_checkpoint_are_rounded_outwards():
    state = fold(
        None, [commit(1, SetTable(spec(), 1, schema()), AddSegment(segment("a", -1_001, -999)))]
    )
    table = pq.read_table(pa.BufferReader(encode_checkpoint(state)))
    assert table.column("ts_min_us").to_pylist() == [-2]
    assert table.column("ts_max_us").to_pylist() == [0]


def test_what_no_log_can_say_is_not_folded():
    model = Model().run([("add", "s0", 0, 1, False)])
    with pytest.raises(Corruption):
        fold(fold(None, model.commits), [commit(3, *model.commits[1].actions)])
