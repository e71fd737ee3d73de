"""The command that runs the demonstration on a new machine."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from thermocline.cli.argument import CommandList
from thermocline.cli.terminal.terminal import print_line
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
            _run_story(Path(made), keep=keep)
        return
    place = Path(folder).absolute()
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise Invalid("the folder is not empty", hint="name an empty one", folder=str(place))
    _run_story(place, keep=keep)
    print_line(f"Everything is in {place}")


def _run_story(folder: Path, *, keep: bool) -> None:
    from thermocline.demo.story import Story

    story = Story(folder)
    try:
        story.run()
        if keep:
            import webbrowser

            print_line(f"The node is at {story.node.url} until you press Ctrl-C.")
            webbrowser.open(story.node.url)
            story.node.wait()
    finally:
        story.node.stop()


COMMANDS: CommandList = (
    (
        "demo",
        demo,
        ("thermocline demo", "thermocline demo --keep", "thermocline demo --folder ./demo"),
    ),
)
