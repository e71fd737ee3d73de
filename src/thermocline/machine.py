"""How much of the machine this process may use: cores and memory.

In:   the operating system's limits for this process and its control groups
Out:  a number of cores, a number of bytes

- A container or a service with a quota sees every core of its host. Threads beyond its quota only
  wait for each other, and each takes memory.
- Limits of parent groups apply too: the smallest limit counts.
- If the system reports no limit, the limit is the whole machine.
"""

import math
import os
import posixpath
import sys
from collections.abc import Iterator
from contextlib import suppress

MEMBERSHIP = "/proc/self/cgroup"
GROUPS = "/sys/fs/cgroup"


def core_count() -> int:
    """Return how many cores this process may keep busy, at least one."""
    if sys.platform == "linux":
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    shares = (math.ceil(share) for share in _core_shares())
    return max(1, min([count, *shares]))


def memory_bytes() -> int:
    """Return how much memory this process and the others of its control group may use."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([whole, *_memory_limits()])


def _core_shares() -> Iterator[float]:
    for group in _list_groups("cpu"):
        with suppress(OSError, ValueError):  # "max" where there is no limit
            quota, period = _read(group, "cpu.max").split()
            yield int(quota) / int(period)
        with suppress(OSError, ValueError):
            quota = _read(group, "cpu.cfs_quota_us")
            if int(quota) > 0:  # -1 where there is no limit
                yield int(quota) / int(_read(group, "cpu.cfs_period_us"))


def _memory_limits() -> Iterator[int]:
    for group in _list_groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                yield int(_read(group, name))


def _list_groups(controller: str) -> Iterator[str]:
    """Yield the folder of each control group of this process, and of its parents."""
    with suppress(OSError):
        for line in _read(MEMBERSHIP).splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            # A line with controllers is of cgroup v1, which has a tree for each controller.
            tree = posixpath.join(GROUPS, controller) if controllers else GROUPS
            path = posixpath.normpath(path)
            while path.strip("/"):
                yield tree + path
                path = posixpath.dirname(path)
            # A container may see its group as the root, while the path is that of the host.
            yield tree


def _read(*path: str) -> str:
    with open(posixpath.join(*path)) as file:
        return file.read()
