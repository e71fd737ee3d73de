"""The settings of jobs: `[pipeline]` in the node's TOML file.

In:   the parsed section of the file
Out:  frozen settings; `Invalid` that names the setting, its value and what is allowed

    [pipeline]              master, memory, every, lease
    [pipeline.schedule]     how often a worker runs each job; 0 is never
    [pipeline.limits]       how much a job processes at once
    [pipeline.spark]        Spark's settings, passed on unchanged
    [[pipeline.rollups]]    declared rollups

- An unknown setting is an error that suggests the closest name.
- Reading settings starts nothing: rollups are checked against their sources when they run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from thermocline.config import find_nearest, read_settings, redact, setting, settings_in
from thermocline.errors import Invalid
from thermocline.pipeline.run.history import master_address

if TYPE_CHECKING:
    from thermocline.pipeline.rollup.spec import Rollup

ORIGIN = "[pipeline]"
MASKED = "***"
"""Shown instead of the values of Spark's settings: any of them may be a credential."""


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """How often a worker checks whether a job has something to do; 0 is never."""

    export: float = setting(60.0, "seconds")
    compact: float = setting(600.0, "seconds")
    rollup: float = setting(300.0, "seconds")
    retain: float = setting(3_600.0, "seconds")


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """How much a job processes at once; `retain` removes files after `vacuum_grace`, 0 is never."""

    export_connections: int = setting(8, "count", 1)
    export_part_keys: int = setting(20_000, "count", 1)
    compact_segment_bytes: int = setting(64 << 20, "bytes", 1 << 20)
    compact_inputs_min: int = setting(8, "count", 2)
    vacuum_grace: float = setting(0.0, "seconds")


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Where and how often jobs run, their limits, and the declared rollups."""

    master: str = setting("local[*]", "text")
    memory: str = setting("1g", "text")
    every: float = setting(10.0, "seconds", 0.1)
    lease: float = setting(60.0, "seconds", 5)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    spark: Mapping[str, str] = field(default_factory=dict)
    rollups: "Sequence[Rollup]" = ()


def pipeline_settings(given: Any) -> PipelineSettings:
    """Return the settings of a file's section `[pipeline]`."""
    given = _check_section(given, "pipeline")
    known = {one.name for one in fields(PipelineSettings)}
    for name in given:
        if name not in known:
            hint = f"did you mean {find_nearest(name, known)}?"
            label = f"pipeline.{name}"
            raise Invalid("no such setting", hint=hint, setting=label, origin=ORIGIN)
    plain = settings_in(PipelineSettings)
    own = {name: value for name, value in given.items() if name in plain}
    return PipelineSettings(
        **read_settings(own, plain, ORIGIN, prefix="pipeline."),
        schedule=_read_section(ScheduleSettings, given, "schedule"),
        limits=_read_section(LimitSettings, given, "limits"),
        spark=_read_spark_settings(given.get("spark", {})),
        rollups=_read_rollups(given.get("rollups", [])),
    )


def describe_settings(settings: PipelineSettings) -> dict[str, Any]:
    """Return every setting by its name in the file, with credentials masked."""
    shown: dict[str, Any] = {}
    for part, prefix in (
        (settings, "pipeline."),
        (settings.schedule, "pipeline.schedule."),
        (settings.limits, "pipeline.limits."),
    ):
        shown |= {prefix + name: redact(getattr(part, name)) for name in settings_in(type(part))}
    shown["pipeline.master"] = master_address(settings.master)
    shown |= {f"pipeline.spark.{name}": MASKED for name in settings.spark}
    shown["pipeline.rollups"] = ", ".join(one.name for one in settings.rollups) or "none"
    return shown


def _read_section(kind: Any, given: Mapping[str, Any], name: str) -> Any:
    values = _check_section(given.get(name, {}), f"pipeline.{name}")
    return kind(**read_settings(values, settings_in(kind), ORIGIN, prefix=f"pipeline.{name}."))


def _check_section(given: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        hint = f"write it as [{name}]"
        raise Invalid("expected a TOML table", hint=hint, setting=name, got=str(given)[:80])
    return given


def _read_spark_settings(given: Any) -> dict[str, str]:
    found = {}
    for name, value in _check_section(given, "pipeline.spark").items():
        if not name.startswith("spark.") or isinstance(value, Mapping | list):
            hint = 'write Spark\'s own name in quotes: "spark.executor.memory" = "2g"'
            label = f"pipeline.spark.{name}"
            raise Invalid("not a Spark setting", hint=hint, setting=label, origin=ORIGIN)
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _read_rollups(given: Any) -> "tuple[Rollup, ...]":
    if not given:
        return ()
    from thermocline.pipeline.rollup.spec import parse_rollup

    if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
        hint = "write each as [[pipeline.rollups]]"
        raise Invalid("expected a list of rollups", hint=hint, setting="pipeline.rollups")
    rollups = tuple(parse_rollup(one) for one in given)
    names = [one.name.lower() for one in rollups]
    if len(set(names)) != len(names):
        hint = "give each rollup a different name"
        raise Invalid("two rollups have the same name", hint=hint, rollups=names)
    return rollups
