"""Translates errors of Spark and its workers into errors of this package.

In:   an exception that a job raised
Out:  an error of this package: the worker's error if a worker raised one, else `Unavailable`

- Spark returns a worker's error as the text of its traceback. The last error of this package in
  this text is the worker's; Spark only repeats it.
- A failed job has committed nothing, so the hint says how to try again.
- Passwords are masked in the text, as in settings.
"""

import re

from thermocline import errors
from thermocline.cold.compact.rewrite import KernelNotStarted
from thermocline.config import redact
from thermocline.errors import Corruption, ThermoclineError, Unavailable, Unsupported

WHY_LENGTH_MAX = 500
_OURS = re.compile(
    r"^\s*thermocline\.(?:\w+\.)+(\w+): (.+?)(?: \((.*)\))?$(?:\nhint: (.+)$)?", re.M
)
_PAGE_DAMAGED = "CRC checksum verification failed"
_FILE = re.compile(r"(?:file|path)[: ]+(?:file:/*)?/*(\S+\.parquet)")
_LAST = re.compile(r"^\s*((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b.*)$", re.M)


def translate_error(error: BaseException) -> ThermoclineError:
    """Return the error of this package that a job's exception means."""
    if isinstance(error, ThermoclineError):
        return error
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        name, message, facts, hint = ours[-1]
        kind = getattr(errors, name, Unavailable)
        more = {"why": mask_text(facts)} if facts else {}
        made = kind(message, hint=hint, **more)
        assert isinstance(made, ThermoclineError)
        return made
    if _PAGE_DAMAGED in text:
        file = _FILE.search(text)
        return Corruption(
            "a page of a segment does not match its checksum",
            hint="restore the file from a backup; `thermocline table fsck` lists all damaged files",
            path=file[1] if file else "",
        )
    others = _LAST.findall(text)
    why = others[-1] if others else (text.strip().splitlines() or [""])[0]
    if "ModuleNotFoundError" in why or "ImportError" in why:
        return Unsupported(
            "a package is not installed where Spark's workers run",
            hint="install the same thermocline[spark] there, and set PYSPARK_PYTHON to its Python",
            why=mask_text(why),
        )
    return Unavailable(
        "the job failed in Spark",
        hint="nothing was committed; see `why`, then run it again",
        why=mask_text(f"{type(error).__name__}: {why}" if why else type(error).__name__),
    )


class SparkNotStarted(KernelNotStarted):
    """Spark could not be started. Nothing was changed, and a smaller task would fail as well.

    `is_known` is true if an earlier task of the run has reported the reason.
    """

    is_known = False


def mask_text(text: str) -> str:
    """Return a text without passwords, cut to a length that fits a row of the history."""
    return str(redact(text))[:WHY_LENGTH_MAX]
