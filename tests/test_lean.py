"""A plain install: the base dependencies serve tables and SQL; a missing extra is named."""

import json
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest

from thermocline.extras import PACKAGES_OF_EXTRA, extra_with

REPOSITORY = Path(__file__).parents[1]

# Imports nothing but the standard library, this package and what `pip install thermocline` brings.
BLOCKER = """
import importlib.abc, importlib.metadata, json, sys
allowed = set(json.loads(sys.argv[1]))
class OnlyBase(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if not top.startswith("_") and top not in allowed | sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, OnlyBase())
"""


def base_distributions():
    """Return the distributions that a plain install of this package brings."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    found, waiting = set(), list(project["dependencies"])
    while waiting:
        requirement, _, condition = waiting.pop().partition(";")
        name = plain(re.match(r"[\w.-]+", requirement)[0])
        if name not in found and "extra ==" not in condition:
            with suppress(metadata.PackageNotFoundError):  # it is for another platform
                waiting += metadata.requires(name) or []
                found.add(name)
    return found


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def run_lean():
    """Run a program in a process that has the base dependencies alone."""
    base = base_distributions()
    modules = {
        module
        for module, names in metadata.packages_distributions().items()
        if base & set(map(plain, names))
    }
    allowed = json.dumps(sorted(modules | {"thermocline"}))

    def run(program, *words):
        return subprocess.run(
            [sys.executable, "-c", BLOCKER + program, allowed, *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_the_base_has_no_compiler_and_no_web_server():
    base = base_distributions()
    assert {"pyarrow", "duckdb", "typer"} <= base
    assert not base & {"numba", "llvmlite", "protobuf", "opentelemetry-proto", "grpcio", "uvicorn"}


def test_what_is_blocked_cannot_be_imported(run_lean):
    done = run_lean("import numba")
    assert "No module named 'numba'" in done.stderr


def test_tables_and_sql_work_without_any_extra(run_lean, tmp_path):
    program = """
from datetime import datetime
import pyarrow as pa
import thermocline as tc
table = tc.TimeSeriesTable.create(
    table_root=sys.argv[2] + "/t", time_column="ts", bucket="1h", entity_columns=["host"]
)
for hour, v in ((0, 1.5), (3, 2.5)):
    table.append(pa.table({"ts": [datetime(2024, 6, 1, hour)], "host": ["a"], "v": [v]}))
session = tc.Session()
session.register_tstable("t", sys.argv[2] + "/t")
assert session.sql("select sum(v) as s from t").to_pylist() == [{"s": 4.0}]
assert len(table.gaps("2024-06-01", "2024-06-01T04:00:00").to_pylist()) == 1
assert table.fsck().is_sound
with tc.connect(sys.argv[2] + "/lake") as lake:
    lake.create_table("m", time_column="ts", bucket="1m")
    lake.table("m").write([{"ts": "2024-06-01T00:00:00", "v": 1}])
    assert lake.sql("select count(*) as n from m").to_pylist() == [{"n": 1}]
print("fine")
"""
    done = run_lean(program, str(tmp_path))
    assert (done.stdout, done.stderr) == ("fine\n", "")


@pytest.mark.parametrize(
    ("call", "extra"),
    [
        ("tc.connect('http://127.0.0.1:1')", "client"),
        ("tc.connect(sys.argv[2], postgres='embedded').entity('a')", "entities"),
        ("tc.TimeSeriesTable.open('s3://bucket/table')", "object-store"),
        ("tc.spark.session('local[1]')", "spark"),
    ],
)
def test_a_missing_extra_is_an_error_that_names_the_command(run_lean, tmp_path, call, extra):
    program = f"""
import thermocline as tc
try:
    {call}
except tc.Unsupported as error:
    print(error.hint)
"""
    done = run_lean(program, str(tmp_path))
    assert f"pip install 'thermocline[{extra}]'" in done.stdout, done.stderr


@pytest.mark.parametrize("words", [["serve", "--data"], ["worker", "--data"]])
def test_a_command_without_its_extra_says_what_to_install(run_lean, tmp_path, words):
    program = """
from thermocline.cli.main import run
sys.argv = ["thermocline", *sys.argv[3:], sys.argv[2]]
sys.exit(run())
"""
    done = run_lean(program, str(tmp_path / "data"), *words)
    assert (done.returncode, "Traceback" in done.stderr) == (7, False)
    assert "pip install 'thermocline[" in done.stderr


def test_every_package_of_an_extra_is_found_by_its_modules():
    for extra, packages in PACKAGES_OF_EXTRA.items():
        for package in packages:
            assert extra_with(f"{package}.part") is not None, (extra, package)
    assert extra_with("pyarrow") is None
