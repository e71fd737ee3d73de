"""What is in deploy/ fits the command, its settings and its promises."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fixtures.served import ServedNode
from server.test_serve import certificate
from thermocline.config import NodeSettings, node_settings

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
NODE_DATA = "/var/lib/thermocline"
OPERATIONS = (REPOSITORY / "docs" / "operations.md").read_text()


def unit():
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(DEPLOY / "thermocline.service")
    return parser


def seconds(text):
    number, word = re.fullmatch(r"(\d+)(s|min)?", text).groups()
    return int(number) * (60 if word == "min" else 1)


def test_the_unit_runs_a_command_that_exists_and_waits_for_its_word():
    service = unit()["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[1:3] == ["serve", "--config"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert service["ExecReload"].endswith("-HUP $MAINPID")


def test_the_unit_gives_a_stop_more_time_than_it_takes():
    assert seconds(unit()["Service"]["TimeoutStopSec"]) > NodeSettings().stop_deadline_s + 10


def test_the_unit_is_hardened_and_not_root():
    service = unit()["Service"]
    assert service["User"] == "thermocline"
    assert (service["UMask"], service["StateDirectoryMode"]) == ("0077", "0700")
    for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "RestrictSUIDSGID"):
        assert service[name] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""


def test_the_unit_does_not_restart_what_a_person_must_look_at():
    from thermocline.error_table import ERROR_TABLE
    from thermocline.errors import Corruption, Invalid, NotFound, Unsupported

    kinds = (Invalid, NotFound, Unsupported, Corruption)
    codes = {str(ERROR_TABLE[kind].exit_code) for kind in kinds}
    assert set(unit()["Service"]["RestartPreventExitStatus"].split()) == codes


def test_systemd_knows_every_line_of_the_unit(tmp_path):
    """Where there is no systemd, that no line is written twice or without a value is all."""
    text = (DEPLOY / "thermocline.service").read_text()
    command = shutil.which("systemd-analyze")
    if command is not None:
        # What is installed elsewhere is not here: the programs and the user.
        text = re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", text)
        (tmp_path / "thermocline.service").write_text(text)
        words = [command, "verify", "--man=no", str(tmp_path / "thermocline.service")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert "thermocline.service:" not in done.stderr, done.stderr
    names = [line.partition("=")[0] for line in text.splitlines() if re.match(r"[A-Z]\w+=", line)]
    assert len(names) == len(set(names)) > 30


def test_the_settings_file_is_one(tmp_path):
    settings = node_settings({}, {}, str(DEPLOY / "node.toml"))
    assert settings.data == unit()["Service"]["WorkingDirectory"] == "/var/lib/thermocline"
    text = (DEPLOY / "node.toml").read_text()
    uncommented = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    path = tmp_path / "node.toml"
    path.write_text(uncommented.replace('lake_id = ""', 'lake_id = "0123"'))
    assert node_settings({}, {}, str(path)).tls_key == "/etc/thermocline/node.key"


def docker():
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.split(maxsplit=1) for line in text.splitlines() if line[:1].isalpha()]


def test_the_image_is_small_not_root_and_tells_its_health():
    steps = docker()
    bases = [rest for word, rest in steps if word == "FROM"]
    assert all(base.startswith("python:3.11-slim") for base in bases)
    (user,) = [rest for word, rest in steps if word == "USER"]
    assert user.split(":")[0] not in ("0", "root")
    (health,) = [rest for word, rest in steps if word == "HEALTHCHECK"]
    assert f":{NodeSettings().api.port}/health/ready" in health
    assert dict(steps)["STOPSIGNAL"] == "SIGTERM"
    exposed = {int(port) for port in dict(steps)["EXPOSE"].split()}
    assert exposed == {address.port for address in NodeSettings().listeners().values()}
    sources = [rest.split()[:-1] for word, rest in steps if word == "COPY" and "--from" not in rest]
    assert all((REPOSITORY / name).exists() for names in sources for name in names)


def test_the_build_sees_what_the_image_is_made_of_and_nothing_else():
    """What is in the folder besides, such as keys and environments, is not even sent."""
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    everything, *rules = [line for line in lines if line and not line.startswith("#")]
    assert everything == "*"
    seen = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = [rest.split()[:-1] for word, rest in docker() if word == "COPY"]
    sources = {name for names in copied if not names[0].startswith("--from") for name in names}
    assert seen == sources == {"pyproject.toml", "README.md", "src"}
    assert set(rules) - {f"!{name}" for name in seen} == {"**/__pycache__"}


@pytest.mark.parametrize("has_certificate", [False, True])
def test_the_health_check_tells_whether_a_node_is_ready(tmp_path, has_certificate):
    (health,) = [rest for word, rest in docker() if word == "HEALTHCHECK"]
    words = ()
    if has_certificate:
        pem, secret = certificate(tmp_path)
        words = ("--tls-certificate", str(pem), "--tls-key", str(secret))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # A proxy that the engine gave the container, where nobody is.
    surroundings = {**os.environ, "PATH": path, "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    with ServedNode(tmp_path / "data", *words) as node:
        command = health.partition("CMD ")[2].replace(":4320/", f":{node.port('api')}/")

        def code():
            words = ["/bin/sh", "-c", command]
            return subprocess.run(words, env=surroundings, check=False).returncode

        node.ready()
        # The engine asks again, too.
        assert any(code() == 0 for _ in range(20))
        node.stop()
        assert code() == 1


def test_the_compose_file_is_reached_from_this_machine_alone_and_has_a_key():
    from thermocline.server.access.guard import check_exposure, exposed_listeners

    composed = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    node, first = composed["services"]["node"], composed["services"]["first-key"]
    assert all(str(port).startswith("127.0.0.1:") for port in node["ports"])
    settings = node_settings({}, node["environment"])
    assert exposed_listeners(settings) == ["http", "grpc", "api", "flight"]
    check_exposure(settings, has_keys=True)
    assert "key create --first" in first["command"][0]
    assert node["depends_on"]["first-key"]["condition"] == "service_completed_successfully"
    assert seconds(node["stop_grace_period"]) > settings.stop_deadline_s + 10
    for service in (node, first):
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]


def test_what_queries_spill_is_not_memory_of_the_container():
    composed = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    node = composed["services"]["node"]
    mounted = dict(volume.split(":")[::-1] for volume in node["volumes"])
    assert mounted == {NODE_DATA: "data", "/tmp": "scratch"}
    assert set(composed["volumes"]) == set(mounted.values())
    assert "tmpfs" not in node


def test_our_containers_are_built_here_and_own_the_volumes_they_write():
    composed = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for service in composed["services"].values():
        assert (service["image"], service["pull_policy"]) == (composed["name"], "never")
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    grafana = yaml.safe_load((DEPLOY / "compose.grafana.yaml").read_text())
    key = grafana["services"]["grafana-key"]
    assert key["extends"] == {"file": "compose.yaml", "service": "first-key"}
    (user,) = [rest for word, rest in docker() if word == "RUN" and "useradd" in rest]
    owned = set(re.findall(r"install -d -m \d+ -o thermocline -g thermocline (\S+)", user))
    written = {volume.split(":")[1] for volume in key["volumes"]}
    assert owned == {NODE_DATA, *written}


def test_every_metric_that_the_page_names_exists(tmp_path):
    from dataclasses import asdict

    from thermocline.alert.alerter import AlertStatus
    from thermocline.care.keeper import CareStatus
    from thermocline.care.rounds import TableSums
    from thermocline.config import LakeSettings
    from thermocline.node import Node
    from thermocline.server.observe.metrics import Metrics

    metrics = Metrics()
    care = CareStatus(is_on=True, sums=tuple(asdict(TableSums()).items()))
    with Node(str(tmp_path / "lake"), LakeSettings(query_workers=1)) as node:
        metrics.watch(node, care=lambda: care)
        metrics.watch_alerts(lambda: {"default": AlertStatus()})
        text = metrics.render().decode()
    table = OPERATIONS.partition("## Metrics")[2].partition("## Log lines")[0]
    named = set(re.findall(r"`((?:thermocline|process)_\w+)`", table))
    assert len(named) > 12
    known = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    assert named <= known


def test_every_event_that_the_page_names_is_said_somewhere():
    lines = OPERATIONS.partition("## Log lines")[2].partition("## Stopping")[0]
    named = set(re.findall(r"`([a-z ]+)`", lines)) - {"time", "event"}
    package = REPOSITORY / "src" / "thermocline"
    paths = [path for part in ("server", "alert") for path in (package / part).rglob("*.py")]
    source = "".join(path.read_text() for path in paths)
    assert len(named) > 10
    assert {name for name in named if f'"{name}"' not in source} == set()
