"""The pages for people: their programs run from top to bottom, their queries are answered."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

import thermocline as tc
from docs import public_api
from fixtures.served import ServedNode
from thermocline.ingest.otlp.tables import TABLES

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("data-engineer", "saas", "sre", "python")
PAGES = {name: (DOCS / f"{name}.md").read_text() for name in NAMES}
LIMIT_S = 300


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def run_program(page, folder, **environment):
    """Run a page's program from top to bottom in a folder; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", "".join(blocks(PAGES[page], "python"))],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def console_lines(page, command):
    """Return the words of each line in a page's consoles that runs a command."""
    lines = [line for block in blocks(PAGES[page], "console") for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines), lines
    words = [shlex.split(line[2:], comments=True) for line in lines]
    return [one for one in words if one[0] == command]


@pytest.mark.parametrize(
    ("page", "extra"), [("data-engineer", ""), ("saas", "[entities]"), ("sre", "[server]")]
)
def test_every_page_for_people_begins_with_the_install_line(page, extra):
    first = re.search(r"pip install \"?(thermocline\S*?)\"?(?:\s|$)", PAGES[page], re.MULTILINE)
    assert first[1] == f"thermocline{extra}"
    assert first.start() < PAGES[page].index("```python"), "before the first program"


def test_the_program_for_teams_with_entities_runs():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # as root, PostgreSQL runs as another user, who must get there
        printed = run_program("saas", folder)
    for seen in ("/hours", "/state", "by_channel", "zeta"):
        assert seen in printed


def test_the_program_and_the_commands_for_data_engineers_run(tmp_path):
    printed = run_program("data-engineer", tmp_path)
    assert "2024-06-03" in printed
    assert "replace" in printed
    ran = []
    for words in console_lines("data-engineer", "thermocline"):
        command = [sys.executable, "-m", "thermocline.cli.main", *words[1:]]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, (words, done.stderr)
        ran.append(words[1:3])
    assert ran == [["pipeline", "backfill"], ["pipeline", "run"], ["gaps", "lake/readings"]]
    with tc.connect(tmp_path / "lake", read_only=True) as lake:
        assert lake.sql("select count(*) as n from readings").to_pylist() == [{"n": 48}]


def test_what_the_page_for_services_sends_is_what_its_queries_find(tmp_path):
    ((_, *words),) = console_lines("sre", "thermocline")
    assert words[:2] == ["serve", "--data"]
    (send, ask) = console_lines("sre", "curl")
    node = ServedNode(str(tmp_path)).ready()
    try:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{node.port('http')}"}
        run_program("sre", tmp_path, **endpoint)
        assert "localhost:4318/v1/logs" in send
        assert node.ask("/v1/logs", json.loads(send[-1]), listener="http")[0] == 200
        assert "localhost:4320/api/v1/query" in ask
        status, answer, _ = node.ask("/api/v1/query", json.loads(ask[-1]))
        assert (status, answer["rows"]) == (200, [{"service_name": "shop", "n": 1}])
        queries = blocks(PAGES["sre"], "sql")
        answers = [node.ask("/api/v1/query", {"sql": query})[:2] for query in queries]
    finally:
        node.stop()
    assert [status for status, _ in answers] == [200] * 10, answers
    found = [answer["rows"] for _, answer in answers]
    visits, routes, filled = (found[place - 1] for place in (1, 2, 6))
    errors, slowest, gaps = (found[place - 1] for place in (7, 8, 10))
    assert errors == [{"service_name": "shop", "errors": 1}]
    assert (slowest[0]["name"], slowest[0]["spans"]) == ("GET /basket", 1)
    assert sum(row["visits_per_second"] for row in visits) * 60 == pytest.approx(5)
    assert [row for row in filled if row["visits_per_second"] is not None] == visits
    assert [row["route"] for row in routes][:1] == ["/basket"]
    assert gaps == []


START_S = 1_717_200_000  # a full minute
SAMPLES = [
    # service, series, seconds after the start, value, when the process began to count
    ("shop", 1, 0, 100, 0),  # the first sample: counted before anyone looked
    ("shop", 1, 30, 107, 0),
    ("shop", 1, 60, 110, 0),
    ("shop", 1, 90, 4, 80),  # a restart: the value fell
    ("shop", 1, 120, 9, 80),
    ("shop", 1, 150, 12, 140),  # another one, which counted past the value before it
    ("shop", 2, 65, 50, 0),  # a series that begins later
    ("shop", 2, 125, 51, 0),
    ("bank", 3, 10, 7, None),  # a sender that does not say when it began to count
    ("bank", 3, 70, 7, None),
    ("bank", 3, 80, 2, None),  # a restart all the same
]


@pytest.fixture
def counted(tmp_path):
    """A lake with the points of a counter, and points of the kinds that are no such counter."""
    table = TABLES["metric_points"]
    kept = {"metric": "shop.visits", "type": "sum", "temporality": "cumulative"}
    rows = [_sample(*sample, **kept, is_monotonic=True) for sample in SAMPLES]
    rows.append(_sample("shop", 1, 45, None, 0, **kept, is_monotonic=True))  # nothing recorded
    for odd in ({"temporality": "delta"}, {"is_monotonic": False}):
        rows += [
            _sample("odd", 9, s, s, 0, **{**kept, "is_monotonic": True, **odd}) for s in (0, 9)
        ]
    with tc.connect(tmp_path / "lake") as lake:
        made = lake.create_table(table.name, **table.creation_options())
        made.cold.adopt_columns(table.schema, evolve=True)
        made.write(rows)
        yield lake


def _sample(service, series, after_s, value, began_s, **more):
    moment = datetime.fromtimestamp(START_S + after_s, UTC)
    return {
        "ts": moment,
        "ts_ns": (START_S + after_s) * 10**9,
        "service_name": service,
        "series_id": series,
        "value": None if value is None else float(value),
        "start_ns": None if began_s is None else (START_S + began_s) * 10**9,
        **more,
    }


def test_the_increase_of_a_counter_minds_restarts_and_first_samples(counted):
    page = (DOCS / "otlp.md").read_text()
    (query,) = [one for one in blocks(page, "sql") if "increase" in one]
    found = {one["service_name"]: one["increase"] for one in counted.sql(query).to_pylist()}
    # The second series of the shop began a minute before its first sample, so its 50 count.
    assert found == {"shop": 7 + 3 + 4 + 5 + 12 + 50 + 1, "bank": 0 + 2, "odd": 0 + 9}


def test_the_tables_of_the_python_page_are_those_of_the_code():
    page = public_api.PAGE.read_text()
    assert page == public_api.written(page), "run: python tests/docs/public_api.py"


def test_every_public_name_is_on_the_python_page():
    import thermocline

    assert [name for name in thermocline.__all__ if f"tc.{name}" not in PAGES["python"]] == []
