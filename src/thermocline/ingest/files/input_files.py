"""Finds the files of rows that a user names, their formats, and the name of their batch.

In:   paths, folders and patterns
Out:  files in order of their paths, each with its format and size; the name of the batch

- A folder means all files below it with a known ending, except names that begin with `.` or `_`. A
  file that is named itself needs a known ending, or the caller gives its format.
- A batch's name is a hash of its files' paths, sizes and modification times. The same files are the
  same batch; a file that was written again makes another batch.
- Workers open the same paths: on a cluster every worker must see them.
"""

import glob
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from thermocline.errors import Invalid, NotFound, Overloaded, Unavailable

FILES_MAX = 100_000
FORMATS = ("parquet", "csv", "json")
_ENDINGS = {
    "parquet": (".parquet", ".pq"),
    "csv": (".csv", ".tsv", ".csv.gz", ".tsv.gz"),
    "json": (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz"),
}


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file to load."""

    path: str
    format: str
    size_bytes: int
    modified_ns: int

    @property
    def is_gzip(self) -> bool:
        """Whether the whole file is compressed with gzip."""
        return self.path.lower().endswith(".gz")

    @property
    def delimiter(self) -> str:
        """The character between the fields of a line."""
        return "\t" if ".tsv" in os.path.basename(self.path).lower() else ","


def find_input_files(
    sources: Iterable[str | os.PathLike[str]],
    format: str | None,  # noqa: A002
) -> list[InputFile]:
    """Return the files that paths, folders and patterns name, each once, in order of path."""
    if format is not None and format not in FORMATS:
        hint = f"use one of {', '.join(FORMATS)}"
        raise Invalid("unknown file format", hint=hint, got=format)
    found: dict[str, InputFile] = {}
    for source in sources:
        for path in _expand_source(os.path.abspath(os.fspath(source)), format):
            found[path] = _stat_file(path, format)
            if len(found) > FILES_MAX:
                hint = "load them in several batches"
                raise Overloaded("too many files for one batch", hint=hint, files_max=FILES_MAX)
    if not found:
        raise Invalid("no file to load was found", hint="name files, folders or patterns")
    return [found[path] for path in sorted(found)]


def batch_name(files: Sequence[InputFile], table_id: str) -> str:
    """Return the name of the batch that these files make for a table."""
    digest = hashlib.sha256(table_id.encode())
    for file in files:
        digest.update(f"\n{file.path}\0{file.size_bytes}\0{file.modified_ns}".encode())
    return digest.hexdigest()[:32]


def _expand_source(source: str, format: str | None) -> Iterator[str]:  # noqa: A002
    if os.path.isdir(source):
        yield from _walk_folder(source, format)
        return
    if os.path.exists(source):
        yield source
        return
    matches = sorted(glob.glob(source, recursive=True)) if glob.has_magic(source) else []
    if not matches:
        raise NotFound("no file matches", hint="check the path or pattern", source=source)
    for match in matches:
        if os.path.isdir(match):
            yield from _walk_folder(match, format)
        else:
            yield match


def _walk_folder(folder: str, format: str | None) -> Iterator[str]:  # noqa: A002
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in sorted(names):
            kind = _format_of_name(name)
            if kind is not None and kind == (format or kind) and not name.startswith((".", "_")):
                yield os.path.join(parent, name)


def _format_of_name(path: str) -> str | None:
    lower = path.lower()
    return next((kind for kind, ends in _ENDINGS.items() if lower.endswith(ends)), None)


def _stat_file(path: str, format: str | None) -> InputFile:  # noqa: A002
    kind = format or _format_of_name(path)
    if kind is None:
        raise Invalid(
            "the file's ending does not tell its format",
            hint=f"give its format: {', '.join(FORMATS)}",
            path=path,
        )
    try:
        found = os.stat(path)
    except OSError as error:
        raise Unavailable(
            "a file cannot be read", hint="check its permissions", path=path, why=str(error)
        ) from error
    return InputFile(path, kind, found.st_size, found.st_mtime_ns)
