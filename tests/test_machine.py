"""What this process may use of the machine, by what the system says of its groups."""

import os
import subprocess
import sys

import pytest

from thermocline import machine
from thermocline.query.worker.pool import QueryPool

GIB = 1 << 30


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Let the system say that this process is in these groups, with these limits."""

    def tell(membership, files):
        (tmp_path / "membership").write_text(membership)
        for name, text in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(machine, "MEMBERSHIP", str(tmp_path / "membership"))
        monkeypatch.setattr(machine, "GROUPS", str(tmp_path / "groups"))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
        pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GIB // 4096}
        monkeypatch.setattr(os, "sysconf", pages.__getitem__)
        return machine.core_count(), machine.memory_bytes()

    return tell


SERVICE = "system.slice/node.service"
V1 = "3:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n"


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {}, (64, 64 * GIB)),
        ("", {"cpu.max": "100000 100000\n"}, (64, 64 * GIB)),
        ("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n"}, (64, 64 * GIB)),
        ("0::/\n", {"cpu.max": "200000 100000\n", "memory.max": f"{GIB}\n"}, (2, GIB)),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, (2, 64 * GIB)),
        ("0::/\n", {"cpu.max": "10000 100000\n"}, (1, 64 * GIB)),
        (f"0::/{SERVICE}\n", {f"{SERVICE}/cpu.max": "300000 100000\n"}, (3, 64 * GIB)),
        (
            f"0::/{SERVICE}\n",
            {
                f"{SERVICE}/cpu.max": "400000 100000\n",
                "system.slice/cpu.max": "100000 100000\n",
                f"{SERVICE}/memory.max": f"{4 * GIB}\n",
                "system.slice/memory.max": f"{2 * GIB}\n",
            },
            (1, 2 * GIB),
        ),
        ("0::/../other\n", {"cpu.max": "200000 100000\n"}, (2, 64 * GIB)),
        (
            V1,
            {
                "cpu/docker/abc/cpu.cfs_quota_us": "250000\n",
                "cpu/docker/abc/cpu.cfs_period_us": "100000\n",
                "cpu/cpu.cfs_quota_us": "-1\n",
                "cpu/cpu.cfs_period_us": "100000\n",
                "memory/docker/abc/memory.limit_in_bytes": f"{2 * GIB}\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            (3, 2 * GIB),
        ),
        (
            V1,
            {
                "cpu/cpu.cfs_quota_us": "50000\n",
                "cpu/cpu.cfs_period_us": "100000\n",
                "memory/memory.limit_in_bytes": f"{GIB}\n",
            },
            (1, GIB),
        ),
        ("0::/\n", {"cpu.max": "many\n", "memory.max": "much\n"}, (64, 64 * GIB)),
    ],
)
def test_the_smallest_limit_of_the_groups_holds(told, membership, files, expected):
    assert told(membership, files) == expected


def test_a_container_with_two_cores_of_many_starts_no_more_threads(told):
    told("0::/\n", {"cpu.max": "200000 100000\n"})
    with QueryPool(workers=2) as pool:
        assert pool._settings.threads == 1
    with QueryPool(workers=1) as pool:
        assert pool._settings.threads == 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux alone has it")
def test_a_process_that_is_bound_to_one_core_has_one():
    program = (
        "import os; from thermocline.machine import core_count; "
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); print(core_count())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert run.stdout == b"1\n"
