"""A copy of a lake as files: in a folder, or in one tar file.

In:   names and bytes; a folder or a tar file that somebody gives us
Out:  the same, checked: each name is one that a lake has, each member a plain file

- Names are relative, stay inside, and are of the forms that a lake's files have; anything else is
  refused before a byte of it is written. So are links, devices and a name that comes twice.
- The manifest is written last. Without it, or with other bytes than it says, a copy is none.
"""

import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import IO, Any, Protocol

from thermocline.disk import COPY_CHUNK_BYTES, OsDisk, translated, translation
from thermocline.errors import Conflict, Corruption, Invalid
from thermocline.server.private import PrivateDisk

MANIFEST_NAME = "backup.json"
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
_ID = r"[0-9a-f]{32}"
_CATALOG = rf"names/[a-z0-9_]{{1,63}}\.json|tables/{_ID}/(_log|_coverage|data)/[A-Za-z0-9_./-]+"
_NAME = re.compile(
    rf"backup\.json|keys\.json|lake\.json|journal/journal\.json|journal/[0-9]{{20}}\.wal"
    rf"|tenants/names/[a-z0-9_]{{1,40}}\.json|(tenants/{_ID}/)?({_CATALOG})"
    r"|entities/[a-z0-9_]{1,41}/(dump\.json|[a-z0-9_]{1,63}\.[0-9]{6,}\.copy)"
)
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def checked_name(name: str) -> str:
    """Return a name that a lake's file has; `Invalid` for any other."""
    parts = name.split("/")
    if not _NAME.fullmatch(name) or not all(_PART.fullmatch(part) for part in parts):
        hint = "this is not a backup of a lake, or somebody changed it"
        raise Invalid("a name in the copy is not one of a lake's", hint=hint, name=name[:200])
    return name


class Sink(Protocol):
    """Where a copy goes."""

    def put(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        """Add a file whose size is known."""
        ...


class FolderSink:
    """A copy as files in a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._made: set[str] = {folder}

    def put(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        """Add a file; it is durable when this returns, its name when `sync` does."""
        path = f"{self._folder}/{name}"
        disk = PrivateDisk()
        written = 0
        with translated(path):
            self._make(os.path.dirname(path))
            writer = disk.create(path)
            try:
                for chunk in chunks:
                    written += writer.write(chunk)
                writer.sync()
            finally:
                writer.close()
        _check_size(name, size_bytes, written)

    def _make(self, folder: str) -> None:
        if folder not in self._made:
            self._make(os.path.dirname(folder))
            with suppress(FileExistsError):
                OsDisk().make_folder(folder, is_private=True)
            self._made.add(folder)

    def sync(self) -> None:
        """Make every name durable."""
        for folder in self._made:
            with translated(folder):
                OsDisk().sync_folder(folder)


class TarSink:
    """A copy as one tar file."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive

    def put(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        """Add a member."""
        member = tarfile.TarInfo(name)
        member.size, member.mode = size_bytes, 0o600
        self._archive.addfile(member, _Joined(name, size_bytes, chunks))


class _Joined(BytesIO):
    """Chunks as one file that is read to its end."""

    def __init__(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._name, self._left, self._chunks = name, size_bytes, chunks
        self._rest = b""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes; `Corruption` when there are fewer than were promised."""
        wanted = self._left if size is None or size < 0 else min(size, self._left)
        while len(self._rest) < wanted:
            chunk = next(self._chunks, b"")
            if not chunk:
                _check_size(self._name, self._left, len(self._rest))
            self._rest += chunk
        data, self._rest = self._rest[:wanted], self._rest[wanted:]
        self._left -= len(data)
        return data


def _check_size(name: str, expected: int, found: int) -> None:
    if expected != found:
        hint = "try again; if it stays so, look at the disk"
        raise Corruption(
            "a file has another size than it should", hint=hint, name=name, found=found
        )


@contextmanager
def new_archive(target: str) -> Iterator[Sink]:
    """Give a sink for a new copy; it appears under its name when the block ends well.

    `Conflict` when there is something of that name.
    """
    target = os.path.abspath(target)
    if os.path.lexists(target):
        hint = "name one that does not exist"
        raise Conflict("there is something at the target already", hint=hint, target=target)
    part = f"{target}.part"
    is_tar = target.endswith(TAR_SUFFIXES)
    with translated(part):
        if is_tar:
            OsDisk().unlink(part) if os.path.lexists(part) else None
        else:
            _remove_tree(part)
            OsDisk().make_folder(part, is_private=True)
    try:
        if is_tar:
            with _tar_sink(part, is_packed=not target.endswith(".tar")) as tar:
                yield tar
        else:
            folder = FolderSink(part)
            yield folder
            folder.sync()
        with translated(target):
            os.rename(part, target)
            OsDisk().sync_folder(os.path.dirname(target))
    except BaseException:
        with suppress(OSError):
            os.unlink(part) if is_tar else _remove_tree(part)
        raise


@contextmanager
def _tar_sink(path: str, *, is_packed: bool) -> Iterator[Sink]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            mode: Any = "w|gz" if is_packed else "w|"
            with tarfile.open(fileobj=file, mode=mode, format=tarfile.PAX_FORMAT) as archive:
                yield TarSink(archive)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise translation(error, path) from error


def _remove_tree(folder: str) -> None:
    import shutil

    if os.path.islink(folder):
        os.unlink(folder)
    elif os.path.isdir(folder):
        shutil.rmtree(folder)


def remove_made(folder: str, names: list[str]) -> None:
    """Remove files that were just made, and folders that are empty then."""
    for name in names:
        with suppress(OSError):
            os.unlink(f"{folder}/{name}")
    for parent in sorted({os.path.dirname(name) for name in names}, reverse=True):
        while parent:
            with suppress(OSError):
                os.rmdir(f"{folder}/{parent}")
            parent = os.path.dirname(parent)


def members(source: str) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Yield every file of a copy: its checked name, its size, its bytes.

    `Invalid` for what is no plain file of a lake, or comes twice; nothing of it is read then.
    """
    found = _tar_members(source) if os.path.isfile(source) else _folder_members(source)
    seen: set[str] = set()
    for name, size_bytes, chunks in found:
        if checked_name(name) in seen:
            raise Invalid("a name comes twice in the copy", hint="make another", name=name)
        seen.add(name)
        yield name, size_bytes, chunks


def _tar_members(source: str) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    with _whole(source), tarfile.open(source, "r:*") as archive:
        for member in archive:
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                raise _no_file(member.name)
            file = archive.extractfile(member)
            assert file is not None
            yield member.name, member.size, _chunks(file, source)


def _folder_members(source: str) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    with translated(source):
        for folder, folders, names in os.walk(source, onerror=_raise):
            for name in folders:
                if os.path.islink(os.path.join(folder, name)):
                    raise _no_file(name)
            for name in sorted(names):
                path = os.path.join(folder, name)
                relative = os.path.relpath(path, source)
                if os.path.islink(path) or not os.path.isfile(path):
                    raise _no_file(relative)
                with open(path, "rb") as file:
                    yield relative, os.fstat(file.fileno()).st_size, _chunks(file, path)


def _raise(error: OSError) -> None:
    raise error


def _chunks(file: IO[bytes], path: str) -> Iterator[bytes]:
    # Whoever takes the chunks is elsewhere when a read fails: it is translated here.
    with _whole(path):
        while chunk := file.read(COPY_CHUNK_BYTES):
            yield chunk


@contextmanager
def _whole(path: str) -> Iterator[None]:
    """Turn what a cut or damaged file does to its readers into errors of this package."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise translation(error, path) from error
        hint = "name a backup that was made whole"
        raise Corruption("not a whole tar file", hint=hint, path=path, why=str(error)) from error


def _no_file(name: str) -> Invalid:
    hint = "a backup has plain files alone; this one was made or changed by something else"
    return Invalid("the copy has something that is no file", hint=hint, name=name[:200])
