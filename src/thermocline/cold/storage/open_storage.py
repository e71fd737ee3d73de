"""Opens the storage of a table, from a path or an address.

In:   a folder, `file://`, `s3://`, `gs://`, `az://` or `memory://`, and options for the store
Out:  a `Storage`

- `memory://` is one store shared by the whole process; it ends with the process.
- Options are passed on to the store's client, and never stored, logged or shown.
"""

import os
import threading
import uuid
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.storage.storage import Storage
from thermocline.disk import Disk
from thermocline.errors import Invalid
from thermocline.format.argument import check_options, check_path

if TYPE_CHECKING:
    from obstore.store import ObjectStoreMethods

    from thermocline.cold.storage.cache import ObjectCache
    from thermocline.cold.storage.objects import ObjectStorage

OBJECT_SCHEMES = ("s3", "gs", "az", "memory")
"""The schemes of the addresses of object stores."""

_memory_lock = threading.Lock()


def open_storage(
    root: str | os.PathLike[str],
    options: Mapping[str, str] | None = None,
    argument: str = "table_root",
) -> Storage:
    """Return the storage of a table, without a request to it.

    `cache_folder` and `cache_bytes_max` set up the local cache of an object store; all other
    options go to the store's client, by its names.
    """
    place = check_path(root, argument)
    given = check_options(options, "storage_options")
    scheme, is_address, _ = place.partition("://")
    if is_store_address(place):
        return _open_objects(place, given)
    if given:
        raise Invalid("a folder takes no options", hint="omit them", options=sorted(given))
    if not is_address:
        return LocalStorage(place)
    parts = urlsplit(place)
    if scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return LocalStorage(unquote(parts.path))
    raise Invalid(
        "a table cannot be stored at an address of this scheme",
        hint=f"use a folder, file:///folder, or an address of {', '.join(OBJECT_SCHEMES)}",
        scheme=scheme,
    )


def is_store_address(place: str) -> bool:
    """Tell whether a place is an address of an object store, and not a folder."""
    scheme, is_address, _ = place.partition("://")
    return bool(is_address) and scheme in OBJECT_SCHEMES


def open_place(place: "str | Storage", disk: Disk | None = None) -> Storage:
    """Return the storage of a folder, an address or an open storage, without a request to it.

    An address takes its credentials from the environment.
    """
    if not isinstance(place, str):
        return place
    return open_storage(place) if is_store_address(place) else LocalStorage(place, disk)


def _open_objects(url: str, options: dict[str, str]) -> "ObjectStorage":
    from thermocline.cold.storage.objects import ObjectStorage, check_url, open_store

    url = check_url(url)
    kept = _open_cache(options)
    if not url.startswith("memory://"):
        return ObjectStorage(open_store(url, options), url, kept)
    with _memory_lock:
        store, process = _share_memory_store()
    # The scope names the process: a cached copy of another process's object never matches.
    prefix = url.removeprefix("memory://")
    return ObjectStorage(store, url, kept, prefix=prefix, scope=f"{process}/")


def _open_cache(options: dict[str, str]) -> "ObjectCache":
    from thermocline.cold.storage.cache import CACHE_BYTES_MAX, ObjectCache

    folder = options.pop("cache_folder", None)
    bytes_max = options.pop("cache_bytes_max", str(CACHE_BYTES_MAX))
    if not (bytes_max.isascii() and bytes_max.isdigit()):
        raise Invalid(
            "a number of bytes is expected", hint="use digits only", cache_bytes_max=bytes_max
        )
    return ObjectCache(folder, bytes_max=int(bytes_max))


@cache
def _share_memory_store() -> "tuple[ObjectStoreMethods, str]":
    from thermocline.cold.storage.objects import open_memory_store

    return open_memory_store(), uuid.uuid4().hex
