"""The page about the pipeline: its settings are read, its programs run, its names are right."""

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from thermocline import connect
from thermocline.config import node_settings
from thermocline.pipeline.run.history import COLUMNS, NAME
from thermocline.pipeline.run.runner import JOB_ORDER, REQUESTED_JOBS
from thermocline.pipeline.run.settings import (
    PipelineSettings,
    describe_settings,
    pipeline_settings,
)

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "pipeline.md").read_text()


def blocks(language):
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_file_of_settings_is_one(tmp_path):
    (example,) = blocks("toml")
    path = tmp_path / "node.toml"
    path.write_text(example)
    found = pipeline_settings(node_settings({}, {}, str(path)).pipeline)
    assert [one.name for one in found.rollups] == ["metrics_5m", "metrics_1h"]
    assert found.spark == {"spark.executor.memory": "4g", "spark.executor.cores": "2"}
    assert found.limits.vacuum_grace == 30 * 86_400


def test_the_page_of_settings_has_every_one_with_its_default():
    page = (DOCS / "config.md").read_text()
    told = dict(re.findall(r"^\| `(pipeline\.[\w.]+)` \| `([^`]*)` \|", page, re.MULTILINE))
    known = {name: str(value) for name, value in describe_settings(PipelineSettings()).items()}
    assert told == known | {"pipeline.spark": "none"}


def test_every_job_and_column_that_is_named_is_there():
    jobs = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", PAGE, re.MULTILINE)
    assert jobs == [*JOB_ORDER, *reversed(REQUESTED_JOBS)]
    (query,) = blocks("sql")
    named = re.search(r"select (.*)\nfrom (\w+) where (\w+)", query)
    assert {*named[1].split(", "), named[3]} <= set(COLUMNS.names)
    assert named[2] == NAME


@pytest.mark.parametrize("place", range(3))
def test_the_programs_run_as_they_stand(tmp_path, place):
    with connect(tmp_path / "lake") as lake:
        metrics = lake.create_table("metrics", time_column="ts", bucket="1h")
        for minute in range(2):
            moment = datetime(2024, 6, 1, tzinfo=UTC) + timedelta(minutes=minute)
            metrics.write([{"ts": moment, "host": "a", "value": 1.0}])
            lake.flush()
    program = blocks("python")[place]
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    if place == 2:
        assert "host='a', count=2" in ran.stdout
