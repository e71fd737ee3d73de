"""Keys: made once, shown once, kept as a hash, and found in constant time."""

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.errors import Conflict, Corruption, Invalid, NotFound, Overloaded, Unsupported
from thermocline.format.instant import NS_PER_S
from thermocline.format.sealed_json import seal
from thermocline.names import SCOPES
from thermocline.node import Node
from thermocline.server.access import keys as keys_module
from thermocline.server.access.guard import Guard
from thermocline.server.access.keys import Key, KeySet, KeyStore, key_digest

FIRST = """
import sys, time
from thermocline.errors import Conflict
from thermocline.server.access.keys import KeyStore
while time.time() < float(sys.argv[2]):
    pass
try:
    print(KeyStore(sys.argv[1]).create_first().text)
except Conflict:
    print("taken")
"""


@pytest.fixture
def store(tmp_path):
    return KeyStore(str(tmp_path))


def test_a_key_is_found_by_its_text_and_by_nothing_else(store):
    made = store.create("acme", ["query"], note="dashboard")
    found = store.read().find(made.text)
    assert found == made.key
    assert (found.tenant, found.scopes, found.note) == ("acme", {"query"}, "dashboard")
    for wrong in ("", "tck_", made.text[:-1], made.text + "A", made.text.upper(), made.key.key_id):
        assert store.read().find(wrong) is None
    other = store.create("acme", ["query"])
    mixed = made.text[:12] + other.text[12:]
    assert store.read().find(mixed) is None


def test_a_key_has_a_findable_prefix_and_256_random_bits(store):
    texts = {store.create("default", ["query"]).text for _ in range(20)}
    assert len(texts) == 20
    for text in texts:
        assert len(text) == 56
        assert text.startswith("tck_")


def test_A08_the_text_of_a_key_is_in_no_file_and_in_no_repr(store, tmp_path):
    made = store.create("default", SCOPES)
    secret = made.text[13:]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes()
    assert secret not in repr(made)
    assert key_digest(made.text).hex() not in repr(made)


def test_A14_the_file_of_keys_is_this_users_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        store = KeyStore(str(tmp_path))
        store.create("default", ["query"])
        store.write_uses({"x": 1})
    finally:
        os.umask(before)
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert {path.name for path in files} == {
        "keys.json",
        "keys_exist.json",
        "key_uses.json",
        ".keys.lock",
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@pytest.mark.parametrize("scopes", [[], ["root"], ["query", ""], ["Query"]])
def test_A11_a_key_without_a_scope_or_with_an_unknown_one_is_not_made(store, scopes):
    with pytest.raises(Invalid, match="scopes"):
        store.create("default", scopes)
    assert store.read().by_id == {}


@given(st.one_of(st.none(), st.just([]), st.lists(st.sampled_from(["all", "*", "", "ADMIN"]))))
def test_A11_a_file_whose_scopes_are_empty_or_unknown_gives_no_right(tmp_path_factory, scopes):
    store = KeyStore(str(tmp_path_factory.mktemp("keys")))
    made = store.create("default", ["query"])
    body = json.loads(Path(store.path).read_text())
    body["keys"][0]["scopes"] = scopes
    del body["checksum"]
    Path(store.path).write_bytes(seal(body))
    assert store.read().find(made.text).scopes == frozenset()


def test_A09_every_text_is_compared_whole_known_id_or_not(store, monkeypatch):
    made = store.create("default", ["query"])
    compared = []
    real = keys_module.hmac.compare_digest

    def counted(one, two):
        compared.append((len(one), len(two)))
        return real(one, two)

    monkeypatch.setattr(keys_module.hmac, "compare_digest", counted)
    keys = store.read()
    for text in (made.text, made.text[:-1] + "A", "tck_aaaaaaaa_" + made.text[13:], "nonsense", ""):
        keys.find(text)
    assert compared == [(32, 32)] * 5


def test_nobodys_digest_lets_nobody_in():
    key = Key("aaaaaaaa", "default", frozenset(SCOPES), 0)
    assert KeySet({"aaaaaaaa": key}).find("") is None
    assert KeySet().find("") is None


def test_a_key_that_was_revoked_stays_in_the_file_and_is_revoked_once(tmp_path):
    now = [5]
    store = KeyStore(str(tmp_path), now_ns=lambda: now[0])
    made = store.create("acme", ["query"])
    revoked = store.revoke(made.key.key_id)
    now[0] = 9
    assert store.revoke(made.key.key_id) == revoked
    assert store.read().find(made.text).state(9) == "revoked"
    with pytest.raises(NotFound):
        store.revoke("nothing1")


def test_A01_another_tenants_key_cannot_be_revoked_and_seems_not_to_exist(store):
    made = store.create("acme", ["query"])
    with pytest.raises(NotFound):
        store.revoke(made.key.key_id, tenant="other")
    assert store.read().find(made.text).state(0) == "valid"
    assert store.revoke(made.key.key_id, tenant="acme").revoked_ns is not None


def test_a_key_expires_at_its_time(tmp_path):
    store = KeyStore(str(tmp_path), now_ns=lambda: 100)
    made = store.create("default", ["query"], lifetime_s=2)
    end_ns = 100 + 2 * NS_PER_S
    assert made.key.state(end_ns - 1) == "valid"
    assert made.key.state(end_ns) == "expired"
    for lifetime_s in (0, -1, float("nan"), float("inf")):
        with pytest.raises(Invalid):
            store.create("default", ["query"], lifetime_s=lifetime_s)


def test_A10_of_many_processes_that_make_the_first_key_one_gets_it(tmp_path):
    import time

    start_s = str(time.time() + 1.0)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST, str(tmp_path), start_s],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    told = [process.communicate(timeout=60)[0].strip() for process in started]
    assert sorted(text[:4] for text in told) == ["take", "take", "take", "tck_"]
    assert len(KeyStore(str(tmp_path)).read().by_id) == 1


def test_A10_the_first_key_is_not_made_again_after_it_was_revoked(store):
    made = store.create_first()
    assert made.key.scopes == set(SCOPES)
    store.revoke(made.key.key_id)
    with pytest.raises(Conflict):
        store.create_first()


def test_keys_made_by_many_threads_at_once_are_all_there(store):
    made = []
    threads = [
        threading.Thread(target=lambda: made.append(store.create("default", ["query"]).text))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = store.read()
    assert len(keys.by_id) == 8
    assert all(keys.find(text) for text in made)


def test_the_number_of_keys_has_a_limit(store, monkeypatch):
    monkeypatch.setattr(keys_module, "KEYS_MAX", 2)
    store.create("default", ["query"])
    store.create("default", ["query"])
    with pytest.raises(Overloaded):
        store.create("default", ["query"])


def test_a_damaged_file_of_keys_is_corruption_never_an_empty_one(store):
    store.create("default", ["query"])
    for data in (b"", b"{}", b"[]", b'{"format": 1, "keys": [{}]}', b'{"format": 1, "keys": 3}'):
        Path(store.path).write_bytes(data)
        with pytest.raises(Corruption):
            store.read()
        with pytest.raises(Corruption):
            store.create("default", ["query"])


def test_O13_keys_of_a_newer_version_are_refused(store):
    Path(store.path).write_bytes(b'{"format": 2, "keys": []}')
    with pytest.raises(Unsupported):
        store.read()


def test_last_uses_are_kept_and_never_go_back(store):
    store.write_uses({"a": 5, "b": 1})
    store.write_uses({"a": 3, "c": 2})
    assert store.read_uses() == {"a": 5, "b": 1, "c": 2}


def older(store):
    """Write the keys as releases before the checksum wrote them, and forget that there were any."""
    body = json.loads(Path(store.path).read_text())
    kept = {"format": body["format"], "keys": body["keys"]}
    Path(store.path).write_text(json.dumps(kept, indent=2))
    Path(store.folder, "keys_exist.json").unlink()


def test_D08_keys_that_were_deleted_while_the_node_was_stopped_are_missed(store):
    made = store.create_first()
    whole = Path(store.path).read_bytes()
    os.remove(store.path)
    for ask in (store.read, store.read_at_start, store.create_first):
        with pytest.raises(Corruption, match="has had keys") as raised:
            ask()
        assert raised.value.facts["path"] == store.path
        assert "thermocline key reset" in raised.value.hint
    assert not Guard(store).is_open
    Path(store.path).write_bytes(whole)
    assert store.read_at_start().find(made.text) is not None


@pytest.mark.parametrize("change", ["create", "revoke"])
def test_D04_an_older_copy_of_the_keys_is_refused_until_a_person_accepts_it(store, change):
    first = store.create_first()
    old = Path(store.path).read_bytes()
    if change == "create":
        store.create("default", ["query"])
    else:
        store.revoke(first.key.key_id)
    Path(store.path).write_bytes(old)
    for ask in (store.read, store.read_at_start, lambda: store.create("default", ["query"])):
        with pytest.raises(Corruption, match="older copy") as raised:
            ask()
        assert raised.value.facts["path"] == store.path
    assert not Guard(store).is_open
    Path(store.folder, "keys_exist.json").unlink()
    assert store.read_at_start().find(first.text).state(0) == "valid"


def test_a_reset_of_keys_begins_to_count_again(store):
    for _ in range(3):
        store.create("default", ["query"])
    Path(store.path).write_bytes(b"")
    made = store.reset()
    assert store.read_at_start().find(made.text) is not None


def test_D08_the_uses_of_keys_remember_that_there_were_some(store):
    made = store.create_first()
    store.write_uses({made.key.key_id: 5})
    os.remove(store.path)
    os.remove(Path(store.folder, "keys_exist.json"))
    with pytest.raises(Corruption, match="has had keys"):
        store.read()


def test_D08_a_lost_memory_of_keys_is_written_by_the_next_start(store):
    made = store.create_first()
    mark = Path(store.folder, "keys_exist.json")
    for damage in (mark.unlink, lambda: mark.write_bytes(b"")):
        damage()
        assert store.read_at_start().find(made.text) is not None
        assert mark.stat().st_size > 0


def test_D08_every_damage_of_the_file_of_keys_is_noticed_and_opens_nothing(store):
    store.create_first()
    path = Path(store.path)
    whole = path.read_bytes()
    flipped = [
        whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        for place in range(0, len(whole), 7)
    ]
    no_key = b'{"format": 1, "keys": []}'
    for data in [b"", b"{}", no_key, whole[:-1], whole[: len(whole) // 2], *flipped]:
        path.write_bytes(data)
        with pytest.raises(Corruption) as raised:
            store.read()
        assert raised.value.facts["path"] == store.path
        assert not Guard(store).is_open


def test_keys_of_an_older_release_are_read_and_given_a_checksum_at_the_next_start(store):
    made = store.create_first()
    older(store)
    assert store.read().find(made.text) is not None
    assert store.read_at_start().find(made.text) is not None
    os.remove(store.path)
    with pytest.raises(Corruption, match="has had keys"):
        store.read()


def test_D08_keys_of_another_lake_are_refused(tmp_path):
    for name in ("one", "two"):
        Node(str(tmp_path / name)).close()
        KeyStore(str(tmp_path / name)).create_first()
    shutil.copy(tmp_path / "one" / "keys.json", tmp_path / "two" / "keys.json")
    with pytest.raises(Corruption, match="another lake"):
        KeyStore(str(tmp_path / "two")).read()


def test_keys_that_cannot_be_read_are_reset_and_the_node_stays_closed(store):
    old = store.create_first()
    with pytest.raises(Conflict, match="is not damaged"):
        store.reset()
    Path(store.path).write_bytes(b"damage")
    new = store.reset()
    assert Path(store.folder, "keys.json.damaged").read_bytes() == b"damage"
    assert store.read_at_start().find(new.text).scopes == set(SCOPES)
    assert store.read().find(old.text) is None
    os.remove(store.path)
    assert store.reset().text != new.text
    assert not Guard(store).is_open


def test_D08_damaged_uses_of_keys_are_an_error_and_not_nothing(store):
    made = store.create_first()
    store.write_uses({made.key.key_id: 5})
    path = Path(store.folder, "key_uses.json")
    whole = path.read_bytes()
    for data in (b"", whole[:-2], whole.replace(b"5", b"6"), b'{"x": 1}'):
        path.write_bytes(data)
        with pytest.raises(Corruption) as raised:
            store.read_uses()
        assert raised.value.facts["path"] == str(path)
    path.write_bytes(json.dumps({made.key.key_id: 5}).encode())
    assert store.read_uses() == {made.key.key_id: 5}, "as older releases wrote it"


def test_an_administrators_key_ends_with_the_one_that_made_it(tmp_path):
    store = KeyStore(str(tmp_path))
    store.create_first()
    maker = store.create("acme", ("admin",), lifetime_s=100).key
    child = store.create("acme", ("admin",), made_by=maker.key_id).key
    grandchild = store.create("acme", ("admin",), lifetime_s=1e6, made_by=child.key_id).key
    other = store.create("acme", ("admin",), lifetime_s=1e6).key
    assert child.expires_ns == grandchild.expires_ns == maker.expires_ns
    store.revoke(maker.key_id, tenant="acme")
    again = KeyStore(str(tmp_path)).read().by_id
    assert [again[one.key_id].revoked_ns is None for one in (child, grandchild, other)] == [
        False,
        False,
        True,
    ]
