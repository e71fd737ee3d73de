"""Writes an answer in the chosen format: a box on a terminal, CSV in a pipe, JSON on request.

In:   `--json`, `--format`, `--output`, and whether stdout is a terminal
Out:  the answer, on stdout or in a file

- A file gets its name only after all of it is written: a failed query leaves no file.
- Binary formats never go to a terminal.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from thermocline.cli.argument import Format
from thermocline.cli.terminal.export import write_rows
from thermocline.cli.terminal.terminal import answer_console, is_terminal
from thermocline.errors import Invalid, Unavailable
from thermocline.show.value import as_json

if TYPE_CHECKING:
    import pyarrow as pa

BINARY = (Format.ARROW, Format.PARQUET)
SUFFIXES = {
    ".csv": Format.CSV,
    ".json": Format.JSON,
    ".ndjson": Format.NDJSON,
    ".jsonl": Format.NDJSON,
    ".arrow": Format.ARROW,
    ".feather": Format.ARROW,
    ".parquet": Format.PARQUET,
}


@dataclass(frozen=True, slots=True)
class Output:
    """An answer's format, and its file; None is stdout."""

    form: Format
    path: str | None = None

    def write(self, rows: "pa.RecordBatchReader", rows_max: int = 0) -> None:
        """Write all rows; a box shows the first `rows_max` of them."""
        if self.form is Format.BOX:
            from thermocline.cli.terminal.box import draw

            draw(rows, answer_console(), rows_max)
        elif self.path is None:
            write_rows(rows, self.form, sys.stdout.buffer, is_file=False)
        else:
            with _open_file(self.path) as sink:
                write_rows(rows, self.form, sink, is_file=True)


def choose_output(
    form: Format | None, output: str | None = None, *, is_json: bool = False
) -> Output:
    """Return the output that the options request; `Invalid` if they contradict each other."""
    if is_json and form not in (None, Format.JSON):
        raise Invalid("--json and --format name different formats", hint="give one of them")
    if is_json:
        form = Format.JSON
    if output is not None:
        form = form or SUFFIXES.get(os.path.splitext(output)[1].lower(), Format.CSV)
        if form is Format.BOX:
            raise Invalid("a box cannot be written to a file", hint="use --format csv")
        return Output(form, output)
    form = form or (Format.BOX if is_terminal() else Format.CSV)
    if form in BINARY and is_terminal():
        raise Invalid(
            "a binary format cannot be written to a terminal",
            hint="name a file with --output, or pipe the answer into a program",
            format=form.value,
        )
    return Output(form)


def print_json(value: Any) -> None:
    """Write one JSON value as the whole answer."""
    sys.stdout.buffer.write(as_json(value) + b"\n")


@contextlib.contextmanager
def _open_file(path: str) -> Iterator[BinaryIO]:
    part = f"{path}.part"
    try:
        with open(part, "wb") as sink:
            yield sink
        os.replace(part, path)
    except OSError as error:
        _remove(part)
        raise Unavailable(
            "the answer cannot be written",
            hint="check the folder, its permissions and the free disk space",
            path=path,
            why=error.strerror or str(error),
        ) from error
    except BaseException:
        _remove(part)
        raise


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(path)
