"""The console's files over HTTP, and the words that its editor completes.

In:   a call on a route
Out:  files of the page; the names that a query of the caller may use

- The page and its files need no key: they are the same for every user and have no data. The page
  fetches data with the key that its user typed.
- The browser asks for a file at each visit; the node sends it only when it has changed.
"""

from msgspec import Struct

from thermocline.query.sql.allowed_functions import (
    FUNCTIONS,
    OWN_TABLE_FUNCTIONS,
    TABLE_FUNCTIONS,
)
from thermocline.server.api.types.route import ApiRequest, ApiResponse
from thermocline.server.console.asset import PAGE, POLICY, asset

TABLES_MAX = 500


class TableWords(Struct):
    """A table and its columns."""

    name: str
    columns: list[str]


class Words(Struct):
    """The names that a query may use; tables past the first 500 are omitted."""

    tables: list[TableWords]
    functions: list[str]
    table_functions: list[str]


def page(call: ApiRequest) -> ApiResponse:
    """Return the page."""
    return _file_response(call, PAGE)


def file(call: ApiRequest) -> ApiResponse:
    """Return a file of the page."""
    return _file_response(call, call.path["file"])


def _file_response(call: ApiRequest, name: str) -> ApiResponse:
    found = asset(name)
    headers = {
        "Content-Security-Policy": POLICY,
        "Cache-Control": "no-cache",
        "ETag": found.tag,
        "Vary": "Accept-Encoding",
    }
    if found.tag in call.headers.get("if-none-match", ""):
        return ApiResponse(b"", 304, headers=headers)
    if "gzip" not in call.headers.get("accept-encoding", ""):
        return ApiResponse(found.plain, media_type=found.media_type, headers=headers)
    headers["Content-Encoding"] = "gzip"
    return ApiResponse(found.compressed, media_type=found.media_type, headers=headers)


def words(call: ApiRequest) -> Words:
    """Return the tables, columns and functions that a query may name."""
    lake = call.lake
    tables = [
        TableWords(name, [column.name for column in lake.table(name).schema()])
        for name in lake.tables()[:TABLES_MAX]
    ]
    return Words(tables, sorted(FUNCTIONS), sorted(TABLE_FUNCTIONS | OWN_TABLE_FUNCTIONS))
