"""The code map of ARCHITECTURE.md, made from the source: one line for each part of the tree.

Run as `python tests/tidy/code_map.py` to rewrite the part of the page between the two markers.
What a package knows is what it imports: every direct import of another part of the tree.
"""

import ast
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "thermocline"
PAGE = REPOSITORY / "ARCHITECTURE.md"
BEGIN, END = "<!-- begin code map -->\n", "<!-- end code map -->"


def layers() -> list[str]:
    """Return the parts of the tree from top to bottom, as the import contract orders them."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contract = settings["tool"]["importlinter"]["contracts"][0]
    return [part.strip() for layer in contract["layers"] for part in layer.split("|")]


def first_sentence(path: Path) -> str:
    """Return the first line of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.splitlines()[0].removesuffix(".")


def known_parts(part: str) -> list[str]:
    """Return the parts of the tree that one part imports, from top to bottom."""
    place = PACKAGE / part
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("thermocline"):
                words = (node.module or "").split(".")
                found |= {words[1]} if len(words) > 1 else {alias.name for alias in node.names}
    return [name for name in layers() if name in found - {part}]


def code_map() -> str:
    """Return the table of the code map."""
    rows = ["| part | job | imports |", "|---|---|---|"]
    for part in layers():
        folder = PACKAGE / part
        module = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        name = f"{part}/" if folder.is_dir() else f"{part}.py"
        rows.append(f"| `{name}` | {first_sentence(module)} | {', '.join(known_parts(part))} |")
        inner = sorted(folder.rglob("__init__.py")) if folder.is_dir() else []
        rows += [
            f"| &nbsp;&nbsp;`{path.parent.relative_to(PACKAGE)}/` | {first_sentence(path)} | |"
            for path in inner
            if path.parent != folder
        ]
    return "\n".join(rows) + "\n"


def with_code_map(page: str) -> str:
    """Return the page with the code map as the source has it now."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{code_map()}{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(with_code_map(PAGE.read_text()))
    sys.stdout.write(code_map())
