"""The routes of the console: its files, and data that only the console needs.

In:   the handler functions
Out:  routes for the table of all routes
"""

from collections.abc import Iterator

from thermocline.server.api.handle import blocks, console, freshness
from thermocline.server.api.types import request_types
from thermocline.server.api.types.route import API, ApiRoute
from thermocline.server.console.asset import MEDIA_TYPES


def console_routes() -> Iterator[ApiRoute]:
    """Yield the routes of the page's files and data."""
    yield ApiRoute(
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
    yield ApiRoute(
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
    yield ApiRoute(
        "GET",
        f"{API}/words",
        "query",
        "words",
        "List the tables, columns and functions that a query may name",
        console.Words,
        run=console.words,
    )
    yield ApiRoute(
        "GET",
        f"{API}/freshness",
        "query",
        "freshness",
        "Tell how fresh each table is, stage by stage",
        freshness.Freshness,
        run=freshness.freshness,
        params_type=request_types.NoParams,
        errors=(503,),
    )
    yield ApiRoute(
        "GET",
        f"{API}/tables/{{name}}/blocks",
        "query",
        "blocks",
        "Tell coverage as blocks, entity by time: held, missing, unflushed",
        blocks.Blocks,
        run=blocks.blocks,
        params_type=blocks.BlocksParams,
        errors=(404, 503),
    )
