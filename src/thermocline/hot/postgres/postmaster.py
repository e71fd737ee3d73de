"""Who holds a data folder of PostgreSQL, by the lock file that the server writes there.

In:   a data folder
Out:  the number of the server's process, or None when there is none

- The file outlives a server that is killed. By then its number may be another process's: soon so in
  a container, where few numbers are used. PostgreSQL would not start beside such a process, and
  whoever stops the server would stop that one.
- A copy of a folder has the file of the first, whose server may run.
- When it cannot be found out whose a number is, it is the server's.
"""

import os

from thermocline.disk import OsDisk

LOCK_NAME = "postmaster.pid"
NOBODY = (1 << 22) + 1  # Linux gives no process a number past 2**22


def process_of(data: str) -> int | None:
    """Return the process that holds a data folder, or None when there is none alive."""
    try:
        found, folder = _lines(data)[:2]
        process = int(found)
        os.kill(process, 0)
        is_server = os.path.samefile(folder, data) and not _is_elsewhere(process, data)
    except (OSError, ValueError):
        return None
    return process if is_server else None


def let_go(data: str) -> None:
    """Take the number out of the lock file if it is another process's.

    The other lines stay: by them PostgreSQL notices what a server that was killed left running.
    """
    try:
        found, *others = _lines(data)
        is_taken = _is_elsewhere(int(found), data)
    except (OSError, ValueError):
        return
    if is_taken:
        slot = OsDisk().open_slot(os.path.join(data, LOCK_NAME))
        try:
            # In its place, so that the file stays its owner's; no shorter than what was there.
            slot.put(b"\n".join([str(NOBODY).encode(), *others]))
        finally:
            slot.close()


def _lines(data: str) -> list[bytes]:
    return OsDisk().read(os.path.join(data, LOCK_NAME)).split(b"\n")


def _is_elsewhere(process: int, data: str) -> bool:
    """Tell whether a process surely works in another folder; a server works in its data's."""
    try:
        return not os.path.samefile(f"/proc/{process}/cwd", data)
    except OSError:
        return False
