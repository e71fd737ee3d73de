"""Checks the types of the arguments that callers pass; every public entry point uses it.

In:   a value of any type, and the name of the argument it was passed as
Out:  the value in its one form; `Invalid` that names the argument, the expected type and the
      type given

- A value of a wrong type is rejected here, so the public API never raises an AttributeError or
  TypeError from a line that the caller did not write.
- Other modules check what a value means: `instant.py` instants, `bucket.py` durations, `schema.py`
  names of columns.
"""

import math
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Set
from datetime import timedelta
from typing import Any

import pyarrow as pa

from thermocline.errors import Invalid

SECONDS_MAX = threading.TIMEOUT_MAX
PARAMETER_DEPTH_MAX = 32  # of lists and mappings in one parameter of a query


def check_text(value: Any, argument: str) -> str:
    """Return a text that can be written as UTF-8."""
    if not isinstance(value, str):
        raise wrong_kind("not a text", "pass a text", argument, value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        hint = "remove the lone surrogates"
        raise Invalid("the text is not valid Unicode", hint=hint, argument=argument) from error
    return value


def plain_scalar(value: Any) -> Any:
    """Return a scalar of numpy as the value of Python that it is; any other value as given.

    Instants stay as they are: they may have nanoseconds, which Python's have not.
    """
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind not in ("b", "i", "u", "f", "U", "m") or getattr(value, "shape", None) != ():
        return value
    return value.astype("timedelta64[us]").item() if kind == "m" else value.item()


def check_flag(value: Any, argument: str) -> bool:
    """Return True or False; 0, 1 and texts such as "no" are rejected."""
    value = plain_scalar(value)
    if not isinstance(value, bool):
        raise wrong_kind("not a flag", "pass True or False", argument, value)
    return value


def check_renamed_flag(value: Any, argument: str, old_value: Any, old_argument: str) -> bool:
    """Return a flag that may still be passed under its old name, with a warning."""
    if old_value is None:
        return check_flag(value, argument)
    message = f"the argument `{old_argument}` is now `{argument}`"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return check_flag(old_value, old_argument)


def check_count(value: Any, argument: str, least: int = 0) -> int:
    """Return a whole number from `least` up to what 64 bits hold."""
    value = plain_scalar(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_kind("not a whole number", "pass an int", argument, value)
    if not least <= value < 1 << 63:
        hint = f"pass a number from {least} to {(1 << 63) - 1}"
        raise Invalid("the number is out of range", hint=hint, argument=argument, got=value)
    return int(value)


def check_seconds(value: Any, argument: str) -> float:
    """Return a number of seconds, given as one or as a `timedelta`."""
    value = plain_scalar(value)
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_kind("not a time to wait", "pass seconds, or a timedelta", argument, value)
    if not 0 <= value <= SECONDS_MAX or math.isnan(value):
        hint = "pass a number of seconds, 0 or more"
        raise Invalid("the time to wait is out of range", hint=hint, argument=argument, got=value)
    return float(value)


def check_function(value: Any, argument: str) -> Callable[..., Any]:
    """Return a value that can be called."""
    if not callable(value):
        raise wrong_kind("not a function", "pass a function, or omit it", argument, value)
    called: Callable[..., Any] = value
    return called


def check_type(value: Any, argument: str) -> pa.DataType:
    """Return an Arrow type."""
    if not isinstance(value, pa.DataType):
        hint = "pass an Arrow type, such as pyarrow.int64()"
        raise wrong_kind("not a type of a column", hint, argument, value)
    return value


def check_path(value: Any, argument: str) -> str:
    """Return a path or an address as text."""
    try:
        path = os.fspath(value)
    except TypeError:
        path = None
    if not isinstance(path, str):
        raise wrong_kind("not a path", "pass a text or a pathlib.Path", argument, value)
    try:
        is_writable = path != "" and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_writable = False
    if not is_writable:
        hint = "pass a path that is not empty, without NUL and lone surrogates"
        raise Invalid("no file can have this path", hint=hint, argument=argument)
    return path


def list_paths(value: Any, argument: str) -> list[str]:
    """Return one path or several as a list."""
    if isinstance(value, str | os.PathLike):
        return [check_path(value, argument)]
    if isinstance(value, bytes | Mapping) or not _is_iterable(value):
        raise wrong_kind("not a path", "pass a path, or a list of them", argument, value)
    return [check_path(one, argument) for one in value]


def list_names(value: Any, argument: str) -> tuple[str, ...]:
    """Return names given as one text, as several, or as None for no name."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (check_text(value, argument),)
    if isinstance(value, bytes | Mapping | Set) or not _is_iterable(value):
        raise wrong_kind("not names", "pass a list of texts", argument, value)
    return tuple(check_text(one, argument) for one in value)


def check_options(value: Any, argument: str) -> dict[str, str]:
    """Return a mapping from texts to texts; None gives an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong_kind("not options", "pass a dict of texts", argument, value)
    return {check_text(k, argument): check_text(v, argument) for k, v in value.items()}


def check_parameters(value: Any, argument: str) -> list[Any] | dict[str, Any] | None:
    """Return the parameters of a query: a list, a mapping by name, or None."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {str(name).removeprefix("$"): one for name, one in value.items()}
    if isinstance(value, str | bytes | bytearray | memoryview) or not _is_iterable(value):
        hint = "pass a list or a dict; wrap a single value: [value]"
        raise wrong_kind("parameters are a list or a mapping", hint, argument, value)
    return list(value)


def wrong_kind(message: str, hint: str, argument: str, value: Any) -> Invalid:
    """Return the error for a value of a wrong type."""
    return Invalid(message, hint=hint, argument=argument, type=type(value).__name__)


def _is_iterable(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, type)
