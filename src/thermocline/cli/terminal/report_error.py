"""The report of a failed command for a person or a script: what, why, what to do.

In:   an error of this package or of the command line's parser
Out:  three lines or one JSON object on stderr, and the exit code

    exit  kind          exit  kind
    1     a bug         6     unavailable
    2     invalid       7     unsupported
    3     not found     8     corruption
    4     conflict      9     unauthenticated, forbidden
    5     overloaded    10    the gate of `gaps` did not pass
                        130   interrupted by Ctrl-C
                        141   the reader of a pipe went away

- An error is always three lines, of any length: scripts may count them.
- A traceback is shown only with `--debug`.
- Values in facts come from data and paths; their control characters never reach the terminal.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thermocline.error_table import ERROR_TABLE, find_answer
from thermocline.errors import (
    Conflict,
    Corruption,
    Forbidden,
    Invalid,
    NotFound,
    Overloaded,
    ThermoclineError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

EXIT_BUG = ERROR_TABLE[ThermoclineError].exit_code
EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141
VALUE_LENGTH_MAX = 300


@dataclass(frozen=True, slots=True)
class FailureKind:
    """The texts of an error kind for an error without facts or hint."""

    why: str
    hint: str


KINDS: Mapping[type[ThermoclineError], FailureKind] = {
    Invalid: FailureKind("the request is invalid", "see --help, and fix the request"),
    NotFound: FailureKind("the named object does not exist", "name something that exists"),
    Conflict: FailureKind("another writer changed the same object first", "run the command again"),
    Overloaded: FailureKind("a limit is reached", "ask for less, or try again later"),
    Unavailable: FailureKind("a required service is not available now", "try again later"),
    Unsupported: FailureKind("this version does not support the data", "use a newer thermocline"),
    Unauthenticated: FailureKind("no valid API key was supplied", "supply a valid key"),
    Forbidden: FailureKind("the key does not allow this", "use a key that allows it"),
    Corruption: FailureKind("bytes differ from those that were written", "restore from a copy"),
}
_UNNAMED = FailureKind("the reason is unknown", "run it again with --debug")

# Hints are written for Python; these patterns turn an argument into the option of its name.
_FLAG = re.compile(r"\w+=True \((--[\w-]+)\)")
_ARGUMENT = re.compile(r"\b(\w+)='([^']*)'")


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed command: its report and its exit code."""

    code: str
    message: str
    hint: str
    exit_code: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    def lines(self) -> tuple[str, str, str]:
        """Return the three lines: what, why, what to do."""
        facts = "; ".join(
            f"{_spell_name(name)}: {_shorten_value(v)}" for name, v in self.facts.items()
        )
        texts = (self.message, facts or self.why, self.hint)
        what, why, do = (_sanitize(text) for text in texts)
        return f"error: {what}", f"  why: {why}", f"   do: {do}"

    def json(self) -> bytes:
        """Return the failure as one line of JSON: code, message, facts, hint, exit_code."""
        import orjson

        problem = {
            "code": self.code,
            "message": self.message,
            "facts": dict(self.facts),
            "hint": self.hint,
            "exit_code": self.exit_code,
        }
        options = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps({"error": problem}, default=str, option=options)


def describe_failure(error: ThermoclineError) -> Failure:
    """Return an error as a failure of the command line."""
    kind = next((KINDS[base] for base in type(error).__mro__ if base in KINDS), _UNNAMED)
    hint = translate_hint(error.hint) or kind.hint
    exit_code = find_answer(error).exit_code
    return Failure(error.code, error.message, hint, exit_code, error.facts, kind.why)


def describe_usage_failure(message: str, usage: str, command: str) -> Failure:
    """Return a command line that cannot be parsed as a failure."""
    what = message.strip().rstrip(".")
    what = what[:1].lower() + what[1:]
    kind = KINDS[Invalid]
    hint = f"`{command} --help` shows its usage"
    facts = {"usage": " ".join(usage.split()).removeprefix("Usage: ")} if usage else {}
    exit_code = ERROR_TABLE[Invalid].exit_code
    return Failure(Invalid.code, what, hint, exit_code, facts, kind.why)


def translate_hint(hint: str) -> str:
    """Return a hint with Python arguments written as options: `--overlap replace`."""
    hint = _FLAG.sub(r"\1", hint)
    return _ARGUMENT.sub(lambda m: f"--{m[1].replace('_', '-')} {m[2]}", hint)


def _spell_name(name: str) -> str:
    return name.replace("_", " ")


def _shorten_value(value: Any) -> str:
    if isinstance(value, Mapping):
        shown = ", ".join(f"{key}={_shorten_value(item)}" for key, item in value.items())
    elif isinstance(value, list | tuple):
        shown = ", ".join(_shorten_value(item) for item in value)
    else:
        shown = "null" if value is None else str(value)
    shown = shown or "none"
    return shown if len(shown) <= VALUE_LENGTH_MAX else shown[: VALUE_LENGTH_MAX - 1] + "…"


def _sanitize(text: str) -> str:
    from thermocline.show.text import visible

    return visible(" ".join(text.split()))
