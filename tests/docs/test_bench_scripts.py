"""The bench scripts run, answer `--help`, and write numbers into their section.

The quick forms only: small days, few rounds, the contenders that are always installed.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from thermocline.query.engine import Engine, EngineLimits

BENCH = Path(__file__).parents[2] / "bench"
LOCKS = {
    "allow_community_extensions",
    "allow_persistent_secrets",
    "allowed_directories",
    "allowed_paths",
    "autoinstall_known_extensions",
    "autoload_known_extensions",
    "default_transaction_invalidation_policy",
    "enable_external_access",
    "enable_progress_bar",  # on where the process has a terminal
    "lock_configuration",
    "max_temp_directory_size",
    "python_enable_replacements",
    "temp_directory",
}
SCRIPTS = (
    *("fhvhv.py", "peers.py", "append.py", "scan.py", "log.py", "union.py", "ingest.py"),
    *("entities.py", "entities_read.py", "contract.py", "otlp_decode.py", "export.py"),
    *("spark.py", "compact.py", "rollup.py", "growth.py", "metrics.py", "before.py"),
    *("iceberg.py", "logs.py"),
)


def run(script, *arguments, data):
    environment = {**os.environ, "THERMOCLINE_BENCH_DATA": str(data)}
    command = [sys.executable, str(BENCH / script), *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def numbers(section, first_cell):
    line = next(line for line in section.splitlines() if line.startswith(f"| {first_cell}"))
    return [float(found.replace(",", "")) for found in re.findall(r"\d[\d,]*\.?\d*", line)]


def load(name):
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_says_how_it_is_used(script, tmp_path):
    done = run(script, "--help", data=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout


def test_the_same_seed_gives_the_same_day(tmp_path):
    for folder in ("one", "two"):
        done = run("fhvhv.py", "--quick", data=tmp_path / folder)
        assert done.returncode == 0, done.stderr
    first, second = (sorted((tmp_path / f).rglob("*.parquet")) for f in ("one", "two"))
    assert len(first) == 2
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    assert first[0].read_bytes() != first[1].read_bytes()


@pytest.mark.slow
def test_the_append_bench_writes_its_numbers(tmp_path):
    results = tmp_path / "results.md"
    only = ("--only", "thermocline,duckdb,floor")
    done = run("append.py", "--quick", *only, "--results", str(results), data=tmp_path)
    assert done.returncode == 0, done.stderr
    section = results.read_text()
    for contender in ("thermocline", "duckdb", "floor"):
        assert numbers(section, f"{contender} |")[0] > 0
    assert numbers(section, "thermocline / floor")[1] > 0


@pytest.mark.slow
def test_the_scan_bench_writes_its_numbers(tmp_path):
    results = tmp_path / "results.md"
    only = ("--only", "thermocline,thermocline-new-text,duckdb")
    done = run("scan.py", "--quick", *only, "--results", str(results), data=tmp_path)
    assert done.returncode == 0, done.stderr
    section = results.read_text()
    for query in ("q1", "q2", "q3", "q4", "q5", "q6"):
        assert all(number > 0 for number in numbers(section, f"{query} ")[-3:])
        assert numbers(section, f"{query} |")[1] > 0


@pytest.mark.slow
def test_the_log_bench_writes_its_numbers(tmp_path):
    results = tmp_path / "results.md"
    done = run("log.py", "--quick", "--results", str(results), data=tmp_path)
    assert done.returncode == 0, done.stderr
    section = results.read_text()
    assert all(number > 0 for number in numbers(section, "1,099 |")[2:5])
    assert all(number > 0 for number in numbers(section, "open and gaps")[:3])


@pytest.mark.slow
def test_the_growth_bench_writes_its_numbers(tmp_path):
    results = tmp_path / "results.md"
    only = ("--only", "thermocline", "--parts", "append")
    done = run("growth.py", "--quick", *only, "--results", str(results), data=tmp_path)
    assert done.returncode == 0, done.stderr
    section = results.read_text()
    for work in ("10 rows to", "first gaps", "delete(where)", "count(*)", "append of a day"):
        assert numbers(section, work)[1] > 0
    assert numbers(section, "their sidecar")[0] > 0


@pytest.mark.slow
def test_the_metrics_bench_writes_its_numbers(tmp_path):
    results = tmp_path / "results.md"
    done = run("metrics.py", "--quick", "--results", str(results), data=tmp_path)
    assert done.returncode == 0, done.stderr
    section = results.read_text()
    for question in ("rate by service", "first list", "list of series"):
        assert all(number > 0 for number in numbers(section, question))


@pytest.mark.slow
def test_the_union_bench_writes_its_numbers(tmp_path):
    results = tmp_path / "results.md"
    done = run("union.py", "--quick", "--results", str(results), data=tmp_path)
    assert done.returncode == 0, done.stderr
    section = results.read_text()
    for query in ("q3", "q4", "q5", "q6", "2 h"):
        assert all(number > 0 for number in numbers(section, query)[-5:])
    assert numbers(section, "2 |")[2] > 0
    for rows_a_write in ("1,000", "100", "10"):
        assert all(number > 0 for number in numbers(section, f"{rows_a_write} |"))
    for way in ("whole writes", "the journal alone"):
        assert all(number > 0 for number in numbers(section, f"{way} |"))


def test_the_yardstick_has_every_setting_of_our_engine_but_its_locks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    yardstick = load("scanners").DuckDb()
    yardstick.open({"root": "", "files": []})
    engine = Engine([], [], EngineLimits())
    ask = "select name, value from duckdb_settings()"
    ours = dict(engine.cursor().execute(ask).fetchall())
    theirs = dict(yardstick._connection.execute(ask).fetchall())
    engine.close()
    assert {name for name in ours if ours[name] != theirs[name]} <= LOCKS


def test_writing_one_section_leaves_the_others_as_they_were(tmp_path):
    measure = load("measure")
    path = tmp_path / "results.md"
    measure.write_section(path, "scan", "## Scan\n\nfirst")
    measure.write_section(path, "append", "## Append\n\nkept | as it is")
    before = path.read_text()
    measure.write_section(path, "scan", "## Scan\n\nsecond")
    assert path.read_text() == before.replace("first", "second")
    assert before.index("## Append") < before.index("## Scan")


def test_a_ratio_pairs_runs_of_one_round_so_that_drift_cancels():
    measure = load("measure")
    slowing = [1.0, 2.0, 10.0, 50.0]
    samples = [measure.Sample("base", "t", turn, s, s) for turn, s in enumerate(slowing)]
    samples += [measure.Sample("other", "t", turn, s * 3, s) for turn, s in enumerate(slowing)]
    samples.append(measure.Sample("other", "t", 4, 1000.0, 1.0))
    assert measure.ratio(samples, "other", "base") == pytest.approx(3.0)


@pytest.mark.parametrize("count", [2, 3, 6, 7])
def test_contenders_follow_each_other_equally_often_and_are_first_equally_often(count):
    measure = load("measure")
    names = [str(place) for place in range(count)]
    rounds = [order for _, order in measure.orders(names, measure.rounds_balanced(count, 1))]
    assert all(sorted(order) == names for order in rounds)
    after = Counter(pair for order in rounds for pair in pairwise(order))
    assert len(after) == count * (count - 1)
    assert len(set(after.values())) == 1
    assert len(set(Counter(order[0] for order in rounds).values())) == 1
