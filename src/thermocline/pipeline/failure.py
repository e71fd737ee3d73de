"""What an error of Spark, or of a worker under it, means to whoever ran the job.

In:   whatever left a job
Out:  an error of this package: the worker's own where a worker raised one, else `Unavailable`

- A worker's error comes back as the text of its traceback. The last error of this package in it is
  the one that counts; Spark only repeats it.
- A job that failed has committed nothing: what is told is how to try again.
- No password is in what is told: texts are masked as settings are.
"""

import re

from thermocline import errors
from thermocline.config import shown
from thermocline.errors import Corruption, ThermoclineError, Unavailable, Unsupported

WHY_LENGTH_MAX = 500
_OURS = re.compile(
    r"^\s*thermocline\.(?:\w+\.)+(\w+): (.+?)(?: \((.*)\))?$(?:\nhint: (.+)$)?", re.M
)
_PAGE_DAMAGED = "CRC checksum verification failed"
_FILE = re.compile(r"(?:file|path)[: ]+(?:file:/*)?/*(\S+\.parquet)")
_LAST = re.compile(r"^\s*((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b.*)$", re.M)


def told_of(error: BaseException) -> ThermoclineError:
    """Return the error of this package that an error of a job stands for."""
    if isinstance(error, ThermoclineError):
        return error
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        name, message, facts, hint = ours[-1]
        kind = getattr(errors, name, Unavailable)
        more = {"why": masked(facts)} if facts else {}
        made = kind(message, hint=hint, **more)
        assert isinstance(made, ThermoclineError)
        return made
    if _PAGE_DAMAGED in text:
        file = _FILE.search(text)
        return Corruption(
            "a page of a segment does not fit its checksum",
            hint="restore the file from a backup; `thermocline table fsck` lists all damaged files",
            path=file[1] if file else "",
        )
    others = _LAST.findall(text)
    why = others[-1] if others else (text.strip().splitlines() or [""])[0]
    if "ModuleNotFoundError" in why or "ImportError" in why:
        return Unsupported(
            "a package is missing where Spark's workers run",
            hint="install the same thermocline[spark] there, and set PYSPARK_PYTHON to its Python",
            why=masked(why),
        )
    return Unavailable(
        "the job failed in Spark",
        hint="nothing was committed; see what Spark told, then run it again",
        why=masked(f"{type(error).__name__}: {why}" if why else type(error).__name__),
    )


class SparkNotStarted(Unavailable):
    """Spark could not be started. Nothing was changed, and no smaller task would help.

    `is_known` says that an earlier task of the run has told why.
    """

    is_known = False


def masked(text: str) -> str:
    """Return a text without passwords, cut to a length that fits a line of history."""
    return str(shown(text))[:WHY_LENGTH_MAX]
