"""The files of the console, ready to send.

In:   the name of a file
Out:  its bytes, plain and compressed, their type, and the page's content security policy

- The files are part of the package: a machine without a network or a JavaScript toolchain serves
  them. They are built from `console/` at the root, and `record.json` names the sources.
- The policy lets the page load files of its origin and send requests to its node. It
  forbids inline scripts and styles, other hosts, and markup made from text.
- A name is looked up among the built files and never becomes a path.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from thermocline.errors import NotFound

PAGE = "index.html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
MEDIA_TYPES = tuple(media.split(";")[0] for media in _TYPES.values())


@dataclass(frozen=True, slots=True)
class Asset:
    """One file: its type, its ETag, and its bytes plain and compressed."""

    media_type: str
    tag: str
    plain: bytes
    compressed: bytes


@cache
def assets() -> dict[str, Asset]:
    """Return every file by its name; each is read and compressed once."""
    built = files("thermocline.server.console").joinpath("built")
    found = [built.joinpath(PAGE), *built.joinpath("console").iterdir()]
    return {one.name: _asset(one.name, one.read_bytes()) for one in found if _type(one.name)}


def asset(name: str) -> Asset:
    """Return a file; `NotFound` when no built file has this name."""
    found = assets().get(name)
    if found is None:
        raise NotFound("the console has no such file", hint="open the page at /")
    return found


def _type(name: str) -> str:
    return _TYPES.get(name[name.rfind(".") :], "")


def _asset(name: str, data: bytes) -> Asset:
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    return Asset(_type(name), tag, data, gzip.compress(data, 9, mtime=0))
