"""Translates errors of PostgreSQL and its driver to errors of this package.

In:   an error of psycopg
Out:  the error of this package; whether a retry may help

- The SQLSTATE decides, never the message, which is localised and changes.
- An error without SQLSTATE is a connection error: the server is down, or the connection was lost.
"""

import psycopg
from psycopg import errors as postgres

from thermocline.errors import (
    Conflict,
    Corruption,
    Invalid,
    NotFound,
    Overloaded,
    ThermoclineError,
    Unavailable,
    Unsupported,
)

_RETRIED = frozenset({"40001", "40P01"})
_ABSENT = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})

# The longest matching prefix of the SQLSTATE decides.
_KINDS: dict[str, tuple[type[ThermoclineError], str, str]] = {
    "40": (Conflict, "other transactions keep changing the same rows", "try again"),
    "23505": (Conflict, "the row exists already", "reload, then try again"),
    "23": (Invalid, "the row does not fit its table", "fix the document"),
    "22": (Invalid, "PostgreSQL does not accept this value", "fix the value"),
    "57014": (Overloaded, "the statement took longer than its limit", "ask for less, or later"),
    "55P03": (Overloaded, "another transaction holds the lock", "try again later"),
    "53100": (Unavailable, "the disk of PostgreSQL is full", "free space there, then try again"),
    "53": (Overloaded, "PostgreSQL has reached one of its limits", "send less, or later"),
    "54": (Invalid, "the request exceeds a limit of PostgreSQL", "ask for less"),
    "28": (Unavailable, "PostgreSQL does not accept the login", "check user and password"),
    "3D": (Unavailable, "PostgreSQL has no such database", "check the address"),
    "3F": (NotFound, "the tenant is not in this database", "create the tenant first"),
    "42P01": (NotFound, "the tenant's tables do not exist", "create the tenant first"),
    "42501": (Unavailable, "PostgreSQL does not allow this", "check the rights of the login"),
    "0A": (Unsupported, "this PostgreSQL cannot do this", "use a newer PostgreSQL"),
    "XX001": (Corruption, "PostgreSQL found damaged data", "restore it from a copy"),
    "XX002": (Corruption, "PostgreSQL found a damaged index", "rebuild the index"),
}
_Meaning = tuple[type[ThermoclineError], str, str]
_GONE: _Meaning = (
    *(Unavailable, "PostgreSQL is not there"),
    "start it, check its address, then try again",
)
_REFUSED: _Meaning = (Invalid, "the value cannot be sent to PostgreSQL", "fix the value")
_UNKNOWN: _Meaning = (Unavailable, "PostgreSQL failed", "its message is in the facts")


def is_lost(error: psycopg.Error) -> bool:
    """Tell whether the error means that the connection is lost."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith("08") or state in _ABSENT


def is_transient(error: BaseException | None) -> bool:
    """Tell whether the same transaction may succeed if it is retried at once."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _RETRIED


def translate_postgres_error(error: psycopg.Error) -> ThermoclineError:
    """Return the error of this package for an error of PostgreSQL or its driver."""
    facts = {"said": (error.diag.message_primary or str(error)).strip().split("\n")[0]}
    if error.diag.constraint_name:
        facts["constraint"] = error.diag.constraint_name
    state = error.sqlstate
    if state is not None:
        facts["sqlstate"] = state
    kind, message, hint = _meaning(error, state)
    return kind(message, hint=hint, **facts)


def _meaning(error: psycopg.Error, state: str | None) -> _Meaning:
    if is_lost(error):
        return _GONE
    if state is None:  # the driver refused a value: a NUL in a text, a number out of range
        return _REFUSED
    beginnings = (state[:length] for length in range(5, 0, -1))
    return next((_KINDS[one] for one in beginnings if one in _KINDS), _UNKNOWN)


def is_outdated(error: BaseException) -> bool:
    """Tell whether a statement failed because its table or column was renamed."""
    cause = error.__cause__
    return isinstance(cause, postgres.UndefinedTable | postgres.UndefinedColumn)
