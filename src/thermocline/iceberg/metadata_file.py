"""Checksums of Iceberg metadata: each file can be verified before anything is built on it.

In:   the bytes of a manifest, a manifest list or a position-delete file; a table's metadata
Out:  a name that ends in the digest of the bytes; metadata with its digest among its properties

Iceberg has no checksums of metadata. A damaged number in a manifest would be copied into every
later snapshot, and other engines would skip or repeat rows without an error.

- The digest is BLAKE2b with 16 bytes.
- The digest of metadata is that of its JSON, as orjson writes it, without the property.
- Metadata of older releases has no digest. It is not built on: it is rendered again from the log.
"""

import hashlib
import re
from typing import Any

import orjson

from thermocline.errors import Corruption
from thermocline.iceberg.avro import DAMAGE_HINT, Record

DIGEST_PROPERTY = "thermocline.digest"
VERSION_FIELD = "current-snapshot-id"
_NAME = re.compile(r"-([0-9a-f]{32})\.(?:avro|parquet)")


def name_of_bytes(kind: str, data: bytes, suffix: str) -> str:
    """Return the name of a file with these bytes, such as `manifest-7-<digest>.avro`."""
    return f"{kind}-{_digest(data)}{suffix}"


def check_bytes(path: str, data: bytes) -> bytes:
    """Return the bytes of a file if they are those that its name stands for, else `Corruption`."""
    found = _NAME.search(path)
    if found is None or found.group(1) != _digest(data):
        raise damaged_metadata_error(path)
    return data


def seal_metadata(metadata: Record) -> Record:
    """Return a table's metadata with its digest."""
    properties = {**metadata["properties"], DIGEST_PROPERTY: _digest(orjson.dumps(metadata))}
    return {**metadata, "properties": properties}


def unseal_metadata(data: bytes, path: str, version: int) -> Record | None:
    """Return the metadata of a version from its file; None if an older release wrote it.

    `Corruption` if it is not what was written, or is the metadata of another version.
    """
    try:
        metadata: Record = orjson.loads(data)
        properties = dict(metadata["properties"])
        if (digest := properties.pop(DIGEST_PROPERTY, None)) is None:
            return None
        written: dict[str, Any] = {**metadata, "properties": properties}
        is_sound = digest == _digest(orjson.dumps(written)) and metadata[VERSION_FIELD] == version
    except (ValueError, LookupError, TypeError) as error:
        raise damaged_metadata_error(path) from error
    if not is_sound:
        raise damaged_metadata_error(path)
    return metadata


def damaged_metadata_error(path: str) -> Corruption:
    """Return the error for a file of metadata that is missing or not what was written."""
    return Corruption(
        "a file of Iceberg metadata is not what was written", hint=DAMAGE_HINT, path=path
    )


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
