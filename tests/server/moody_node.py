"""A node on a disk with moods: `ok`, `full` or `slow`, as a file says that the test writes.

python moody_node.py MOOD_FILE serve --data ...
"""

import errno
import os
import sys
import time

from thermocline import node
from thermocline.cli.main import run
from thermocline.disk import OsDisk

SLOW_S = 0.2


class MoodyDisk(OsDisk):
    """The real disk, when it is in the mood."""

    def __init__(self, mood_path: str) -> None:
        super().__init__()
        self._mood_path = mood_path

    def mood(self) -> str:
        """Return the mood of now."""
        with open(self._mood_path, encoding="utf-8") as file:
            return file.read()

    def check_room(self) -> None:
        """Refuse what takes room while the disk is full."""
        if self.mood() == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def create(self, path):
        """Create a file, unless the disk is full."""
        self.check_room()
        return MoodyWriter(super().create(path), self)


class MoodyWriter:
    """A file on such a disk."""

    def __init__(self, writer, disk: MoodyDisk) -> None:
        self._writer, self._disk = writer, disk
        self.cut, self.close = writer.cut, writer.close

    def write(self, data):
        """Write, unless the disk is full."""
        self._disk.check_room()
        return self._writer.write(data)

    def sync(self):
        """Sync; slowly on a slow disk."""
        if self._disk.mood() == "slow":
            time.sleep(SLOW_S)
        self._writer.sync()


if __name__ == "__main__":
    place, *words = sys.argv[1:]
    node.OsDisk = lambda: MoodyDisk(place)
    sys.exit(run(words))
