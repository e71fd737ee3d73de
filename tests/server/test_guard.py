"""The guard: who is let in, who is not, and how soon a revocation is seen."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixtures.timing import at_best
from thermocline.config import NodeSettings, node_settings
from thermocline.errors import Corruption, Forbidden, Invalid, Unauthenticated, Unavailable
from thermocline.format.instant import NS_PER_S
from thermocline.format.sealed_json import seal_encoded
from thermocline.names import SCOPES
from thermocline.server.access.audit import Audit
from thermocline.server.access.guard import (
    ANONYMOUS,
    KEYS_CHECK_S,
    STALE_S,
    Caller,
    Guard,
    check_exposure,
    exposed_listeners,
)
from thermocline.server.access.keys import KeyStore


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self):
        self.s = 1_000.0

    def __call__(self):
        return self.s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path):
    return KeyStore(str(tmp_path))


@pytest.fixture
def guard(store, clock):
    return Guard(store, now_s=clock)


def bearer(made):
    return f"Bearer {made.text}"


def refused(guard, authorization, scope="query"):
    with pytest.raises((Unauthenticated, Forbidden)) as caught:
        guard.caller(authorization, scope)
    return caught.value


def test_without_any_key_everybody_on_this_machine_is_let_in(guard):
    assert guard.is_open
    assert guard.caller(None, "admin") == ANONYMOUS == Caller("default", "anonymous", set(SCOPES))
    assert guard.caller("Bearer nonsense", "query") == ANONYMOUS


def test_without_any_key_nobody_is_let_in_where_others_can_reach_the_node(store):
    guard = Guard(store, may_be_open=False)
    assert not guard.is_open
    refused(guard, None)


def test_a_caller_has_the_tenant_and_the_scopes_of_the_key(store, guard):
    made = store.create("acme", ["query", "ingest"])
    caller = guard.caller(bearer(made), "ingest")
    assert caller == Caller("acme", made.key.key_id, frozenset({"query", "ingest"}))
    assert guard.caller(f"bearer  {made.text} ", "query") == caller
    assert not caller.is_operator


def test_an_operator_is_an_administrator_of_the_first_tenant(store, guard):
    first = store.create_first()
    acme = store.create("acme", SCOPES)
    reader = store.create("default", ["query"])
    assert guard.caller(bearer(first), "admin").is_operator
    assert not guard.caller(bearer(acme), "admin").is_operator
    assert not guard.caller(bearer(reader), "query").is_operator


@pytest.mark.parametrize(
    "wrong",
    [None, "", "Bearer", "Bearer ", "Bearer tck_", "Basic {}", "{}", "Bearer {}x", "Bearer\t{}"],
)
def test_A02_without_a_valid_key_nobody_is_let_in(store, guard, wrong):
    made = store.create_first()
    header = wrong if wrong is None else wrong.format(made.text)
    assert isinstance(refused(guard, header), Unauthenticated)


def test_A02_a_header_without_end_is_refused(store, guard):
    made = store.create_first()
    refused(guard, bearer(made) + " " * 10_000)
    refused(guard, "Bearer " + "x" * 1_000_000)


def test_A02_a_wrong_scope_is_forbidden_and_no_scope_is_the_other(store, guard):
    for scope in SCOPES:
        made = store.create("default", [scope])
        guard.reload()
        for asked in SCOPES:
            if asked == scope:
                assert guard.caller(bearer(made), asked).scopes == {scope}
            else:
                assert isinstance(refused(guard, bearer(made), asked), Forbidden)


def test_A02_an_expired_key_is_refused_from_that_moment_on(store, tmp_path):
    now_ns = [time.time_ns()]
    guard = Guard(store, now_ns=lambda: now_ns[0])
    made = store.create("default", ["query"], lifetime_s=60)
    assert guard.caller(bearer(made), "query")
    now_ns[0] = made.key.expires_ns - 1
    assert guard.caller(bearer(made), "query")
    now_ns[0] += 1
    assert "expired" in refused(guard, bearer(made)).message


def test_A02_a_revocation_is_seen_within_a_second(store, guard, clock):
    assert KEYS_CHECK_S < 1
    made = store.create("default", ["query"])
    assert guard.caller(bearer(made), "query")
    store.revoke(made.key.key_id)
    clock.s += KEYS_CHECK_S
    assert "revoked" in refused(guard, bearer(made)).message


def test_A02_a_revocation_by_another_process_is_seen_within_a_second_of_the_real_clock(store):
    guard = Guard(store)
    made = store.create("default", ["query"])
    assert guard.caller(bearer(made), "query")
    code = "import sys; from thermocline.server.access.keys import KeyStore; "
    code += "KeyStore(sys.argv[1]).revoke(sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, store.folder, made.key.key_id], check=True)
    time.sleep(1)
    with pytest.raises(Unauthenticated):
        guard.caller(bearer(made), "query")


def test_two_changes_within_one_tick_of_the_files_clock_are_both_seen(store, guard, clock):
    made = store.create("default", ["query"])
    assert guard.caller(bearer(made), "query")
    stamp = os.stat(store.path)
    data = Path(store.path).read_bytes()
    body, _, _ = data.replace(b'"revoked_ns": null', b'"revoked_ns": 1234').rpartition(b",")
    changed = seal_encoded(body + b"}")
    assert len(changed) == len(data)
    with open(store.path, "r+b") as file:
        file.write(changed)
    os.utime(store.path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    clock.s += KEYS_CHECK_S
    refused(guard, bearer(made))


def test_A11_revoking_the_last_key_opens_nothing(store, guard, clock):
    made = store.create_first()
    clock.s += KEYS_CHECK_S
    assert not guard.is_open
    store.revoke(made.key.key_id)
    clock.s += KEYS_CHECK_S
    assert not guard.is_open
    refused(guard, None, "admin")
    assert not Guard(store).is_open


def test_removing_the_file_of_keys_while_the_node_runs_opens_nothing(store, guard, clock):
    made = store.create_first()
    assert guard.caller(bearer(made), "admin")
    os.remove(store.path)
    for _ in range(3):
        clock.s += KEYS_CHECK_S
        assert not guard.is_open
        for scope in SCOPES:
            refused(guard, None, scope)
            refused(guard, bearer(made), scope)
    guard.write_uses()
    with pytest.raises(Corruption, match="has had keys"):
        store.read_at_start()  # what the next start does
    assert not Guard(store).is_open


def test_keys_that_come_and_go_between_two_looks_close_the_node(store, guard, clock):
    assert guard.caller(None, "admin") == ANONYMOUS
    store.create_first()
    os.remove(store.path)
    clock.s += KEYS_CHECK_S
    assert not guard.is_open
    refused(guard, None, "admin")
    with pytest.raises(Corruption, match="has had keys"):
        store.read_at_start()


def test_keys_that_cannot_be_read_serve_for_a_while_and_then_nobody(store, guard, clock):
    made = store.create_first()
    assert guard.caller(bearer(made), "admin")
    good = Path(store.path).read_bytes()
    Path(store.path).write_bytes(b"not keys")
    clock.s += KEYS_CHECK_S
    assert guard.caller(bearer(made), "admin")
    refused(guard, None)
    clock.s += STALE_S
    with pytest.raises(Unavailable) as caught:
        guard.caller(bearer(made), "admin")
    assert 1 <= caught.value.facts["retry_after_s"] <= 5
    with pytest.raises(Corruption):
        guard.reload()
    Path(store.path).write_bytes(good)
    guard.reload()
    assert guard.caller(bearer(made), "admin")


def test_a_node_that_starts_with_unreadable_keys_lets_nobody_in(store):
    Path(store.path).write_bytes(b"not keys")
    guard = Guard(store)
    assert not guard.is_open
    with pytest.raises(Unavailable):
        guard.caller(None, "query")


def test_A08_no_refusal_and_no_audit_line_has_a_key_in_it(store, tmp_path):
    guard = Guard(store, Audit(str(tmp_path)))
    made = store.create("default", ["query"])
    wrong = made.text[:-4] + "AAAA"
    for header, scope in ((bearer(made), "admin"), (f"Bearer {wrong}", "query"), (None, "query")):
        error = refused(guard, header, scope)
        assert made.text[13:40] not in str(error)
    lines = (tmp_path / "audit.jsonl").read_text()
    assert lines.count('"refused"') == 3
    assert made.text[13:40] not in lines
    assert made.key.key_id in lines


def test_when_a_key_was_used_is_written_down(store, guard):
    made = store.create("default", ["query"])
    guard.caller(bearer(made), "query")
    guard.write_uses()
    used_ns = store.read_uses()[made.key.key_id]
    assert abs(used_ns - time.time_ns()) < 60 * NS_PER_S


def test_a_check_takes_microseconds(store):
    guard = Guard(store)
    made = store.create_first()
    header = bearer(made)
    guard.caller(header, "ingest")

    def act():
        began_s = time.thread_time()
        for _ in range(2_000):
            guard.caller(header, "ingest")
        return (time.thread_time() - began_s) / 2_000

    assert at_best(act, lambda each_s: each_s < 100e-6) < 100e-6


OUTSIDE = {"http": "0.0.0.0:4318"}
TLS = {"tls_certificate": "a.pem", "tls_key": "b.pem"}


@pytest.mark.parametrize(
    ("options", "has_keys", "missing"),
    [
        (OUTSIDE, False, ["keys", "TLS"]),
        (OUTSIDE, True, ["TLS"]),
        ({**OUTSIDE, **TLS}, False, ["keys"]),
        ({"api": "[::]:4320"}, True, ["TLS"]),
        ({"grpc": "node.example:4317"}, True, ["TLS"]),
    ],
)
def test_another_address_without_keys_and_tls_is_refused_with_the_reason(
    options, has_keys, missing
):
    with pytest.raises(Invalid) as caught:
        check_exposure(node_settings(options), has_keys=has_keys)
    assert caught.value.facts == {
        "listeners": exposed_listeners(node_settings(options)),
        "missing": missing,
    }
    assert "--allow-insecure" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "has_keys"),
    [({}, False), ({**OUTSIDE, **TLS}, True), ({**OUTSIDE, "allow_insecure": True}, False)],
)
def test_a_protected_address_or_an_explicit_flag_is_taken(options, has_keys):
    check_exposure(node_settings(options), has_keys=has_keys)
    assert exposed_listeners(NodeSettings()) == []
