"""Settings: where they come from, what they may be, and what is said of those that cannot be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.config import (
    FLAGS,
    Address,
    LakeSettings,
    NodeSettings,
    Sync,
    node_settings,
    read_lake_settings,
    redact,
)
from thermocline.errors import Invalid, NotFound, ThermoclineError
from thermocline.server.observe.log import encode_line

NAMES = [one["setting"] for one in NodeSettings().describe()]


@pytest.fixture
def file(tmp_path):
    """Write a file of settings and return its path."""

    def write(text):
        path = tmp_path / "node.toml"
        path.write_text(text)
        return str(path)

    return write


def origin_of(settings, name):
    return next(one for one in settings.describe() if one["setting"] == name)["origin"]


def test_without_anything_said_the_node_is_reached_by_this_machine_alone():
    settings = node_settings()
    assert settings == NodeSettings()
    assert all(address.is_loopback for address in settings.listeners().values())
    assert not settings.allow_insecure
    assert {one["origin"] for one in settings.describe()} == {"default"}


def test_an_option_wins_over_the_environment_and_that_over_the_file(file):
    path = file('data = "a"\nflush_age_s = "1m"\nquery_timeout_s = 3')
    environment = {"THERMOCLINE_DATA": "b", "THERMOCLINE_FLUSH_AGE_S": "2m", "HOME": "/root"}
    settings = node_settings({"data": "c", "http": None}, environment, path)
    assert (settings.data, settings.lake.flush_age_s) == ("c", 120.0)
    assert settings.lake.query_timeout_s == 3.0
    assert origin_of(settings, "data") == "option --data"
    assert origin_of(settings, "flush_age_s") == "environment THERMOCLINE_FLUSH_AGE_S"
    assert origin_of(settings, "query_timeout_s") == f"file {path}"
    assert origin_of(settings, "http") == "default"


def test_the_environment_may_name_the_file(file):
    path = file('data = "there"')
    assert node_settings({}, {"THERMOCLINE_CONFIG": path}).data == "there"


@pytest.mark.parametrize(
    ("written", "meant"),
    [("64MB", 64_000_000), ("64 MiB", 64 << 20), ("1.5kb", 1500), ("1000", 1000), (7, 7)],
)
def test_bytes_may_have_a_unit(written, meant):
    assert read_lake_settings({"hot_bytes_max": written}).wal.hot_bytes_max == meant


@pytest.mark.parametrize(
    ("written", "meant"), [("250ms", 0.25), ("5s", 5.0), ("10m", 600.0), ("1.5h", 5400.0), (2, 2.0)]
)
def test_times_may_have_a_unit(written, meant):
    assert read_lake_settings({"flush_age_s": written}).flush_age_s == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("127.0.0.1:4318", Address("127.0.0.1", 4318)),
        ("[::1]:0", Address("::1", 0)),
        ("node.example:80", Address("node.example", 80)),
        ("off", None),
    ],
)
def test_an_address_is_a_host_and_a_port(written, meant):
    settings = node_settings({"http": written})
    assert settings.http == meant
    assert node_settings({"http": str(meant or "off")}).http == meant


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_only_this_machine_is_loopback(host, is_loopback):
    assert Address(host, 1).is_loopback is is_loopback


BAD = [
    ("hot_bytes_max", "64 parsecs", "64MiB"),
    ("hot_bytes_max", -1, "64MiB"),
    ("hot_bytes_max", True, "64MiB"),
    ("hot_bytes_max", 1.5, "64MiB"),
    ("hot_bytes_max", float("nan"), "64MiB"),
    ("flush_age_s", float("inf"), "250ms"),
    ("flush_age_s", "5 MB", "250ms"),
    ("query_workers", "2s", "whole number"),
    ("connections_max", 0, "1 or more"),
    ("sync", "sometimes", "always, interval, os"),
    ("http", ":4318", "127.0.0.1:4318"),
    ("http", "127.0.0.1", "127.0.0.1:4318"),
    ("http", "127.0.0.1:99999", "127.0.0.1:4318"),
    ("allow_insecure", "maybe", "true or false"),
    ("data", "", "a text"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), BAD)
def test_O06_a_bad_value_names_setting_value_origin_and_what_is_allowed(name, value, allowed):
    with pytest.raises(Invalid) as caught:
        node_settings({name: value})
    facts = caught.value.facts
    assert facts["setting"] == name
    assert str(facts["got"]) == str(value)
    flag = f"--{name.replace('_', '-')}" if name in FLAGS else f"--set {name}"
    assert facts["origin"] == f"option {flag}"
    assert allowed in caught.value.hint


def test_O06_an_unknown_name_is_refused_with_the_nearest_wherever_it_stands(file):
    path = file("hot_byte_max = 1")
    for how in ({"path": path}, {"environment": {"THERMOCLINE_HOT_BYTE_MAX": "1"}}):
        with pytest.raises(Invalid, match="no such setting") as caught:
            node_settings(**how)
        assert "hot_bytes_max" in caught.value.hint.lower()
    with pytest.raises(Invalid, match="no such setting") as caught:
        node_settings(path=file("[tenants.acme]\nquerys_max = 1"))
    assert caught.value.facts["setting"] == "tenants.acme.querys_max"
    assert "queries_max" in caught.value.hint


def test_O06_an_empty_variable_is_no_value_and_variables_of_others_are_left_alone():
    with pytest.raises(Invalid) as caught:
        node_settings({}, {"THERMOCLINE_DATA": ""})
    assert caught.value.facts["origin"] == "environment THERMOCLINE_DATA"
    others = {"THERMOCLINE_API_KEY": "x", "THERMOCLINE_TEST_S3_BUCKET": "x", "PATH": ""}
    assert node_settings({}, others) == NodeSettings()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tls_certificate": "a.pem"}, "tls_key"),
        ({"tls_key": "a.pem"}, "tls_certificate"),
        ({"http": "127.0.0.1:1", "api": "127.0.0.1:1"}, "give each listener its own"),
        (dict.fromkeys(("http", "grpc", "api", "flight"), "off"), "leave one"),
        ({"body_bytes_max": "2MB", "inflight_bytes_max": "1MB"}, "inflight_bytes_max"),
    ],
)
def test_O06_settings_that_contradict_each_other_are_refused(options, words):
    with pytest.raises(Invalid) as caught:
        node_settings(options)
    assert words in caught.value.hint


def test_two_listeners_may_both_take_any_port():
    settings = node_settings({"http": "127.0.0.1:0", "api": "127.0.0.1:0"})
    assert settings.http == settings.api


def test_O06_a_file_that_is_none_or_not_toml_is_refused(file, tmp_path):
    with pytest.raises(NotFound):
        node_settings({}, {}, str(tmp_path / "nothing.toml"))
    with pytest.raises(Invalid, match="the settings file is not TOML"):
        node_settings({}, {}, file("data: yes"))
    with pytest.raises(Invalid, match="quotas of a tenant"):
        node_settings({}, {}, file("tenants = 3"))
    with pytest.raises(Invalid, match="quotas of a tenant"):
        node_settings({}, {}, file('[tenants."a.b"]\nqueries_max = 1'))


def test_a_tenant_may_have_quotas_of_its_own_and_else_has_everybodys(file):
    path = file('queries_max = 3\n[tenants.acme]\ningest_bytes_per_s = "5MB"')
    settings = node_settings({}, {}, path)
    assert settings.quota_of("acme").ingest_bytes_per_s == 5_000_000
    assert settings.quota_of("acme").queries_max == settings.quota_of("other").queries_max == 3
    assert settings.quota_of("other").ingest_bytes_per_s == 0
    assert origin_of(settings, "tenants.acme.ingest_bytes_per_s") == f"file {path}"


@pytest.mark.parametrize(
    "secret",
    [
        "postgres://me:hush@host/x",
        "postgresql://me:hush@[::1]:5432/x",
        "host=db password=hush dbname=x",
        "host=db password='hush hush' dbname=x",
        "tck_abcdefgh_hush",
    ],
)
def test_A08_every_setting_is_described_and_nothing_secret_is(secret):
    told = node_settings({"data": secret}).describe()
    assert [one["setting"] for one in told] == NAMES
    assert "hush" not in str(told)
    with pytest.raises(Invalid) as caught:
        node_settings({"http": secret})
    assert "hush" not in str(caught.value)


def test_a_lake_takes_the_names_it_always_did():
    assert read_lake_settings({"sync": "os", "flush_look_s": 1e9}).wal.sync is Sync.OS
    assert read_lake_settings({}) == LakeSettings()
    with pytest.raises(Invalid, match="no such setting"):
        read_lake_settings({"data": "x"})


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.just([1])
)


@given(st.dictionaries(st.sampled_from([*NAMES, "sink", "htp"]), values, max_size=3))
def test_O06_whatever_is_given_is_either_taken_or_refused_in_our_words(given_options):
    try:
        settings = node_settings(given_options)
    except ThermoclineError as refused:
        told = refused.hint
    else:
        told = settings.connections_max >= 1 and settings.lake.wal.hot_bytes_max >= 0
    assert told


@pytest.mark.parametrize(
    "dsn",
    [
        "password=correct-horse host=db",
        "password = correct-horse host=db",
        "host=db PASSWORD\t=  'correct-horse \\' battery' dbname=x",
        "host=db password=correct\\ horse-battery",
        "postgresql://me:correct-horse@db/x",
        "postgresql://db/x?user=me&password=correct-horse&sslpassword=horse-battery",
        "host=db sslpassword=correct-horse",
        "PGPASSWORD=correct-horse",
        "host=db oauth_client_secret = 'correct-horse' scram_client_key=horse",
        "host=db password='correct-horse",
    ],
)
def test_A08_every_spelling_of_a_password_is_masked(dsn):
    for shown in (redact(dsn), encode_line({"dsn": dsn}).decode()):
        assert "horse" not in shown
        assert "battery" not in shown
        assert "db" in shown or "PGPASSWORD" in dsn
