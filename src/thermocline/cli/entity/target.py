"""Opens the lake of a command about entities: a node's by its address, or one in a folder.

In:   `--url`, `--key-file`, `--lake`, `--postgres` and the environment
Out:  a lake, embedded or over HTTP, with the same methods

- An option wins over the environment; `--lake` is a folder that no other process writes.
- A key is read from the environment or from a file. No command takes a key as an argument, where
  other users of the machine could see it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from thermocline.cli.table.target import is_lake
from thermocline.config import EMBEDDED
from thermocline.errors import Conflict, Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from thermocline.client import Client
    from thermocline.client.http import Wire
    from thermocline.contract.contract import Contract
    from thermocline.lake import Lake

URL = "THERMOCLINE_URL"
KEY = "THERMOCLINE_API_KEY"
POSTGRES = "THERMOCLINE_POSTGRES"
TIMEOUT_S = 10.0

UrlOption = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help=f"The node's address; default: {URL}."),
]
KeyFileOption = Annotated[
    str | None,
    typer.Option("--key-file", metavar="FILE", help=f"A file with the key; default: {KEY}."),
]
LakeOption = Annotated[
    str | None,
    typer.Option("--lake", metavar="DIR", help="A lake that no other process has open."),
]
PostgresOption = Annotated[
    str | None,
    typer.Option(
        "--postgres",
        metavar="DSN",
        help=f"With --lake: its PostgreSQL; default: {POSTGRES}, or a server under its folder.",
    ),
]
TypeArgument = Annotated[str, typer.Argument(metavar="TYPE", help="The entity type's name.")]


@dataclass(frozen=True)
class EntityTarget:
    """The options of every command about entities: which lake, and how to reach it."""

    url: UrlOption = None
    key_file: KeyFileOption = None
    lake: LakeOption = None
    postgres: PostgresOption = None

    @contextmanager
    def open(self) -> Iterator["Lake | Client"]:
        """Give the block the lake that the options name, and close it at the end."""
        if self.url is not None and self.lake is not None:
            hint = "give --url or --lake"
            raise Invalid("--url and --lake name different lakes", hint=hint)
        if self.lake is not None:
            opened: Lake | Client = _open_embedded(self.lake, self.postgres)
        else:
            opened = _open_client(self.url, self.key_file)
        with opened:
            yield opened


def find_contract(lake: "Lake | Client", name: str, version: int | None = None) -> "Contract":
    """Return a version of a type's contract, or the newest."""
    from thermocline.client import Client

    if isinstance(lake, Client):
        return lake.entity(name).contract(version)
    contracts = lake.entities.registry.layout(name).contracts
    wanted = max(contracts) if version is None else version
    if wanted not in contracts:
        hint = f"use a version from 1 to {max(contracts)}"
        raise NotFound("no such version of the contract", hint=hint, version=wanted)
    return contracts[wanted]


@contextmanager
def open_wire(url: str | None, key_file: str | None) -> Iterator["Wire"]:
    """Give the block the connections to a node, and close them at the end."""
    from contextlib import closing

    from thermocline.client.http import Wire

    address = url or os.environ.get(URL)
    if not address:
        raise Invalid("the node's address is missing", hint=f"give --url or set {URL}")
    with closing(Wire(address, read_key(key_file), TIMEOUT_S)) as wire:
        yield wire


def _open_client(url: str | None, key_file: str | None) -> "Client":
    from thermocline.client import Client

    address = url or os.environ.get(URL)
    if not address:
        hint = f"give --url or set {URL}; --lake for a folder that no node has open"
        raise Invalid("the lake is missing", hint=hint)
    return Client(address, read_key(key_file))


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


def _open_embedded(folder: str, postgres: str | None) -> "Lake | Client":
    from thermocline.entry_point import connect

    if not is_lake(folder):
        raise NotFound("there is no lake here", hint="check --lake", folder=folder)
    where = postgres or os.environ.get(POSTGRES) or EMBEDDED
    try:
        return connect(folder, postgres=where)
    except Conflict as error:
        hint = "if a node has it open, call the node: --url"
        raise Conflict(error.message, hint=hint, **error.facts) from error
