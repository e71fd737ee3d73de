"""Finds the process of the server that uses a PostgreSQL data folder, by the server's lock file.

In:   a data folder
Out:  the process id of the server, or None if it does not run

- The file outlives a killed server. Then its process id may belong to another process: soon so in a
  container, which uses few ids. PostgreSQL refuses to start while such a process runs, and stopping
  the server would signal that process.
- A copied folder has the lock file of the original, whose server may run.
- If the owner of a process id cannot be determined, it is assumed to be the server.
"""

import os

from thermocline.disk import OsDisk

LOCK_NAME = "postmaster.pid"
UNUSED_PID = (1 << 22) + 1  # Linux gives no process a number past 2**22


def process_of(data: str) -> int | None:
    """Return the id of the process that uses a data folder, or None if none is alive."""
    try:
        found, folder = _read_lines(data)[:2]
        process = int(found)
        os.kill(process, 0)
        is_server = os.path.samefile(folder, data) and not _is_elsewhere(process, data)
    except (OSError, ValueError):
        return None
    return process if is_server else None


def clear_foreign_pid(data: str) -> None:
    """Replace the process id in the lock file if it belongs to another program.

    The other lines stay: by them PostgreSQL detects children of a killed server that still run.
    """
    try:
        found, *others = _read_lines(data)
        is_taken = _is_elsewhere(int(found), data)
    except (OSError, ValueError):
        return
    if is_taken:
        slot = OsDisk().open_slot(os.path.join(data, LOCK_NAME))
        try:
            # Overwritten in place to keep the file's owner; the new content is not shorter.
            slot.put(b"\n".join([str(UNUSED_PID).encode(), *others]))
        finally:
            slot.close()


def _read_lines(data: str) -> list[bytes]:
    return OsDisk().read(os.path.join(data, LOCK_NAME)).split(b"\n")


def _is_elsewhere(process: int, data: str) -> bool:
    """Tell whether a process certainly has another working folder than the data folder."""
    try:
        return not os.path.samefile(f"/proc/{process}/cwd", data)
    except OSError:
        return False
