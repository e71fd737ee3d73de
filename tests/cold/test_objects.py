"""Tables in object stores: S3 over the wire, with a proxy that loses answers, and memory."""

import subprocess
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from fixtures.lake import closes, rows, spec
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.storage.cache import ObjectCache
from thermocline.cold.storage.objects import (
    PART_BYTES,
    READ_WHOLE_BYTES_MAX,
    ObjectStorage,
)
from thermocline.cold.storage.open_storage import open_storage
from thermocline.cold.storage.verified import checksum_text
from thermocline.cold.table import ColdTable
from thermocline.disk import OsDisk
from thermocline.errors import (
    Corruption,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
)
from thermocline.format.layout import commit_path

WRITERS, APPENDS = 4, 10
ALLOW = AppendOptions(overlap="allow")
NO_CHECKSUM = "crc32c:00000000"
CHECKSUM = checksum_text(google_crc32c.value(b"x" * 5000))


@pytest.fixture(params=["memory", "s3"])
def storage(request, tmp_path, s3):
    """A storage with nothing in it."""
    if request.param == "s3":
        return s3.open(tmp_path / "cache")
    return open_storage(f"memory://{tmp_path.name}/prices", {"cache_folder": str(tmp_path / "c")})


def append(table, hours, **wish):
    return table.append(rows(hours).to_reader(), AppendOptions(**wish))


def some_bytes(size_bytes):
    return bytes(bytearray(i * 7 % 251 for i in range(4096))) * (size_bytes // 4096 + 1)


def test_an_object_is_put_read_sized_listed_replaced_and_deleted(storage):
    storage.put("data/2024/one.parquet", b"one")
    storage.put_hint("_log/CURRENT", b"1")
    storage.put_hint("_log/CURRENT", b"22")
    assert storage.read("data/2024/one.parquet") == b"one"
    assert storage.size("_log/CURRENT") == 2
    (found,) = storage.list("data")
    assert (found.path, found.size_bytes) == ("data/2024/one.parquet", 3)
    assert found.modified_ns > 1_700_000_000 * 10**9
    assert sorted(each.path for each in storage.list("")) == ["_log/CURRENT", found.path]
    storage.delete(found.path)
    storage.delete(found.path)
    assert storage.size(found.path) is None
    assert list(storage.list("data")) == []


def test_what_is_not_there_is_none_nothing_or_an_error_that_names_it(storage):
    assert storage.size("data/none.parquet") is None
    assert list(storage.list("data")) == []
    for look in (
        storage.read,
        storage.open_input,
        lambda path: storage.check(path, 1, NO_CHECKSUM),
    ):
        with pytest.raises(NotFound, match=r"data/none\.parquet"):
            look("data/none.parquet")


def test_a_neighbour_whose_name_begins_alike_is_another_table(storage):
    storage.put("data/a", b"mine")
    storage.put("data2/a", b"other")
    assert [each.path for each in storage.list("data")] == ["data/a"]


def test_T22_a_path_that_leaves_the_table_is_refused(storage):
    for path in ("../other/a.parquet", "/etc/passwd", "data//a", "data/./a"):
        with pytest.raises(Corruption):
            storage.put(path, b"1")
        with pytest.raises(Corruption):
            storage.locate(path, 1, NO_CHECKSUM)


@pytest.mark.parametrize("size_bytes", [0, 1, READ_WHOLE_BYTES_MAX + 1, 2 * PART_BYTES + 12_345])
def test_a_file_taken_in_is_the_same_bytes_and_is_read_from_anywhere(storage, tmp_path, size_bytes):
    data = some_bytes(size_bytes)[:size_bytes]
    source = tmp_path / "incoming"
    source.write_bytes(data)
    taken = storage.take(str(source), "data/a.parquet", link=True)
    assert taken.size_bytes == size_bytes
    assert taken.checksum == f"crc32c:{google_crc32c.value(data):08x}"
    assert storage.read("data/a.parquet") == data
    with storage.open_input("data/a.parquet") as file:
        assert file.size() == size_bytes
        for start in (size_bytes // 2, 0, max(0, size_bytes - 10)):
            file.seek(start)
            assert file.read(2_000_000) == data[start : start + 2_000_000]
        file.seek(0)
        assert b"".join(iter(lambda: file.read(700_001), b"")) == data
    if size_bytes:
        with open(storage.locate("data/a.parquet", size_bytes, taken.checksum), "rb") as copy:
            assert copy.read() == data


def test_a_file_that_cannot_be_read_to_its_end_is_not_taken_in(s3, tmp_path):
    class Failing(OsDisk):
        def open_reader(self, path):
            reader = super().open_reader(path)
            whole, reads = reader.read, iter([True, True])

            def read(size_bytes):
                if next(reads, False):
                    return whole(size_bytes)
                raise OSError(5, "input/output error")

            reader.read = read
            return reader

    source = tmp_path / "incoming"
    source.write_bytes(some_bytes(3 * PART_BYTES))
    memory = ObjectStorage(MemoryStore(), "memory://x", ObjectCache(str(tmp_path)), disk=Failing())
    with pytest.raises(Unavailable, match="incoming"):
        memory.take(str(source), "data/a.parquet", link=False)
    assert memory.size("data/a.parquet") is None
    with pytest.raises(NotFound, match="nowhere"):
        memory.take(str(tmp_path / "nowhere"), "data/a.parquet", link=False)


def test_the_second_create_of_a_name_is_refused_and_changes_nothing(storage):
    assert storage.put_new("_log/1.json", b"first")
    assert not storage.put_new("_log/1.json", b"second")
    assert storage.read("_log/1.json") == b"first"
    storage.probe()
    assert [each.path for each in storage.list("_log")] == ["_log/1.json"]


def test_a_create_is_conditional_whatever_the_environment_and_options_say(
    s3, tmp_path, monkeypatch
):
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    storage = s3.open(tmp_path, AWS_CONDITIONAL_PUT="disabled")
    storage.probe()
    assert storage.put_new("_log/1.json", b"first")
    assert not storage.put_new("_log/1.json", b"second")


def test_T01_of_creates_at_once_exactly_one_wins(s3, tmp_path):
    writers = [s3.open(tmp_path) for _ in range(WRITERS)]

    def race(number):
        start = threading.Barrier(WRITERS)

        def create(writer):
            start.wait()
            return writers[writer].put_new(f"_log/{number}.json", b"%d" % writer)

        with ThreadPoolExecutor(WRITERS) as pool:
            won = list(pool.map(create, range(WRITERS)))
        return won, int(writers[0].read(f"_log/{number}.json"))

    for won, winner in map(race, range(25)):
        assert won == [writer == winner for writer in range(WRITERS)]


def test_a_store_that_replaces_instead_of_refusing_is_found_out(tmp_path):
    class Replacing(MemoryStore):
        def put(self, path, file, **options):
            return super().put(path, file, **{**options, "mode": "overwrite"})

    table = ColdTable(ObjectStorage(Replacing(), "memory://replacing", ObjectCache(str(tmp_path))))
    with pytest.raises(Unsupported, match="create a name twice"):
        table.create(spec())
    assert list(table.storage.list("")) == []


def test_a_table_is_made_appended_read_remembered_and_proved(storage, parquet):
    table = ColdTable(storage, checkpoint_every=3)
    table.create(spec())
    append(table, range(3))
    table.append_parquet([str(parquet(rows(range(3, 6))))], AppendOptions(), link=True)
    append(table, range(2, 4), overlap="replace")
    table.delete(lambda batch: pa.compute.equal(batch["close"], 5.0), ["close"])
    reopened = ColdTable(storage, checkpoint_every=3)
    assert closes(reopened) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert closes(reopened, at=2) == [0.0, 1.0, 2.0]
    operations = [commit.operation for commit in reopened.commits()]
    assert operations[0] == "delete"
    assert operations[-1] == "create"
    assert len(operations) == 5
    assert [found for found in fsck(reopened).findings if not found.is_harmless] == []


def test_T01_four_writers_commit_every_append_once(s3, tmp_path):
    ColdTable(s3.open(tmp_path)).create(spec())

    def write(writer):
        table = ColdTable(s3.open(tmp_path))
        for number in range(APPENDS):
            table.append(rows([number], close=writer * 100 + number).to_reader(), ALLOW)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    table = ColdTable(s3.open(tmp_path))
    expected = [float(w * 100 + n) for w in range(WRITERS) for n in range(APPENDS)]
    assert closes(table) == sorted(expected)
    versions = [commit.version for commit in table.commits()]
    assert versions == list(range(1 + WRITERS * APPENDS, 0, -1))
    assert len({commit.txn_id for commit in table.commits()}) == len(versions)


def test_T01_a_writer_that_lost_the_race_lands_on_the_next_version(storage):
    one, two = ColdTable(storage), ColdTable(storage)
    one.create(spec())
    one.state(), two.state()
    append(one, [0])
    assert append(two, [1]).version == 3
    assert closes(one) == [0.0, 1.0]


@pytest.mark.parametrize("status", [None, 500], ids=["the connection is cut", "answered 500"])
def test_T07_a_commit_that_landed_and_whose_answer_was_lost_is_made_once(
    s3, proxy, tmp_path, status
):
    ColdTable(s3.open(tmp_path)).create(spec())
    table = ColdTable(s3.open(tmp_path, endpoint=proxy.endpoint))
    fault = proxy.breaks("PUT", commit_path(2), status=status)
    assert append(table, [0]).version == 2
    assert fault.times == 0
    assert append(table, [1]).version == 3
    assert closes(ColdTable(s3.open(tmp_path))) == [0.0, 1.0]


def test_T07_a_commit_that_is_never_answered_is_unknown_and_loses_nothing(s3, proxy, tmp_path):
    ColdTable(s3.open(tmp_path)).create(spec())
    table = ColdTable(s3.open(tmp_path, endpoint=proxy.endpoint))
    proxy.breaks("PUT", commit_path(2), times=1000)
    with pytest.raises(OutcomeUnknown):
        append(table, [0])
    assert closes(ColdTable(s3.open(tmp_path))) == [0.0]


def test_T07_a_create_that_did_not_arrive_may_still_arrive_and_keeps_what_is_staged(
    s3, proxy, tmp_path
):
    ColdTable(s3.open(tmp_path)).create(spec())
    table = ColdTable(s3.open(tmp_path, endpoint=proxy.endpoint))
    proxy.breaks("PUT", commit_path(2), times=1000, heard=False)
    with pytest.raises(OutcomeUnknown):
        append(table, [0])
    assert ColdTable(s3.open(tmp_path)).state().version == 1
    assert len(list(s3.open(tmp_path).list("data"))) == 1


def test_T08_a_refused_commit_is_definitely_not_made_and_what_was_staged_goes(s3, proxy, tmp_path):
    ColdTable(s3.open(tmp_path)).create(spec())
    table = ColdTable(s3.open(tmp_path, endpoint=proxy.endpoint))
    proxy.breaks("PUT", commit_path(2), times=1000, heard=False, status=403)
    with pytest.raises(Unavailable, match="does not allow") as raised:
        append(table, [0])
    assert not isinstance(raised.value, OutcomeUnknown)
    assert ColdTable(s3.open(tmp_path)).state().version == 1
    assert list(s3.open(tmp_path).list("data")) == []


def test_a_conflict_that_nobody_won_is_tried_again(s3, proxy, tmp_path):
    storage = s3.open(tmp_path, endpoint=proxy.endpoint)
    fault = proxy.breaks("PUT", "1.json", times=2, heard=False, status=409)
    assert storage.put_new("_log/1.json", b"mine")
    assert fault.times == 0
    proxy.breaks("PUT", "2.json", times=1000, heard=False, status=409)
    with pytest.raises(Unavailable, match=r"_log/2\.json"):
        storage.put_new("_log/2.json", b"mine")


def test_Q01_a_missing_segment_is_named_by_reads_and_by_locate(storage):
    table = ColdTable(storage)
    table.create(spec())
    append(table, [0])
    (segment,) = append(table, [1]).segments.overlapping(None, None)[1:]
    storage.delete(segment.path)
    with pytest.raises(Corruption, match=segment.path):
        closes(table)
    with pytest.raises(Corruption, match=segment.path):
        storage.locate(segment.path, segment.file_size, segment.checksum)


@pytest.mark.parametrize("other", [b"shorter", b"longer" * 10_000])
def test_T21_a_segment_of_another_size_is_named_by_reads_and_by_locate(storage, other):
    table = ColdTable(storage)
    table.create(spec())
    (segment,) = append(table, [0]).segments
    storage.put(segment.path, other)
    with pytest.raises(Corruption, match=segment.path):
        closes(table)
    with pytest.raises(Corruption, match=segment.path) as raised:
        storage.locate(segment.path, segment.file_size, segment.checksum)
    assert raised.value.facts["found_bytes"] == len(other)


def test_T21_a_segment_that_shrinks_while_it_is_downloaded_leaves_no_copy(tmp_path):
    class Shrinking(MemoryStore):
        def head(self, path):
            return {**super().head(path), "size": 10}

    storage = ObjectStorage(Shrinking(), "memory://shrinking", ObjectCache(str(tmp_path / "c")))
    storage.put("data/a.parquet", b"shorter")
    with pytest.raises(Corruption, match=r"data/a\.parquet"):
        storage.locate("data/a.parquet", 10, NO_CHECKSUM)
    assert list((tmp_path / "c").iterdir()) == []


def test_a_store_that_fails_while_a_file_is_read_is_unavailable_not_damaged(s3, proxy, tmp_path):
    storage = s3.open(tmp_path, endpoint=proxy.endpoint)
    sink = pa.BufferOutputStream()
    numbers = pa.table({"n": pa.array(range(1_000_000))})
    pq.write_table(numbers, sink, compression="none", use_dictionary=False)
    storage.put("data/a.parquet", sink.getvalue().to_pybytes())
    with storage.open_input("data/a.parquet") as source:
        file = pq.ParquetFile(source)
        fault = proxy.breaks("GET", "data/a.parquet", times=1000, status=503, heard=False)
        with pytest.raises(Unavailable, match=r"data/a\.parquet"):
            list(file.iter_batches())
        fault.times = 0
        assert sum(batch.num_rows for batch in file.iter_batches()) == 1_000_000


def test_a_passing_failure_of_the_store_is_not_noticed(s3, proxy, tmp_path):
    storage = s3.open(tmp_path, endpoint=proxy.endpoint)
    faults = [proxy.breaks(method, "data/a", status=503) for method in ("PUT", "GET", "HEAD")]
    storage.put("data/a", b"1")
    assert storage.read("data/a") == b"1"
    assert storage.size("data/a") == 1
    assert [fault.times for fault in faults] == [0, 0, 0]


def test_a_store_out_of_reach_is_unavailable_and_no_secret_is_shown(s3, tmp_path):
    nobody = {"endpoint": "http://127.0.0.1:9", "secret_access_key": "s3cr3t", "token": "t0k3n"}
    storage = s3.open(tmp_path, **nobody)
    with pytest.raises(Unavailable, match="object store failed") as raised:
        storage.read("_log/CURRENT")
    told = "".join(traceback.format_exception(raised.value)) + storage.root + repr(storage)
    assert "s3cr3t" not in told
    assert "t0k3n" not in told
    with pytest.raises(Unavailable) as raised:
        list(storage.list("data"))
    assert "prefix=" not in str(raised.value), "the query of an address may hold a signature"


def test_a_bucket_that_does_not_exist_is_said_so(s3, tmp_path):
    options = {**s3.options, "endpoint": s3.endpoint, "cache_folder": str(tmp_path)}
    table = ColdTable(open_storage("s3://no-such-bucket-here/prices", options))
    with pytest.raises(NotFound, match="bucket"):
        table.create(spec())


def test_a_segment_is_downloaded_once_by_all_who_share_a_cache(s3, proxy, tmp_path):
    s3.open(tmp_path).put("data/a.parquet", b"x" * 5000)
    storages = [s3.open(tmp_path / "c", endpoint=proxy.endpoint) for _ in range(3)]
    assert len({storage.locate("data/a.parquet", 5000, CHECKSUM) for storage in storages}) == 1
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: storages[0].locate("data/a.parquet", 5000, CHECKSUM), range(16)))
    assert proxy.count("GET", "data/a.parquet") == 1


def test_a_download_that_breaks_leaves_no_copy_and_is_made_anew(s3, proxy, tmp_path):
    storage = s3.open(tmp_path / "c", endpoint=proxy.endpoint)
    storage.put("data/a.parquet", b"x" * 5000)
    proxy.breaks("GET", "data/a.parquet", status=403, heard=False)
    with pytest.raises(Unavailable):
        storage.locate("data/a.parquet", 5000, CHECKSUM)
    assert list((tmp_path / "c").iterdir()) == []
    with open(storage.locate("data/a.parquet", 5000, CHECKSUM), "rb") as copy:
        assert copy.read() == b"x" * 5000


def test_without_its_package_an_object_store_says_what_to_install():
    program = (
        "import sys; sys.modules['obstore'] = None\n"
        "from thermocline.cold.storage.open_storage import open_storage\n"
        "from thermocline.errors import Unsupported\n"
        "try:\n    open_storage('s3://bucket/prices')\n"
        "except Unsupported as error:\n    print(error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "pip install 'thermocline[object-store]'"
