"""Labels of series: sorted pairs, matchers that select series, and regular expressions.

In:   pairs of name and value; matchers of a selector
Out:  labels without some names, labels with only some names, and which series match

- A label with an empty value is the same as an absent label.
- Regular expressions are those of RE2, which takes linear time: a tenant's expression cannot stop
  the node. They match a whole value.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from thermocline.errors import Invalid

NAME = "__name__"
BUCKET_BOUND = "le"
Labels = tuple[tuple[str, str], ...]

_GROUP_OPENING = re.compile(r"\\.|\[\]?[^\]]*\]|\((\?P?<(\w+)>|(?!\?))", re.DOTALL)
_TEMPLATE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")


@dataclass(frozen=True, slots=True)
class Matcher:
    """A condition on one label: `op` is one of `=`, `!=`, `=~` and `!~`."""

    name: str
    op: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}{self.op}{quote_label(self.value)}"


def make_labels(pairs: Iterable[tuple[str, str]]) -> Labels:
    """Return labels of these pairs, without empty values."""
    return tuple(sorted((name, value) for name, value in pairs if value))


def value_of(labels: Labels, name: str) -> str:
    """Return a label's value; empty when it is absent."""
    for key, value in labels:
        if key == name:
            return value
    return ""


def drop_labels(labels: Labels, names: frozenset[str]) -> Labels:
    """Return the labels without these names."""
    return tuple(pair for pair in labels if pair[0] not in names)


def keep_labels(labels: Labels, names: frozenset[str]) -> Labels:
    """Return the labels with these names only."""
    return tuple(pair for pair in labels if pair[0] in names)


NAME_ONLY = frozenset({NAME})


def drop_name(labels: Labels) -> Labels:
    """Return the labels without the metric's name."""
    return drop_labels(labels, NAME_ONLY)


def quote_label(value: str) -> str:
    """Return a label's value as PromQL writes it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def labels_text(labels: Labels) -> str:
    """Return labels as PromQL writes them, with the name among them."""
    return "{" + ", ".join(f"{name}={quote_label(value)}" for name, value in labels) + "}"


def grouping_key(names: Sequence[str], *, by: bool) -> Callable[[Labels], Labels]:
    """Return the function that keeps (`by`) or drops these labels; dropping drops the name."""
    if by:
        kept = frozenset(names)
        return lambda labels: keep_labels(labels, kept)
    dropped = frozenset([*names, NAME])
    return lambda labels: drop_labels(labels, dropped)


def whole_pattern(pattern: str) -> str:
    """Return the expression that matches a whole value where `pattern` does."""
    return f"^(?s:{pattern})$"


def match_values(matcher: Matcher, values: Sequence[str]) -> list[bool]:
    """Return which of these values of the matcher's label match."""
    if matcher.op in ("=", "!="):
        return [(value == matcher.value) == (matcher.op == "=") for value in values]
    found = _match_regex(matcher.value, values)
    return found if matcher.op == "=~" else [not one for one in found]


def _match_regex(pattern: str, values: Sequence[str]) -> list[bool]:
    try:
        found = pc.match_substring_regex(pa.array(values, pa.string()), whole_pattern(pattern))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise bad_pattern(pattern, error) from error
    return [bool(one) for one in found.to_pylist()]


def bad_pattern(pattern: str, error: Exception) -> Invalid:
    """Return the error for an expression that RE2 does not take."""
    return Invalid(
        "the regular expression is not valid",
        hint="use the syntax of RE2, which has no look-around and no back-references",
        pattern=pattern,
        why=str(error).splitlines()[0],
    )


def replace_whole(values: Sequence[str], pattern: str, template: str) -> list[str | None]:
    """Return the template filled for each value that matches as a whole; None for the others."""
    groups = [found[2] for found in _GROUP_OPENING.finditer(pattern) if found[1] is not None]
    numbers = {name: place + 1 for place, name in enumerate(groups) if name}
    rewritten = _rewrite_template(template, numbers, len(groups))
    column = pa.array(values, pa.string())
    try:
        is_match = pc.match_substring_regex(column, whole_pattern(pattern)).to_pylist()
        made = pc.replace_substring_regex(column, whole_pattern(pattern), rewritten).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise bad_pattern(pattern, error) from error
    return [one if fits else None for one, fits in zip(made, is_match, strict=True)]


def _rewrite_template(template: str, numbers: dict[str, int], groups: int) -> str:
    """Return a template of Go's regexp as RE2 writes it; an unknown group is empty."""

    def fill(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        name = found[1] or found[2]
        number = int(name) if name.isdigit() else numbers.get(name, groups + 1)
        if number > groups:
            return ""
        if number > 9:
            raise Invalid("a replacement has more than nine groups", hint="use fewer groups")
        return f"\\{number}"

    return _TEMPLATE.sub(fill, template.replace("\\", "\\\\"))
