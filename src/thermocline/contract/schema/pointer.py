"""JSON pointers, and errors at a position of a document: refusals and problems.

In:   the steps from the root of a document
Out:  `/lines/0/price`, a `Refusal` of a contract, a `DocumentProblem` of a document

- Pointers follow RFC 6901: `~` is `~0` and `/` is `~1` in a step; the root is "".
- An error names at most `PROBLEMS_MAX` problems, and tells when there are more.
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
        """Return it in the form of an error's facts."""
        return {"pointer": self.pointer, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class DocumentProblem:
    """What is wrong with a document, and where in it."""

    pointer: str
    expected: str
    got: str

    def as_json(self) -> dict[str, str]:
        """Return it in the form of an error's facts."""
        return {"pointer": self.pointer, "expected": self.expected, "got": self.got}


def pointer_of(steps: Iterable[str | int]) -> str:
    """Return the pointer with these steps."""
    return "".join(
        f"/{step}" if isinstance(step, int) else "/" + step.replace("~", "~0").replace("/", "~1")
        for step in steps
    )


def steps_of(pointer: str) -> list[str]:
    """Return the steps of a pointer; an index is a text of digits."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def refusal_error(refusals: Sequence[Refusal]) -> Invalid:
    """Return the error for a contract with these refusals."""
    return Invalid(
        "the contract cannot be registered",
        hint="change the document at the pointers named",
        problems=[refusal.as_json() for refusal in refusals[:PROBLEMS_MAX]],
        problems_found=len(refusals),
        problems_max=PROBLEMS_MAX,
    )


def problem_error(problems: Sequence[DocumentProblem]) -> Invalid:
    """Return the error for a document with these problems."""
    return Invalid(
        "the document does not fit its contract",
        hint="change the document at the pointers named",
        problems=[problem.as_json() for problem in problems[:PROBLEMS_MAX]],
        is_complete=len(problems) <= PROBLEMS_MAX,
        problems_max=PROBLEMS_MAX,
    )
