"""The command `mcp`: lets an assistant read a lake, over standard input and output.

In:   a folder or a node's address; messages of the Model Context Protocol
Out:  its answers, until the input ends
"""

import sys
from typing import Annotated

import typer

from thermocline.cli.argument import CommandList
from thermocline.cli.node_address import KeyFileOption, read_key

QUERY_WORKERS = 1


def mcp(
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="A lake's folder, or the address of a node.")
    ],
    key_file: KeyFileOption = None,
) -> None:
    """Let an assistant list tables, find gaps and run SQL, read-only (MCP over stdio)."""
    from thermocline.entry_point import connect
    from thermocline.mcp.serve import AssistantServer

    if place.startswith(("http://", "https://")):
        opened = connect(place, api_key=read_key(key_file))
    else:
        # SQL of an assistant runs in a worker, within its limits of memory and time.
        opened = connect(place, read_only=True, query_workers=QUERY_WORKERS)
    with opened as lake:
        AssistantServer(lake, sys.stdin.buffer, sys.stdout.buffer).run()


COMMANDS: CommandList = (
    (
        "mcp",
        mcp,
        ("thermocline mcp ./lake", "thermocline mcp https://node.example:4320 --key-file key"),
    ),
)
