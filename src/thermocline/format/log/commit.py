"""One commit: what it says, its bytes, and the checksum that proves them.

A commit file is one JSON object on one line that ends in a newline, in the form that
`sealed_json.py` describes: its last field is the checksum of everything before it.

- A commit is decoded only after its checksum has been verified.
- If the format version is newer than this release supports, the error names it, before any other
  field is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from thermocline.errors import Corruption, Invalid, Overloaded, ThermoclineError, Unsupported
from thermocline.format import instant
from thermocline.format.instant import TimeNs
from thermocline.format.layout import Version, commit_path
from thermocline.format.log.action import Action, decode_action, encode_action
from thermocline.format.sealed_json import seal_encoded, unseal

FORMAT_VERSION = 1
COMMIT_BYTES_MAX = 256 << 20

_HINT = "restore this file from a copy; earlier versions are still readable"


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of a table's history; its actions were planned against version `base`.

    `previous` is the `txn_id` of the commit before it; empty in the first commit and in commits of
    releases that did not write it.
    """

    version: Version
    base: Version
    txn_id: str
    time: TimeNs
    operation: str
    actions: tuple[Action, ...]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    previous: str = ""


def encode_commit(commit: Commit) -> bytes:
    """Return the bytes of a commit file; `Overloaded` when they are past the limit."""
    body = orjson.dumps(
        {
            "format": FORMAT_VERSION,
            "version": commit.version,
            "base": commit.base,
            "txn_id": commit.txn_id,
            "time": instant.format_instant(commit.time),
            "operation": commit.operation,
            "actions": [encode_action(action) for action in commit.actions],
            "metrics": dict(commit.metrics),
            **({"previous": commit.previous} if commit.previous else {}),
        }
    )
    if len(body) > COMMIT_BYTES_MAX:
        raise Overloaded(
            "the commit is too large",
            hint="split the change into several commits, and compact in between",
            size_bytes=len(body),
            size_bytes_max=COMMIT_BYTES_MAX,
        )
    return seal_encoded(body)


def decode_commit(data: bytes, version: int) -> Commit:
    """Return the commit of a file's bytes.

    `Corruption` when the bytes are damaged or name another version; `Unsupported` when they have a
    newer format.
    """
    json = unseal(data, commit_path(version), hint=_HINT)
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
                "a commit file contains another version than its name says",
                hint=_HINT,
                path=commit_path(version),
                version=json["version"],
            )
        return Commit(
            Version(version),
            Version(int(json["base"])),
            str(json["txn_id"]),
            instant.parse_instant(json["time"]),
            str(json["operation"]),
            tuple(decode_action(action) for action in json["actions"]),
            json["metrics"],
            str(json.get("previous", "")),
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, Invalid) as error:
        # `Invalid` here is not the caller's mistake: the bad value is in the file.
        raise Corruption(
            "a commit lacks a required field, or has a bad value in one",
            hint=_HINT,
            path=commit_path(version),
        ) from error
    except ThermoclineError as error:
        error.facts.setdefault("path", commit_path(version))
        raise
