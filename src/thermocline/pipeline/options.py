"""What a user writes with `.option(...)`, checked, and the table that it leads to.

In:   Spark's options: texts, whatever case their names have
Out:  `Options`; the table behind them, and its hot rows where they are asked for

- A name that nobody knows is refused, and the nearest one is named: an option that is misspelled
  is never ignored.
- `storage.<name>` goes to the object store's client as `<name>`; it is never shown.
- Options name places as the driver sees them; workers get the table's folder.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from thermocline.disk import OsDisk
from thermocline.errors import Invalid, NotFound
from thermocline.format.bucket import parse_duration_s
from thermocline.format.conflict import Window
from thermocline.format.instant import instant
from thermocline.lake.catalog import Catalog
from thermocline.lake.pin import LEASE_S
from thermocline.lake.place import OBJECT_SCHEMES, open_storage
from thermocline.lake.table import Table
from thermocline.lake.tenants import DEFAULT_TENANT, Tenants

PARTITION_BYTES = 64 << 20
STORAGE_PREFIX = "storage."

_PLACE = ("path", "table", "tenant")
_READ = (*_PLACE, "asOf", "hot", "columns", "start", "end", "pushdown", "lease", "partitionBytes")
_READ_STREAM = ("startingVersion", "ignoreChanges", "maxFilesPerTrigger")
_MAKE = ("timeColumn", "bucket", "entityColumns", "timezone", "retention")
_WRITE = (*_PLACE, "overlap", "evolve", "batchId", *_MAKE)
# Spark's own, which it hands on to every sink of a stream.
_SPARKS = ("checkpointLocation", "queryName", "outputMode", "trigger")

READING = (*_READ, *_READ_STREAM)
WRITING = (*_WRITE, *_SPARKS)


@dataclass(frozen=True, slots=True)
class Options:
    """Options by their plain names; `storage` are those of the object store."""

    values: Mapping[str, str]
    storage: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """Return an option, or None where it is not given."""
        return self.values.get(_plain(name))

    def flag(self, name: str) -> bool:
        """Return an option that is true or false, false where it is not given."""
        given = (self.text(name) or "false").lower()
        if given not in ("true", "false"):
            raise Invalid("not true or false", hint="use one of them", option=name, got=given)
        return given == "true"

    def number(self, name: str, default: int) -> int:
        """Return an option that is a number of at least one."""
        given = self.text(name)
        if given is None:
            return default
        if not (given.isascii() and given.isdigit() and int(given)):
            raise Invalid("not a number above zero", hint="use digits", option=name, got=given)
        return int(given)

    def names(self, name: str) -> list[str] | None:
        """Return an option that is a list, comma between its parts; None where not given."""
        given = self.text(name)
        return None if given is None else [part.strip() for part in given.split(",")]

    @property
    def as_of(self) -> object:
        """The version (int) or instant (text) that is asked for; None is the newest."""
        given = self.text("asOf")
        if given is None:
            return None
        if given.isascii() and given.isdigit():
            return int(given)
        instant(given)
        return given

    @property
    def window(self) -> Window:
        """The stretch of time that is asked for."""
        start, end = self.text("start"), self.text("end")
        return Window(
            None if start is None else instant(start), None if end is None else instant(end)
        )

    @property
    def lease_s(self) -> int:
        """How long the files of what is read are kept."""
        given = self.text("lease")
        return LEASE_S if given is None else parse_duration_s(given)

    @property
    def root(self) -> str:
        """The path that was given; of a folder, the whole one."""
        given = self.text("path")
        if not given:
            raise Invalid("no path is given", hint="name the table's folder: .load(path)")
        return given if "://" in given else os.path.abspath(given)

    @property
    def tenant(self) -> str:
        """The tenant whose table it is."""
        return self.text("tenant") or DEFAULT_TENANT


def parsed(given: Mapping[str, str], known: tuple[str, ...]) -> Options:
    """Return the options; `Invalid` names the nearest known one for one that is not."""
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
    return Invalid("no such option", hint=hint, option=name)


def opened(options: Options, *, is_read_only: bool) -> Table:
    """Return the table that options name; `NotFound` when there is none."""
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
    """Return the tables of the tenant that options name; `NotFound` where there is no lake."""
    if options.root.partition("://")[0] in OBJECT_SCHEMES:
        raise Invalid(
            "a lake's tables are found by name in a folder only",
            hint="load the table's own address",
            scheme=options.root.partition("://")[0],
        )
    if Catalog(options.root).identity() is None:
        raise NotFound("there is no lake here", hint="check the path", folder=options.root)
    folder = Tenants(options.root, OsDisk()).folder(options.tenant)
    root = os.path.join(options.root, folder).rstrip("/")
    return Catalog(root, is_read_only=is_read_only)


def _named_tables(options: Options, error: NotFound) -> NotFound:
    """Return the error for a path that is none of a table: a lake's, perhaps."""
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
