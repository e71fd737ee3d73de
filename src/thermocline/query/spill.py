"""Folders for rows that do not fit into memory, which never outlive whoever spilled them for long.

In:   nothing
Out:  a new folder of this user alone, named after this process

- A process that is killed leaves its folder. The next one of this user that makes one removes it:
  the name says whose it was, and that process is gone. It has its number and when it began, since
  another one may have the number: in a container the first always has the same.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache

PREFIX = "thermocline-spill-"


def new_folder() -> str:
    """Make a folder for spilled rows; remove those of processes that are gone."""
    process = os.getpid()
    _swept(process)
    return tempfile.mkdtemp(prefix=f"{PREFIX}{process}-{_began(process)}-")


def remove(folder: str) -> None:
    """Remove a folder with all that is in it; nothing happens where there is none."""
    shutil.rmtree(folder, ignore_errors=True)


@cache
def _swept(process: int) -> None:  # noqa: ARG001  once for each process, forked ones too
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            number, _, rest = entry.name.removeprefix(PREFIX).partition("-")
            began = rest.rpartition("-")[0]
            is_named = entry.name.startswith(PREFIX) and number.isdigit()
            if is_named and _is_left(entry, int(number), began):
                remove(entry.path)


def _began(process: int) -> str:
    """Return when a process began, in the kernel's own count, or nothing where it does not say."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            # The name before it may have spaces and brackets; 22 fields are counted with it.
            return file.read().rpartition(b") ")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""


def _is_left(entry: os.DirEntry[str], process: int, began: str) -> bool:
    """Tell whether a folder is ours and its process is gone; when in doubt it is not."""
    try:
        if entry.stat(follow_symlinks=False).st_uid != os.getuid():
            return False
        os.kill(process, 0)
    except ProcessLookupError:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
    now = _began(process)
    return bool(began and now) and began != now and entry.is_dir(follow_symlinks=False)
