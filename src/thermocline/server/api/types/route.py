"""A route as data: its address, its scope, its request and answer types.

In:   nothing; values only
Out:  `Route`, which defines routing, access, decoding and the OpenAPI document

- A route names its scope, or None explicitly; there is no default.
- The types of a route define its requests and answers; its code gets checked values.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from starlette.datastructures import Headers
from starlette.types import Receive, Send

from thermocline.lake import Lake
from thermocline.lake_table import LakeTable
from thermocline.server.api.context import ApiContext, Caller
from thermocline.server.api.http.encode import MEDIA_TYPES
from thermocline.server.api.types.request_types import NoParams

API = "/api/v1"
PROMETHEUS = "prometheus"
JSON = "application/json"
ADMIT_CONNECTION = "thermocline.admit_connection"
"""The key of a request's ASGI scope with the function that charges its connection to a tenant."""
EVERY_FORMAT = tuple(MEDIA_TYPES.values())


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request on its route: its caller, its parameters and body, and the API's context."""

    parts: ApiContext
    route: "ApiRoute"
    caller: Caller
    request_id: str
    path: dict[str, str]
    headers: Headers
    params: Any
    body: Any
    http_version: str
    receive: Receive
    is_head: bool = False

    @property
    def lake(self) -> Lake:
        """The caller's lake; it has no tables of other tenants."""
        return self.parts.node.lake(self.caller.tenant)

    @property
    def table(self) -> LakeTable:
        """The table in the path; `NotFound` when the caller's lake has none of this name."""
        return self.lake.table(self.path["name"])


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """An answer that is ready to send."""

    value: Any
    status: int = 200
    media_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TruncatedRows:
    """The first rows of a table, and whether there are more."""

    rows: pa.Table
    is_truncated: bool


Streamed = Callable[[ApiRequest, Send], Awaitable[None]]
"""Answers a request by itself, on the loop."""


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """An address and a method, with everything that routing and the documentation need.

    `errors` are its other statuses, also 201 and 304.

    `run` blocks and is called on a thread; it returns a value of type `answer`, an `ApiResponse`,
    or, if the route has several `forms`, an Arrow table or a `TruncatedRows`. `stream` is called on
    the loop instead and sends its answer itself. With `is_raw` the body stays bytes, up to the
    node's limit: a document keeps every digit. With `error_form` `prometheus` an error has
    Prometheus' form instead of that of a problem document. With `is_between_nodes`,
    `run` checks the token of another node, and has separate threads.
    """

    method: str
    path: str
    scope: str | None
    name: str
    summary: str
    answer: Any
    run: Callable[[ApiRequest], Any] | None = None
    stream: "Streamed | None" = None
    params_type: type = NoParams
    body: Any = None
    body_types: tuple[str, ...] = (JSON,)
    forms: tuple[str, ...] = (JSON,)
    status: int = 200
    errors: tuple[int, ...] = ()
    is_operator_only: bool = False
    headers: tuple[str, ...] = ()
    request_headers: tuple[str, ...] = ()
    is_raw: bool = False
    is_between_nodes: bool = False
    description: str = ""
    error_form: str = "problem"
