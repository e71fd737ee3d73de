"""Local copies of immutable objects, bounded in bytes, shared by threads and processes.

In:   the name, size and checksum of an object, and a function that fetches its bytes
Out:  the path of a local file with exactly those bytes

    <key>.<window>.parquet      a copy; the window is the time window of its last use
    .<size>-<random>.tmp        a copy being fetched: its full size counts from the start

- A returned path stays valid for at least `keep_s`, whatever other threads and processes evict.
  This needs no lock: each use of a copy gives it a second name (a hard link) in the present window,
  and only names of windows long past are removed. A link either finds the copy or fails.
- Copies and running fetches never exceed `bytes_max` together. When all of it is in use, `path`
  raises `Overloaded` instead of passing the limit.
- Bytes are synced before their name exists, and compared with the checksum before a path is
  returned: once by each process and again when the copy changes (`verified.py`). A damaged copy is
  removed and fetched again, with a warning in the process's log.

Only for names whose bytes never change, such as segments.
"""

import hashlib
import logging
import os
import re
import threading
import time as clock
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from thermocline.cold.storage.verified import verify_file
from thermocline.disk import Disk, FileWriter, FolderEntry, OsDisk, translate_errors
from thermocline.errors import Corruption, Overloaded
from thermocline.format.instant import NS_PER_S

CACHE_BYTES_MAX = 16 << 30
CACHE_KEEP_S = 600
FETCH_IDLE_S_MAX = 3600
FETCH_LOCKS = 64

_COPY_NAME = re.compile(r"^([0-9a-f]{40})\.(\d{1,19})\.parquet$")
_FETCH_NAME = re.compile(r"^\.(\d{1,19})-[0-9a-f]{32}\.tmp$")

Fetch = Callable[[FileWriter], None]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CachedCopy:
    """One name of a local copy."""

    key: str
    window: int
    entry: FolderEntry


class ObjectCache:
    """A folder of local copies. Safe to use from many threads and processes."""

    def __init__(
        self,
        folder: str | None = None,
        *,
        bytes_max: int = CACHE_BYTES_MAX,
        keep_s: float = CACHE_KEEP_S,
        disk: Disk | None = None,
        now_s: Callable[[], float] = clock.time,
    ) -> None:
        self._folder = os.path.abspath(folder or default_folder())
        self._bytes_max = bytes_max
        self._keep_s = keep_s
        self._disk = disk or OsDisk()
        self._now_s = now_s
        self._locks = [threading.Lock() for _ in range(FETCH_LOCKS)]

    def path(
        self, name: str, size_bytes: int, checksum: str, fetch: Fetch, *, fresh: bool = False
    ) -> str:
        """Return a local file with the object's bytes; fetch it unless there is an intact copy.

        The path is valid for `keep_s` from now; a file opened within that time can be read to its
        end. `fetch` must check the bytes it writes. Its errors are passed on and leave no copy.
        """
        key = hashlib.sha256(f"{size_bytes} {checksum} {name}".encode()).hexdigest()[:40]
        with self._locks[int(key[:8], 16) % FETCH_LOCKS], translate_errors(self._folder):
            now = self._copy_path(key)
            is_there = self._disk.size(now) == size_bytes
            is_there = is_there or self._renew_copy(key, size_bytes, now)
            if is_there and self._verify_copy(key, now, name, checksum, fresh=fresh):
                return now
            return self._fetch_copy(key, size_bytes, fetch)

    def _verify_copy(self, key: str, now: str, name: str, checksum: str, *, fresh: bool) -> bool:
        """Tell whether a copy still has its bytes; remove all its names when it does not."""
        try:
            stamp = self._disk.stamp(now)
            if stamp is None:
                return False  # evicted meanwhile
            verify_file(self._disk, now, name, checksum, stamp, fresh=fresh)
        except FileNotFoundError:
            return False
        except Corruption as error:
            logger.warning("a local copy is damaged and is fetched again: %s", error)
            for copy in self._parse_copies(self._list_entries()):
                if copy.key == key:
                    with suppress(FileNotFoundError):
                        self._disk.unlink(f"{self._folder}/{copy.entry.name}")
            return False
        return True

    def _copy_path(self, key: str) -> str:
        return f"{self._folder}/{key}.{self._window()}.parquet"

    def _window(self) -> int:
        return int(self._now_s() // self._keep_s)

    def _renew_copy(self, key: str, size_bytes: int, now: str) -> bool:
        """Link an older copy, if there is one, to a name in the present window."""
        for copy in self._parse_copies(self._list_entries()):
            if copy.key != key or copy.entry.size_bytes != size_bytes:
                continue
            try:
                self._disk.link(f"{self._folder}/{copy.entry.name}", now)
            except FileExistsError:
                return True  # another process renewed it
            except OSError:
                continue  # evicted meanwhile, or links are not supported: fetch it again
            return True
        return False

    def _fetch_copy(self, key: str, size_bytes: int, fetch: Fetch) -> str:
        # Only this user may read the folder: other users of the machine must not see the rows.
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        temporary = f"{self._folder}/.{size_bytes}-{uuid.uuid4().hex}.tmp"
        writer = self._disk.create(temporary)
        try:
            try:
                # Order matters: the name that reserves the bytes exists before room is made for
                # them, so that of two processes at least one sees the other's reservation.
                self._make_room(size_bytes)
                fetch(writer)
                writer.sync()
            finally:
                writer.close()
            path = self._copy_path(key)
            self._disk.rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                self._disk.unlink(temporary)
            raise
        return path

    def _make_room(self, size_bytes: int) -> None:
        entries = self._list_entries()
        newest: dict[str, CachedCopy] = {}
        for copy in sorted(self._parse_copies(entries), key=lambda copy: copy.window):
            if copy.key in newest:
                self._remove_expired(newest[copy.key])  # it has a newer name
            newest[copy.key] = copy
        held_bytes = sum(copy.entry.size_bytes for copy in newest.values())
        held_bytes += sum(self._reserved_bytes(entry) for entry in entries)
        for copy in sorted(newest.values(), key=lambda c: (c.window, c.entry.modified_ns)):
            if held_bytes <= self._bytes_max:
                return
            if self._remove_expired(copy):
                held_bytes -= copy.entry.size_bytes
        if held_bytes > self._bytes_max:
            raise Overloaded(
                "the local cache of the object store is full of files in use",
                hint="raise `cache_bytes_max`, read a shorter time, or try again later",
                folder=self._folder,
                bytes_max=self._bytes_max,
                wanted_bytes=size_bytes,
                in_use_bytes=held_bytes - size_bytes,
            )

    def _remove_expired(self, copy: CachedCopy) -> bool:
        # A path returned in one window stays valid through all of the next.
        if copy.window >= self._window() - 1:
            return False
        with suppress(FileNotFoundError):
            self._disk.unlink(f"{self._folder}/{copy.entry.name}")
        return True

    def _reserved_bytes(self, entry: FolderEntry) -> int:
        """Return the bytes that a running fetch reserves; remove a fetch that was abandoned."""
        found = _FETCH_NAME.match(entry.name)
        if not found:
            return 0
        if self._now_s() - entry.modified_ns / NS_PER_S > FETCH_IDLE_S_MAX:
            with suppress(FileNotFoundError):
                self._disk.unlink(f"{self._folder}/{entry.name}")
            return 0
        return int(found.group(1))

    def _list_entries(self) -> list[FolderEntry]:
        try:
            return self._disk.entries(self._folder)
        except FileNotFoundError:
            return []

    def _parse_copies(self, entries: Iterable[FolderEntry]) -> list[CachedCopy]:
        found = ((_COPY_NAME.match(entry.name), entry) for entry in entries)
        return [
            CachedCopy(name.group(1), int(name.group(2)), entry) for name, entry in found if name
        ]


def default_folder() -> str:
    """Return the user's folder for local copies: `$XDG_CACHE_HOME` or `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return f"{home}/thermocline/objects"
