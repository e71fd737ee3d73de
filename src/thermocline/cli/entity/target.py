"""Opens the lake of a command about entities: a node's by its address, or one in a folder.

In:   `--url`, `--key-file`, `--lake`, `--postgres` and the environment
Out:  a lake, embedded or over HTTP, with the same methods

- An option wins over the environment; `--lake` is a folder that no other process writes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from thermocline.cli.node_address import (
    URL,
    ContextOption,
    KeyFileOption,
    UrlOption,
    find_node,
    read_key,
)
from thermocline.cli.table.target import is_lake
from thermocline.config import EMBEDDED
from thermocline.errors import Conflict, Invalid, NotFound

if TYPE_CHECKING:
    from thermocline.client import Client
    from thermocline.client.http import Wire
    from thermocline.contract.contract import Contract
    from thermocline.lake import Lake

POSTGRES = "THERMOCLINE_POSTGRES"
TIMEOUT_S = 10.0

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
    context: ContextOption = None

    @contextmanager
    def open(self) -> Iterator["Lake | Client"]:
        """Give the block the lake that the options name, and close it at the end."""
        if self.lake is not None and (self.url is not None or self.context is not None):
            hint = "give one of --url, --context and --lake"
            raise Invalid("two options name different lakes", hint=hint)
        if self.lake is not None:
            opened: Lake | Client = _open_embedded(self.lake, self.postgres)
        else:
            opened = self._open_client()
        with opened:
            yield opened

    def _open_client(self) -> "Client":
        node = find_node(self.url, self.context, self.key_file, environment=True)
        if node is None:
            hint = f"give --url or --context, or set {URL}; --lake for a folder without a node"
            raise Invalid("the lake is missing", hint=hint)
        return node.open()


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
