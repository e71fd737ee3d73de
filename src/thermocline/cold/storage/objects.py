"""A table's folder in an object store: S3, Google Cloud Storage, Azure, or memory.

In:   `Storage` calls
Out:  requests of `obstore`, the only client of object stores here; no error of it leaves

- `put_new` is put-if-absent (`If-None-Match: *` on S3). It returns False when the name exists, even
  if an earlier retry of the same call created it: the caller reads the object to find out. If the
  store gave no answer it raises `OutcomeUnknown`, because a request may still arrive later.
- A put is atomic, and durable when it returns. Parts of a broken multipart upload are never
  visible; a lifecycle rule of the bucket should expire them.
- Every request has a timeout and a bounded number of retries; both are named constants here.
- Credentials come from the options or the environment. They never appear in `root` or in errors:
  of the client's messages only the first line, without the query parts of URLs, is shown.

Segments are downloaded once into an `ObjectCache`, which checks its copies. This module needs the
extra `object-store`.
"""

import os
import re
import time as clock
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import google_crc32c
import pyarrow as pa

from thermocline.cold.storage.cache import ObjectCache
from thermocline.cold.storage.range_reader import RangeReader
from thermocline.cold.storage.storage import FileChecksum, StoredFile
from thermocline.cold.storage.verified import (
    check_algorithm,
    checksum_text,
    damage_error,
    find_damaged_offset,
    missing_file_error,
    wrong_size_error,
)
from thermocline.disk import COPY_CHUNK_BYTES, Disk, FileWriter, OsDisk, translate_errors
from thermocline.errors import (
    Invalid,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    ThermoclineError,
    Unavailable,
    Unsupported,
)
from thermocline.extras import require_extra
from thermocline.format import layout
from thermocline.format.instant import from_datetime

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStoreMethods

CONNECT_TIMEOUT_S = 5
REQUEST_TIMEOUT_S = 60
RETRIES_MAX = 4
RETRY_WAIT_S_FIRST = 0.1
RETRY_WAIT_S_MAX = 2
RETRY_S_MAX = 60
CREATE_TRIES_MAX = 5
CREATE_WAIT_S = 0.1
PART_BYTES = 8 << 20
PARTS_MAX = 10_000
PARTS_AT_ONCE = 4
READ_WHOLE_BYTES_MAX = 1 << 20
DOWNLOAD_CHUNK_BYTES = 16 << 20
ERROR_CHARS_MAX = 200


class ObjectStorage:
    """A table's objects below one prefix of a store. Safe to use from many threads.

    `store` is one of `obstore.store`. `prefix` is for a store that has no prefix itself. `scope`
    tells stores of one address apart in the cache.
    """

    def __init__(
        self,
        store: "ObjectStoreMethods",
        root_url: str,
        cache: ObjectCache | None = None,
        *,
        prefix: str = "",
        scope: str = "",
        disk: Disk | None = None,
        sleep: Callable[[float], None] = clock.sleep,
    ) -> None:
        self._root = check_url(root_url)
        self._store = store
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._cache = cache or ObjectCache()
        self._disk = disk or OsDisk()
        self._scope = scope
        self._sleep = sleep
        self._exceptions = _load_client().exceptions
        self._is_probed = False

    @property
    def root(self) -> str:
        """The address, without anything secret."""
        return self._root

    def make_root(self) -> None:
        """Do nothing: an object store has no folders."""

    def within(self, folder: str) -> "ObjectStorage":
        """Return the storage of a prefix below this one; it shares client and cache."""
        return ObjectStorage(
            self._store,
            f"{self._root}/{folder}",
            self._cache,
            prefix=self._key(folder),
            scope=self._scope,
            disk=self._disk,
            sleep=self._sleep,
        )

    def probe(self) -> None:
        """Test the atomic create of this store; `Unsupported` when it is not atomic.

        Two objects are created under one name: the second create must fail and must not replace the
        first object. Each process that writes tests it once.
        """
        if self._is_probed:
            return
        path = f"{layout.LOG_FOLDER}/.{uuid.uuid4().hex}.tmp"
        try:
            # The result of the first create does not matter: the client may have retried it.
            self.put_new(path, b"one")
            holds = not self.put_new(path, b"two") and self.read(path) == b"one"
        finally:
            with suppress(ThermoclineError):
                self.delete(path)
        if not holds:
            raise Unsupported(
                "this object store does not refuse to create a name twice",
                hint="use a store with conditional writes (If-None-Match), or a local folder",
                root=self._root,
            )
        self._is_probed = True

    def read(self, path: str) -> bytes:
        """Return a whole object; `NotFound` when there is none."""
        with self._translate_errors(path):
            return bytes(self._store.get(self._key(path)).bytes())

    def size(self, path: str) -> int | None:
        """Return the size of an object, or None when there is none."""
        with self._translate_errors(path):
            try:
                return int(self._store.head(self._key(path))["size"])
            except FileNotFoundError:
                return None

    def list(self, folder: str) -> Iterator[StoredFile]:
        """Yield every object below a folder; nothing when there is none."""
        prefix = self._key(folder) if folder else self._prefix
        with self._translate_errors(folder):
            for chunk in self._store.list(prefix or None):
                for found in chunk:
                    path = str(found["path"])[len(self._prefix) :]
                    modified_ns = from_datetime(found["last_modified"])
                    yield StoredFile(path, int(found["size"]), modified_ns)

    def list_names(self, folder: str = "") -> Sequence[str]:
        """Return the names directly below a prefix; none if there is no such prefix."""
        prefix = f"{self._key(folder)}/" if folder else self._prefix
        with self._translate_errors(folder or "."):
            found = self._store.list_with_delimiter(prefix or None)
        paths = [str(one["path"]) for one in found["objects"]]
        paths += [str(one) for one in found["common_prefixes"]]
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    def open_input(self, path: str) -> pa.NativeFile:
        """Return a random-access input; a small object is read at once, a large one in ranges.

        If the store fails during a read, the error is one of this package, not one of Arrow.
        """
        size_bytes = self.size(path)
        if size_bytes is None:
            raise NotFound("no such object", hint="check the path", path=path, root=self._root)
        if size_bytes <= READ_WHOLE_BYTES_MAX:
            return pa.BufferReader(self.read(path))
        reader = RangeReader(
            size_bytes, lambda start, length: self._read_range(path, start, length)
        )
        return pa.PythonFile(reader, mode="r")

    def _read_range(self, path: str, start: int, length: int, tag: str = "") -> memoryview:
        """Return some bytes of an object; with a tag, only of the generation that has it."""
        with self._translate_errors(path):
            options: GetOptions = {"range": (start, start + length)}
            if tag:
                options["if_match"] = tag
            return memoryview(self._store.get(self._key(path), options=options).bytes())

    def check(self, path: str, size_bytes: int, checksum: str, *, fresh: bool = False) -> None:
        """Raise `Corruption` unless an object is there with exactly these bytes."""
        self.open_segment(path, size_bytes, checksum, fresh=fresh).close()

    def locate(self, path: str, size_bytes: int, checksum: str) -> str:
        """Return the path of a local, checked copy of a segment; download it if need be.

        The path stays valid for `CACHE_KEEP_S`.
        """
        return self._cached_copy(path, size_bytes, checksum, fresh=False)

    def open_segment(
        self, path: str, size_bytes: int, checksum: str, *, fresh: bool = False
    ) -> pa.NativeFile:
        """Return a random-access input on a checked segment.

        A small object is read at once, a large one is downloaded into the cache once. If the cache
        has no room, the whole object is read once to check it, and then in ranges of the same
        generation.
        """
        if size_bytes <= READ_WHOLE_BYTES_MAX:
            sink = pa.BufferOutputStream()
            self._download(path, size_bytes, checksum, sink.write)
            return pa.BufferReader(sink.getvalue())
        try:
            copy = self._cached_copy(path, size_bytes, checksum, fresh=fresh)
        except Overloaded:
            tag = self._download(path, size_bytes, checksum, lambda data: None)
            reader = RangeReader(
                size_bytes, lambda at, length: self._read_range(path, at, length, tag)
            )
            return pa.PythonFile(reader, mode="r")
        with translate_errors(path):
            return self._disk.open_input(copy)

    def _cached_copy(self, path: str, size_bytes: int, checksum: str, *, fresh: bool) -> str:
        check_algorithm(path, checksum)

        def fetch(writer: FileWriter) -> None:
            self._download(path, size_bytes, checksum, writer.write)

        name = f"{self._root} {self._scope}{layout.check_relative_path(path)}"
        return self._cache.path(name, size_bytes, checksum, fetch, fresh=fresh)

    def _download(
        self, path: str, size_bytes: int, checksum: str, write: Callable[[memoryview], object]
    ) -> str:
        """Write an object's bytes and return its generation's tag; `Corruption` at other bytes."""
        tag = self._read_tag(path, size_bytes)
        computed = 0
        for start in range(0, size_bytes, DOWNLOAD_CHUNK_BYTES):
            length = min(DOWNLOAD_CHUNK_BYTES, size_bytes - start)
            data = self._read_range(path, start, length, tag)
            if len(data) != length:
                raise wrong_size_error(path, size_bytes, start + len(data))
            computed = google_crc32c.extend(computed, pa.py_buffer(data))
            write(data)
        if checksum_text(computed) != checksum:
            offset = find_damaged_offset(lambda: self.open_input(path))
            raise damage_error(path, checksum, checksum_text(computed), offset)
        return tag

    def _read_tag(self, path: str, size_bytes: int) -> str:
        """Return the tag of an object, after checking its size; empty if it has no strong tag."""
        with self._translate_errors(path):
            try:
                found = self._store.head(self._key(path))
            except FileNotFoundError:
                found = None
        if found is None:
            if self.size(layout.commit_path(1)) is not None:
                raise missing_file_error(path)
            hint = "check that the bucket exists"
            raise NotFound("the table is not there", hint=hint, path=path, root=self._root)
        if found["size"] != size_bytes:
            raise wrong_size_error(path, size_bytes, int(found["size"]))
        tag = found.get("e_tag") or ""
        return "" if tag.startswith("W/") else tag  # a weak tag matches nothing

    def put(self, path: str, data: bytes) -> None:
        """Write an object under a unique name. When this returns it is durable."""
        with self._translate_errors(path):
            self._store.put(
                self._key(path), data, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )

    def put_new(self, path: str, data: bytes) -> bool:
        """Create an object if there is none of this name, and tell whether this call did.

        False also if this call did, but the client lost the answer and retried.
        """
        key = self._key(path)
        for _ in range(CREATE_TRIES_MAX):
            with self._translate_errors(path, is_create=True):
                try:
                    self._store.put(key, data, mode="create")
                    return True
                except self._exceptions.AlreadyExistsError:
                    pass
            if self.size(path) is not None:
                return False
            # S3 also rejects a create with 409 while another create is running. There is no object,
            # so that other create has failed: try again.
            self._sleep(CREATE_WAIT_S)
        raise Unavailable(
            "the object store refuses to create a name that does not exist",
            hint="try again later",
            path=path,
            root=self._root,
        )

    def settle(self, path: str) -> None:
        """Do nothing: every readable object is durable."""

    def replace(self, path: str, data: bytes) -> None:
        """Replace an object; readers see the old or the new bytes."""
        self.put(path, data)

    def put_hint(self, path: str, data: bytes) -> None:
        """Replace an object whose loss does no harm."""
        self.put(path, data)

    def open_source(self, source: str) -> pa.NativeFile:
        """Return a random-access input on a caller's file; `NotFound` when there is none."""
        with translate_errors(source):
            return self._disk.open_input(source)

    def take(self, source: str, path: str, *, link: bool) -> FileChecksum:
        """Upload a local file. When this returns it is durable; `link` is ignored.

        A large file is uploaded in parts as it is read; it is never in memory as a whole.
        """
        del link
        reading = _SourceReader(self._disk, source)
        with translate_errors(source):
            size_bytes = self._disk.size(source) or 0
            part_bytes = max(PART_BYTES, -(-size_bytes // PARTS_MAX))
            chunks = iter(reading)
            data = b"".join(chunks) if size_bytes <= PART_BYTES else chunks
        with self._translate_errors(path):
            self._store.put(
                self._key(path), data, chunk_size=part_bytes, max_concurrency=PARTS_AT_ONCE
            )
        return FileChecksum(reading.size_bytes, checksum_text(reading.checksum))

    def delete(self, path: str) -> None:
        """Remove an object; nothing happens when there is none."""
        with self._translate_errors(path), suppress(FileNotFoundError):
            self._store.delete(self._key(path))

    def _key(self, path: str) -> str:
        return self._prefix + layout.check_relative_path(path)

    @contextmanager
    def _translate_errors(self, path: str, *, is_create: bool = False) -> Iterator[None]:
        """Turn errors of the client into errors of this package that name the path."""
        try:
            yield
        except (self._exceptions.BaseError, OSError, ValueError, RuntimeError) as error:
            raise self._translate_error(error, path, is_create=is_create) from error

    def _translate_error(self, error: Exception, path: str, *, is_create: bool) -> ThermoclineError:
        foreign, text = self._exceptions, str(error)
        facts = {"path": path, "root": self._root, "error": _shorten(text)}
        if isinstance(error, FileNotFoundError) or "404 Not Found" in text:
            hint = "check the path, and that the bucket exists"
            return NotFound("no such object or bucket", hint=hint, **facts)
        if isinstance(error, foreign.PermissionDeniedError | foreign.UnauthenticatedError):
            hint = "check the credentials; they must allow get, put, list and delete below the root"
            return Unavailable("the object store does not allow this", hint=hint, **facts)
        is_refused = isinstance(error, foreign.NotSupportedError | NotImplementedError)
        if is_refused or "501 Not Implemented" in text:
            hint = "use a store with conditional writes (If-None-Match), or a local folder"
            return Unsupported("the object store cannot do this", hint=hint, **facts)
        if isinstance(error, ValueError | foreign.InvalidPathError):
            return Invalid("the object store cannot take this", hint="check the path", **facts)
        if is_create:
            hint = "check whether it exists before trying again"
            return OutcomeUnknown("the object store gave no answer to a create", hint=hint, **facts)
        hint = "check the address and the network, then try again"
        return Unavailable("the object store failed", hint=hint, **facts)


class _SourceReader:
    """A local file read once from its start, with the checksum of what was read."""

    def __init__(self, disk: Disk, source: str) -> None:
        self._disk = disk
        self._source = source
        self.checksum = 0
        self.size_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        with translate_errors(self._source):
            reader = self._disk.open_reader(self._source)
            try:
                while chunk := reader.read(COPY_CHUNK_BYTES):
                    self.checksum = google_crc32c.extend(self.checksum, chunk)
                    self.size_bytes += len(chunk)
                    yield chunk
            finally:
                reader.close()


def open_store(url: str, options: Mapping[str, str] | None = None) -> "ObjectStoreMethods":
    """Return the store of an address (`s3://`, `gs://`, `az://`), with limits on every request.

    Options are those of `obstore` for the store, by its names; `allow_http` and `proxy_url` set up
    the connection. Options that are not given come from the environment.
    """
    client = _load_client()
    config = {key.lower(): value for key, value in (options or {}).items()}
    connection: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
    }
    # The client reads this variable only if it gets no options for its connections.
    if (allowed := config.pop("allow_http", os.environ.get("AWS_ALLOW_HTTP"))) is not None:
        connection["allow_http"] = allowed.lower() in ("true", "1", "yes")
    if proxy := config.pop("proxy_url", None):
        connection["proxy_url"] = proxy
    if url.startswith("s3://"):
        config.pop("aws_conditional_put", None)
        config["conditional_put"] = "etag"  # without it a second create would succeed
    retry = {
        "max_retries": RETRIES_MAX,
        "retry_timeout": timedelta(seconds=RETRY_S_MAX),
        "backoff": {
            "init_backoff": timedelta(seconds=RETRY_WAIT_S_FIRST),
            "max_backoff": timedelta(seconds=RETRY_WAIT_S_MAX),
            "base": 2,
        },
    }
    try:
        opened: ObjectStoreMethods = client.store.from_url(
            check_url(url), config=config, client_options=connection, retry_config=retry
        )
    except (client.exceptions.BaseError, ValueError, TypeError, RuntimeError) as error:
        raise Invalid(
            "the object store's address or options cannot be used",
            hint="check the address and the names of the options",
            root=url,
            options=sorted(config),
            error=_shorten(str(error)),
        ) from error
    return opened


def check_url(url: str) -> str:
    """Return the address without a slash at its end; `Invalid` when it may hold a secret."""
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise Invalid(
            "an object store's address holds a bucket and a path, nothing else",
            hint="give credentials as options or in the environment",
            scheme=parts.scheme,
        )
    return url.rstrip("/")


def open_memory_store() -> "ObjectStoreMethods":
    """Return a new, empty store in the memory of this process."""
    store: ObjectStoreMethods = _load_client().store.MemoryStore()
    return store


def _load_client() -> ModuleType:
    with require_extra("object-store", feature="an object store"):
        import obstore
        import obstore.exceptions
        import obstore.store
    return obstore


def _shorten(text: str) -> str:
    """Return the first line of a client's message, without response bodies and URLs' queries."""
    first = (text.splitlines() or [""])[0].split("<", 1)[0]
    return re.sub(r"\?\S*", "", first)[:ERROR_CHARS_MAX]
