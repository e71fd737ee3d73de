"""A hard memory limit for this process, enforced by the operating system.

In:   how much more memory than now the process may allocate
Out:  the limit, which holds until the process ends

- The limit is on private writable memory (`RLIMIT_DATA`). Files and shared memory that are only
  read do not count, so hot rows shared by another process do not use a query's budget.
- Past the limit an allocation fails: the engine reports that it is out of memory, or the process
  dies. Other processes are not affected.
- Memory that the process holds when the limit is set does not count: engine, libraries and threads
  are loaded before, and the budget comes on top.

Measured with a budget of 256 MiB, warm at 1,100 MiB of address space, 252 MiB of private memory
and 142 MiB resident, with an allowance in MiB on top (a query takes up to 120 above its budget):

    query                          no wall          DATA + 64    AS + 64      either + 256
    repeat('x', 2e9)               4 GB, 33 s       refused 0 s  refused 0 s  refused 0 s
    range(1e9) as a list           8 GB             refused 0 s  refused 0 s  refused 0 s
    list() of 5e8 rows             engine refuses at 0.3 s under every limit, 371 MB resident
    group by, 12 M groups          1.6 s, spills    1.5 s        1.9 s        1.5 s
    window over 12 M rows, 1 thr.  3.3 s, spills    3.3 s        4.0 s        3.1 s
    the same, 2 threads            3.3 s, spills    fails        fails        3.1 s

With 192 MiB one process answers all of them one after the other, at 399 MB resident at most. Both
limits hold. `RLIMIT_AS` also counts memory that is mapped but never touched (1 GiB reserved by
Arrow's allocator) and the shared hot rows, so it would have to be larger for the same effect.
"""

import mmap
import resource

from thermocline.errors import Unsupported

ALLOWANCE_BYTES = 192 << 20
"""Memory allowed above the engine's budget, for its allocators, Arrow batches and Python."""


def private_bytes() -> int:
    """Return the private writable memory of this process in bytes."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["VmData"].split()[0]) << 10
    except (OSError, KeyError, ValueError) as error:
        raise Unsupported(
            "the memory of a process cannot be limited here", hint="run it on Linux"
        ) from error


def set_memory_limit(budget_bytes: int, allowance_bytes: int = ALLOWANCE_BYTES) -> int:
    """Limit this process to its present memory plus budget and allowance; return the limit.

    It cannot be undone. Threads started later count, each with its stack.
    """
    limit = private_bytes() + budget_bytes + allowance_bytes
    _, hardest = resource.getrlimit(resource.RLIMIT_DATA)
    if hardest != resource.RLIM_INFINITY:
        limit = min(limit, hardest)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    # A process that dies at the limit must not write a core dump of its memory to disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return limit


def raise_file_limit() -> None:
    """Raise the limit of open files to its hard limit: an engine keeps about 100 files open."""
    _, hardest = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hardest, hardest))


def can_allocate(size_bytes: int) -> bool:
    """Tell whether this process could allocate so much more memory now, without keeping it."""
    try:
        mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        return False
    return True
