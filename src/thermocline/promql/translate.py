"""Names and labels of OpenTelemetry's metrics as Prometheus has them.

In:   a metric's name, unit and type; attributes and resource as JSON text
Out:  the name with its suffixes; labels with valid names

- The rules are those of OpenTelemetry's "Prometheus and OpenMetrics compatibility": a unit and
  `_total` become suffixes, other characters become underscores, `service.name`, `service.namespace`
  and `service.instance.id` become `job` and `instance`. `docs/promql.md` has them.
- Metrics that came by remote write keep their names and labels: their scope says so.
"""

import json
import re
from functools import lru_cache
from typing import Any

from thermocline.promql.labels import NAME, Labels, make_labels
from thermocline.promql.notes import go_number

REMOTE_WRITE_SCOPE = "prometheus.remote_write"
TARGET_INFO = "target_info"
_KEPT_TEXTS = 20_000
_IDENTIFYING = ("service.name", "service.namespace", "service.instance.id")
_UNITS = {
    "d": "days",
    "h": "hours",
    "min": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
    "By": "bytes",
    "KiBy": "kibibytes",
    "MiBy": "mebibytes",
    "GiBy": "gibibytes",
    "TiBy": "tibibytes",
    "KBy": "kilobytes",
    "MBy": "megabytes",
    "GBy": "gigabytes",
    "TBy": "terabytes",
    "m": "meters",
    "V": "volts",
    "A": "amperes",
    "J": "joules",
    "W": "watts",
    "g": "grams",
    "Cel": "celsius",
    "Hz": "hertz",
    "1": "",
    "%": "percent",
}
_PER_UNITS = {
    "s": "second",
    "m": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
    "mo": "month",
    "y": "year",
}
_NAME_PARTS = re.compile(r"[A-Za-z0-9:]+")
_NOT_IN_LABEL = re.compile(r"[^A-Za-z0-9_]")


@lru_cache(maxsize=_KEPT_TEXTS)
def metric_name(name: str, unit: str | None, *, is_counter: bool, is_gauge: bool) -> str:
    """Return a metric's name with the suffixes of its unit and type."""
    parts = _NAME_PARTS.findall(name)
    for suffix in _unit_suffixes(unit or ""):
        if suffix and suffix not in parts:
            parts.append(suffix)
    if is_counter:
        parts = [part for part in parts if part != "total"] + ["total"]
    elif is_gauge and unit == "1":
        parts = [part for part in parts if part != "ratio"] + ["ratio"]
    found = "_".join(parts)
    return f"_{found}" if found[:1].isdigit() else found


def _unit_suffixes(unit: str) -> list[str]:
    main, _, per = unit.partition("/")
    found = []
    if main.strip() and "{" not in main:
        found.append(_clean_unit(_UNITS.get(main.strip(), main.strip())))
    if per.strip() and "{" not in per:
        per_name = _clean_unit(_PER_UNITS.get(per.strip(), per.strip()))
        if per_name:
            found.append(f"per_{per_name}")
    return found


def _clean_unit(unit: str) -> str:
    return "_".join(_NAME_PARTS.findall(unit))


@lru_cache(maxsize=_KEPT_TEXTS)
def label_name(key: str) -> str:
    """Return an attribute's key as the name of a label."""
    found = _NOT_IN_LABEL.sub("_", key)
    if found[:1].isdigit():
        return f"key_{found}"
    if found.startswith("_") and not found.startswith("__"):
        return f"key{found}"
    return found


@lru_cache(maxsize=_KEPT_TEXTS)
def attribute_labels(text: str | None, *, is_verbatim: bool = False) -> Labels:
    """Return attributes as labels; keys that become one name have their values joined by `;`."""
    attributes = json.loads(text) if text else {}
    if is_verbatim:
        return make_labels((key, _text_of(value)) for key, value in attributes.items())
    found: dict[str, str] = {}
    for key in sorted(attributes):
        name, value = label_name(key), _text_of(attributes[key])
        found[name] = f"{found[name]};{value}" if name in found else value
    return make_labels(found.items())


@lru_cache(maxsize=_KEPT_TEXTS)
def resource_labels(text: str | None) -> Labels:
    """Return the labels `job` and `instance` of a resource."""
    resource = json.loads(text) if text else {}
    service, namespace, instance = (_text_of(resource.get(key, "")) for key in _IDENTIFYING)
    job = f"{namespace}/{service}" if namespace and service else service
    return make_labels([("job", job), ("instance", instance)])


@lru_cache(maxsize=_KEPT_TEXTS)
def target_info_labels(text: str | None) -> Labels | None:
    """Return the labels of `target_info` of a resource; None when it has nothing to tell."""
    resource = json.loads(text) if text else {}
    identity = resource_labels(text)
    rest = {key: value for key, value in resource.items() if key not in _IDENTIFYING}
    if not rest or not identity:
        return None
    described = attribute_labels(json.dumps(rest))
    return make_labels({**dict(described), **dict(identity), NAME: TARGET_INFO}.items())


def series_labels(
    name: str, attributes: str | None, resource: str | None, scope: str | None
) -> Labels:
    """Return the labels of a series; those of its resource win over its attributes."""
    is_verbatim = scope == REMOTE_WRITE_SCOPE
    own = dict(attribute_labels(attributes, is_verbatim=is_verbatim))
    return make_labels({**own, **dict(resource_labels(resource)), NAME: name}.items())


def _text_of(value: Any) -> str:
    """Return an attribute's value as the text of a label."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, float):
        return go_number(value)
    if isinstance(value, dict) and len(value) == 1:
        key, inner = next(iter(value.items()))
        if key in ("bytesValue", "doubleValue") and isinstance(inner, str):
            return inner
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
