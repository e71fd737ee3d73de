# ruff: noqa: INP001  # Sphinx reads it by its path
"""How Sphinx makes a site with a search box of the Markdown pages; `make docs` runs it.

The pages stay where GitHub shows them, so a relative link works there and on the site. A link to a
page, file or heading that does not exist stops the build. The built pages load no font, script or
image from another host, and the search works in a folder as well as on a web server.
"""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygments.lexers.special import TextLexer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
START = "README"
PAGES = {
    "By your work": ["docs/data-engineer", "docs/sre", "docs/saas"],
    "Use it": [
        "docs/python",
        "docs/cli",
        "docs/api",
        "docs/errors",
        "docs/otlp",
        "docs/contract",
        "docs/pipeline",
        "docs/alerts",
        "docs/clients",
        "docs/frames",
        "docs/iceberg",
        "docs/promql",
        "docs/console",
        "examples/README",
    ],
    "Run it": [
        "docs/operations",
        "docs/many-nodes",
        "docs/config",
        "docs/upgrade",
        "docs/faults",
        "bench/RESULTS",
    ],
    "File formats": [
        "docs/format/lake",
        "docs/format/log",
        "docs/format/segment",
        "docs/format/coverage",
        "docs/format/tokens",
        "docs/format/checkpoint",
        "docs/format/journal",
    ],
    "Work on it": ["ARCHITECTURE", "CONTRIBUTING", "SECURITY", "docs/adr/README", "CHANGELOG"],
}
"""The pages in the order in which a person needs them, by chapter."""

project = "Thermocline"
version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser"]
root_doc = START
source_suffix = {".md": "markdown"}
include_patterns = ["*.md", "docs/*.md", "docs/**/*.md", "examples/README.md", "bench/RESULTS.md"]
exclude_patterns = [".*", "build", "console", "src", "tests", "evidence", "deploy", "docs/site"]
myst_heading_anchors = 4
pygments_style = "friendly"

html_theme = "furo"
html_title = f"Thermocline {version}"
html_copy_source = False
html_show_copyright = False
html_use_index = False
html_static_path = ["static"]
html_css_files = ["wide.css"]

# `hex` blocks are dumps with remarks, `http` blocks are abridged requests: neither has a grammar.
PLAIN = ("hex", "http")


def add_contents(_: Sphinx, page: str, source: list[str]) -> None:
    """Add the contents to the start page and the decisions to theirs; GitHub does not show them."""
    if page == START:
        source[0] += "".join(contents(names, caption) for caption, names in PAGES.items())
    elif page == "docs/adr/README":
        folder = ROOT / "docs" / "adr"
        source[0] += contents([f"/docs/adr/{path.stem}" for path in sorted(folder.glob("0*.md"))])


def contents(names: list[str], caption: str = "") -> str:
    """Return the contents of one chapter, as Sphinx's Markdown has it."""
    lines = ["", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), ""]
    return "\n".join([*lines, *names, "```", ""])


def copy_start_page(app: Sphinx, error: Exception | None) -> None:
    """Give the start page the name that a folder and a web server open first."""
    if error is None:
        shutil.copyfile(Path(app.outdir) / f"{START}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what this site adds to Sphinx."""
    for name in PLAIN:
        app.add_lexer(name, TextLexer)
    app.connect("source-read", add_contents)
    app.connect("build-finished", copy_start_page)
    return {"parallel_read_safe": True}
