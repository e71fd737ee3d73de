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
from thermocline.cold.storage.open_storage import open_storage
from thermocline.cold.table import ColdTable
from thermocline.cold.tenants import TenantCatalog
from thermocline.disk import OsDisk
from thermocline.errors import Invalid, NotFound
from thermocline.format.bucket import Bucket, parse_duration_s
from thermocline.format.instant import to_instant
from thermocline.format.log.conflict import TimeWindow, parse_window
from thermocline.names import DEFAULT_TENANT

PARTITION_BYTES = 64 << 20
STORAGE_PREFIX = "storage."

_TABLE_OPTIONS = ("path", "table", "tenant")
_BATCH_READ_OPTIONS = (
    *_TABLE_OPTIONS,
    "asOf",
    "hot",
    "columns",
    "start",
    "end",
    "pushdown",
    "lease",
    "partitionBytes",
)
_STREAM_READ_OPTIONS = ("startingVersion", "ignoreChanges", "maxFilesPerTrigger")
_CREATE_OPTIONS = (
    "timeColumn",
    "indexColumn",
    "indexType",
    "bucket",
    "entityColumns",
    "timezone",
    "retention",
)
_TABLE_WRITE_OPTIONS = (*_TABLE_OPTIONS, "overlap", "evolve", "batchId", *_CREATE_OPTIONS)
# Spark's own options, which Spark passes to every sink of a stream.
_STREAM_OPTIONS = ("checkpointLocation", "queryName", "outputMode", "trigger")

READ_OPTIONS = (*_BATCH_READ_OPTIONS, *_STREAM_READ_OPTIONS)
WRITE_OPTIONS = (*_TABLE_WRITE_OPTIONS, *_STREAM_OPTIONS)


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Options by their folded names; `storage` are those of the object store."""

    values: Mapping[str, str]
    storage: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """Return an option, or None if it is not given."""
        return self.values.get(_fold_name(name))

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
        to_instant(given)
        return given

    def window(self, bucket: Bucket) -> TimeWindow:
        """Return the requested stretch of the index of these buckets."""
        return parse_window(self.text("start"), self.text("end"), bucket)

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


def parse_options(given: Mapping[str, str], known: tuple[str, ...]) -> SparkOptions:
    """Return the options; for an unknown option `Invalid` suggests the closest name."""
    names = {_fold_name(name): name for name in known}
    values, storage = {}, {}
    for name, value in given.items():
        if name.lower().startswith(STORAGE_PREFIX):
            storage[name[len(STORAGE_PREFIX) :]] = value
        elif _fold_name(name) in names:
            values[_fold_name(name)] = value
        else:
            raise _unknown_option(name, names)
    return SparkOptions(values, storage)


def _fold_name(name: str) -> str:
    return name.replace("_", "").lower()


def _unknown_option(name: str, names: Mapping[str, str]) -> Invalid:
    near = difflib.get_close_matches(_fold_name(name), names, n=1, cutoff=0.5)
    if near:
        hint = f"did you mean {names[near[0]]!r}?"
    else:
        hint = f"options are {', '.join(names.values())}, and storage.<name>"
    return Invalid("unknown option", hint=hint, option=name)


def open_table(options: SparkOptions, *, is_read_only: bool) -> ColdTable:
    """Return the table that options name; `NotFound` if there is none."""
    name = options.text("table")
    if name is None:
        table = ColdTable(open_storage(options.root, options.storage or None))
        try:
            table.state()
        except NotFound as error:
            raise _name_tables(options, error) from error
        return table
    return open_catalog(options, is_read_only=is_read_only).table(name)


def open_catalog(options: SparkOptions, *, is_read_only: bool) -> Catalog:
    """Return the tables of the tenant that options name; `NotFound` if there is no lake."""
    lake = open_storage(options.root, options.storage or None)
    if Catalog(lake).identity() is None:
        raise NotFound("there is no lake here", hint="check the path", folder=options.root)
    tenants = TenantCatalog(lake, OsDisk())
    place = tenants.storage(options.tenant)
    return Catalog(place, lake=tenants.lake, is_read_only=is_read_only)


def _name_tables(options: SparkOptions, error: NotFound) -> NotFound:
    """Return the error for a path that is not a table; name the tables if it is a lake."""
    if "://" in options.root:
        return error
    try:
        tables = [named.name for named in open_catalog(options, is_read_only=True)]
    except (Invalid, NotFound):
        return error
    return NotFound(
        "this is a lake, not a table",
        hint="name one of its tables with option('table', ...)",
        folder=options.root,
        tables=tables[:20],
    )
