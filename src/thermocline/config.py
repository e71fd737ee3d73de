"""The settings of a lake: their names, their defaults, what values they may have.

In:   names and values as a user wrote them
Out:  frozen settings; `Invalid` that names the setting, what came and what is allowed
"""

import difflib
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from thermocline.errors import Invalid


class Sync(enum.Enum):
    """When written rows are made durable: before the answer, at an interval, by the system."""

    ALWAYS = "always"
    INTERVAL = "interval"
    OS = "os"


@dataclass(frozen=True, slots=True)
class WalSettings:
    """How a journal is written and how much may be hot.

    `sync="interval"` answers before the rows are durable: a power cut may take what was written
    in the last `sync_interval_s`. `sync="os"` leaves it to the operating system. A killed process
    loses nothing either way.
    """

    sync: Sync = Sync.ALWAYS
    sync_interval_s: float = 0.05
    hot_bytes_max: int = 64 << 20
    write_wait_s: float = 5.0
    file_bytes_max: int = 16 << 20
    queue_bytes_max: int = 64 << 20


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """How a lake is kept: its journal, how long rows may stay hot, where queries run.

    Without `query_workers` a query runs in this process and may take what the process may. With
    them it runs in a process of its own, within `query_memory_bytes` and `query_timeout_s`.
    """

    wal: WalSettings = field(default_factory=WalSettings)
    flush_age_s: float = 60.0
    flush_look_s: float = 1.0
    query_workers: int = 0
    query_memory_bytes: int = 256 << 20
    query_timeout_s: float = 60.0


def settings_of(given: Mapping[str, Any]) -> LakeSettings:
    """Return the settings that these names stand for; `Invalid` for an unknown name or value."""
    wal = {one.name for one in fields(WalSettings)}
    own = {one.name for one in fields(LakeSettings)} - {"wal"}
    for name in given.keys() - wal - own:
        near = difflib.get_close_matches(name, wal | own, n=1, cutoff=0.0)[0]
        raise Invalid("no such setting", hint=f"did you mean {near}?", setting=name)
    values = dict(given)
    if "sync" in values and not isinstance(values["sync"], Sync):
        allowed = [one.value for one in Sync]
        if values["sync"] not in allowed:
            hint = f"use one of {', '.join(allowed)}"
            raise Invalid("not a way to sync", hint=hint, sync=values["sync"])
        values["sync"] = Sync(values["sync"])
    for name in values.keys() - {"sync"}:
        number = values[name]
        if isinstance(number, bool) or not isinstance(number, int | float) or number < 0:
            raise Invalid("not a setting's value", hint="use a number", setting=name, got=number)
    return LakeSettings(
        WalSettings(**{name: value for name, value in values.items() if name in wal}),
        **{name: value for name, value in values.items() if name in own},
    )
