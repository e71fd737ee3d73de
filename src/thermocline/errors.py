"""The error kinds, named by what the caller can do about them.

    ThermoclineError
    ├── Invalid                 fix the request
    │   └── BodyTooLarge          send it in smaller parts
    ├── Unauthenticated         send a valid key
    ├── Forbidden               use a key that may do this
    ├── NotFound                name something that exists
    │   ├── TenantNotFound        name a tenant that exists
    │   ├── TableNotFound          name a table that the query may read
    │   ├── EntityNotFound        create the entity first
    │   └── FeedExpired           read the entities again, then follow the feed from there
    ├── Conflict                reload and try again
    │   ├── CoverageOverlapError  the buckets are already held
    │   └── PreconditionFailed    read the entity again, then decide
    ├── Overloaded              send less, or later
    │   ├── QueryTimeout          select less, or raise the timeout
    │   └── EntityLimitReached    raise the table's limit
    ├── Unavailable             try again later
    │   ├── OutcomeUnknown        the write may have happened; check before repeating it
    │   └── QueryCancelled        run the query again if its answer is needed
    ├── Unsupported             use a newer Thermocline
    └── Corruption              stop; a person looks

- A message is lower case and contains no values; values are `facts`; `hint` is the way out.
- A class exists only where code treats it apart. It has the code of the class above it if that
  tells a client enough: codes are part of the HTTP API.
- Every error can be pickled, so that worker processes can raise it.
- No package lets an error of a library or of the operating system out: it translates it.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Any


class ThermoclineError(Exception):
    """The base of every error this package raises on purpose."""

    code = "error"
    table_root: str | None = None
    """The folder of the table that the error is about, where one call is about one table."""

    def __init__(self, message: str, *, hint: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        """Return a fact by its name: `error.buckets` is `error.facts["buckets"]`."""
        facts = self.__dict__.get("facts", {})
        if name not in facts:
            raise AttributeError(f"{type(self).__name__} has no attribute or fact {name!r}")
        return facts[name]

    def __str__(self) -> str:
        """Return message and facts on one line, the hint on the next."""
        line = self.message
        if self.facts:
            line += " (" + ", ".join(f"{k}={_shorten(v)}" for k, v in self.facts.items()) + ")"
        return f"{line}\nhint: {self.hint}" if self.hint else line

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        facts = {name: _make_picklable(fact) for name, fact in self.facts.items()}
        return _rebuild, (type(self), self.message, self.hint, facts)


class Invalid(ThermoclineError):
    """The request is wrong; fix it."""

    code = "invalid"


class BodyTooLarge(Invalid):
    """A body exceeds its limit, before or after decompression; send it in smaller parts."""

    code = "body_too_large"


class Unauthenticated(ThermoclineError):
    """No valid API key was supplied; send a valid one."""

    code = "unauthenticated"


class Forbidden(ThermoclineError):
    """The key is valid but lacks the right to do this; use another key."""

    code = "forbidden"


class NotFound(ThermoclineError):
    """The named thing does not exist; name one that does."""

    code = "not_found"


class TenantNotFound(NotFound):
    """The node has no tenant of this name; create it first."""


class TableNotFound(NotFound):
    """The lake or the session has no table of this name; create or register it first."""


class EntityNotFound(NotFound):
    """The type has no entity of this id; create it first."""


class FeedExpired(NotFound):
    """Changes after this position are no longer kept; start again from a snapshot."""


class Conflict(ThermoclineError):
    """Another writer changed the same thing first; this change was definitely not made."""

    code = "conflict"


class CoverageOverlapError(Conflict):
    """The table already holds buckets that this write would fill, and its policy is `reject`."""

    code = "coverage_overlap"

    @property
    def conflict_count(self) -> int:
        """How many buckets are held already, over all entities."""
        return int(self.facts["overlapping"])

    @property
    def example_identity(self) -> dict[str, Any] | None:
        """One entity that has such a bucket; None if the table has no entity columns."""
        return self.facts.get("entity")

    @property
    def example_index_interval(self) -> str:
        """One such bucket, as a half-open interval of the index."""
        return str(self.facts["interval"])


class PreconditionFailed(Conflict):
    """The entity is not at the version that the caller requires; read it again, then decide."""


class Overloaded(ThermoclineError):
    """A named limit is reached; send less, or later."""

    code = "overloaded"


class QueryTimeout(Overloaded):
    """The query took longer than its limit; the same query again would, too."""


class EntityLimitReached(Overloaded):
    """The rows have more entities than the table allows; the same rows again would, too."""


class Unavailable(ThermoclineError):
    """Something that is needed is not available now; try again later."""

    code = "unavailable"


class OutcomeUnknown(Unavailable):
    """The write may or may not have happened; check before repeating it."""

    code = "outcome_unknown"


class QueryCancelled(Unavailable):
    """A client cancelled the query; run it again if its answer is needed."""


class Unsupported(ThermoclineError):
    """The data needs a newer Thermocline than this one."""

    code = "unsupported"


class Corruption(ThermoclineError):
    """Bytes on disk are not the bytes that were written."""

    code = "corruption"


def _rebuild(
    kind: type[ThermoclineError], message: str, hint: str, facts: dict[str, Any]
) -> ThermoclineError:
    return kind(message, hint=hint, **facts)


def _make_picklable(fact: Any) -> Any:
    """Return a fact as it is, or as text: a caller may have passed a function or a lock."""
    try:
        pickle.dumps(fact)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError):
        return _shorten(fact)
    return fact


def _shorten(value: Any) -> str:
    shown = _format_list(value) if isinstance(value, list | tuple) else str(value)
    return shown if len(shown) <= 300 else shown[:297] + "..."


def _format_list(values: Sequence[Any]) -> str:
    return "[" + ", ".join(str(v) for v in values) + "]"
