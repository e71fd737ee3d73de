"""A table's folder on a file system: durable writes, and one atomic create.

In:   `Storage` calls
Out:  calls on a `Disk`, in the order that makes them durable

- A file's bytes are synced before readers can find its name, and the name is synced before the call
  returns. Each process syncs the folders above a new name once, even if another process created
  them: that process may have died before its own sync.
- `put_new` writes a temporary file, syncs it and links it to its name. `link` fails when the
  name exists; a check followed by a rename would let two writers win.
- A segment is opened only after its bytes were compared with its checksum (`verified.py`).
- A path that leads out of the root through a symbolic link is rejected.
"""

import errno
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

import google_crc32c
import pyarrow as pa

from thermocline.cold.storage.storage import FileChecksum, StoredFile
from thermocline.cold.storage.verified import (
    READ_TRIES_MAX,
    checksum_text,
    missing_file_error,
    verify_file,
    wrong_size_error,
)
from thermocline.disk import (
    COPY_CHUNK_BYTES,
    Disk,
    FileStamp,
    OsDisk,
    translate_error,
    translate_errors,
)
from thermocline.errors import (
    Conflict,
    Corruption,
    NotFound,
    OutcomeUnknown,
    ThermoclineError,
    Unavailable,
    Unsupported,
)
from thermocline.format import layout

LINK_BYTES_MAX = 4_096


class LocalStorage:
    """A folder of a file system."""

    def __init__(self, root: str, disk: Disk | None = None) -> None:
        self._root = os.path.abspath(root)
        self._disk = disk or OsDisk()
        self._durable_folders: set[str] = set()
        self._real_folders: set[str] = set()
        self._is_probed = False

    @property
    def root(self) -> str:
        """The folder."""
        return self._root

    def make_root(self) -> None:
        """Make the folder itself; it is durable when this returns."""
        with translate_errors(self._root):
            self._make_folders(self._root)

    def within(self, folder: str) -> "LocalStorage":
        """Return the storage of a folder inside this one."""
        return LocalStorage(f"{self._root}/{folder}", self._disk)

    def probe(self) -> None:
        """Test the atomic create on this file system; `Unsupported` when it is not atomic.

        Two files are linked to one name: the second link must fail and must not replace the
        first. Each process that writes tests it once.
        """
        if self._is_probed:
            return
        folder = self._absolute(layout.LOG_FOLDER)
        names = [f"{folder}/.{uuid.uuid4().hex}.{part}.tmp" for part in ("one", "two", "won")]
        one, two, won = names
        with translate_errors(layout.LOG_FOLDER):
            self._make_folders(folder)
            try:
                self._write_synced(one, b"one")
                self._write_synced(two, b"two")
                holds = self._try_link(one, won) and not self._try_link(two, won)
                holds = holds and self._disk.read(won) == b"one"
            finally:
                for name in names:
                    with suppress(OSError):
                        self._disk.unlink(name)
        if not holds:
            raise Unsupported(
                "this file system does not create a name atomically",
                hint="put the table on a local file system or on an object store",
                root=self._root,
            )
        self._is_probed = True

    def _try_link(self, source: str, target: str) -> bool:
        try:
            self._disk.link(source, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                return False
            raise
        return True

    def read(self, path: str) -> bytes:
        """Return a whole file; `NotFound` when there is none."""
        with translate_errors(path):
            return self._disk.read(self._absolute(path))

    def size(self, path: str) -> int | None:
        """Return the size of a file, or None when there is none."""
        with translate_errors(path):
            return self._disk.size(self._absolute(path))

    def list(self, folder: str) -> Iterator[StoredFile]:
        """Yield every file below a folder; nothing when there is no such folder."""
        with translate_errors(folder):
            try:
                entries = self._disk.entries(self._absolute(folder))
            except FileNotFoundError:
                return
        for entry in entries:
            path = f"{folder}/{entry.name}"
            if entry.is_folder:
                yield from self.list(path)
            else:
                yield StoredFile(path, entry.size_bytes, entry.modified_ns)

    def list_names(self, folder: str = "") -> Sequence[str]:
        """Return the names of the files and folders directly in a folder; none if it is missing."""
        absolute = self._absolute(folder).rstrip("/")
        with translate_errors(absolute):
            try:
                return [entry.name for entry in self._disk.entries(absolute)]
            except FileNotFoundError:
                return []

    def open_input(self, path: str) -> pa.NativeFile:
        """Return a random-access input on a file; `NotFound` when there is none."""
        with translate_errors(path):
            return self._disk.open_input(self._absolute(path))

    def locate(self, path: str, size_bytes: int, checksum: str) -> str:
        """Return the absolute path of a checked file."""
        self._verify_file(path, size_bytes, checksum, fresh=False)
        return f"{self._root}/{path}"

    def open_segment(
        self, path: str, size_bytes: int, checksum: str, *, fresh: bool = False
    ) -> pa.NativeFile:
        """Return a random-access input on a checked file: exactly the file that was checked."""
        for _ in range(READ_TRIES_MAX):
            stamp = self._verify_file(path, size_bytes, checksum, fresh=fresh)
            source = self.open_input(path)
            with translate_errors(path):
                if self._disk.stamp(self._absolute(path)) == stamp:
                    return source
            source.close()
        raise Unavailable(
            "a live file is replaced while it is opened",
            hint="segments are never changed in place: stop the program that writes it",
            path=path,
        )

    def check(self, path: str, size_bytes: int, checksum: str, *, fresh: bool = False) -> None:
        """Raise `Corruption` unless a file is there, inside the root, with exactly these bytes."""
        self._verify_file(path, size_bytes, checksum, fresh=fresh)

    def _verify_file(self, path: str, size_bytes: int, checksum: str, *, fresh: bool) -> FileStamp:
        absolute = f"{self._root}/{path}"
        try:
            stamp = self._disk.stamp(absolute)
            is_inside = stamp is None or self._is_inside(path, stamp.size_bytes)
        except OSError as error:
            raise translate_error(error, path) from error
        if stamp is None:
            raise self._missing_error(path)
        if not is_inside:
            raise Corruption(
                "a live file is reached through a symbolic link",
                hint="move the file itself into the table's folder",
                path=path,
            )
        if stamp.size_bytes != size_bytes:
            raise wrong_size_error(path, size_bytes, stamp.size_bytes)
        try:
            return verify_file(self._disk, absolute, path, checksum, stamp, fresh=fresh)
        except FileNotFoundError as error:
            raise self._missing_error(path) from error
        except OSError as error:
            raise translate_error(error, path) from error

    def _missing_error(self, path: str) -> ThermoclineError:
        with translate_errors(path):
            if self._disk.size(self._root) is not None:
                return missing_file_error(path)
        # The log was read a moment ago, so the disk may have been unmounted.
        hint = "check that the disk is mounted"
        return NotFound("the table's folder is not there", hint=hint, path=path, root=self._root)

    def _is_inside(self, path: str, size_bytes: int) -> bool:
        """Tell whether no symbolic link leads to a path; each folder is checked once.

        A symbolic link's size is the length of its target, so a larger file cannot be a link.
        """
        folder = path.rpartition("/")[0]
        if folder not in self._real_folders:
            real_root = self._disk.resolve(self._root)
            if self._disk.resolve(self._absolute(folder)) != f"{real_root}/{folder}":
                return False
            self._real_folders.add(folder)
        return size_bytes > LINK_BYTES_MAX or not self._disk.is_link(self._absolute(path))

    def put(self, path: str, data: bytes) -> None:
        """Write a file under a new name; `Conflict` if the name exists. Durable at return."""
        absolute = self._absolute(path)
        with translate_errors(path):
            added = self._add_folders(os.path.dirname(absolute))
            try:
                self._write_synced(absolute, data)
            except FileExistsError as error:
                hint = "try again: the next try has another name"
                raise Conflict(
                    "a file of this name is there already", hint=hint, path=path
                ) from error
            self._sync_file_name(absolute, added)

    def _sync_file_name(self, absolute: str, added: Sequence[str]) -> None:
        """Make the name of a synced file durable, and those of the folders added for it.

        Only now, and not when each folder is made: a file system with a journal writes all names
        at the first sync, so the others cost nothing.
        """
        self._disk.sync_folder(os.path.dirname(absolute))
        self._sync_names(added)

    def put_new(self, path: str, data: bytes) -> bool:
        """Create a file if there is none of this name, and tell whether this call did."""
        absolute = self._absolute(path)
        folder = os.path.dirname(absolute)
        temporary = f"{folder}/.{uuid.uuid4().hex}.tmp"
        linked = False
        try:
            self._make_folders(folder)
            self._write_synced(temporary, data)
            try:
                self._disk.link(temporary, absolute)
                linked = True
            except FileExistsError:
                # Order matters: what is built on the winner's name must not outlive that name.
                self._disk.sync_folder(folder)
                return False
            # Crash here: the name may or may not survive. This call has not reported it yet.
            self._disk.sync_folder(folder)
            return True
        except OSError as error:
            if linked:
                raise OutcomeUnknown(
                    "a new file was made but may not be durable",
                    hint="check whether it exists before trying again",
                    path=path,
                    error=os.strerror(error.errno or 0),
                ) from error
            raise translate_error(error, path) from error
        finally:
            with suppress(OSError):
                self._disk.unlink(temporary)

    def settle(self, path: str) -> None:
        """Make an existing name durable; its bytes were durable before they got the name."""
        with translate_errors(path):
            self._disk.sync_folder(os.path.dirname(self._absolute(path)))

    def put_hint(self, path: str, data: bytes) -> None:
        """Replace a file whose loss does no harm: atomic for readers, never synced."""
        absolute = self._absolute(path)
        temporary = f"{os.path.dirname(absolute)}/.{uuid.uuid4().hex}.tmp"
        with translate_errors(path):
            try:
                self._add_folders(os.path.dirname(absolute))
                writer = self._disk.create(temporary)
                try:
                    writer.write(data)
                finally:
                    writer.close()
                self._disk.rename(temporary, absolute)
            except OSError:
                with suppress(OSError):
                    self._disk.unlink(temporary)
                raise

    def replace(self, path: str, data: bytes) -> None:
        """Replace a file's bytes atomically: readers see the old or the new. Durable at return.

        Only for bytes that must be erased; every other file of a table is written once.
        """
        absolute = self._absolute(path)
        temporary = f"{os.path.dirname(absolute)}/.{uuid.uuid4().hex}.tmp"
        with translate_errors(path):
            try:
                self._write_synced(temporary, data)
                self._disk.rename(temporary, absolute)
                self._disk.sync_folder(os.path.dirname(absolute))
            except OSError:
                with suppress(OSError):
                    self._disk.unlink(temporary)
                raise

    def open_source(self, source: str) -> pa.NativeFile:
        """Return a random-access input on a caller's file; `NotFound` when there is none."""
        with translate_errors(source):
            return self._disk.open_input(source)

    def take(self, source: str, path: str, *, link: bool) -> FileChecksum:
        """Link or copy a caller's file into the table. It is durable when this returns.

        A link shares the bytes with the caller's file, which must then never be written again. If a
        link is not possible, the file is copied.
        """
        absolute = self._absolute(path)
        with translate_errors(path):
            added = self._add_folders(os.path.dirname(absolute))
            if link:  # resolved, because a hard link to a symbolic link is a symbolic link
                source = self._disk.resolve(source)
            if link and self._link_source(source, absolute):
                self._disk.sync_file(absolute)
                taken = self._checksum_source(source, absolute, is_copy=False)
            else:
                taken = self._checksum_source(source, absolute, is_copy=True)
            self._sync_file_name(absolute, added)
        return taken

    def _link_source(self, source: str, target: str) -> bool:
        try:
            self._disk.link(source, target)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                return False
            raise
        return True

    def _checksum_source(self, source: str, target: str, *, is_copy: bool) -> FileChecksum:
        checksum, size_bytes = 0, 0
        with ExitStack() as opened:
            reader = self._disk.open_reader(source)
            opened.callback(reader.close)
            writer = self._disk.create(target) if is_copy else None
            if writer:
                opened.callback(writer.close)
            while chunk := reader.read(COPY_CHUNK_BYTES):
                checksum = google_crc32c.extend(checksum, chunk)
                size_bytes += len(chunk)
                if writer:
                    writer.write(chunk)
            if writer:
                writer.sync()
        return FileChecksum(size_bytes, checksum_text(checksum))

    def delete(self, path: str) -> None:
        """Remove a file; nothing happens when there is none."""
        with translate_errors(path), suppress(FileNotFoundError):
            self._disk.unlink(self._absolute(path))

    def _absolute(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _write_synced(self, absolute: str, data: bytes) -> None:
        writer = self._disk.create(absolute)
        try:
            writer.write(data)
            writer.sync()
        finally:
            writer.close()

    def _make_folders(self, folder: str) -> None:
        """Make a folder and those above it; their names are durable when this returns."""
        self._sync_names(self._add_folders(folder))

    def _add_folders(self, folder: str) -> Sequence[str]:
        """Make a folder and those above it; return those whose names may not be durable yet."""
        parent = os.path.dirname(folder)
        if folder in self._durable_folders or parent == folder:
            return ()
        added: Sequence[str] = ()
        if self._disk.size(parent) is None or folder.startswith(self._root + "/"):
            added = self._add_folders(parent)
        with suppress(FileExistsError):
            self._disk.make_folder(folder)
        return (*added, folder)

    def _sync_names(self, folders: Sequence[str]) -> None:
        for folder in folders:
            self._disk.sync_folder(os.path.dirname(folder))
            self._durable_folders.add(folder)
