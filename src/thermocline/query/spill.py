"""Folders for rows that do not fit into memory, and the cleanup of folders of dead processes.

In:   nothing
Out:  a new folder that only this user can read, named after this process

- A killed process leaves its folder behind. The next process of the same user that makes a spill
  folder removes it. The name has the process id and the start time of the owner, because process
  ids are reused: in a container the first process always has the same id.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache

PREFIX = "thermocline-spill-"


def make_folder() -> str:
    """Make a folder for spilled rows; remove the folders of dead processes."""
    process = os.getpid()
    _sweep_once(process)
    return tempfile.mkdtemp(prefix=f"{PREFIX}{process}-{_start_time(process)}-")


def remove_folder(folder: str) -> None:
    """Remove a folder and its contents; a missing folder is ignored."""
    shutil.rmtree(folder, ignore_errors=True)


@cache
def _sweep_once(process: int) -> None:  # noqa: ARG001  runs once for each process, also after a fork
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            number, _, rest = entry.name.removeprefix(PREFIX).partition("-")
            began = rest.rpartition("-")[0]
            is_named = entry.name.startswith(PREFIX) and number.isdigit()
            if is_named and _is_orphaned(entry, int(number), began):
                remove_folder(entry.path)


def _start_time(process: int) -> str:
    """Return the start time of a process in kernel ticks, or an empty text if it is unknown."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            # The process name before it may contain spaces and brackets; the time is field 22.
            return file.read().rpartition(b") ")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""


def _is_orphaned(entry: os.DirEntry[str], process: int, began: str) -> bool:
    """Tell whether a folder is of this user and its process is dead; False when in doubt."""
    try:
        if entry.stat(follow_symlinks=False).st_uid != os.getuid():
            return False
        os.kill(process, 0)
    except ProcessLookupError:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
    now = _start_time(process)
    return bool(began and now) and began != now and entry.is_dir(follow_symlinks=False)
