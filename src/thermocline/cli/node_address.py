"""Finds the node that a command calls: by its address, or by a context that was saved.

In:   `--url`, `--context`, `--key-file`, the environment, the file of saved contexts
Out:  the address of a node and its key

- Order: `--url`, `--context`, the URL in the environment (commands about entities only), then the
  context in the environment, then the context in use. An option wins over all that was saved.
- A key is read from the environment or from a file. No command takes a key as an argument, where
  other users of the machine could see it, and a context names the file instead of the key.
- The file of contexts is replaced as a whole: a reader sees the old or the new one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.errors import Corruption, Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from thermocline.client import Client

URL = "THERMOCLINE_URL"
KEY = "THERMOCLINE_API_KEY"
CONTEXT = "THERMOCLINE_CONTEXT"
CONTEXTS_MAX = 1_000

UrlOption = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help=f"The node's address; default: {URL}."),
]
KeyFileOption = Annotated[
    str | None,
    typer.Option("--key-file", metavar="FILE", help=f"A file with the key; default: {KEY}."),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help=f"A saved node, see `thermocline context`; default: {CONTEXT}, or the one in use.",
    ),
]


@dataclass(frozen=True)
class NodeAddress:
    """The address of a node, and the file with the key, if one is named."""

    url: str
    key_file: str | None = None

    def open(self) -> "Client":
        """Return a client of the node."""
        from thermocline.client import Client

        return Client(self.url, read_key(self.key_file))


@dataclass(frozen=True)
class SavedContexts:
    """Nodes by the names that a user gave them, and the one that is in use."""

    nodes: Mapping[str, NodeAddress]
    current: str | None = None

    def find(self, name: str) -> NodeAddress:
        """Return a saved node; `NotFound` if there is none of this name."""
        if name not in self.nodes:
            hint = "`thermocline context list` lists them, `thermocline context save` adds one"
            raise NotFound("there is no such context", hint=hint, context=name)
        return self.nodes[name]


def find_node(
    url: str | None, context: str | None, key_file: str | None, *, environment: bool
) -> NodeAddress | None:
    """Return the node that a command calls, or None if nothing names one.

    With `environment`, the URL in the environment names it too.
    """
    if url is not None and context is not None:
        raise Invalid("--url and --context both name a node", hint="give one of them")
    if context is None:
        address = url or (os.environ.get(URL) if environment else None)
        if address:
            return NodeAddress(address, key_file)
    saved = read_contexts()
    name = context or os.environ.get(CONTEXT) or saved.current
    if not name:
        return None
    found = saved.find(name)
    return found if key_file is None else replace(found, key_file=key_file)


def contexts_path() -> str:
    """Return the path of the file of saved contexts."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(home, "thermocline", "contexts.json")


def read_contexts() -> SavedContexts:
    """Return the saved contexts; none if there is no file."""
    import orjson

    path = contexts_path()
    try:
        with open(path, "rb") as file:
            found = orjson.loads(file.read())
        nodes = {
            name: NodeAddress(one["url"], one.get("key_file"))
            for name, one in found["contexts"].items()
        }
        return SavedContexts(nodes, found.get("current"))
    except FileNotFoundError:
        return SavedContexts({})
    except OSError as error:
        why = error.strerror or str(error)
        hint = "check its permissions"
        raise Unavailable(
            "the file of contexts cannot be read", hint=hint, path=path, why=why
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        hint = "remove the file, and save the contexts again"
        raise Corruption("the file of contexts is damaged", hint=hint, path=path) from error


def write_contexts(saved: SavedContexts) -> None:
    """Replace the file of contexts; only this user can read it."""
    import orjson

    if len(saved.nodes) > CONTEXTS_MAX:
        hint = "remove some with `thermocline context remove`"
        raise Invalid("too many contexts", hint=hint, contexts_max=CONTEXTS_MAX)
    path = contexts_path()
    nodes: dict[str, Any] = {
        name: {"url": one.url, "key_file": one.key_file} for name, one in saved.nodes.items()
    }
    data = orjson.dumps({"current": saved.current, "contexts": nodes}, option=orjson.OPT_INDENT_2)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        beside = f"{path}.{os.getpid()}"
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        os.replace(beside, path)
    except OSError as error:
        why = error.strerror or str(error)
        raise Unavailable(
            "the file of contexts cannot be written", hint="check its folder", path=path, why=why
        ) from error


def read_key(key_file: str | None) -> str | None:
    """Return the key in the file or in the environment; None if there is none."""
    return (os.environ.get(KEY) if key_file is None else _read_key_file(key_file)) or None


def _read_key_file(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError as error:
        why = error.strerror or str(error)
        hint = "check the path and the permissions of the file"
        raise Unavailable("the key cannot be read", hint=hint, path=path, why=why) from error
