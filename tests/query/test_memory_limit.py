"""The memory limit: allocations past it fail, and shared memory does not count."""

import subprocess
import sys
from pathlib import Path

import pytest

from thermocline.query.worker.memory_limit import ALLOWANCE_BYTES, private_bytes

MIB = 1 << 20


def run(program):
    """Run a program under a memory limit; return its exit code and its output."""
    module = "thermocline.query.worker.memory_limit"
    lines = f"import mmap, os, resource\nfrom {module} import *\nMIB = 1 << 20\n"
    done = subprocess.run(
        [sys.executable, "-c", lines + program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.split()


TAKE = """
def take(size):
    try:
        return len(bytearray(size))
    except MemoryError:
        return "refused"
"""


def test_private_memory_grows_with_what_is_taken():
    before = private_bytes()
    taken = bytearray(64 * MIB)
    assert private_bytes() - before >= 64 * MIB
    assert len(taken) == 64 * MIB


def test_what_fits_before_the_wall_is_given_and_what_does_not_is_refused():
    program = TAKE + (
        "set_memory_limit(64 * MIB, 32 * MIB)\n"
        "print(take(80 * MIB), take(120 * MIB), take(4000 * MIB), take(80 * MIB))"
    )
    assert run(program) == (0, [str(80 * MIB), "refused", "refused", str(80 * MIB)])


def test_many_small_pieces_meet_the_wall_too():
    program = (
        "limit = set_memory_limit(64 * MIB, 32 * MIB)\n"
        "kept = []\n"
        "try:\n"
        "    while len(kept) < 1000:\n"
        "        kept.append(bytes(MIB))\n"
        "except MemoryError:\n"
        "    pass\n"
        "count, kept = len(kept), None\n"
        "print(count)"
    )
    code, (count,) = run(program)
    assert code == 0
    assert 64 <= int(count) <= 96


def test_without_a_wall_the_same_is_given():
    assert run(TAKE + "print(take(120 * MIB))") == (0, [str(120 * MIB)])


def test_the_wall_has_its_allowance_on_top_of_the_budget():
    program = "before = private_bytes()\nprint(set_memory_limit(256 * MIB) - before)"
    code, (given,) = run(program)
    assert code == 0
    assert abs(int(given) - 256 * MIB - ALLOWANCE_BYTES) < 4 * MIB


def test_the_wall_is_of_the_operating_system_and_leaves_no_core():
    program = (
        "limit = set_memory_limit(64 * MIB)\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA) == (limit, limit),"
        " resource.getrlimit(resource.RLIMIT_CORE))"
    )
    assert run(program) == (0, ["True", "(0,", "0)"])


def test_a_wall_is_never_built_further_out_than_one_that_is_there():
    program = "first = set_memory_limit(16 * MIB, 0)\nprint(set_memory_limit(64 * MIB, 0) <= first)"
    assert run(program) == (0, ["True"])


@pytest.mark.parametrize("size", [4, 200])
def test_room_is_told_and_not_taken(size):
    program = (
        "set_memory_limit(64 * MIB, 0)\n"
        "before = private_bytes()\n"
        f"print(can_allocate({size} * MIB), private_bytes() - before < MIB)"
    )
    assert run(program) == (0, [str(size < 64), "True"])


def test_shared_memory_that_is_only_read_does_not_count():
    program = (
        "file = os.memfd_create('rows')\n"
        "os.ftruncate(file, 400 * MIB)\n"
        "set_memory_limit(16 * MIB, 0)\n"
        "lent = mmap.mmap(file, 400 * MIB, mmap.MAP_SHARED, mmap.PROT_READ)\n"
        "print(sum(lent[place] for place in range(0, len(lent), 4096)), len(lent))"
    )
    assert run(program) == (0, ["0", str(400 * MIB)])


def test_files_may_be_opened_up_to_the_hardest_limit():
    program = (
        "_, hardest = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hardest))\n"
        "raise_file_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE) == (hardest, hardest))"
    )
    assert run(program) == (0, ["True"])


def test_the_wall_needs_nothing_of_the_engine():
    code, (loaded,) = run("import sys\nprint('duckdb' in sys.modules or 'pyarrow' in sys.modules)")
    assert (code, loaded) == (0, "False")
    assert Path("/proc/self/status").exists()
