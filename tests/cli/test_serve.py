"""serve --check: the settings as a start would have them, or why it would not start."""

import pytest


def origins(ran):
    return {one["setting"]: one["origin"] for one in ran.json()["settings"]}


def test_the_settings_are_shown_with_their_origins_and_nothing_is_made(shell):
    (shell.folder / "node.toml").write_text('flush_age_s = "30s"\nquery_timeout_s = 5')
    words = ("serve", "--config", "node.toml", "--set", "query_timeout_s=7", "--check", "--json")
    ran = shell.run(*words, THERMOCLINE_DATA="there")
    assert ran.code == 0
    found = origins(ran)
    assert found["flush_age_s"] == "file node.toml"
    assert found["query_timeout_s"] == "option --set query_timeout_s"
    assert found["data"] == "environment THERMOCLINE_DATA"
    assert found["api"] == "default"
    assert [path.name for path in shell.folder.iterdir()] == ["node.toml"]
    lines = shell.run(*words[:-1], THERMOCLINE_DATA="there").out.splitlines()
    assert ["flush_age_s", "30.0", "(file", "node.toml)"] in [line.split() for line in lines]


@pytest.mark.parametrize(
    ("words", "environment", "code", "hint"),
    [
        (("--set", "flush_age=3"), {}, 2, "flush_age_s"),
        (("--set", "flush_age_s"), {}, 2, "NAME=VALUE"),
        (("--http", "4318"), {}, 2, "127.0.0.1:4318"),
        ((), {"THERMOCLINE_HTPP": "x"}, 2, "THERMOCLINE_HTTP"),
        ((), {"THERMOCLINE_HOT_BYTES_MAX": "many"}, 2, "64MB"),
        (("--api", "0.0.0.0:4320"), {}, 2, "--allow-insecure"),
        (("--tls-key", "a.key"), {}, 2, "tls_certificate"),
        (("--config", "nothing.toml"), {}, 3, "check the path"),
    ],
)
def test_O06_what_a_start_would_refuse_is_refused(shell, words, environment, code, hint):
    ran = shell.run("serve", *words, "--check", **environment)
    assert ran.code == code
    assert hint in ran.told()[2]


def test_an_explicit_flag_lets_an_address_be_unprotected(shell):
    ran = shell.run("serve", "--api", "0.0.0.0:4320", "--allow-insecure", "--check", "--json")
    assert ran.code == 0
    assert origins(ran)["allow_insecure"] == "option --allow-insecure"
