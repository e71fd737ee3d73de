"""Commands about contexts: saved addresses of nodes, and the one that commands use.

- A context has an address and the path of a file with a key, never the key.
- While a context is in use, `sql`, `gaps`, `coverage`, `table` and `entity` call its node.
"""

import os
import re
from dataclasses import asdict
from typing import Annotated

import typer

from thermocline.cli.argument import CommandList, JsonOption
from thermocline.cli.node_address import (
    KeyFileOption,
    NodeAddress,
    SavedContexts,
    read_contexts,
    write_contexts,
)
from thermocline.cli.terminal.terminal import print_line
from thermocline.errors import Invalid

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.")]


def save(
    name: NameArgument,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="The node's address.")],
    key_file: KeyFileOption = None,
    use_it: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    json: JsonOption = False,
) -> None:
    """Save a node under a name, or change what is saved."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name, re.ASCII):
        hint = "use letters, digits, dots, dashes and underscores, at most 63"
        raise Invalid("this cannot be the name of a context", hint=hint, name=name)
    if not url.startswith(("http://", "https://")):
        hint = "write an address such as https://node.example:8428"
        raise Invalid("this is not the address of a node", hint=hint, url=url)
    saved = read_contexts()
    kept = None if key_file is None else os.path.abspath(key_file)
    nodes = {**saved.nodes, name: NodeAddress(url, kept)}
    write_contexts(SavedContexts(nodes, name if use_it else saved.current))
    _print_done(name, f"saved {name}, {'in use' if use_it else 'not in use yet'}", is_json=json)


def use(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The context; none with --none.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no context: folders again.")] = False,
    json: JsonOption = False,
) -> None:
    """Use a context in every command from now on, or none."""
    if (name is None) == (not none):
        raise Invalid("name one context, or give --none", hint="`thermocline context list`")
    saved = read_contexts()
    if name is not None:
        saved.find(name)
    write_contexts(SavedContexts(saved.nodes, name))
    _print_done(name, f"{name} is in use" if name else "no context is in use", is_json=json)


def list_contexts(json: JsonOption = False) -> None:
    """List the saved contexts; a star marks the one in use."""
    saved = read_contexts()
    if json:
        from thermocline.cli.terminal.output import print_json

        nodes = [
            {"name": name, "current": name == saved.current, **asdict(one)}
            for name, one in saved.nodes.items()
        ]
        print_json({"contexts": nodes})
        return
    for name, one in sorted(saved.nodes.items()):
        print_line(f"{'*' if name == saved.current else ' '} {name}  {one.url}")


def remove(name: NameArgument, json: JsonOption = False) -> None:
    """Remove a saved context; the node is not changed."""
    saved = read_contexts()
    saved.find(name)
    nodes = {one: node for one, node in saved.nodes.items() if one != name}
    write_contexts(SavedContexts(nodes, None if saved.current == name else saved.current))
    _print_done(name, f"removed {name}", is_json=json)


def _print_done(name: str | None, said: str, *, is_json: bool) -> None:
    if not is_json:
        print_line(said)
        return
    from thermocline.cli.terminal.output import print_json

    print_json({"context": name})


COMMANDS: CommandList = (
    (
        "save",
        save,
        (
            "thermocline context save prod --url https://node.example:8428 --key-file ~/.prod.key",
            "thermocline context save local --url http://127.0.0.1:8428 --use",
        ),
    ),
    ("use", use, ("thermocline context use prod", "thermocline context use --none")),
    ("list", list_contexts, ("thermocline context list",)),
    ("remove", remove, ("thermocline context remove prod",)),
)
