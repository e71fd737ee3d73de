"""Local copies of objects: bounded, shared, and never taken away from one who was given a path."""

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import pytest

from thermocline.cold.storage.cache import FETCH_IDLE_S_MAX, ObjectCache
from thermocline.cold.storage.verified import checksum_text
from thermocline.errors import Overloaded, Unavailable

SIZE = 100
KEEP_S = 60


class Clock:
    """A clock that is moved by hand."""

    def __init__(self):
        self.now = time.time()

    def __call__(self):
        return self.now


class Origin:
    """Where copies come from; knows what was asked of it."""

    def __init__(self):
        self.asked = []

    def of(self, name):
        def fetch(writer):
            self.asked.append(name)
            writer.write(content(name))

        return fetch


def content(name):
    return (name * SIZE).encode()[:SIZE]


def checksum(name):
    return checksum_text(google_crc32c.value(content(name)))


def read(path):
    with open(path, "rb") as copy:
        return copy.read()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def origin():
    return Origin()


@pytest.fixture
def cache(tmp_path, clock):
    """A cache that holds three copies."""
    return ObjectCache(str(tmp_path / "c"), bytes_max=3 * SIZE, keep_s=KEEP_S, now_s=clock)


def held_bytes(folder):
    """Return what a folder takes on the disk; a file of two names counts once."""
    found = {entry.inode(): entry.stat().st_size for entry in os.scandir(folder)}
    return sum(found.values())


def test_a_copy_is_fetched_once_and_holds_the_bytes(cache, origin, clock):
    for _ in range(5):
        assert read(cache.path("a", SIZE, checksum("a"), origin.of("a"))) == content("a")
        clock.now += KEEP_S * 0.7
    assert origin.asked == ["a"]


def test_the_copy_that_was_asked_for_longest_ago_goes_first(cache, origin, clock, tmp_path):
    for name in ("a", "b", "c", "a"):
        cache.path(name, SIZE, checksum(name), origin.of(name))
        clock.now += 2 * KEEP_S
    cache.path("d", SIZE, checksum("d"), origin.of("d"))
    assert origin.asked == ["a", "b", "c", "d"]
    clock.now += 2 * KEEP_S
    for name in ("a", "c", "d"):
        cache.path(name, SIZE, checksum(name), origin.of(name))
    assert origin.asked == ["a", "b", "c", "d"], "b had to go, and nothing else"
    assert held_bytes(tmp_path / "c") <= 3 * SIZE


def test_a_path_handed_out_stays_for_as_long_as_was_promised(cache, origin, clock):
    paths = {
        name: cache.path(name, SIZE, checksum(name), origin.of(name)) for name in ("a", "b", "c")
    }
    clock.now += KEEP_S
    with pytest.raises(Overloaded, match="in use") as raised:
        cache.path("d", SIZE, checksum("d"), origin.of("d"))
    assert raised.value.facts["bytes_max"] == 3 * SIZE
    assert [read(path) for path in paths.values()] == [content(name) for name in paths]
    clock.now += KEEP_S
    assert read(cache.path("d", SIZE, checksum("d"), origin.of("d"))) == content("d")


def test_a_path_stays_when_its_copy_is_asked_for_again_later(cache, origin, clock):
    first = cache.path("a", SIZE, checksum("a"), origin.of("a"))
    clock.now += KEEP_S
    second = cache.path("a", SIZE, checksum("a"), origin.of("a"))
    assert first != second
    assert read(first) == read(second) == content("a")


def test_a_copy_asked_for_again_outlives_its_first_name(cache, origin, clock):
    first = cache.path("a", SIZE, checksum("a"), origin.of("a"))
    clock.now += 2 * KEEP_S
    second = cache.path("a", SIZE, checksum("a"), origin.of("a"))
    for name in ("b", "c"):
        cache.path(name, SIZE, checksum(name), origin.of(name))
    assert not os.path.exists(first)
    assert read(second) == content("a")
    assert origin.asked == ["a", "b", "c"]


def test_what_can_never_fit_is_refused_without_being_fetched(cache, origin, tmp_path):
    with pytest.raises(Overloaded):
        cache.path("a", 3 * SIZE + 1, checksum("a"), origin.of("a"))
    assert origin.asked == []
    assert list((tmp_path / "c").iterdir()) == []


def test_bytes_being_fetched_by_another_count_already(tmp_path, origin, clock):
    one, two = (
        ObjectCache(str(tmp_path / "c"), bytes_max=SIZE, keep_s=KEEP_S, now_s=clock)
        for _ in range(2)
    )
    begun, goes_on = threading.Event(), threading.Event()

    def slowly(writer):
        begun.set()
        assert goes_on.wait(30)
        writer.write(content("a"))

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(one.path, "a", SIZE, checksum("a"), slowly)
        assert begun.wait(30)
        try:
            with pytest.raises(Overloaded):
                two.path("b", SIZE, checksum("b"), origin.of("b"))
        finally:
            goes_on.set()
        assert read(slow.result()) == content("a")


def test_a_fetch_that_somebody_died_in_is_cleared_away(cache, origin, clock, tmp_path):
    (tmp_path / "c").mkdir()
    left = tmp_path / "c" / f".{3 * SIZE}-{'0' * 32}.tmp"
    left.write_bytes(b"half")
    with pytest.raises(Overloaded):
        cache.path("a", SIZE, checksum("a"), origin.of("a"))
    long_ago = clock.now - FETCH_IDLE_S_MAX - 60
    os.utime(left, (long_ago, long_ago))
    assert read(cache.path("a", SIZE, checksum("a"), origin.of("a"))) == content("a")
    assert not left.exists()


def test_a_fetch_that_fails_leaves_nothing_behind(cache, origin, tmp_path):
    def failing(writer):
        writer.write(b"half")
        raise Unavailable("the object store failed")

    with pytest.raises(Unavailable):
        cache.path("a", SIZE, checksum("a"), failing)
    assert list((tmp_path / "c").iterdir()) == []
    assert read(cache.path("a", SIZE, checksum("a"), origin.of("a"))) == content("a")


def test_a_copy_cut_short_is_fetched_again(cache, origin):
    path = cache.path("a", SIZE, checksum("a"), origin.of("a"))
    os.truncate(path, 10)
    assert read(cache.path("a", SIZE, checksum("a"), origin.of("a"))) == content("a")


def test_an_object_of_another_size_is_another_object(cache, origin):
    cache.path("a", SIZE, checksum("a"), origin.of("a"))
    assert (
        read(cache.path("a", 10, checksum("a"), lambda writer: writer.write(b"0123456789")))
        == b"0123456789"
    )


def test_threads_that_want_the_same_object_fetch_it_once(cache, origin):
    with ThreadPoolExecutor(8) as pool:
        paths = set(
            pool.map(lambda _: cache.path("a", SIZE, checksum("a"), origin.of("a")), range(32))
        )
    assert origin.asked == ["a"]
    assert len(paths) == 1


def test_the_folder_is_for_its_owner_alone(cache, origin, tmp_path):
    cache.path("a", SIZE, checksum("a"), origin.of("a"))
    assert os.stat(tmp_path / "c").st_mode & 0o077 == 0


KEEP_S = 1


def read_many(folder, reader, report):
    """Read copies for some seconds, each second another one, from a cache that holds four."""
    cache, origin, done = ObjectCache(folder, bytes_max=4 * SIZE, keep_s=KEEP_S), Origin(), 0
    end = time.monotonic() + 7
    while time.monotonic() < end or done <= 100:
        name = f"{int(time.time()) + reader},"
        given_s = time.monotonic()
        try:
            path = cache.path(name, SIZE, checksum(name), origin.of(name))
        except Overloaded:
            time.sleep(0.02)
            continue
        try:
            assert read(path) == content(name)
        except FileNotFoundError:
            # This process got no core for longer than a path is good for.
            assert time.monotonic() - given_s >= KEEP_S
            continue
        done += 1
    report.put((done, len(origin.asked)))


@pytest.mark.slow
def test_processes_that_share_a_full_cache_never_lose_a_path_they_were_given(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    report, folder = spawn.Queue(), str(tmp_path / "c")
    readers = [spawn.Process(target=read_many, args=(folder, n, report)) for n in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(180)
        assert reader.exitcode == 0
    counts = [report.get(timeout=60) for _ in readers]
    assert all(done > 100 for done, _ in counts)
    assert sum(fetched for _, fetched in counts) > 4, "nothing was ever evicted"
    assert held_bytes(folder) <= 4 * SIZE
