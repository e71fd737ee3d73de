"""A copy of a lake as files: in a folder, or in one tar file.

In:   names and bytes to write; an untrusted folder or tar file to read
Out:  the same, checked: each name is a lake file's name, each member a plain file

- Names are relative, stay inside the folder, and have the form of a lake's file names. Any other
  name is refused before one of its bytes is written. So are links, devices and duplicate names.
- The manifest is written last. A copy without a manifest, or with bytes that differ from it, is
  not a valid backup.
"""

import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import IO, Any, Protocol

from thermocline.disk import COPY_CHUNK_BYTES, OsDisk, translate_error, translate_errors
from thermocline.errors import Conflict, Corruption, Invalid
from thermocline.names import SCHEMA_TENANT_NAME, TABLE_FILE_NAME, TENANT_NAME
from thermocline.server.access.private_files import PrivateDisk

MANIFEST_NAME = "backup.json"
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
_ID = r"[0-9a-f]{32}"
_CATALOG = (
    rf"names/{TABLE_FILE_NAME}\.json|dropped/{_ID}\.json"
    rf"|tables/{_ID}/(_log|_coverage|_tokens|data)/[A-Za-z0-9_./-]+"
)
_NAME = re.compile(
    rf"backup\.json|keys\.json|lake\.json|journal/journal\.json|journal/[0-9]{{20}}\.wal"
    rf"|tenants/names/{TENANT_NAME}\.json|(tenants/{_ID}/)?({_CATALOG})"
    rf"|entities/{SCHEMA_TENANT_NAME}/(dump\.json|[a-z0-9_]{{1,63}}\.[0-9]{{6,}}\.copy)"
)
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def check_name(name: str) -> str:
    """Return the name if a lake's file can have it; `Invalid` otherwise."""
    parts = name.split("/")
    if not _NAME.fullmatch(name) or not all(_PART.fullmatch(part) for part in parts):
        hint = "this is not a backup of a lake, or its files were changed; use another backup"
        raise Invalid("a lake has no file of this name", hint=hint, name=name[:200])
    return name


class ArchiveSink(Protocol):
    """The destination of a copy."""

    def put(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        """Add a file of a known size."""
        ...


class FolderSink:
    """A copy as files in a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._folders: set[str] = {folder}

    def put(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        """Add a file. Its bytes are durable when this returns, its name when `sync` returns."""
        path = f"{self._folder}/{name}"
        disk = PrivateDisk()
        written = 0
        with translate_errors(path):
            self._make_folder(os.path.dirname(path))
            writer = disk.create(path)
            try:
                for chunk in chunks:
                    written += writer.write(chunk)
                writer.sync()
            finally:
                writer.close()
        _check_size(name, size_bytes, written)

    def _make_folder(self, folder: str) -> None:
        if folder not in self._folders:
            self._make_folder(os.path.dirname(folder))
            with suppress(FileExistsError):
                OsDisk().make_folder(folder, is_private=True)
            self._folders.add(folder)

    def sync(self) -> None:
        """Fsync every folder, so that the new names are durable."""
        for folder in self._folders:
            with translate_errors(folder):
                OsDisk().sync_folder(folder)


class TarSink:
    """A copy as one tar file."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive

    def put(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        """Add a member."""
        member = tarfile.TarInfo(name)
        member.size, member.mode = size_bytes, 0o600
        self._archive.addfile(member, _ChunkReader(name, size_bytes, chunks))


class _ChunkReader(BytesIO):
    """A readable file over an iterator of chunks."""

    def __init__(self, name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        super().__init__()
        self._name, self._left, self._chunks = name, size_bytes, chunks
        self._rest = b""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes; `Corruption` when there are fewer than the size announced."""
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
        hint = "try again; if it happens again, check the disk"
        raise Corruption(
            "a file's size differs from the expected size", hint=hint, name=name, found=found
        )


@contextmanager
def create_archive(target: str) -> Iterator[ArchiveSink]:
    """Yield a sink for a new copy; the copy gets its name when the block ends without an error.

    `Conflict` when the name exists.
    """
    target = os.path.abspath(target)
    if os.path.lexists(target):
        hint = "choose a path that does not exist"
        raise Conflict("the target exists already", hint=hint, target=target)
    part = f"{target}.part"
    is_tar = target.endswith(TAR_SUFFIXES)
    with translate_errors(part):
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
        with translate_errors(target):
            os.rename(part, target)
            OsDisk().sync_folder(os.path.dirname(target))
    except BaseException:
        with suppress(OSError):
            os.unlink(part) if is_tar else _remove_tree(part)
        raise


@contextmanager
def _tar_sink(path: str, *, is_packed: bool) -> Iterator[ArchiveSink]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            mode: Any = "w|gz" if is_packed else "w|"
            with tarfile.open(fileobj=file, mode=mode, format=tarfile.PAX_FORMAT) as archive:
                yield TarSink(archive)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise translate_error(error, path) from error


def _remove_tree(folder: str) -> None:
    import shutil

    if os.path.islink(folder):
        os.unlink(folder)
    elif os.path.isdir(folder):
        shutil.rmtree(folder)


def remove_files(folder: str, names: list[str]) -> None:
    """Remove files that were just created, and then folders that are empty."""
    for name in names:
        with suppress(OSError):
            os.unlink(f"{folder}/{name}")
    for parent in sorted({os.path.dirname(name) for name in names}, reverse=True):
        while parent:
            with suppress(OSError):
                os.rmdir(f"{folder}/{parent}")
            parent = os.path.dirname(parent)


def read_members(source: str) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Yield every file of a copy: its checked name, its size, its bytes.

    `Invalid` for a member that is not a plain file, or has a foreign or duplicate name; its bytes
    are not read.
    """
    found = _read_tar_members(source) if os.path.isfile(source) else _read_folder_members(source)
    seen: set[str] = set()
    for name, size_bytes, chunks in found:
        if check_name(name) in seen:
            raise Invalid("a name appears twice in the copy", hint="use another backup", name=name)
        seen.add(name)
        yield name, size_bytes, chunks


def _read_tar_members(source: str) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    with _translate_damage(source), tarfile.open(source, "r:*") as archive:
        for member in archive:
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                raise _not_a_file(member.name)
            file = archive.extractfile(member)
            assert file is not None
            yield member.name, member.size, _read_chunks(file, source)


def _read_folder_members(source: str) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    with translate_errors(source):
        for folder, folders, names in os.walk(source, onerror=_raise):
            for name in folders:
                if os.path.islink(os.path.join(folder, name)):
                    raise _not_a_file(name)
            for name in sorted(names):
                path = os.path.join(folder, name)
                relative = os.path.relpath(path, source)
                if os.path.islink(path) or not os.path.isfile(path):
                    raise _not_a_file(relative)
                with open(path, "rb") as file:
                    yield relative, os.fstat(file.fileno()).st_size, _read_chunks(file, path)


def _raise(error: OSError) -> None:
    raise error


def _read_chunks(file: IO[bytes], path: str) -> Iterator[bytes]:
    # The consumer of the chunks is outside the caller's `with` block when a read fails, so the
    # error is translated here.
    with _translate_damage(path):
        while chunk := file.read(COPY_CHUNK_BYTES):
            yield chunk


@contextmanager
def _translate_damage(path: str) -> Iterator[None]:
    """Translate the errors of a truncated or damaged file into errors of this package."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise translate_error(error, path) from error
        hint = "use another backup: this file is truncated or damaged"
        raise Corruption("the tar file is damaged", hint=hint, path=path, why=str(error)) from error


def _not_a_file(name: str) -> Invalid:
    hint = "a backup has only plain files; use a backup that no other program has changed"
    return Invalid("a member of the copy is not a plain file", hint=hint, name=name[:200])
