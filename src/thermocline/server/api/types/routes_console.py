"""The routes of the console: its files, and data that only the console needs.

In:   the handler functions
Out:  routes for the table of all routes
"""

from collections.abc import Iterator

from thermocline.server.api.handle import blocks, console, freshness
from thermocline.server.api.types import request_types
from thermocline.server.api.types.route import Route
from thermocline.server.console.asset import MEDIA_TYPES

API = "/api/v1"


def console_routes() -> Iterator[Route]:
    """Yield the routes of the page's files and data."""
    yield Route(
        "GET",
        "/",
        None,
        "console",
        "The console",
        bytes,
        run=console.page,
        forms=("text/html",),
        errors=(304,),
    )
    yield Route(
        "GET",
        "/console/{file}",
        None,
        "console_file",
        "A file of the console",
        bytes,
        run=console.file,
        forms=MEDIA_TYPES,
        errors=(304, 404),
    )
    yield Route(
        "GET",
        f"{API}/words",
        "query",
        "words",
        "List the tables, columns and functions that a query may name",
        console.Words,
        run=console.words,
    )
    yield Route(
        "GET",
        f"{API}/freshness",
        "query",
        "freshness",
        "Tell how fresh each table is, stage by stage",
        freshness.Freshness,
        run=freshness.freshness,
        asked=request_types.Nothing,
        errors=(503,),
    )
    yield Route(
        "GET",
        f"{API}/tables/{{name}}/blocks",
        "query",
        "blocks",
        "Tell coverage as blocks, entity by time: held, missing, unflushed",
        blocks.Blocks,
        run=blocks.blocks,
        asked=blocks.BlocksAsked,
        errors=(404, 503),
    )
