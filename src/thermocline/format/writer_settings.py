"""How the segments of a table are written: codec, level, row groups and dictionaries.

In:   a caller's settings, or those of a commit
Out:  `WriterSettings`

- The settings say how rows are written from now on. A reader needs none of them, and files that
  were written otherwise, or copied byte for byte, stay as they are.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from thermocline.errors import Invalid
from thermocline.format.argument import check_count, check_flag, wrong_kind

CODECS = ("zstd", "snappy", "lz4", "gzip", "uncompressed")
LEVELS = {"zstd": 22, "gzip": 9}
ROWS_PER_GROUP = 131_072
ROWS_PER_GROUP_MAX = 1 << 30
BYTES_PER_GROUP = 128 << 20
ZSTD_LEVEL = 1


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """The settings; `level` is the codec's own, None for the usual one."""

    compression: str = "zstd"
    level: int | None = None
    rows_per_group: int = ROWS_PER_GROUP
    bytes_per_group: int = BYTES_PER_GROUP
    dictionary: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.compression, str) or self.compression not in CODECS:
            raise Invalid(
                "unknown codec", hint=f"use one of {', '.join(CODECS)}", got=str(self.compression)
            )
        if self.level is not None:
            highest = LEVELS.get(self.compression, 0)
            if check_count(self.level, "level", 1) > highest:
                hint = f"use 1 to {highest}" if highest else f"{self.compression} has no levels"
                raise Invalid("the codec has no such level", hint=hint, level=self.level)
        for name in ("rows_per_group", "bytes_per_group"):
            if check_count(getattr(self, name), name, 1) > ROWS_PER_GROUP_MAX:
                hint = f"use at most {ROWS_PER_GROUP_MAX}"
                raise Invalid("a row group is too large", hint=hint, argument=name)
        check_flag(self.dictionary, "dictionary")

    @property
    def codec_level(self) -> int | None:
        """The level to pass to the codec."""
        return ZSTD_LEVEL if self.level is None and self.compression == "zstd" else self.level

    def group_rows(self, rows: int, size_bytes: int) -> int:
        """Return how many rows one group of a table of this size has."""
        fitting = self.bytes_per_group * rows // max(size_bytes, 1)
        return max(1, min(self.rows_per_group, fitting))


DEFAULT_WRITER = WriterSettings()


def parse_writer(given: Any, base: WriterSettings = DEFAULT_WRITER) -> WriterSettings:
    """Return a caller's settings: those given, and for the others those of `base`."""
    if given is None:
        return base
    if not isinstance(given, Mapping):
        raise wrong_kind("not writer settings", "pass a dict", "writer", given)
    known = {field.name for field in fields(WriterSettings)}
    unknown = [str(name) for name in given if name not in known]
    if unknown:
        hint = f"use {', '.join(sorted(known))}"
        raise Invalid("unknown writer setting", hint=hint, unknown=unknown)
    # A level belongs to its codec: another codec begins with its usual one.
    kept = asdict(base) | ({"level": None} if "compression" in given else {})
    return WriterSettings(**kept | dict(given))


def encode_writer(writer: WriterSettings) -> dict[str, Any]:
    """Return the settings that are not the default, as JSON."""
    return {
        name: value
        for name, value in asdict(writer).items()
        if value != getattr(DEFAULT_WRITER, name)
    }
