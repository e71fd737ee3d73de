"""One commit: what it says, its bytes, and the checksum that proves them.

A commit file is one JSON object on one line that ends in a newline. Its last field is
`"checksum":"crc32c:xxxxxxxx"`, the CRC32C of the object without that field: of the bytes up to
the comma before it, followed by `}`. The bytes themselves are checked, so no rule about spaces
or the order of fields is needed.

- A commit is decoded only after its checksum was found right.
- A format version newer than this one is refused and named, before anything else is read.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import orjson

from thermocline.errors import Corruption, Invalid, Overloaded, ThermoclineError, Unsupported
from thermocline.format import instant
from thermocline.format.action import Action, decode_action, encode_action
from thermocline.format.instant import TimeNs
from thermocline.format.layout import Version, commit_path

FORMAT_VERSION = 1
COMMIT_BYTES_MAX = 256 << 20

_CHECKSUM = re.compile(rb',"checksum":"crc32c:([0-9a-f]{8})"\}\n\Z')
_HINT = "restore this file from a copy; earlier versions are still readable"


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of a table's history; `base` is the version its actions were made against."""

    version: Version
    base: Version
    txn_id: str
    time: TimeNs
    operation: str
    actions: tuple[Action, ...]
    metrics: Mapping[str, Any] = field(default_factory=dict)


def crc32c(data: bytes | memoryview) -> str:
    """Return the written checksum of some bytes: `crc32c:xxxxxxxx`."""
    return f"crc32c:{google_crc32c.value(bytes(data)):08x}"


def encode_commit(commit: Commit) -> bytes:
    """Return the bytes of a commit file; `Overloaded` when they are past the limit."""
    body = orjson.dumps(
        {
            "format": FORMAT_VERSION,
            "version": commit.version,
            "base": commit.base,
            "txn_id": commit.txn_id,
            "time": instant.written(commit.time),
            "operation": commit.operation,
            "actions": [encode_action(action) for action in commit.actions],
            "metrics": dict(commit.metrics),
        }
    )
    if len(body) > COMMIT_BYTES_MAX:
        raise Overloaded(
            "one commit does too much",
            hint="do it in several steps, and compact in between",
            size_bytes=len(body),
            size_bytes_max=COMMIT_BYTES_MAX,
        )
    return body[:-1] + b',"checksum":"' + crc32c(body).encode() + b'"}\n'


def decode_commit(data: bytes, version: int) -> Commit:
    """Return the commit of a file's bytes.

    `Corruption` when the bytes are not those that were written or speak of another version;
    `Unsupported` when they are of a newer format.
    """
    json = _verified(data, version)
    try:
        if json["format"] > FORMAT_VERSION:
            raise Unsupported(
                "a commit of a newer format",
                hint="use a newer Thermocline",
                path=commit_path(version),
                needed=json["format"],
                supported=FORMAT_VERSION,
            )
        if json["version"] != version:
            raise Corruption(
                "a commit speaks of another version than its name",
                hint=_HINT,
                path=commit_path(version),
                version=json["version"],
            )
        return Commit(
            Version(version),
            Version(int(json["base"])),
            str(json["txn_id"]),
            instant.parse(json["time"]),
            str(json["operation"]),
            tuple(decode_action(action) for action in json["actions"]),
            json["metrics"],
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, Invalid) as error:
        # What would be a caller's mistake elsewhere was written by somebody here.
        raise Corruption(
            "a commit lacks what every commit has", hint=_HINT, path=commit_path(version)
        ) from error
    except ThermoclineError as error:
        error.facts.setdefault("path", commit_path(version))
        raise


def _verified(data: bytes, version: int) -> dict[str, Any]:
    found = _CHECKSUM.search(data[-64:])
    if not found:
        raise Corruption(
            "a commit is torn or is not one",
            hint=_HINT,
            path=commit_path(version),
            size_bytes=len(data),
        )
    size_bytes = len(data) - len(found.group(0))
    stored, computed = found.group(1).decode(), crc32c(data[:size_bytes] + b"}")[7:]
    if stored != computed:
        raise Corruption(
            "commit checksum differs",
            hint=_HINT,
            path=commit_path(version),
            stored=stored,
            computed=computed,
        )
    try:
        json: dict[str, Any] = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Corruption("a commit is not JSON", hint=_HINT, path=commit_path(version)) from error
    return json
