"""Folders for rows that do not fit into memory, which never outlive whoever spilled them for long.

In:   nothing
Out:  a new folder of this user alone, named after this process

- A process that is killed leaves its folder. The next one of this user that makes one removes it:
  the name says whose it was, and nobody has that number any more.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache

PREFIX = "thermocline-spill-"


def new_folder() -> str:
    """Make a folder for spilled rows; remove those of processes that are gone."""
    _swept(os.getpid())
    return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")


def remove(folder: str) -> None:
    """Remove a folder with all that is in it; nothing happens where there is none."""
    shutil.rmtree(folder, ignore_errors=True)


@cache
def _swept(process: int) -> None:  # noqa: ARG001  once for each process, forked ones too
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            number = entry.name.removeprefix(PREFIX).partition("-")[0]
            if entry.name.startswith(PREFIX) and number.isdigit() and _is_left(entry, int(number)):
                remove(entry.path)


def _is_left(entry: os.DirEntry[str], process: int) -> bool:
    """Tell whether a folder is ours and its process is gone; when in doubt it is not."""
    try:
        if entry.stat(follow_symlinks=False).st_uid != os.getuid():
            return False
        os.kill(process, 0)
    except ProcessLookupError:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
    return False
