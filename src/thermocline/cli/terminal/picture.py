"""Prints the bars of blocks on a terminal, with colours unless they are disabled."""

from typing import TYPE_CHECKING

from thermocline.show.picture import BLOCKS, FULL, Picture, coverage_picture

if TYPE_CHECKING:
    from rich.console import Console

    from thermocline.cold.coverage_report import CoverageReport

_STYLES = {BLOCKS[0]: "red", BLOCKS[FULL]: "green"}
_IN_PART = "yellow"


def print_picture(
    held: "CoverageReport",
    console: "Console",
    start: object = None,
    end: object = None,
    entity: object = None,
    *,
    per_entity: bool = True,
) -> None:
    """Print the coverage of a stretch, as wide as the terminal."""
    picture = coverage_picture(held, console.width, start, end, entity, per_entity=per_entity)
    print_lines(picture, console)


def print_lines(picture: Picture, console: "Console") -> None:
    """Print a picture: held in green, in part in yellow, missing in red, the rest faint."""
    from rich.text import Text

    for before, blocks, after in picture.lines():
        line = Text(before, style="" if blocks else "dim")
        for block in blocks:
            line.append(block, style=_STYLES.get(block, _IN_PART))
        line.append(after)
        console.print(line, soft_wrap=True)
