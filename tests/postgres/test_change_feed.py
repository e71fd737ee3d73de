"""The feed gives every committed change once and in one order, whenever transactions end."""

import itertools
import random
import threading
import time

import pytest

from fixtures.entities import CUSTOMER
from postgres.entities import ORDER, order
from thermocline.cold.catalog import Catalog
from thermocline.entity.types import EntityCatalog
from thermocline.errors import FeedExpired, Invalid
from thermocline.hot.postgres.revision.change import FeedPosition, parse_position
from thermocline.hot.postgres.revision.revisions import expire_revisions, set_retention
from thermocline.hot.postgres.store.operation import Operation, OperationKind

WRITERS = ("one", "two")
# Each writer begins, writes and commits; the reader reads whenever it likes.
STEPS = {"b": "begin", "w": "write", "c": "commit"}


@pytest.fixture
def shop(pool, tenant, tmp_path):
    types = EntityCatalog(pool, tenant, Catalog(str(tmp_path / "lake")))
    types.register("order", ORDER)
    types.register("customer", CUSTOMER)
    return types


def read_all(shop, after=None, limit=2, types=None):
    """Read the feed page by page to its end; return keys with versions, and the position."""
    found = []
    while True:
        page = shop.changes(types, after, limit)
        found += [(one.type, one.id, one.ver, one.op) for one in page.changes]
        after = page.position
        if not page.changes:
            return found, after


def schedules():
    """Return every order of two writers' steps, with a read after each step."""
    steps = [(writer, step) for writer in WRITERS for step in "bwc"]
    for places in itertools.combinations(range(6), 3):
        mine = iter(steps[:3])
        others = iter(steps[3:])
        yield [next(mine) if place in places else next(others) for place in range(6)]


class Schedule:
    """Runs two writers' transactions step by step, and reads the feed after each step."""

    def __init__(self, shop, read):
        self.store = shop.table("order").store
        self.read = read
        self.shop, self.position, self.found, self.written = shop, None, [], []
        self.open = {}

    def run(self, steps, number):
        _, self.position = read_all(self.shop)
        for writer, step in steps:
            getattr(self, STEPS[step])(writer, f"{writer}-{number}")
            self.take()
        self.take()
        return self.found, self.written

    def begin(self, writer, key):
        self.open[writer] = manager = self.store.pool.transaction(self.store.tenant)
        self.open[key] = manager.__enter__()

    def write(self, writer, key):
        create = [Operation(OperationKind.CREATE, key, order())]
        self.store.write_in(
            self.open[key], self.store.layout, create, is_atomic=True, is_careful=False
        )

    def commit(self, writer, key):
        self.open.pop(writer).__exit__(None, None, None)
        self.written.append(key)

    def take(self):
        keys, self.position = self.read(self.shop, self.position)
        self.found += keys


def read_keys(shop, position):
    page = shop.changes(None, position, 1_000)
    return [one.id for one in page.changes], page.position


def newest(shop, after=None, types=None):
    return shop.changes(types, after, 1_000)


def wrong_by_change_id(shop, position):
    """The wrong design: everything with an id above the last one that was seen."""
    last = int(position) if isinstance(position, int) else 0
    rows = _rows(shop, "cid > %s order by cid", last)
    return [row[0] for row in rows], max([last, *(row[1] for row in rows)])


def wrong_by_change_id_below_the_horizon(shop, position):
    """The wrong design: the horizon is kept, but the position is a change id."""
    last = int(position) if isinstance(position, int) else 0
    text = "xid < pg_snapshot_xmin(pg_current_snapshot()) and cid > %s order by cid"
    rows = _rows(shop, text, last)
    return [row[0] for row in rows], max([last, *(row[1] for row in rows)])


def wrong_by_transaction_without_a_horizon(shop, position):
    """The wrong design: ordered by transaction, but not held back by those that still run."""
    last = position if isinstance(position, tuple) else (0, 0)
    text = "(xid, cid) > (%s::text::xid8, %s) order by xid, cid"
    rows = _rows(shop, text, str(last[0]), last[1])
    return [row[0] for row in rows], max([last, *((int(row[2]), row[1]) for row in rows)])


def wrong_by_transaction_below_the_horizon(shop, position):
    """The wrong design: it loses nothing, but gives a key's changes in the wrong order."""
    last = position if isinstance(position, tuple) else (0, 0)
    text = (
        "xid < pg_snapshot_xmin(pg_current_snapshot()) and (xid, cid) > (%s::text::xid8, %s) "
        "order by xid, cid"
    )
    rows = _rows(shop, text, str(last[0]), last[1])
    return [row[0] for row in rows], max([last, *((int(row[2]), row[1]) for row in rows)])


def _rows(shop, text, *values):
    store = shop.table("order").store
    query = f"select id, cid, xid::text from revision where {text}"
    return store.pool.run(store.tenant, lambda c: c.execute(query, list(values)).fetchall())


def test_every_schedule_of_two_writers_gives_each_change_once(shop):
    for number, steps in enumerate(schedules()):
        found, written = Schedule(shop, read_keys).run(steps, number)
        assert sorted(found) == sorted(written), steps
    # A second reader that begins at the start sees the same order.
    whole, _ = read_all(shop, limit=7)
    assert whole == read_all(shop, limit=1_000)[0]
    assert len(whole) == 40


@pytest.mark.parametrize(
    "wrong",
    [
        wrong_by_change_id,
        wrong_by_change_id_below_the_horizon,
        wrong_by_transaction_without_a_horizon,
    ],
)
def test_simpler_feeds_lose_a_change_in_some_schedule(shop, wrong):
    lost = 0
    for number, steps in enumerate(schedules()):
        schedule = Schedule(shop, wrong)
        schedule.position = None
        found, written = schedule.run(steps, number)
        lost += not set(written) <= set(found)
    assert lost


def write_at_random(shop, seed):
    """Create, change and delete orders and customers of few keys."""
    orders, customers, draw = shop.table("order"), shop.table("customer"), random.Random(seed)
    for number in range(25):
        key, chance = f"k-{draw.randrange(4)}", draw.random()
        if chance < 0.3:
            customers.upsert(key, {"name": str(number)})
        elif chance < 0.5:
            orders.bulk([{"op": "delete", "id": key}], atomic=False)
        else:
            orders.upsert(key, order(quantity=number))


def test_concurrent_writers_and_a_reader_agree_on_every_change(shop):
    writers = [threading.Thread(target=write_at_random, args=(shop, seed)) for seed in range(3)]
    for writer in writers:
        writer.start()
    found, position = [], None
    while any(writer.is_alive() for writer in writers):
        page = shop.changes(None, position, 5)
        found, position = found + page.changes, page.position
    found += newest(shop, position).changes
    by_key = {}
    for one in found:
        by_key.setdefault((one.type, one.id), []).append(one.ver)
    assert len(by_key) > 4
    for (name, key), vers in by_key.items():
        assert vers == list(range(1, len(vers) + 1)), "in the order of its versions, no gap"
        assert [one.ver for one in shop.table(name).history(key)] == vers


def test_a_snapshot_and_the_feed_after_it_are_the_state(shop):
    orders = shop.table("order")
    orders.create(order(quantity=1), "a")
    orders.create(order(quantity=1), "b")
    with orders.store.pool.transaction(orders.store.tenant) as late:
        # It began before the snapshot and commits after it.
        write = [Operation(OperationKind.CREATE, "late", order())]
        orders.store.write_in(late, orders.store.layout, write, is_atomic=True, is_careful=False)
        position = shop.feed.position()
        state = {one.id: one.ver for one in orders.page().entities}
        orders.patch("a", {"quantity": 2})
    orders.delete("b")
    for _, key, ver, op in read_all(shop, position)[0]:
        if ver > state.get(key, 0):
            state[key] = None if op == "deleted" else ver
    assert {key: ver for key, ver in state.items() if ver} == {"a": 2, "late": 1}


def test_a_change_has_its_document_time_and_author(shop):
    from thermocline.hot.postgres.store.author import write_as

    orders = shop.table("order")
    with write_as("k1", "r1"):
        orders.create(order(price="1.10", weight=0.1), "a")
    orders.delete("a")
    first, last = newest(shop, types=["order"]).changes
    assert first.document == {"status": "open", "price": "1.10", "weight": 0.1}
    assert (first.key, first.request_id, first.op) == ("k1", "r1", "created")
    assert (last.key, last.document, last.op, last.ver) == (None, None, "deleted", 2)
    assert first.at == orders.history("a")[0].at


def test_a_consumer_behind_the_retention_is_told_to_start_again(shop):
    orders = shop.table("order")
    orders.create(order(), "a")
    old = newest(shop).position
    begin = newest(shop).changes[0].position
    for _ in range(2):
        orders.patch("a", {"quantity": 1})
    now = newest(shop, old).position
    set_retention(orders.store, 0.0)
    assert expire_revisions(orders.store) == 3
    for position in (old, begin):
        with pytest.raises(FeedExpired, match="no longer kept"):
            shop.changes(None, position, 10)
    assert shop.changes(None, now, 10).changes == []
    assert shop.changes(["customer"], old, 10).changes == []
    set_retention(orders.store, None)
    orders.patch("a", {"quantity": 2})
    assert expire_revisions(orders.store) == 0
    assert [one.ver for one in newest(shop, now).changes] == [4]


def test_a_position_of_another_server_or_of_no_feed_is_refused(shop):
    position = shop.feed.position()
    with pytest.raises(FeedExpired, match="another feed"):
        shop.changes(None, f"{'0' * 16}{position[16:]}", 10)
    ahead = FeedPosition(position[:16], 0, 0, 0, 0, "999999999999:999999999999:", "")
    with pytest.raises(FeedExpired, match="ahead"):
        shop.changes(None, str(ahead), 10)
    for bad in ("", "x", f"{position};drop table revision"):
        with pytest.raises(Invalid):
            shop.changes(None, bad, 10)
    for limit in (0, 1_001, True):
        with pytest.raises(Invalid):
            shop.changes(None, None, limit)


def test_an_open_transaction_does_not_hold_the_feed_up(shop):
    orders = shop.table("order")
    with orders.store.pool.transaction(orders.store.tenant) as late:
        write = [Operation(OperationKind.CREATE, "late", order())]
        orders.store.write_in(late, orders.store.layout, write, is_atomic=True, is_careful=False)
        orders.create(order(), "a")
        page = shop.changes(None, None, 10)
        assert [one.id for one in page.changes] == ["a"]
        page = shop.changes(None, page.position, 10)
        assert page.changes == []
    assert [one.id for one in shop.changes(None, page.position, 10).changes] == ["late"]


def test_a_key_changes_in_the_order_of_its_versions_whoever_began_first(shop):
    """The first writer gets its transaction id first, and the key second."""
    orders, wrong = shop.table("order"), wrong_by_transaction_below_the_horizon
    orders.create(order(), "a")
    with orders.store.pool.transaction(orders.store.tenant) as early:
        orders.patch("a", {"quantity": 2})
        write = [Operation(OperationKind.PATCH, "a", {"quantity": 3})]
        orders.store.write_in(early, orders.store.layout, write, is_atomic=True, is_careful=False)
    changes = shop.changes(None, None, 10).changes
    assert [(one.ver, one.document.get("quantity")) for one in changes] == [
        (1, None),
        (2, 2),
        (3, 3),
    ]
    found, end_s = [], time.monotonic() + 60
    while len(found) < 3 and time.monotonic() < end_s:
        found, _ = wrong(shop, None)  # transactions of other tests may hold it up
    query = "select ver from revision order by xid, cid"
    by_transaction = orders.store.pool.run(
        orders.store.tenant, lambda c: [row[0] for row in c.execute(query).fetchall()]
    )
    assert (found, by_transaction) == (["a"] * 3, [1, 3, 2])


def test_a_reader_that_follows_forgets_changes_that_cannot_come_again(shop):
    """The lower bound rises, so a poll does not read all changes that are kept."""
    orders, position, lows = shop.table("order"), None, []
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s and (not lows or lows[-1] == 0):
        orders.upsert("a", order())
        position = shop.changes(None, position, 1_000).position
        lows.append(parse_position(position).low)
    assert lows[-1] > 0
    assert lows == sorted(lows)
