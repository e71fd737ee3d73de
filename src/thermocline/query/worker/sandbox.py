"""Confines a worker process: no network, no other program, and only the files that it needs.

In:   folders that the process may read, and one that it may write
Out:  which walls the kernel has put up

- Landlock limits the files. The worker reads this program, its libraries and the tables' folders,
  and writes its spill folder. Other files do not exist for it: keys, the journal, other programs.
- A seccomp filter refuses new sockets (all but those it already has), `execve`, `ptrace` and the
  like: a query that took over the worker could neither call another host nor start a program.
- Both hold for all threads, so they are set before the first thread starts, and cannot be undone.
- A kernel without one of them still runs the worker: the gate and the engine's settings refuse
  files and hosts as well. `thermocline doctor` says what the kernel has.

The system calls are made here with `ctypes`: the two structures are a few lines and never change,
and a library would be one more program inside of the walls.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

_NR_LANDLOCK_CREATE, _NR_LANDLOCK_ADD, _NR_LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION = 1
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_FILTER = 38, 22, 2
_READ = 1 << 2 | 1 << 3  # read a file, list a folder
_ALL_OF_1 = (1 << 13) - 1  # every right of the first version: also write, make and remove
_REFER, _TRUNCATE, _DEVICES = 1 << 13, 1 << 14, 1 << 15  # versions 2, 3 and 5
_TCP = 0b11  # bind and connect, version 4

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED = {
    # socket, connect, bind, listen, accept, accept4, execve, execveat, ptrace, process_vm_readv,
    # process_vm_writev, mount, bpf, io_uring_setup, keyctl, add_key, unshare, setns
    "x86_64": (41, 42, 49, 50, 43, 288, 59, 322, 101, 310, 311, 165, 321, 425, 250, 248, 272, 308),
    "aarch64": (
        198,
        203,
        200,
        201,
        202,
        242,
        221,
        281,
        117,
        270,
        271,
        40,
        280,
        425,
        219,
        217,
        97,
        268,
    ),
}
_X32_BIT = 0x40000000


_SYSTEM_FILES: tuple[str, ...] = (
    "/usr",
    "/lib",
    "/lib64",
    "/etc/localtime",
    "/etc/ld.so.cache",
    "/proc",
    "/dev/null",
)
_SYSTEM_FILES += ("/sys/fs/cgroup", "/sys/devices/system/cpu", "/dev/urandom", "/dev/zero")


@dataclass(frozen=True, slots=True)
class Walls:
    """What confines a process: its files, and its system calls."""

    files: bool
    calls: bool


def landlock_version() -> int:
    """Return the version of Landlock that the kernel has; 0 for none."""
    found = _syscall(_NR_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION)
    return max(0, found)


def has_call_filter() -> bool:
    """Tell whether the kernel can filter system calls on this architecture."""
    if platform.machine() not in _ARCHITECTURES:
        return False
    return os.path.exists("/proc/sys/kernel/seccomp/actions_avail")


def confine_worker(folders: Sequence[str], spill: str) -> Walls:
    """Confine a worker to these folders of tables; without any, it is not confined."""
    if not folders:
        return Walls(files=False, calls=False)
    for folder in folders:  # a rule needs its folder: the first tenant may come later
        with suppress(OSError):
            os.makedirs(folder, mode=0o700, exist_ok=True)
    program = [sys.prefix, sys.base_prefix, *sys.path]
    # A reader writes pins beside the segments that it reads, so tables are writable.
    return confine([*program, *_SYSTEM_FILES], [*folders, spill])


def confine(readable: Iterable[str], writable: Iterable[str]) -> Walls:
    """Confine this process for the rest of its life; call it before any thread starts."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    return Walls(_limit_files(list(readable), list(writable)), _limit_calls())


def _limit_files(readable: Sequence[str], writable: Sequence[str]) -> bool:
    version = landlock_version()
    if not version:
        return False
    handled = _ALL_OF_1
    handled |= _REFER if version >= 2 else 0
    handled |= _TRUNCATE if version >= 3 else 0
    handled |= _DEVICES if version >= 5 else 0
    about = struct.pack("<QQ", handled, _TCP if version >= 4 else 0)
    about = about if version >= 4 else about[:8]
    ruleset = _syscall(_NR_LANDLOCK_CREATE, about, len(about), 0)
    if ruleset < 0:
        return False
    try:
        for folders, rights in ((readable, _READ), (writable, handled)):
            for folder in folders:
                _allow(ruleset, folder, rights)
        return _syscall(_NR_LANDLOCK_RESTRICT, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Allow what is below a path; a path that does not exist needs no rule."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            rights &= 1 << 2 | 1 << 1 | _TRUNCATE  # of a file
        rule = struct.pack("<Qi", rights, opened)
        _syscall(_NR_LANDLOCK_ADD, ruleset, 1, rule, 0)
    finally:
        os.close(opened)


def _limit_calls() -> bool:
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return False
    refused = _REFUSED[machine]
    # Load the architecture; another one is refused. Then load the number and compare it.
    lines = [
        (0x20, 0, 0, 4),
        (0x15, 1, 0, _ARCHITECTURES[machine]),
        (0x06, 0, 0, 0x00050000 | errno.EPERM),
        (0x20, 0, 0, 0),
    ]
    checks = [(0x35, _X32_BIT)] if machine == "x86_64" else []
    checks += [(0x15, number) for number in refused]
    for place, (compare, number) in enumerate(checks):
        lines.append((compare, len(checks) - place, 0, number))
    lines += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | errno.EPERM)]
    program = b"".join(struct.pack("<HBBI", *line) for line in lines)
    held = ctypes.create_string_buffer(program, len(program))
    about = struct.pack("<HxxxxxxQ", len(lines), ctypes.addressof(held))
    return _prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, ctypes.c_char_p(about)) == 0


def _prctl(option: int, *values: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).prctl(option, *values, 0, 0))


def _syscall(*values: object) -> int:
    try:
        return int(ctypes.CDLL(None, use_errno=True).syscall(*values))
    except (OSError, AttributeError):
        return -1
