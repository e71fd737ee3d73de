"""The files of published tables, as S3 objects: GET and HEAD, whole or one range.

In:   signed requests for `/thermocline/<tenant>/<table>/<file>`
Out:  bytes of files that a published snapshot of exactly this table names

- Order matters: the signature, its time, the client's key, the table, and then the file. Every
  failure of these is the same answer, so a stranger learns nothing about what exists.
- A path is looked up among the names of the published snapshots. It is never joined to a folder
  before it was found there.
- The bytes of every file are compared with its checksum before the first of them is sent.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from thermocline.cold.storage.storage import Storage
from thermocline.errors import NotFound, Overloaded, Unavailable
from thermocline.lake import Lake
from thermocline.server.access.guard import Guard, NodeGateway
from thermocline.server.iceberg.credentials import CredentialIssuer
from thermocline.server.iceberg.signature import Refused, SignedRequest, check_signature
from thermocline.server.iceberg.tables import BUCKET, ServedTable, ServedTables

PART_BYTES = 1 << 20
_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


@dataclass(frozen=True, slots=True)
class FileRange:
    """A part of a file that may be sent."""

    storage: Storage
    path: str
    size_bytes: int
    start: int
    end: int
    is_partial: bool

    @property
    def tag(self) -> str:
        """A text that changes with the file; files never change."""
        return f'"{hashlib.blake2b(self.path.encode(), digest_size=16).hexdigest()}"'

    def parts(self) -> Iterator[bytes]:
        """Yield the bytes, in parts of a bounded size. Blocks."""
        with self.storage.open_input(self.path) as source:
            source.seek(self.start)
            left = self.end - self.start
            while left:
                part = source.read(min(left, PART_BYTES))
                if not part:
                    raise NotFound("a file ended early", hint="restore it from a copy")
                left -= len(part)
                yield part


class UnsatisfiableRange(Exception):
    """A range begins after the end of its file."""


class TableFiles:
    """Finds the files that requests may read. Safe to use from many threads."""

    def __init__(
        self,
        gateway: NodeGateway,
        guard: Guard,
        tables: ServedTables,
        issuer: CredentialIssuer,
    ) -> None:
        self._gateway = gateway
        self._guard = guard
        self._tables = tables
        self._issuer = issuer

    def find(self, request: SignedRequest, address: str, wanted: str | None) -> FileRange:
        """Return the range of the file at an address; `Refused` if the request may not read it.

        `address` is the path without its quotes. `Unavailable` while the node starts or stops.
        """
        node = self._gateway.node
        access_key = check_signature(request, self._issuer.secret_of, self._issuer.now_s())
        grant = self._issuer.grant_of(access_key)
        if grant is None or grant.expires_s < self._issuer.now_s():
            raise Refused("expired")
        if request.method not in ("GET", "HEAD") or request.query not in ("", "x-id=GetObject"):
            raise Refused("read-only")
        parts = address.split("/", 4)
        if len(parts) != 5 or parts[:2] != ["", BUCKET]:
            raise Refused("no file")
        _, _, tenant, name, path = parts
        if not self._guard.is_valid(grant.key_id, tenant, "query"):
            raise Refused("no key")
        try:
            served = self._tables.find(self._lake(node.tenants(), tenant), name)
        except NotFound as error:
            raise Refused("no table") from error
        if served.digest != grant.table or served.table.name != name:
            raise Refused("another table")
        return self._open(served, path, wanted)

    def _lake(self, tenants: list[str], tenant: str) -> Lake:
        if tenant not in tenants:
            raise Refused("no tenant")
        return self._gateway.lake(tenant)

    def _open(self, served: ServedTable, path: str, wanted: str | None) -> FileRange:
        if not served.publication.names_file(path):
            # Another process of this node may have published since; or it was dropped from memory.
            served.publish()
            if not served.publication.names_file(path):
                raise Refused("not named")
        storage = served.table.cold.storage
        try:
            served.publication.check_file(path)
        except NotFound as error:
            raise Refused("gone") from error
        size_bytes = storage.size(path)
        if size_bytes is None:
            raise Refused("gone")
        start, end, is_partial = _parse_range(wanted, size_bytes)
        return FileRange(storage, path, size_bytes, start, end, is_partial)


def _parse_range(wanted: str | None, size_bytes: int) -> tuple[int, int, bool]:
    """Return the first byte, the end, and whether it is a part; several ranges are the whole."""
    found = _RANGE.fullmatch(wanted or "")
    if found is None or found.groups() == ("", ""):
        return 0, size_bytes, False
    first, last = found.groups()
    if not first:
        start, end = max(0, size_bytes - int(last)), size_bytes
        is_empty = int(last) == 0
    else:
        start = int(first)
        end = min(size_bytes, int(last) + 1) if last else size_bytes
        is_empty = start >= size_bytes or end <= start
    if is_empty:
        raise UnsatisfiableRange
    return start, end, True


def encode_refusal(error: BaseException) -> tuple[int, bytes]:
    """Return the status and the body of an error as S3 has it."""
    status, code = 403, "AccessDenied"
    if isinstance(error, UnsatisfiableRange):
        status, code = 416, "InvalidRange"
    elif not isinstance(error, Refused):
        is_ours = isinstance(error, Unavailable | Overloaded)
        status, code = (503, "ServiceUnavailable") if is_ours else (500, "InternalError")
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code></Error>'
    return status, text.encode()
