"""The walls around a query worker, tried from inside of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.wal import ticks
from thermocline.config import LakeSettings
from thermocline.node import open_lake
from thermocline.query.worker.sandbox import has_call_filter, landlock_version

TRY = """
import os, socket, subprocess, sys, threading
from thermocline.query.worker.sandbox import confine_worker
walls = confine_worker([sys.argv[1]], sys.argv[2])
found = {}
def attempt(name, work):
    try:
        work()
        found[name] = "done"
    except OSError as error:
        found[name] = "refused"
def attack():
    attempt("read a secret", lambda: open(sys.argv[3]).read())
    attempt("list a folder", lambda: os.listdir(os.path.dirname(sys.argv[3])))
    attempt("make a file", lambda: open(sys.argv[3] + ".new", "w"))
    attempt("call a host", lambda: socket.socket())
    attempt("start a program", lambda: os.execv("/bin/true", ["true"]))
    attempt("read a table", lambda: open(os.path.join(sys.argv[1], "table")).read())
    attempt("spill", lambda: open(os.path.join(sys.argv[2], "spilled"), "w").write("x"))
thread = threading.Thread(target=attack)
thread.start()
thread.join()
print(walls.files, walls.calls, found)
"""


@pytest.mark.skipif(not landlock_version() or not has_call_filter(), reason="an older kernel")
def test_a_worker_reads_tables_and_nothing_else_and_calls_no_host(tmp_path):
    for name in ("tables", "spill", "private"):
        (tmp_path / name).mkdir()
    (tmp_path / "tables" / "table").write_text("rows")
    secret = tmp_path / "private" / "keys.json"
    secret.write_text("secret")
    folders = [str(tmp_path / "tables"), str(tmp_path / "spill"), str(secret)]
    command = [sys.executable, "-c", TRY, *folders]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    refused = ("read a secret", "list a folder", "make a file", "call a host", "start a program")
    expected = dict.fromkeys(refused, "refused") | {"read a table": "done", "spill": "done"}
    assert told.stdout.strip() == f"True True {expected}"
    assert not Path(f"{secret}.new").exists()


def test_a_worker_of_a_lake_has_no_environment_and_answers_as_before(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_NODE", "correct-horse")
    with open_lake(tmp_path / "lake", LakeSettings(query_workers=1)) as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h")
        table.write(ticks(1, 2))
        lake.flush()
        table.write(ticks(3))
        assert lake.sql("select count(*) as n from m").to_pylist() == [{"n": 3}]
        (worker,) = lake.node.pool.worker_ids()
        environment = Path(f"/proc/{worker}/environ").read_bytes()
        assert b"correct-horse" not in environment
        assert b"PATH=" not in environment.replace(b"LD_LIBRARY_PATH=", b"")
        if has_call_filter():
            status = Path(f"/proc/{worker}/status").read_text()
            assert "Seccomp:\t2" in status
        lake.sql("select count(*) from range(3000000) a(i) group by hash(i) limit 1")  # may spill
    assert not os.path.exists(f"/proc/{worker}")
