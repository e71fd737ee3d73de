"""Checks the options that a user gives with `.option(...)`, and opens the table that they name.

In:   Spark's options: texts, with names in any case
Out:  `SparkOptions`; the table that they name

- An unknown option is an error that suggests the closest name: a misspelled option is never
  ignored.
- `storage.<name>` goes to the object store's client as `<name>`; it is never shown.
- Paths in options are paths of the driver; workers get the table's folder.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from thermocline.cold.care.pin import LEASE_S
from thermocline.cold.catalog import Catalog
from thermocline.cold.storage.open_storage import OBJECT_SCHEMES, open_storage
from thermocline.cold.table import Table
from thermocline.cold.tenants import DEFAULT_TENANT, Tenants
from thermocline.disk import OsDisk
from thermocline.errors import Invalid, NotFound
from thermocline.format.bucket import parse_duration_s
from thermocline.format.instant import instant
from thermocline.format.log.conflict import Window

PARTITION_BYTES = 64 << 20
STORAGE_PREFIX = "storage."

_PLACE = ("path", "table", "tenant")
_READ = (*_PLACE, "asOf", "hot", "columns", "start", "end", "pushdown", "lease", "partitionBytes")
_READ_STREAM = ("startingVersion", "ignoreChanges", "maxFilesPerTrigger")
_MAKE = ("timeColumn", "bucket", "entityColumns", "timezone", "retention")
_WRITE = (*_PLACE, "overlap", "evolve", "batchId", *_MAKE)
# Spark's own options, which Spark passes to every sink of a stream.
_SPARKS = ("checkpointLocation", "queryName", "outputMode", "trigger")

READING = (*_READ, *_READ_STREAM)
WRITING = (*_WRITE, *_SPARKS)


@dataclass(frozen=True, slots=True)
class Options:
    """Options by their folded names; `storage` are those of the object store."""

    values: Mapping[str, str]
    storage: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """Return an option, or None if it is not given."""
        return self.values.get(_plain(name))

    def flag(self, name: str) -> bool:
        """Return an option that is true or false; False if it is not given."""
        given = (self.text(name) or "false").lower()
        if given not in ("true", "false"):
            hint = "use true or false"
            raise Invalid("an option is not true or false", hint=hint, option=name, got=given)
        return given == "true"

    def number(self, name: str, default: int) -> int:
        """Return an option that is an integer above zero."""
        given = self.text(name)
        if given is None:
            return default
        if not (given.isascii() and given.isdigit() and int(given)):
            hint = "use digits"
            raise Invalid("an option is not a number above zero", hint=hint, option=name, got=given)
        return int(given)

    def names(self, name: str) -> list[str] | None:
        """Return an option that is a list separated by commas; None if it is not given."""
        given = self.text(name)
        return None if given is None else [part.strip() for part in given.split(",")]

    @property
    def as_of(self) -> object:
        """The requested version (int) or instant (text); None is the newest."""
        given = self.text("asOf")
        if given is None:
            return None
        if given.isascii() and given.isdigit():
            return int(given)
        instant(given)
        return given

    @property
    def window(self) -> Window:
        """The requested stretch of time."""
        start, end = self.text("start"), self.text("end")
        return Window(
            None if start is None else instant(start), None if end is None else instant(end)
        )

    @property
    def lease_s(self) -> int:
        """How long the files of a read version are kept."""
        given = self.text("lease")
        return LEASE_S if given is None else parse_duration_s(given)

    @property
    def root(self) -> str:
        """The given path; a folder's path is made absolute."""
        given = self.text("path")
        if not given:
            raise Invalid("the path is missing", hint="name the table's folder: .load(path)")
        return given if "://" in given else os.path.abspath(given)

    @property
    def tenant(self) -> str:
        """The tenant that owns the table."""
        return self.text("tenant") or DEFAULT_TENANT


def parsed(given: Mapping[str, str], known: tuple[str, ...]) -> Options:
    """Return the options; for an unknown option `Invalid` suggests the closest name."""
    names = {_plain(name): name for name in known}
    values, storage = {}, {}
    for name, value in given.items():
        if name.lower().startswith(STORAGE_PREFIX):
            storage[name[len(STORAGE_PREFIX) :]] = value
        elif _plain(name) in names:
            values[_plain(name)] = value
        else:
            raise _unknown(name, names)
    return Options(values, storage)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _unknown(name: str, names: Mapping[str, str]) -> Invalid:
    near = difflib.get_close_matches(_plain(name), names, n=1, cutoff=0.5)
    if near:
        hint = f"did you mean {names[near[0]]!r}?"
    else:
        hint = f"options are {', '.join(names.values())}, and storage.<name>"
    return Invalid("unknown option", hint=hint, option=name)


def opened(options: Options, *, is_read_only: bool) -> Table:
    """Return the table that options name; `NotFound` if there is none."""
    name = options.text("table")
    if name is None:
        table = Table(open_storage(options.root, options.storage or None))
        try:
            table.state()
        except NotFound as error:
            raise _named_tables(options, error) from error
        return table
    return catalog(options, is_read_only=is_read_only).table(name)


def catalog(options: Options, *, is_read_only: bool) -> Catalog:
    """Return the tables of the tenant that options name; `NotFound` if there is no lake."""
    if options.root.partition("://")[0] in OBJECT_SCHEMES:
        raise Invalid(
            "tables have names only in a lake in a folder",
            hint="load the table's address",
            scheme=options.root.partition("://")[0],
        )
    if Catalog(options.root).identity() is None:
        raise NotFound("there is no lake here", hint="check the path", folder=options.root)
    folder = Tenants(options.root, OsDisk()).folder(options.tenant)
    root = os.path.join(options.root, folder).rstrip("/")
    return Catalog(root, is_read_only=is_read_only)


def _named_tables(options: Options, error: NotFound) -> NotFound:
    """Return the error for a path that is not a table; name the tables if it is a lake."""
    if "://" in options.root:
        return error
    try:
        tables = [named.name for named in catalog(options, is_read_only=True)]
    except (Invalid, NotFound):
        return error
    return NotFound(
        "this is a lake, not a table",
        hint="name one of its tables with option('table', ...)",
        folder=options.root,
        tables=tables[:20],
    )
