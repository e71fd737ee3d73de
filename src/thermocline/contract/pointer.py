"""JSON pointers, and what is said about the place one names: refusals and problems.

In:   the steps from the root of a document
Out:  `/lines/0/price`, a `Refusal` of a contract, a `Problem` of a document

- A pointer is that of RFC 6901: `~` is `~0` and `/` is `~1` in a step; the root is "".
- An error names at most the limit of problems, and says when there are more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from thermocline.errors import Invalid

PROBLEMS_MAX = 100


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a contract cannot be registered, and where in its document."""

    pointer: str
    reason: str

    def as_json(self) -> dict[str, str]:
        """Return it as it stands in the facts of an error."""
        return {"pointer": self.pointer, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a document, and where in it."""

    pointer: str
    expected: str
    got: str

    def as_json(self) -> dict[str, str]:
        """Return it as it stands in the facts of an error."""
        return {"pointer": self.pointer, "expected": self.expected, "got": self.got}


def pointer_of(steps: Iterable[str | int]) -> str:
    """Return the pointer that takes these steps."""
    return "".join(
        f"/{step}" if isinstance(step, int) else "/" + step.replace("~", "~0").replace("/", "~1")
        for step in steps
    )


def steps_of(pointer: str) -> list[str]:
    """Return the steps of a pointer; an index is a word of digits."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def refused(refusals: Sequence[Refusal]) -> Invalid:
    """Return the error that a contract with these refusals raises."""
    return Invalid(
        "the contract cannot be registered",
        hint="change the document at the pointers named",
        problems=[refusal.as_json() for refusal in refusals[:PROBLEMS_MAX]],
        problems_found=len(refusals),
        problems_max=PROBLEMS_MAX,
    )


def rejected(problems: Sequence[Problem]) -> Invalid:
    """Return the error that a document with these problems raises."""
    return Invalid(
        "the document does not fit its contract",
        hint="change the document at the pointers named",
        problems=[problem.as_json() for problem in problems[:PROBLEMS_MAX]],
        is_complete=len(problems) <= PROBLEMS_MAX,
        problems_max=PROBLEMS_MAX,
    )
