"""The error kinds, named by what the caller can do about them.

    ThermoclineError
    ├── Invalid                 fix the request
    │   └── BodyTooLarge          send it in smaller parts
    ├── Unauthenticated         show a key that is valid
    ├── Forbidden               use a key that may do this
    ├── NotFound                name something that exists
    ├── Conflict                reload and try again
    │   └── CoverageOverlapError  the buckets are already held
    ├── Overloaded              send less, or later
    ├── Unavailable             try again later
    │   └── OutcomeUnknown        it may or may not have happened; look before repeating
    ├── Unsupported             use a newer Thermocline
    └── Corruption              stop; a person looks

- A message is lower case and carries no values; values are `facts`; `hint` is the way out.
- Every error survives pickling, so that worker processes can raise it.
- No error of a library or of the operating system leaves the room that met it.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Any


class ThermoclineError(Exception):
    """The base of every error this package raises on purpose."""

    code = "error"

    def __init__(self, message: str, *, hint: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts

    def __str__(self) -> str:
        """Return message and facts on one line, the hint on the next."""
        line = self.message
        if self.facts:
            line += " (" + ", ".join(f"{k}={_short(v)}" for k, v in self.facts.items()) + ")"
        return f"{line}\nhint: {self.hint}" if self.hint else line

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        facts = {name: _picklable(fact) for name, fact in self.facts.items()}
        return _rebuilt, (type(self), self.message, self.hint, facts)


class Invalid(ThermoclineError):
    """The request cannot be right; fix it."""

    code = "invalid"


class BodyTooLarge(Invalid):
    """A body is larger than its limit, before or after inflating; sending it again is no help."""

    code = "body_too_large"


class Unauthenticated(ThermoclineError):
    """Nobody knows who asks: there is no key, or none that is valid; show one that is."""

    code = "unauthenticated"


class Forbidden(ThermoclineError):
    """The key is valid and may not do this; use one that may."""

    code = "forbidden"


class NotFound(ThermoclineError):
    """What was named does not exist; name something that does."""

    code = "not_found"


class Conflict(ThermoclineError):
    """Somebody else changed the same thing first, and this change was definitely not made."""

    code = "conflict"


class CoverageOverlapError(Conflict):
    """The table already holds buckets that this write would fill, and its policy is `reject`."""

    code = "coverage_overlap"


class Overloaded(ThermoclineError):
    """A named limit is reached; send less, or later."""

    code = "overloaded"


class Unavailable(ThermoclineError):
    """Something that is needed is not there now; try again later."""

    code = "unavailable"


class OutcomeUnknown(Unavailable):
    """The write may or may not have happened; look for it before repeating it."""

    code = "outcome_unknown"


class Unsupported(ThermoclineError):
    """The data needs a newer Thermocline than this one."""

    code = "unsupported"


class Corruption(ThermoclineError):
    """Bytes on disk are not the bytes that were written."""

    code = "corruption"


def _rebuilt(
    kind: type[ThermoclineError], message: str, hint: str, facts: dict[str, Any]
) -> ThermoclineError:
    return kind(message, hint=hint, **facts)


def _picklable(fact: Any) -> Any:
    """Return a fact as it is, or as text: a caller may have passed a function or a lock."""
    try:
        pickle.dumps(fact)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError):
        return _short(fact)
    return fact


def _short(value: Any) -> str:
    shown = _listed(value) if isinstance(value, list | tuple) else str(value)
    return shown if len(shown) <= 300 else shown[:297] + "..."


def _listed(values: Sequence[Any]) -> str:
    return "[" + ", ".join(str(v) for v in values) + "]"
