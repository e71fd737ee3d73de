"""The API's documentation over HTTP: the OpenAPI document, and a page that shows it.

In:   nothing
Out:  JSON, HTML, CSS and JavaScript that are part of this package

- The page loads nothing from another host and has no inline script or style, so that its policy
  can forbid both.
- The page inserts the document's texts as text, never as markup.
"""

from functools import cache
from importlib.resources import files

from thermocline.server.api.types.route import ApiRequest, ApiResponse

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ASSETS = {
    "/api/docs": ("docs.html", "text/html; charset=utf-8"),
    "/api/docs.css": ("docs.css", "text/css; charset=utf-8"),
    "/api/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
}


@cache
def _bytes(name: str) -> bytes:
    return files("thermocline.server.api").joinpath(name).read_bytes()


def asset(call: ApiRequest) -> ApiResponse:
    """Return a file of the page."""
    name, media = _ASSETS[call.route.path]
    return ApiResponse(
        _bytes(name), media_type=media, headers={"Content-Security-Policy": PAGE_POLICY}
    )


def document(_: ApiRequest) -> ApiResponse:
    """Return the OpenAPI document."""
    from thermocline.server.api.types.openapi import document_bytes

    return ApiResponse(document_bytes())
