"""The tables of docs/python.md, made from the code: every public class with its methods.

python tests/docs/public_api.py     # writes them again
"""

import inspect
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
INNER = {"tier", "by_id", "cold", "hot", "snapshot", "close_session", "register_view"}
INNER |= {
    "alone",
    "check_open",
    "flush_everywhere",
    "hint_parameters",
    "keep",
    "release_pins",
    "register_broken",
    "write_one",
    "admit_writes",
    "write_many",
    "read_page",
}
"""What other parts of the package use and no user needs."""
BEGIN, END = "<!-- made by tests/docs/public_api.py -->", "<!-- end -->"


def classes():
    """Return what a user of the package holds in their hands, and how they get it."""
    from thermocline.entity.table import EntityTable
    from thermocline.lake import Lake
    from thermocline.lake_table import LakeTable
    from thermocline.query.session import Session
    from thermocline.table import TimeSeriesTable

    return {
        "TimeSeriesTable": (TimeSeriesTable, "`tc.TimeSeriesTable.create(...)` or `.open(root)`"),
        "Session": (Session, "`tc.Session()`"),
        "Lake": (Lake, "`tc.connect(folder)`, and the same of a node by `tc.connect(url)`"),
        "LakeTable": (LakeTable, "`lake.table(name)`; all of `TimeSeriesTable`, and"),
        "EntityTable": (EntityTable, "`lake.register(name, schema)` or `lake.entity(name)`"),
    }


def methods(kind):
    """Return the public names of a class that no other listed class has, with texts."""
    listed = {one for one, _ in classes().values()} - {kind}
    bases = [one for one in kind.__mro__ if one not in listed]
    found = {}
    for name, member in {n: m for one in reversed(bases) for n, m in vars(one).items()}.items():
        if name.startswith("_") or name in INNER:
            continue
        is_property = isinstance(member, property)
        function = member.fget if is_property else inspect.unwrap(getattr(kind, name))
        if not callable(function):
            continue
        text = inspect.getdoc(function) or ""
        sentence = " ".join(text.split("\n\n")[0].split())
        found[name] = (name if is_property else f"{name}({arguments(function)})", sentence)
    return found


def arguments(function):
    """Return the names of a function's arguments, as one would write them."""
    parts, has_star = [], False
    for one in inspect.signature(function).parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.VAR_POSITIONAL:
            has_star = True
            parts.append(f"*{one.name}")
        elif one.kind is one.VAR_KEYWORD:
            parts.append(f"**{one.name}")
        else:
            if one.kind is one.KEYWORD_ONLY and not has_star:
                has_star = True
                parts.append("*")
            plain = one.default is one.empty
            parts.append(one.name if plain else f"{one.name}={shown(one.default)}")
    return ", ".join(parts)


def shown(value):
    """Return a default as it is written; any other value than a plain one is `...`."""
    return repr(value) if value is None or isinstance(value, bool | int | str | tuple) else "..."


def tables():
    """Return the generated part of the page."""
    lines = []
    for name, (kind, way) in classes().items():
        lines += [f"## `{name}`", "", way[0].upper() + way[1:] + ":", "", "| | |", "|---|---|"]
        for written, sentence in methods(kind).values():
            escaped = re.sub(r"\|", r"\\|", sentence)
            lines.append(f"| `{written}` | {escaped} |")
        lines.append("")
    return "\n".join(lines)


def written(page):
    """Return the page with its generated part written again."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
