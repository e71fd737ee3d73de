"""The command that runs the demonstration on a new machine."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from thermocline.cli.terminal.terminal import say
from thermocline.errors import Invalid


def demo(
    folder: Annotated[
        str | None,
        typer.Option("--folder", metavar="DIR", help="Work in this empty folder, and keep it."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the node running at the end, until Ctrl-C.")
    ] = False,
) -> None:
    """Start a node, send telemetry, kill the node, run the pipeline, and check the rows."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="thermocline-demo-") as made:
            _told(Path(made), keep=keep)
        return
    place = Path(folder).absolute()
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise Invalid("the folder is not empty", hint="name an empty one", folder=str(place))
    _told(place, keep=keep)
    say(f"Everything is in {place}")


def _told(folder: Path, *, keep: bool) -> None:
    from thermocline.demo.story import Story

    story = Story(folder)
    try:
        story.tell()
        if keep:
            import webbrowser

            say(f"The node is at {story.node.url} until you press Ctrl-C.")
            webbrowser.open(story.node.url)
            story.node.wait()
    finally:
        story.node.stop()
