"""Sealed JSON: a small file whose last field is the checksum of all bytes before it.

In:   the fields of a file, or its bytes
Out:  one line of JSON that ends in a newline; the fields, after the checksum was verified

The last field is `"checksum":"crc32c:xxxxxxxx"`, the CRC32C of the object without that field: of
the bytes up to the comma before it, followed by `}`. The checksum covers the bytes themselves, so
no rule about spaces or the order of fields is needed. Commits and the small files of a lake use it.

- A file is decoded only after its checksum was verified: a changed byte is `Corruption`.
- A file that an older release wrote has no checksum. It is accepted only when its fields are
  exactly the fields of that release, so that a damaged checksum cannot pass for an older file.
- A checksum cannot detect that one intact file replaced another. The reader compares the fields
  that say what the file belongs to.
"""

import re
from collections.abc import Mapping
from typing import Any

import google_crc32c
import orjson

from thermocline.errors import Corruption

_SEAL = re.compile(rb',"checksum":"crc32c:([0-9a-f]{8})"\}\n\Z')
_SEAL_BYTES_MAX = 64
HINT = "restore this file from a copy"


def crc32c(data: bytes | memoryview) -> str:
    """Return the written checksum of some bytes: `crc32c:xxxxxxxx`."""
    return f"crc32c:{google_crc32c.value(bytes(data)):08x}"


def seal(fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of a sealed file with these fields; at least one field is needed."""
    return seal_encoded(orjson.dumps(fields))


def seal_encoded(body: bytes) -> bytes:
    """Return the sealed form of a JSON object that is already encoded."""
    return body[:-1] + b',"checksum":"' + crc32c(body).encode() + b'"}\n'


def unseal(
    data: bytes,
    path: str,
    *,
    hint: str = HINT,
    unsealed_fields: frozenset[str] | None = None,
) -> dict[str, Any]:
    """Return the fields of a sealed file; `Corruption` that names the path for any other bytes.

    `unsealed_fields` are the fields of the form that older releases wrote without a checksum; a
    file with exactly these fields is accepted as well. The returned fields omit the checksum.
    """
    found = _SEAL.search(data[-_SEAL_BYTES_MAX:])
    if found is None:
        return _decode_unsealed(data, path, hint, unsealed_fields)
    body_bytes = len(data) - len(found.group(0))
    stored, computed = found.group(1).decode(), crc32c(data[:body_bytes] + b"}")[7:]
    if stored != computed:
        raise Corruption(
            "file checksum differs", hint=hint, path=path, stored=stored, computed=computed
        )
    fields = _decode_object(data, path, hint)
    del fields["checksum"]
    return fields


def _decode_unsealed(
    data: bytes, path: str, hint: str, unsealed_fields: frozenset[str] | None
) -> dict[str, Any]:
    if unsealed_fields is not None:
        fields = _decode_object(data, path, hint)
        if fields.keys() == unsealed_fields:
            return fields
    raise Corruption(
        "the file is truncated or has no checksum", hint=hint, path=path, size_bytes=len(data)
    )


def _decode_object(data: bytes, path: str, hint: str) -> dict[str, Any]:
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Corruption("the file is not JSON", hint=hint, path=path) from error
    if not isinstance(fields, dict):
        raise Corruption("the file is not a JSON object", hint=hint, path=path)
    return fields


def check_owner(found: Mapping[str, Any], path: str, lake_id: str | None, *, hint: str) -> None:
    """Raise `Corruption` when a file says that it belongs to another lake."""
    owner = found.get("lake_id")
    if owner is not None and lake_id is not None and owner != lake_id:
        raise Corruption(
            "this file belongs to another lake", hint=hint, path=path, owner=owner, lake_id=lake_id
        )
