"""The ingest queue: each client gets its own answer, and only durable rows are acknowledged."""

import asyncio
import gzip
import threading
import time
from concurrent.futures import Future

import pytest

from ingest.otlp_requests import gauge_request
from server.otlp_node import served
from thermocline.config import read_lake_settings
from thermocline.errors import Invalid, NotFound, Overloaded, Unavailable
from thermocline.ingest.otlp import batch_decode
from thermocline.ingest.otlp.batch_decode import RequestBody
from thermocline.ingest.otlp.protobuf import empty_message
from thermocline.ingest.otlp.tables import TABLES
from thermocline.server.otlp.ingest_queue import IngestQueue, IngestRequest

WAIT_S = 120  # far more than a busy machine takes


class Between:
    """A node's tables with something in between: each submit goes through `change` first."""

    def __init__(self, node, change):
        self.node, self.change = node, change

    def lake(self, tenant):
        return LakeBetween(self.node.lake(tenant), self.change)


class LakeBetween:
    def __init__(self, lake, change):
        self._lake, self._change = lake, change

    def table(self, name):
        return TableBetween(self._lake.table(name), name, self._change)

    def create_table(self, name, **creation):
        return TableBetween(self._lake.create_table(name, **creation), name, self._change)


class TableBetween:
    def __init__(self, table, name, change):
        self._table, self._name, self._change = table, name, change

    def submit(self, made, **options):
        changed = self._change(self._name, made.table, options)
        return self._table.submit(made, **options) if changed is None else changed


@pytest.fixture
def serving(tmp_path):
    """Return a verb that serves a node with something before its tables."""
    made = []

    def start(change=lambda name, batch, options: None, **options):
        context = served(
            tmp_path / f"node{len(made)}", sink=lambda node: Between(node, change), **options
        )
        made.append(context)
        return context.__enter__()

    yield start
    for context in made:
        context.__exit__(None, None, None)


def delivery(points=1, *, tenant="default", request_id=None, data=None, **options):
    data = gauge_request(points, **options).SerializeToString() if data is None else data
    return IngestRequest(tenant, "metrics", RequestBody("protobuf", "identity", data), request_id)


def with_histogram(points=1):
    request = gauge_request(points)
    metric = request.resource_metrics[0].scope_metrics[0].metrics.add(name="h")
    metric.histogram.aggregation_temporality = 2
    metric.histogram.data_points.add(time_unix_nano=5, count=1, bucket_counts=[1])
    return request.SerializeToString()


async def offered(lane, deliveries):
    futures = [lane.offer(one) for one in deliveries]
    return await asyncio.gather(*futures, return_exceptions=True)


def offer(node, *deliveries):
    """Offer deliveries at once; return each one's result or error."""
    return node.call(offered(node.lane, deliveries))


class Writes:
    """Remembers what was written; the first write waits until `gate` is set."""

    def __init__(self):
        self.gate = threading.Event()
        self.rows = []
        self.ids = []

    def __call__(self, name, batch, options):
        self.rows.append(batch.num_rows)
        self.ids.append(options["request_id"])
        assert self.gate.wait(WAIT_S)


async def until(condition):
    """Wait until something is so; no longer than a busy machine needs for it."""
    end_s = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < end_s:
        await asyncio.sleep(0.005)


async def busy(node, writes):
    """Offer one delivery; return its future once it holds up the only worker."""
    first = node.lane.offer(delivery(1))
    await until(lambda: writes.rows)
    return first


def held(node, writes, *deliveries):
    """Offer one delivery that holds up the only worker, then others at once."""

    async def run():
        first = await busy(node, writes)
        rest = [node.lane.offer(one) for one in deliveries]
        writes.gate.set()
        return await asyncio.gather(first, *rest, return_exceptions=True)

    return node.call(run())[1:]


def test_what_waits_is_written_together(serving):
    writes = Writes()
    node = serving(writes, workers=1)
    results = held(node, writes, *[delivery(10)] * 20)
    assert writes.rows == [1, 200]
    assert [(one.rejected, one.message) for one in results] == [(0, "")] * 20
    assert sum(one.accepted for one in results) == 200
    assert node.count("metric_points") == 201


def test_everybody_who_waits_gets_their_own_answer(serving):
    writes = Writes()
    node = serving(writes, workers=1)
    partial = gauge_request(3)
    partial.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0].time_unix_nano = 0
    cut = gauge_request(2).SerializeToString()[:-1]
    good, bad, less, last = held(
        node,
        writes,
        delivery(10),
        delivery(data=cut),
        delivery(data=partial.SerializeToString()),
        delivery(5),
    )
    assert (good.rejected, last.rejected, less.rejected, less.accepted) == (0, 0, 1, 2)
    assert isinstance(bad, Invalid)
    assert len(writes.rows) == 2
    assert node.count("metric_points") == 1 + 10 + 2 + 5


def test_tenants_are_never_written_together(serving):
    writes = Writes()
    node = serving(writes, workers=1)
    node.node.create_tenant("acme")
    held(node, writes, delivery(2), delivery(3, tenant="acme"), delivery(4))
    assert sorted(writes.rows) == [1, 3, 6]
    assert (node.count("metric_points", "acme"), node.count("metric_points")) == (3, 7)


def test_I08_a_delivery_with_a_request_id_is_written_alone_under_it(serving):
    writes = Writes()
    node = serving(writes, workers=1)
    held(node, writes, delivery(2), delivery(3, request_id="a"), delivery(4), delivery(5))
    assert list(zip(writes.rows, writes.ids, strict=True)) == [
        (1, None),
        (2, None),
        (3, "a"),
        (9, None),
    ]


def test_I12_one_senders_new_entities_past_the_limit_cost_nobody_elses_rows(serving):
    writes = Writes()
    node = serving(writes, workers=1)
    lake = node.node.lake()
    lake.create_table(
        "metric_points",
        time_column="ts",
        bucket="1m",
        entity_columns="service_name",
        entities_max=3,
    )
    many = b"".join(
        gauge_request(1, resource={"service.name": f"s{n}"}).SerializeToString() for n in range(5)
    )
    good, bad, last = held(node, writes, delivery(2), delivery(data=many), delivery(3))
    assert (good.rejected, last.rejected) == (0, 0)
    assert (bad.rejected, bad.accepted) == (5, 0)
    assert "entities" in bad.message
    assert node.count("metric_points") == 1 + 2 + 3


def logs_delivery(service, records):
    request = empty_message("logs")
    logs = request.resource_logs.add()
    logs.resource.attributes.add(key="service.name").value.string_value = service
    for number in range(records):
        logs.scope_logs.add().log_records.add(time_unix_nano=5 + number)
    body = RequestBody("protobuf", "identity", request.SerializeToString())
    return IngestRequest("default", "logs", body)


def test_I12_of_requests_decoded_as_one_each_is_told_its_own_counts(serving):
    writes = Writes()
    node = serving(writes, workers=1)
    creation = {**TABLES["logs"].creation_options(), "entities_max": 1}
    node.node.lake().create_table("logs", **creation)
    services = {"a": 3, "b": 2, "c": 4}
    results = held(node, writes, *[logs_delivery(*one) for one in services.items()])
    assert [(one.accepted, one.rejected) for one in results] == [(3, 0), (0, 2), (0, 4)]
    assert node.count("logs") == 3


def test_compressed_bodies_are_grouped_by_what_they_may_inflate_to(serving):
    writes = Writes()
    node = serving(writes, workers=1)
    data = gzip.compress(gauge_request(1).SerializeToString())
    results = held(
        node,
        writes,
        *[IngestRequest("default", "metrics", RequestBody("protobuf", "gzip", data))] * 40,
    )
    assert all(one.rejected == 0 for one in results)
    assert writes.rows == [1, 16, 16, 8]


def test_I01_bodies_that_inflate_to_much_are_written_in_rounds(serving, monkeypatch):
    points = gauge_request(200).SerializeToString()
    monkeypatch.setattr(batch_decode, "ROUND_BYTES_MAX", 5 * len(points) // 2)
    writes = Writes()
    node = serving(writes, workers=1)
    data = gzip.compress(points)
    results = held(
        node,
        writes,
        *[IngestRequest("default", "metrics", RequestBody("protobuf", "gzip", data))] * 7,
    )
    assert [one.rejected for one in results] == [0] * 7
    assert writes.rows == [1, 400, 400, 400, 200]
    assert node.count("metric_points") == 1 + 7 * 200


def test_a_table_that_cannot_be_written_leaves_its_requests_to_be_sent_again(serving):
    def change(name, batch, options):
        if name == "metric_histograms":
            raise Unavailable("the disk is gone")

    node = serving(change)
    both, points = offer(node, delivery(data=with_histogram()), delivery(2))
    assert isinstance(both, Unavailable)
    assert points.rejected == 0
    # One half of it is stored, and so it was not answered as taken.
    assert node.count("metric_points") == 3


def test_a_write_that_fails_after_it_was_queued_is_told_to_all_who_waited_for_it(serving):
    def change(name, batch, options):
        failed = Future()
        failed.set_exception(Unavailable("the journal is full"))
        return failed

    node = serving(change)
    results = offer(node, *[delivery(1)] * 5)
    assert {type(one) for one in results} == {Unavailable}
    assert node.lane.count == 0


def test_a_bug_in_a_write_is_told_as_unavailable_and_the_worker_lives(serving, caplog):
    is_broken = [True]

    def change(name, batch, options):
        if is_broken.pop():
            raise ZeroDivisionError

    node = serving(change, workers=1)
    assert isinstance(offer(node, delivery(1))[0], Unavailable)
    assert "ZeroDivisionError" in caplog.text
    is_broken += [False]
    assert offer(node, delivery(2))[0].accepted == 2
    assert node.count("metric_points") == 2


def test_what_senders_do_wrong_is_not_reported_as_a_bug(serving, caplog):
    assert isinstance(offer(serving(), delivery(data=b"\xff"))[0], Invalid)
    assert caplog.text == ""


def test_an_unknown_tenant_is_not_found(serving):
    assert isinstance(offer(serving(), delivery(tenant="nobody"))[0], NotFound)


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_what_is_left_of_a_queue_is_taken_by_a_worker_that_sleeps(serving, monkeypatch, cores):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    writes = Writes()
    node = serving(writes, workers=2)

    async def run():
        with node.lane._changed:  # both are there before the first worker looks
            futures = [node.lane.offer(delivery(1, request_id=name)) for name in "ab"]
        await until(lambda: len(writes.rows) == 2)
        found = len(writes.rows)
        writes.gate.set()
        await asyncio.gather(*futures)
        return found

    assert node.call(run()) == 2


def test_a_worker_that_stands_by_takes_nothing_while_the_other_one_keeps_up(serving, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("thermocline.server.otlp.ingest_queue.PATIENCE_S", WAIT_S)
    workers = set()
    node = serving(lambda *_: workers.add(threading.current_thread().name), workers=2)
    offer(node, *[delivery(1, request_id=str(number)) for number in range(50)])
    assert workers == {"thermocline-lane-0"}


def test_workers_are_stuck_when_each_has_been_at_work_for_too_long(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    lane, now_s = IngestQueue(None, workers=3, is_compiled=False), time.monotonic()
    told = []
    for at_work in ({}, {0: now_s + 60}, {0: now_s - 60}, {0: now_s - 60, 1: now_s + 60}):
        lane._busy_since_s = at_work
        told.append(lane._is_stuck())
    assert told == [False, False, True, False]


def test_a_worker_that_hung_goes_on_beside_the_one_that_stood_in_for_it(serving, monkeypatch):
    """The one that stands in hangs, too: what comes then is for the first one, which is back."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    gates = [threading.Event(), threading.Event()]
    taken = []

    def change(_, batch, __):
        taken.append((batch.num_rows, threading.current_thread().name[-1]))
        if batch.num_rows < 3:
            gates[batch.num_rows - 1].wait(WAIT_S)

    node = serving(change, workers=2)

    async def run():
        futures = []
        for points in (1, 2):
            futures.append(node.lane.offer(delivery(points, request_id=str(points))))
            await until(lambda points=points: len(taken) == points)
        gates[0].set()
        await futures[0]
        await node.lane.offer(delivery(3, request_id="3"))
        gates[1].set()
        await futures[1]

    node.call(run())
    assert taken == [(1, "0"), (2, "1"), (3, "0")]


def test_whoever_has_gone_costs_nobody_an_answer(serving):
    writes = Writes()
    node = serving(writes, workers=1)

    async def run():
        first = await busy(node, writes)
        gone, stays = node.lane.offer(delivery(2)), node.lane.offer(delivery(3))
        gone.cancel()
        writes.gate.set()
        return await asyncio.gather(first, stays)

    assert [one.rejected for one in node.call(run())] == [0, 0]
    assert node.lane.count == 0


def test_I10_what_is_refused_for_want_of_memory_is_not_stored_and_the_rest_is(serving):
    settings = read_lake_settings({"hot_bytes_max": 300_000, "flush_look_s": 0.05})
    node = serving(settings=settings, write_wait_s=0.01)
    results = []
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s and not any(isinstance(r, Overloaded) for r in results):
        results += offer(node, *[delivery(200)] * 20)
    refused = [one for one in results if not hasattr(one, "accepted")]
    assert {type(one) for one in refused} == {Overloaded}
    taken = sum(one.accepted for one in results if hasattr(one, "accepted"))
    assert node.count("metric_points") == taken > 0


async def stopped(node, writes, futures):
    """Begin to stop, let the writes go on, and return what became of what was offered."""
    stopping = asyncio.ensure_future(node.lane.stop(WAIT_S))
    await asyncio.sleep(0.05)
    with pytest.raises(Unavailable):
        node.lane.offer(delivery(1))
    writes.gate.set()
    await stopping
    return await asyncio.gather(*futures)


def test_I21_a_stop_finishes_what_waits_and_takes_no_more(serving):
    writes = Writes()
    node = serving(writes, workers=1)

    async def run():
        return await stopped(node, writes, [node.lane.offer(delivery(1)) for _ in range(10)])

    assert [one.rejected for one in node.call(run())] == [0] * 10
    assert node.count("metric_points") == 10


def test_I21_what_is_not_done_by_the_deadline_is_told_to_come_again(serving):
    writes = Writes()
    node = serving(writes, workers=1)

    async def run():
        first = await busy(node, writes)
        late = node.lane.offer(delivery(1))
        await node.lane.stop(0.05)
        writes.gate.set()
        return await asyncio.gather(first, late, return_exceptions=True)

    first, late = node.call(run())
    assert first.accepted == 1
    assert isinstance(late, Unavailable)


def test_I21_a_stop_that_is_cancelled_tells_who_waits_to_come_again(serving):
    writes = Writes()
    node = serving(writes, workers=1)

    async def run():
        first = await busy(node, writes)
        late = node.lane.offer(delivery(1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(node.lane.stop(60), 0.05)
        is_told = late.done()
        writes.gate.set()
        return is_told, *await asyncio.gather(first, late, return_exceptions=True)

    is_told, first, late = node.call(run())
    assert is_told
    assert first.accepted == 1
    assert isinstance(late, Unavailable)


class Slow:
    """Writes for real, and tells of it only when `gate` is set: a disk that takes its time."""

    def __init__(self):
        self.gate = threading.Event()
        self.rows = []

    def __call__(self, name, batch, options):
        self.rows.append(batch.num_rows)
        late = Future()

        def tell():
            self.gate.wait(WAIT_S)
            late.set_result(batch.num_rows)

        threading.Thread(target=tell).start()
        return late


async def both_busy(node, slow):
    """Offer a delivery to each of two workers; return the futures once both are being written."""
    futures = []
    for number in (1, 2):
        futures.append(node.lane.offer(delivery(number)))
        await until(lambda number=number: len(slow.rows) == number)
    return futures


def test_while_the_disk_is_busy_small_deliveries_wait_for_each_other(serving):
    slow = Slow()
    node = serving(slow)

    async def run():
        futures = await both_busy(node, slow)
        futures += [node.lane.offer(delivery(10)) for _ in range(5)]
        await asyncio.sleep(0.1)
        assert slow.rows == [1, 2]
        futures.append(node.lane.offer(delivery(7, tenant="acme")))
        await until(lambda: len(slow.rows) == 3)
        assert slow.rows == [1, 2, 7]  # another tenant does not wait for this one
        slow.gate.set()
        return await asyncio.gather(*futures)

    node.node.create_tenant("acme")
    assert [one.rejected for one in node.call(run())] == [0] * 8
    assert slow.rows == [1, 2, 7, 50]


def test_while_the_disk_is_busy_much_is_not_held_back(serving):
    slow = Slow()
    node = serving(slow)

    async def run():
        futures = [node.lane.offer(delivery(1)), node.lane.offer(delivery(1, request_id="a"))]
        futures += [node.lane.offer(delivery(1, request_id=str(n))) for n in range(3)]
        futures += [node.lane.offer(delivery(20_000)) for _ in range(4)]
        await until(lambda: sum(slow.rows) >= 80_005)
        written = sum(slow.rows)
        slow.gate.set()
        await asyncio.gather(*futures)
        return written

    assert node.call(run()) == 80_005


def test_I21_a_stop_waits_for_what_waits_for_the_disk(serving):
    slow = Slow()
    node = serving(slow)

    async def run():
        futures = [*await both_busy(node, slow), node.lane.offer(delivery(3))]
        return await stopped(node, slow, futures)

    assert [one.accepted for one in node.call(run())] == [1, 2, 3]
