"""Every name inside a table's folder, both ways: from meaning to path and back.

    _log/00000000000000000007.json                  a commit
    _log/00000000000000000100.checkpoint.parquet    a checkpoint
    _log/00000000000000000100.base.parquet          the state where a truncated log begins
    _log/CURRENT                                    the newest version when it was written, a hint
    _coverage/segments/<id>.roar                    the buckets of one segment
    _coverage/table/<version>.roar                  the buckets of one version
    _tokens/<id>.bloom                              which tokens the texts of one segment hold
    _pins/<id>.json                                 a reader's lease on one version
    _contracts/<version>.json                       a copy of one contract of an entity type
    _repair/<id>/<name>                             a file that a repair set aside
    data/<yyyy>/<mm>/<dd>/<hh>/<id>.parquet         a segment
    data/<last 2 of id>/<id>.parquet                a segment of a table with an integer index

- Paths are relative to the table's root, with forward slashes, and never leave it.
- A temporary name starts with `.` in its last part, so that no reader mistakes it for data.
"""

import re
from datetime import UTC, datetime
from typing import NewType

from thermocline.errors import Corruption
from thermocline.format.instant import TimeNs, to_datetime

Version = NewType("Version", int)

LOG_FOLDER = "_log"
DATA_FOLDER = "data"
PINS_FOLDER = "_pins"
CONTRACTS_FOLDER = "_contracts"
REPAIR_FOLDER = "_repair"
SEGMENT_COVERAGE_FOLDER = "_coverage/segments"
TABLE_COVERAGE_FOLDER = "_coverage/table"
TOKENS_FOLDER = "_tokens"
SEGMENT_FOLDERS = (DATA_FOLDER, SEGMENT_COVERAGE_FOLDER, TOKENS_FOLDER)
"""The folders with the files of segments."""
CURRENT_PATH = "_log/CURRENT"
PATH_LENGTH_MAX = 1024

_COMMIT_NAME = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT_NAME = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
_BASE_NAME = re.compile(r"([0-9]{20})\.base\.parquet")
_CONTRACT_NAME = re.compile(r"([0-9]{10})\.json")
_TABLE_COVERAGE_NAME = re.compile(r"([0-9]{20})\.roar")
_PART = re.compile(r"[^\x00-\x1f\\/:]+")


def commit_path(version: int) -> str:
    """Return the path whose existence is the commit of `version`."""
    return f"{LOG_FOLDER}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    """Return the path of the checkpoint of `version`."""
    return f"{LOG_FOLDER}/{version:020d}.checkpoint.parquet"


def base_path(version: int) -> str:
    """Return the path of the state of the version at which a truncated log begins."""
    return f"{LOG_FOLDER}/{version:020d}.base.parquet"


def segment_coverage_path(coverage_id: str) -> str:
    """Return the path of a segment's coverage sidecar."""
    return f"{SEGMENT_COVERAGE_FOLDER}/{coverage_id}.roar"


def tokens_path(tokens_id: str) -> str:
    """Return the path of a segment's token sidecar."""
    return f"{TOKENS_FOLDER}/{tokens_id}.bloom"


def table_coverage_path(version: int) -> str:
    """Return the path of the coverage of a whole version."""
    return f"{TABLE_COVERAGE_FOLDER}/{version:020d}.roar"


def pin_path(pin_id: str) -> str:
    """Return the path of a reader's lease."""
    return f"{PINS_FOLDER}/{pin_id}.json"


def contract_path(schema_version: int) -> str:
    """Return the path of the copy of one version of an entity type's contract."""
    return f"{CONTRACTS_FOLDER}/{schema_version:010d}.json"


def contract_version(name: str) -> int | None:
    """Return the version of the contract that a file name in `_contracts` is a copy of, or None."""
    found = _CONTRACT_NAME.fullmatch(name)
    return int(found.group(1)) if found else None


def segment_path(first: TimeNs | None, segment_id: str) -> str:
    """Return the path of a segment whose first row is at `first`, None for an integer index."""
    if first is None:
        return f"{DATA_FOLDER}/{segment_id[-2:]}/{segment_id}.parquet"
    hour = to_datetime(first).astimezone(UTC)
    return f"{DATA_FOLDER}/{_format_hour_folder(hour)}/{segment_id}.parquet"


def _format_hour_folder(hour: datetime) -> str:
    return f"{hour.year:04d}/{hour.month:02d}/{hour.day:02d}/{hour.hour:02d}"


def commit_version(name: str) -> Version | None:
    """Return the version a file name in `_log` is the commit of, or None."""
    return _parse_version(_COMMIT_NAME, name)


def checkpoint_version(name: str) -> Version | None:
    """Return the version a file name in `_log` is the checkpoint of, or None."""
    return _parse_version(_CHECKPOINT_NAME, name)


def base_version(name: str) -> Version | None:
    """Return the version a file name in `_log` is the base of, or None."""
    return _parse_version(_BASE_NAME, name)


def table_coverage_version(name: str) -> Version | None:
    """Return the version a file name in `_coverage/table` is the coverage of, or None."""
    return _parse_version(_TABLE_COVERAGE_NAME, name)


def _parse_version(pattern: re.Pattern[str], name: str) -> Version | None:
    found = pattern.fullmatch(name)
    return Version(int(found.group(1))) if found else None


def is_temporary(name: str) -> bool:
    """Tell whether a file name is temporary; readers ignore such files."""
    return name.startswith(".")


def check_relative_path(path: str) -> str:
    """Return `path` if it stays inside the table; raise `Corruption` otherwise.

    Called before a path is written to the log, and again when it is read from the log.
    """
    parts = path.split("/")
    good = len(path) <= PATH_LENGTH_MAX and all(
        _PART.fullmatch(part) and part not in (".", "..") for part in parts
    )
    if not good:
        raise Corruption(
            "path leaves the table's folder or is not a plain relative path",
            hint="the commit is damaged: restore it from a copy",
            path=path[:200],
        )
    return path
