"""A route as data: its address, who may use it, what goes in and what comes out.

In:   nothing; values only
Out:  `Route`, from which routing, access, decoding and the OpenAPI document are made

- A route has a scope, or says that it has none; there is no default.
- What a route takes and gives is in its types; its code gets values that are checked already.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from starlette.datastructures import Headers
from starlette.types import Receive, Send

from thermocline.server.api.asking import Nothing
from thermocline.server.api.encode import MEDIA_TYPES
from thermocline.server.api.part import Caller, Parts

JSON = "application/json"
EVERY_FORMAT = tuple(MEDIA_TYPES.values())
SCOPES = ("ingest", "query", "admin")


@dataclass(frozen=True, slots=True)
class Call:
    """One request on its route: who asks, what is asked, and what answers are made from."""

    parts: Parts
    route: "Route"
    caller: Caller
    request_id: str
    path: dict[str, str]
    headers: Headers
    asked: Any
    body: Any
    http_version: str
    receive: Receive

    @property
    def lake(self) -> Any:
        """The caller's own lake: tables of other tenants do not exist in it."""
        return self.parts.node.lake(self.caller.tenant)

    @property
    def table(self) -> Any:
        """The table that the address names; `NotFound` when the caller has none of this name."""
        return self.lake.table(self.path["name"])


@dataclass(frozen=True, slots=True)
class Done:
    """An answer that is ready to be sent: a typed value, rows, or bytes of some type."""

    value: Any
    status: int = 200
    media_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class First:
    """The first rows of a table, and whether there are more."""

    rows: pa.Table
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class Route:
    """An address, a method, and all that is to know about them.

    `errors` are the other statuses that it answers with, 201 and 304 among them.

    `run` blocks and is called on a thread; it returns a value of type `answer`, an Arrow table or
    a `First` where `forms` are several, or a `Done`. `stream` is called on the loop instead and
    sends its answer itself. With `is_raw` the body comes as its bytes, up to the node's own limit:
    a document keeps every digit.
    """

    method: str
    path: str
    scope: str | None
    name: str
    summary: str
    answer: Any
    run: Callable[[Call], Any] | None = None
    stream: Callable[[Call, Send], Awaitable[None]] | None = None
    asked: type = Nothing
    body: Any = None
    body_types: tuple[str, ...] = (JSON,)
    forms: tuple[str, ...] = (JSON,)
    status: int = 200
    errors: tuple[int, ...] = ()
    is_operator_only: bool = False
    headers: tuple[str, ...] = ()
    asked_headers: tuple[str, ...] = ()
    is_raw: bool = False
    description: str = ""
