"""Backups of a lake that is being written, and what comes back from them."""

import io
import os
import random
import stat
import tarfile
import threading

import google_crc32c
import orjson
import pytest

from fixtures.wal import calm, numbers, ticks
from thermocline.backup.backup import backup, restore
from thermocline.config import LakeSettings, WalSettings
from thermocline.disk import OsDisk
from thermocline.errors import Conflict, Corruption, Invalid, NotFound, Unsupported
from thermocline.format.sealed_json import seal, unseal
from thermocline.node import Node
from thermocline.server.access.keys import KeyStore

CREATION = {"time_column": "ts", "bucket": "1h", "entity_columns": ["host"]}


@pytest.fixture
def node(tmp_path):
    """A node with tables `a` and `b`, and one of another tenant; hot rows and cold ones."""
    with Node(str(tmp_path / "lake"), calm()) as node:
        for name in ("a", "b"):
            node.lake().create_table(name, **CREATION).write(ticks(1, 2, 3))
        node.create_tenant("acme").create_table("a", **CREATION).write(ticks(7))
        node.flush()
        node.lake().table("a").write(ticks(4, 5))
        yield node


def state(root):
    """Return the numbers of every table of every tenant of a lake."""
    with Node(str(root), calm()) as node:
        return {
            (tenant, name): numbers(node.lake(tenant).table(name))
            for tenant in node.tenants()
            for name in node.lake(tenant).tables()
        }


def left_in(folder):
    return [path.name for path in folder.iterdir() if path.name != ".restore.lock"]


EXPECTED = {
    ("default", "a"): [1, 2, 3, 4, 5],
    ("default", "b"): [1, 2, 3],
    ("acme", "a"): [7],
}


@pytest.mark.parametrize("target", ["copy", "copy.tar", "copy.tar.gz", "copy.tgz"])
def test_O15_a_running_node_is_copied_and_comes_back_at_another_root(node, tmp_path, target):
    KeyStore(str(tmp_path / "lake")).create("acme", ["query"])
    copy = backup(str(tmp_path / "lake"), str(tmp_path / target))
    assert {(one["tenant"], one["name"]) for one in copy.tables} == EXPECTED.keys()
    node.lake().table("a").write(ticks(99))
    manifest = restore(str(tmp_path / target), str(tmp_path / "elsewhere" / "lake"))
    assert manifest["lake_id"] == copy.lake_id
    assert state(tmp_path / "elsewhere" / "lake") == EXPECTED
    keys = KeyStore(str(tmp_path / "elsewhere" / "lake")).read()
    assert [key.tenant for key in keys.by_id.values()] == ["acme"]


def test_O15_versions_of_the_past_come_back_and_every_table_is_sound(node, tmp_path):
    table = node.lake().table("a")
    before = table.version()
    table.delete("n = 2")
    node.lake().table("b").append(ticks(50, hour=3))
    backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    with Node(str(tmp_path / "back"), calm()) as back:
        again = back.lake().table("a")
        assert numbers(again) == [1, 3, 4, 5]
        assert numbers(again, at=before) == [1, 2, 3]
        for name in ("a", "b"):
            assert back.lake().table(name).fsck().findings == ()
        again.write(ticks(6))
        back.flush()
        assert numbers(again) == [1, 3, 4, 5, 6]


def test_a_lake_that_no_process_has_open_is_copied_too(tmp_path):
    with Node(str(tmp_path / "lake"), calm()) as node:
        node.lake().create_table("a", **CREATION).write(ticks(1))
        node.close(flush=False)
    backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    assert state(tmp_path / "back") == {("default", "a"): [1]}


def test_a_lake_of_an_earlier_boot_is_copied_whole(tmp_path, monkeypatch):
    with Node(str(tmp_path / "lake"), calm()) as node:
        node.lake().create_table("a", **CREATION).write(ticks(1, 2))
        node.close(flush=False)
    monkeypatch.setattr(OsDisk, "boot_id", lambda self: b"another boot....")
    copy = backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    assert copy.lsn is None
    restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    assert state(tmp_path / "back") == {("default", "a"): [1, 2]}


@pytest.mark.parametrize("seed", range(3))
def test_O15_a_copy_made_under_load_is_a_prefix_of_what_was_acknowledged(tmp_path, seed):
    """One writer writes to `a`, then to `b`, in turn, while flushes run; copies are made."""
    settings = LakeSettings(WalSettings(file_bytes_max=20_000), flush_age_s=0.02, flush_look_s=0.01)
    chance = random.Random(seed)
    acknowledged = [2]
    is_over = threading.Event()
    with Node(str(tmp_path / "lake"), settings) as node:
        tables = [node.lake().create_table(name, **CREATION) for name in ("a", "b")]

        for table in tables:
            table.write(ticks(0))

        def write():
            number = 2
            while not is_over.is_set():
                tables[number % 2].write(ticks(number // 2))
                number += 1
                acknowledged[0] = number

        writer = threading.Thread(target=write)
        writer.start()
        made = []
        try:
            for place in range(4):
                is_over.wait(chance.random() * 0.4)
                before = acknowledged[0]
                backup(str(tmp_path / "lake"), str(tmp_path / f"copy-{place}"))
                made.append((place, before, acknowledged[0] + 1))
        finally:
            is_over.set()
            writer.join()
    for place, before, after in made:
        restore(str(tmp_path / f"copy-{place}"), str(tmp_path / f"back-{place}"))
        found = state(tmp_path / f"back-{place}")
        first, second = found["default", "a"], found["default", "b"]
        assert first == list(range(len(first)))
        assert second == list(range(len(second)))
        assert len(first) - len(second) in (0, 1)
        assert before <= len(first) + len(second) <= after


def test_O15_a_trim_between_the_watermark_and_the_files_loses_nothing(tmp_path, monkeypatch):
    """A flush lands, and its journal files go, just after the copy has read the watermark."""
    settings = LakeSettings(WalSettings(file_bytes_max=1), flush_age_s=1e9, flush_look_s=1e9)
    from thermocline.backup import backup as module

    with Node(str(tmp_path / "lake"), settings) as node:
        table = node.lake().create_table("a", **CREATION)
        table.write(ticks(1))
        table.write(ticks(2))
        real = module.read_watermark
        calls = []

        def slow(*arguments):
            mark = real(*arguments)
            if not calls:
                calls.append(1)
                table.write(ticks(3))
                node.flush()
            return mark

        monkeypatch.setattr(module, "read_watermark", slow)
        backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    assert state(tmp_path / "back") in ({("default", "a"): [1, 2]}, {("default", "a"): [1, 2, 3]})


def test_O15_a_copy_ends_where_it_was_acknowledged_when_it_began(tmp_path, monkeypatch):
    from thermocline.backup import backup as module

    real = module.read_watermark
    with Node(str(tmp_path / "lake"), calm()) as node:
        table = node.lake().create_table("a", **CREATION)
        table.write(ticks(1))

        def slow(*arguments):
            mark = real(*arguments)
            table.write(ticks(2))
            return mark

        monkeypatch.setattr(module, "read_watermark", slow)
        copy = backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    assert copy.lsn == 1
    restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    assert state(tmp_path / "back") == {("default", "a"): [1]}


def test_O16_a_second_backup_at_once_is_a_conflict(node, tmp_path):
    lock = OsDisk().lock(str(tmp_path / "lake" / ".backup.lock"), b"4711\n")
    with pytest.raises(Conflict) as caught:
        backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    assert caught.value.facts["process"] == "4711"
    assert not (tmp_path / "copy").exists()
    lock.release()
    backup(str(tmp_path / "lake"), str(tmp_path / "copy"))


def test_O16_a_second_restore_at_once_is_a_conflict(node, tmp_path):
    backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    (tmp_path / "back").mkdir()
    lock = OsDisk().lock(str(tmp_path / "back" / ".restore.lock"), b"4711\n")
    with pytest.raises(Conflict, match="another process restores"):
        restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    lock.release()
    restore(str(tmp_path / "copy"), str(tmp_path / "back"))


def test_a_target_that_exists_is_not_touched(node, tmp_path):
    (tmp_path / "copy").write_text("mine")
    with pytest.raises(Conflict):
        backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_text() == "mine"


def test_a_backup_that_fails_leaves_nothing(node, tmp_path, monkeypatch):
    from thermocline.backup import backup as module

    def fails(*arguments):
        raise Conflict("no")

    monkeypatch.setattr(module, "_fitting_state", fails)
    for target in ("copy", "copy.tar"):
        with pytest.raises(Conflict):
            backup(str(tmp_path / "lake"), str(tmp_path / target))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake"]


def test_what_is_no_lake_is_not_copied(tmp_path):
    with pytest.raises(NotFound):
        backup(str(tmp_path / "nothing"), str(tmp_path / "copy"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(Invalid):
        backup(str(tmp_path / "other"), str(tmp_path / "copy"))
    with pytest.raises(NotFound):
        restore(str(tmp_path / "nothing"), str(tmp_path / "back"))


def test_a_folder_that_is_not_empty_is_not_restored_into(node, tmp_path):
    backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    with pytest.raises(Conflict, match="not empty"):
        restore(str(tmp_path / "copy"), str(tmp_path / "lake"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(Conflict, match="not empty"):
        restore(str(tmp_path / "copy"), str(tmp_path / "full"))
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]


def test_A14_copies_and_what_is_restored_are_this_users_alone(node, tmp_path):
    before = os.umask(0)
    try:
        backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
        backup(str(tmp_path / "lake"), str(tmp_path / "copy.tar"))
        restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    finally:
        os.umask(before)
    for path in [tmp_path / "copy.tar", *(tmp_path / "copy").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    for path in (tmp_path / "back").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


# Copies that were forged or changed.


def member(name, data=b"x", **more):
    made = tarfile.TarInfo(name)
    made.size = len(data)
    for key, value in more.items():
        setattr(made, key, value)
    return made, data


def crafted(path, *members):
    with tarfile.open(path, "w") as archive:
        for made, data in members:
            archive.addfile(made, io.BytesIO(data) if made.isreg() else None)


HOSTILE = [
    member("../evil"),
    member("/etc/evil"),
    member("journal/../../evil"),
    member("tables/../evil"),
    member("names/../../evil.json"),
    member(f"tables/{'a' * 32}/data/../../../../evil"),
    member(f"tables/{'a' * 32}/data//evil"),
    member(f"tables/{'a' * 32}/data/.hidden"),
    member("evil"),
    member("journal/lock"),
    member(".ssh/authorized_keys"),
    member("names/a\x01.json"),
    member("names\\..\\evil.json"),
    member("names/a.json", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    member("names/a.json", b"", type=tarfile.LNKTYPE, linkname="lake.json"),
    member("names/a.json", b"", type=tarfile.CHRTYPE),
    member("names/a.json", b"", type=tarfile.FIFOTYPE),
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda one: repr(one[0].name))
def test_A18_a_name_that_leads_elsewhere_or_is_no_file_is_refused(tmp_path, hostile):
    crafted(tmp_path / "evil.tar", member("lake.json"), hostile)
    with pytest.raises(Invalid):
        restore(str(tmp_path / "evil.tar"), str(tmp_path / "deep" / "back"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        ".restore.lock",
        "back",
        "deep",
        "evil.tar",
    ]


def test_A18_links_in_a_folder_are_refused(node, tmp_path):
    backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (tmp_path / "copy" / "keys.json").symlink_to(secret)
    with pytest.raises(Invalid, match="not a plain file"):
        restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    (tmp_path / "copy" / "keys.json").unlink()
    (tmp_path / "copy" / "more").symlink_to(tmp_path)
    with pytest.raises(Invalid, match="not a plain file"):
        restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    assert left_in(tmp_path / "back") == []


def test_A18_a_name_that_comes_twice_is_refused(tmp_path):
    crafted(tmp_path / "evil.tar", member("keys.json", b"1"), member("keys.json", b"2"))
    with pytest.raises(Invalid, match="twice"):
        restore(str(tmp_path / "evil.tar"), str(tmp_path / "back"))


@pytest.mark.parametrize("how", ["flip", "cut", "extra", "missing", "no manifest", "newer"])
def test_a_copy_that_was_changed_is_not_restored_and_leaves_nothing(node, tmp_path, how):
    backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    copy = tmp_path / "copy"
    victim = next(path for path in copy.rglob("*.parquet") if "data" in path.parts)
    manifest = copy / "backup.json"
    match how:
        case "flip":
            data = bytearray(victim.read_bytes())
            data[len(data) // 2] ^= 1
            victim.write_bytes(data)
        case "cut":
            victim.write_bytes(victim.read_bytes()[:-1])
        case "extra":
            victim.with_name("f" * 32 + ".parquet").write_bytes(b"x")
        case "missing":
            victim.unlink()
        case "no manifest":
            manifest.unlink()
        case "newer":
            manifest.write_bytes(seal({**unseal(manifest.read_bytes(), ""), "format": 2}))
    with pytest.raises(Unsupported if how == "newer" else Corruption):
        restore(str(copy), str(tmp_path / "back"))
    assert left_in(tmp_path / "back") == []


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_a_tar_file_that_was_cut_anywhere_is_not_restored(node, tmp_path, suffix):
    backup(str(tmp_path / "lake"), str(tmp_path / f"copy.{suffix}"))
    data = (tmp_path / f"copy.{suffix}").read_bytes()
    end = data.rindex(b"backup.json") if suffix == "tar" else len(data) * 9 // 10
    cut = tmp_path / f"cut.{suffix}"
    for length in [*range(0, end, max(1, end // 20)), end - 1]:
        cut.write_bytes(data[:length])
        with pytest.raises(Corruption):
            restore(str(cut), str(tmp_path / "back"))
        assert left_in(tmp_path / "back") == []
    cut.write_bytes(b"not a tar file" * 100)
    with pytest.raises(Corruption):
        restore(str(cut), str(tmp_path / "back"))


def test_O10_a_restore_that_was_interrupted_is_no_lake(node, tmp_path, monkeypatch):
    from thermocline.backup import backup as module

    backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    monkeypatch.setattr(module, "remove_files", lambda folder, names: None)

    def fails(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_check_manifest", fails)
    with pytest.raises(KeyboardInterrupt):
        restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    assert (tmp_path / "back" / "tables").exists()
    with pytest.raises(Corruption, match=r"lake\.json is missing") as raised:
        Node(str(tmp_path / "back"), calm())
    assert "restore again into an empty folder" in raised.value.hint


def segment_path(root):
    """Return the path of one segment of table `b` below a folder."""
    return next(path for path in sorted(root.rglob("*.parquet")) if "data" in path.parts)


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("target", ["copy", "copy.tar", "copy.tgz"])
def test_D02_a_damaged_segment_is_not_backed_up_and_nothing_is_left(node, tmp_path, target):
    path = segment_path(tmp_path / "lake")
    flip(path, 60)
    with pytest.raises(Corruption, match="not those that were committed") as raised:
        backup(str(tmp_path / "lake"), str(tmp_path / target))
    assert raised.value.facts["path"] in str(path)
    assert [one.name for one in tmp_path.iterdir()] == ["lake"]


@pytest.mark.parametrize("what", ["segment", "commit"])
def test_D02_a_missing_file_of_a_table_is_not_passed_over_by_a_backup(node, tmp_path, what):
    path = segment_path(tmp_path / "lake")
    if what == "commit":
        root = next(one for one in path.parents if (one / "_log").is_dir())
        path = root / "_log" / f"{1:020}.json"
    path.unlink()
    with pytest.raises(Corruption) as raised:
        backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    assert str(path).endswith(str(raised.value.facts["path"]))
    assert [one.name for one in tmp_path.iterdir()] == ["lake"]


def test_D07_a_sidecar_of_another_segment_is_made_again_for_a_backup(node, tmp_path):
    node.lake().table("b").write(ticks(8, hour=5))
    node.flush()
    found = sorted((tmp_path / "lake").rglob("_coverage/seg*/**/*.roar"))
    one, other = next((a, b) for a in found for b in found if a.read_bytes() != b.read_bytes())
    before, swapped = one.read_bytes(), other.read_bytes()
    one.write_bytes(swapped)
    backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    (copied,) = (tmp_path / "copy").rglob(one.name)
    assert copied.read_bytes() == before


def test_D02_a_backup_of_a_damaged_segment_is_not_restored(node, tmp_path):
    backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    path = segment_path(tmp_path / "copy")
    flip(path, 60)
    # As an older version would have made it: the manifest agrees with the damaged bytes.
    manifest = unseal((tmp_path / "copy" / "backup.json").read_bytes(), "")
    for one in manifest["files"]:
        if one["name"] == str(path.relative_to(tmp_path / "copy")):
            one["crc32c"] = f"{google_crc32c.value(path.read_bytes()):08x}"
    (tmp_path / "copy" / "backup.json").write_bytes(seal(manifest))
    with pytest.raises(Corruption, match="not those that were committed") as raised:
        restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    assert raised.value.facts["path"] in str(path)
    assert left_in(tmp_path / "back") == []


@pytest.mark.parametrize("is_closed", [False, True])
def test_an_older_copy_of_the_watermark_never_makes_a_backup_short(tmp_path, is_closed):
    durable = tmp_path / "lake" / "journal" / "durable"
    with Node(str(tmp_path / "lake"), calm()) as node:
        table = node.lake().create_table("a", **CREATION)
        table.write(ticks(1))
        before = durable.read_bytes()
        table.write(ticks(2))
        table.write(ticks(3))
        if is_closed:
            node.close(flush=False)
        durable.write_bytes(before)
        with pytest.raises(Corruption) as caught:
            backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
        assert caught.value.facts["path"] == str(durable)
    assert not (tmp_path / "copy").exists()


def flipped(data, bit):
    place = bit // 8
    return data[:place] + bytes([data[place] ^ 1 << bit % 8]) + data[place + 1 :]


def test_D01_D02_D03_every_damage_of_a_backup_is_refused_by_name(node, tmp_path):
    source = tmp_path / "copy"
    backup(str(tmp_path / "lake"), str(source))
    rng = random.Random(21)
    for path in sorted(one for one in source.rglob("*") if one.is_file()):
        data = path.read_bytes()
        bits = [rng.randrange(len(data) * 8) for _ in range(4)] if data else []
        flips = [flipped(data, bit) for bit in bits]
        for damaged in (*flips, data[:-1], b"", None):
            if damaged == data:
                continue
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            with pytest.raises(Corruption) as caught:
                restore(str(source), str(tmp_path / "back"))
            assert path.name in str(caught.value)
            assert left_in(tmp_path / "back") == []
            path.write_bytes(data)
    restore(str(source), str(tmp_path / "back"))
    assert state(tmp_path / "back") == EXPECTED


def test_a_manifest_of_an_older_release_has_no_checksum_and_is_read(node, tmp_path):
    backup(str(tmp_path / "lake"), str(tmp_path / "copy"))
    manifest = tmp_path / "copy" / "backup.json"
    manifest.write_bytes(orjson.dumps(unseal(manifest.read_bytes(), "")))
    restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    assert state(tmp_path / "back") == EXPECTED
