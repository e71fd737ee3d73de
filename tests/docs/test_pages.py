"""The pages for people: their programs run from top to bottom, their commands and links exist."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from docs import public_api
from fixtures.served import ServedNode

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("data-engineer", "saas", "sre", "python")
PAGES = {name: (DOCS / f"{name}.md").read_text() for name in NAMES}
LIMIT_S = 300


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def told_by(page, folder):
    """Run a page's program from top to bottom in a folder; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", "".join(blocks(PAGES[page], "python"))],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_program_for_teams_with_entities_runs():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # as root, PostgreSQL runs as another user, who must get there
        told = told_by("saas", folder)
    for seen in ("/hours", "/state", "by_channel", "zeta"):
        assert seen in told


def test_the_program_for_data_engineers_runs(tmp_path):
    told = told_by("data-engineer", tmp_path)
    assert "2024-06-03" in told
    assert "replace" in told


def test_every_question_for_those_who_run_services_is_answered(tmp_path):
    node = ServedNode(str(tmp_path)).ready()
    try:
        node.send_log(1)
        for signal, body in (("metrics", POINT), ("traces", SPAN)):
            assert node.ask(f"/v1/{signal}", body, listener="http")[0] == 200
        asked = blocks(PAGES["sre"], "sql")
        answers = [node.ask("/api/v1/query", {"sql": query})[:2] for query in asked]
    finally:
        node.stop()
    assert len(answers) == 4
    assert [status for status, _ in answers] == [200] * 4, answers
    assert answers[1][1]["rows"][0]["name"] == "GET"
    assert answers[2][1]["rows"][0]["visits"] == 3


NOW, THEN = "1717200001000000000", "1717200000000000000"
IDS = {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331"}
SPAN = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {**IDS, "name": "GET", "startTimeUnixNano": THEN, "endTimeUnixNano": NOW}
                    ]
                }
            ]
        }
    ]
}
POINT = {
    "resourceMetrics": [
        {
            "scopeMetrics": [
                {
                    "metrics": [
                        {
                            "name": "shop.visits",
                            "sum": {
                                "aggregationTemporality": 2,
                                "isMonotonic": True,
                                "dataPoints": [{"timeUnixNano": NOW, "asInt": "3"}],
                            },
                        }
                    ]
                }
            ]
        }
    ]
}


def test_the_tables_of_the_python_page_are_those_of_the_code():
    page = public_api.PAGE.read_text()
    assert page == public_api.written(page), "run: python tests/docs/public_api.py"


def test_every_public_name_is_on_the_python_page():
    import thermocline

    assert [name for name in thermocline.__all__ if f"tc.{name}" not in PAGES["python"]] == []


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_every_link_of_a_page_leads_somewhere(path):
    linked = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
    here = [link for link in linked if "://" not in link]
    assert [link for link in here if not (path.parent / link).exists()] == []
