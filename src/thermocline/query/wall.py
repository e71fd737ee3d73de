"""A limit on the memory of this process that nothing running in it can pass.

In:   how much more than now the process may take
Out:  the limit, set at the operating system for the rest of the process's life

- The limit is on private writable memory (`RLIMIT_DATA`). Files and shared memory that are only
  read do not count, so hot rows lent by another process cost a query nothing of its budget.
- Past it an allocation fails: the engine says that it is out of memory, or the process dies.
  Nothing else on the machine notices either way.
- What the process holds when the wall is built is its own affair: engine, libraries and threads
  are loaded before, and the budget is what comes on top.

Measured with a budget of 256 MiB, warm at 1,100 MiB of address space, 252 MiB of private memory
and 142 MiB resident, with an allowance in MiB on top (a query takes up to 120 above its budget):

    query                          no wall          DATA + 64    AS + 64      either + 256
    repeat('x', 2e9)               4 GB, 33 s       refused 0 s  refused 0 s  refused 0 s
    range(1e9) as a list           8 GB             refused 0 s  refused 0 s  refused 0 s
    list() of 5e8 rows             engine refuses at 0.3 s under every limit, 371 MB resident
    group by, 12 M groups          1.6 s, spills    1.5 s        1.9 s        1.5 s
    window over 12 M rows, 1 thr.  3.3 s, spills    3.3 s        4.0 s        3.1 s
    the same, 2 threads            3.3 s, spills    fails        fails        3.1 s

With 192 all of them are answered, one after the other in one process, at 399 MB resident at most.
Both limits hold. `RLIMIT_AS` also counts what is mapped but never touched (1 GiB reserved by
Arrow's allocator) and the lent hot rows, so the same wall would have to stand further out.
"""

import mmap
import resource

from thermocline.errors import Unsupported

ALLOWANCE_BYTES = 192 << 20
"""What a process may take above the engine's budget: its allocators, Arrow batches, Python."""


def private_bytes() -> int:
    """Return how much private writable memory this process has mapped."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["VmData"].split()[0]) << 10
    except (OSError, KeyError, ValueError) as error:
        raise Unsupported(
            "the memory of a process cannot be limited here", hint="run it on Linux"
        ) from error


def build_wall(budget_bytes: int, allowance_bytes: int = ALLOWANCE_BYTES) -> int:
    """Let this process take budget and allowance on top of what it has; return the limit.

    It cannot be undone. Threads started later count, each with its stack.
    """
    limit = private_bytes() + budget_bytes + allowance_bytes
    _, hardest = resource.getrlimit(resource.RLIMIT_DATA)
    if hardest != resource.RLIM_INFINITY:
        limit = min(limit, hardest)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    # A process that dies at the wall leaves no copy of its memory on the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return limit


def allow_files() -> None:
    """Let this process open as many files as it may ever: an engine keeps about 100 open."""
    _, hardest = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hardest, hardest))


def has_room(size_bytes: int) -> bool:
    """Tell whether this process could take so much more now; nothing is taken."""
    try:
        mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        return False
    return True
