"""The ASGI side of the catalogue and of the files: requests in, answers out.

In:   ASGI requests below `/iceberg` and `/thermocline`
Out:  ASGI answers: JSON of the catalogue, bytes of files

- The key is checked before the path of a request is looked at, and the signature before a file is.
- A file is sent in parts as fast as its client reads; one part of it is in memory.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import orjson
from starlette.datastructures import Headers, QueryParams
from starlette.routing import compile_path
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from thermocline.errors import ThermoclineError
from thermocline.server.api.context import ApiContext
from thermocline.server.api.http.incoming import ClientGone
from thermocline.server.api.http.problem import problem_headers, problem_of
from thermocline.server.api.http.reply import send_in_time
from thermocline.server.api.types.route import ADMIT_CONNECTION
from thermocline.server.iceberg.catalog import (
    ROOT,
    CatalogRequest,
    IcebergCatalog,
    encode_error,
    unsupported_operation,
)
from thermocline.server.iceberg.credentials import CredentialIssuer
from thermocline.server.iceberg.files import (
    FileRange,
    TableFiles,
    UnsatisfiableRange,
    encode_refusal,
)
from thermocline.server.iceberg.signature import Refused, SignedRequest
from thermocline.server.iceberg.tables import BUCKET, ServedTables

CATALOG_PREFIX = "/iceberg"
FILES_PREFIX = f"/{BUCKET}"
FILES_ROUTE = f"/{BUCKET}/{{tenant}}/{{table}}/{{file}}"


class IcebergEndpoint:
    """The catalogue and the files of a node, as ASGI applications."""

    def __init__(self, parts: ApiContext) -> None:
        self._parts = parts
        self.issuer = issuer = CredentialIssuer()
        tables = ServedTables()
        self._catalog = IcebergCatalog(tables, issuer)
        self._files = TableFiles(parts.gateway, parts.guard, tables, issuer)
        self._routes = [
            (path, compile_path(path)[0], run) for path, run in self._catalog.routes.items()
        ]

    async def serve_catalog(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer a request of the catalogue."""
        del receive
        names: dict[str, str] = {}
        try:
            status, body = 200, await self._ask(scope, names)
            headers: dict[str, str] = {}
        except ClientGone:
            raise
        except ThermoclineError as error:
            status, body = encode_error(error, names)
            headers = problem_headers(error, problem_of(error))
        is_head = scope["method"] == "HEAD"
        if is_head and status == 200:
            status, body = 204, b""
        await _send(send, status, body, {"content-type": "application/json", **headers})

    async def _ask(self, scope: AsgiScope, names: dict[str, str]) -> bytes:
        headers = Headers(scope=scope)
        given = headers.getlist("authorization")
        authorization = given[0] if len(given) == 1 else None
        caller = self._parts.guard.caller(authorization, "query", peer=_peer(scope))
        admit_connection = scope.get(ADMIT_CONNECTION)
        if admit_connection is not None:
            admit_connection(caller.tenant)
        run = self._find_route(scope, names)
        params = dict(QueryParams(scope.get("query_string", b"")))
        origin = f"{scope['scheme']}://{headers.get('host', '')}"

        def work() -> bytes:
            lake = self._parts.node.lake(caller.tenant)
            return orjson.dumps(run(CatalogRequest(caller, lake, names, params, origin)))

        return await self._parts.work.run(work, tenant=caller.tenant)

    def _find_route(
        self, scope: AsgiScope, names: dict[str, str]
    ) -> Callable[[CatalogRequest], Any]:
        """Return what a request asks for, and put what its path names into `names`."""
        scope["thermocline.route"] = ROOT
        for path, pattern, run in self._routes:
            found = pattern.fullmatch(scope["path"])
            if found is not None and scope["method"] in ("GET", "HEAD"):
                scope["thermocline.route"] = path
                names |= {name: unquote(part) for name, part in found.groupdict().items()}
                return run
        raise unsupported_operation()

    async def serve_file(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer a request for a file."""
        del receive
        scope["thermocline.route"] = FILES_ROUTE
        headers = Headers(scope=scope)
        raw = scope.get("raw_path") or scope["path"].encode()
        path = raw.partition(b"?")[0].decode("latin-1")
        query = scope.get("query_string", b"").decode("latin-1")
        request = SignedRequest(scope["method"], path, query, list(headers.items()))
        wanted = headers.get("range")
        owner = f"peer {_peer(scope)}"  # before the signature is checked no tenant is known
        try:
            found = await self._parts.reading.run(
                lambda: self._files.find(request, unquote(path), wanted), tenant=owner
            )
        except (Refused, UnsatisfiableRange, ThermoclineError) as error:
            status, body = encode_refusal(error)
            await _send(send, status, body, {"content-type": "application/xml"})
            return
        await self._send_file(found, send, owner, is_head=scope["method"] == "HEAD")

    async def _send_file(self, found: FileRange, send: Send, owner: str, *, is_head: bool) -> None:
        headers = {
            "accept-ranges": "bytes",
            "content-type": "application/octet-stream",
            "content-length": str(found.end - found.start),
            "etag": found.tag,
        }
        if found.is_partial:
            last = found.end - 1
            headers["content-range"] = f"bytes {found.start}-{last}/{found.size_bytes}"
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        status = 206 if found.is_partial else 200
        await send_in_time(
            send, {"type": "http.response.start", "status": status, "headers": pairs}
        )
        parts = iter(()) if is_head else found.parts()
        while part := await self._parts.reading.run(lambda: next(parts, b""), tenant=owner):
            body = {"type": "http.response.body", "body": part, "more_body": True}
            await send_in_time(send, body)
        await send_in_time(send, {"type": "http.response.body", "body": b""})


def _peer(scope: AsgiScope) -> str:
    return str((scope.get("client") or ("",))[0])


async def _send(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    if status != 204:
        pairs.append((b"content-length", str(len(body)).encode()))
    await send_in_time(send, {"type": "http.response.start", "status": status, "headers": pairs})
    await send_in_time(send, {"type": "http.response.body", "body": body})
