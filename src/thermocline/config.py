"""The settings of a lake and of a node: names, defaults, allowed values, and their origins.

In:   names and values as a user wrote them: arguments, options, the environment, a TOML file
Out:  frozen settings; `Invalid` that names the setting, the value, its origin and what is allowed

- A setting has one name: `hot_bytes_max` is `--set hot_bytes_max=64MB`, `hot_bytes_max = "64MB"` in
  the file and `THERMOCLINE_HOT_BYTES_MAX`. Option, environment, file, default: the first wins.
- An unknown setting is an error that suggests the closest name, whatever its origin.
- The defaults are secure: other machines reach the node only if the settings allow it.
"""

import difflib
import enum
import ipaddress
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, NamedTuple

from thermocline.errors import Invalid, NotFound
from thermocline.names import API_KEY_IN_SETTING, LIBPQ_NAMED, is_tenant_name

ENVIRONMENT_PREFIX = "THERMOCLINE_"
CONFIG_VARIABLE = "THERMOCLINE_CONFIG"
# Variables that are not settings of a node: those of clients, tests and benchmarks.
_FOREIGN_VARIABLES = re.compile(r"THERMOCLINE_(CONFIG|API_KEY|URL|KILL_AT|TEST_\w+|BENCH_\w+)")
FLAGS = ("data", "http", "grpc", "api", "flight", "tls_certificate", "tls_key", "allow_insecure")
OFF = "off"
EMBEDDED = "embedded"
_DECIMAL_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTE_UNITS = _DECIMAL_UNITS | {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SECOND_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_PASSWORD = re.compile(rf"(?<=://)[^/@\s]*@|{LIBPQ_NAMED}|{API_KEY_IN_SETTING}")


class Sync(enum.Enum):
    """When written rows are synced: before the response, at an interval, or by the system."""

    ALWAYS = "always"
    INTERVAL = "interval"
    OS = "os"


class Address(NamedTuple):
    """The address of a listener; port 0 means any free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def setting(default: Any, kind: str, low: float = 0) -> Any:
    """Return the dataclass field of a setting: its default, its type and its minimum."""
    return field(default=default, metadata={"kind": kind, "low": low})


@dataclass(frozen=True, slots=True)
class WalSettings:
    """How a journal is written and how much may be hot.

    With `sync="interval"`, writes return before the rows are durable: a power cut may lose the
    writes of the last `sync_interval_s`. With `sync="os"`, the operating system decides when to
    sync. A killed process loses nothing in either mode.
    """

    sync: Sync = setting(Sync.ALWAYS, "sync")
    sync_interval_s: float = setting(0.05, "seconds")
    hot_bytes_max: int = setting(64 << 20, "bytes")
    write_wait_s: float = setting(5.0, "seconds")
    file_bytes_max: int = setting(16 << 20, "bytes")
    queue_bytes_max: int = setting(64 << 20, "bytes")


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """How a lake runs: its journal, how long rows may stay hot, its queries and its entities.

    `postgres` is where entities are written: a DSN, or `embedded` for a server that the lake
    starts. They are exported to the lake when `export_changes` changes wait, or when one has waited
    `export_age_s`. `cache_bytes_max` limits the local copies of segments that are in an object
    store. Without `query_workers` a query runs in this process, without limits. With them
    it runs in a worker process, within `query_memory_bytes` and `query_timeout_s`.
    """

    wal: WalSettings = field(default_factory=WalSettings)
    flush_age_s: float = setting(60.0, "seconds")
    flush_look_s: float = setting(1.0, "seconds")
    query_workers: int = setting(0, "count")
    query_memory_bytes: int = setting(256 << 20, "bytes")
    query_timeout_s: float = setting(60.0, "seconds")
    postgres: str = setting("", "text")
    export_age_s: float = setting(60.0, "seconds")
    export_changes: int = setting(10_000, "count", 1)
    cache_bytes_max: int = setting(16 << 30, "bytes", 1 << 20)


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """The limits of one tenant; 0 means no limit."""

    ingest_bytes_per_s: int = setting(0, "bytes")
    ingest_burst_bytes: int = setting(64 << 20, "bytes", 1)
    queries_max: int = setting(8, "count")
    rows_max: int = setting(10_000_000, "count")
    tables_max: int = setting(1_000, "count")
    entities_max: int = setting(1_000_000, "count")
    columns_max: int = setting(2_000, "count")


@dataclass(frozen=True, slots=True)
class CareSettings:
    """How a node looks after its tables, in a separate process; `care_every_s` 0 is never.

    A retention is given to a table of telemetry when the node creates it; 0 keeps all rows. The
    tables of telemetry keep their versions for `telemetry_versions_s`, all others `versions_s`.
    """

    care_every_s: float = setting(60.0, "seconds")
    care_memory_bytes: int = setting(512 << 20, "bytes", 256 << 20)
    metrics_retention_s: float = setting(400 * 86_400.0, "seconds")
    logs_retention_s: float = setting(90 * 86_400.0, "seconds")
    spans_retention_s: float = setting(30 * 86_400.0, "seconds")
    telemetry_versions_s: float = setting(86_400.0, "seconds", 3_600)
    versions_s: float = setting(7 * 86_400.0, "seconds", 3_600)


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """How a node evaluates rules of alerts, and where webhooks may go.

    `alert_rules` is a TOML file with rules of the default tenant. `alert_hosts` are the hosts of
    webhooks, with commas: names, and patterns such as `*.example.com` for public addresses. A key
    derived from `alert_signing_key` for each tenant signs webhooks.
    """

    alerts: bool = setting(default=True, kind="truth")
    alert_rules: str = setting("", "text")
    alert_hosts: str = setting("", "text")
    alert_signing_key: str = setting("", "text")
    alert_rules_max: int = setting(100, "count")
    alert_deadline_s: float = setting(10.0, "seconds", 0.1)


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """How a node runs: where its data is, who may connect, how much it may use.

    `lake_url` is an address of an object store, or a folder, for the tables; without it they are in
    the folder `data`, which always has the journal.

    `tenants` has the quotas that differ from `quota`, `pipeline` the settings of jobs, `origins`
    the source of each setting.
    """

    data: str = setting("thermocline-data", "text")
    lake_url: str = setting("", "text")
    lake_id: str = setting("", "text")
    advertise: str = setting("", "text")
    http: Address | None = setting(Address("127.0.0.1", 4318), "address")
    grpc: Address | None = setting(Address("127.0.0.1", 4317), "address")
    api: Address | None = setting(Address("127.0.0.1", 4320), "address")
    flight: Address | None = setting(Address("127.0.0.1", 4322), "address")
    tls_certificate: str = setting("", "text")
    tls_key: str = setting("", "text")
    allow_insecure: bool = setting(default=False, kind="truth")
    cors_origins: str = setting("", "text")
    body_bytes_max: int = setting(64 << 20, "bytes", 1024)
    inflight_bytes_max: int = setting(128 << 20, "bytes", 1024)
    connections_max: int = setting(1_000, "count", 1)
    stop_deadline_s: float = setting(20.0, "seconds")
    lake: LakeSettings = field(default_factory=lambda: LakeSettings(query_workers=2))
    quota: QuotaSettings = field(default_factory=QuotaSettings)
    care: CareSettings = field(default_factory=CareSettings)
    alert: AlertSettings = field(default_factory=AlertSettings)
    tenants: Mapping[str, QuotaSettings] = field(default_factory=dict)
    pipeline: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    def quota_of(self, tenant: str) -> QuotaSettings:
        """Return the limits of a tenant."""
        return self.tenants.get(tenant, self.quota)

    @property
    def lake_place(self) -> str:
        """Where the lake is: an address of an object store, or a folder."""
        return self.lake_url or self.data

    def listeners(self) -> dict[str, Address]:
        """Return the addresses to listen on, by the names of their settings."""
        found = {"http": self.http, "grpc": self.grpc, "api": self.api, "flight": self.flight}
        return {name: address for name, address in found.items() if address is not None}

    def describe(self) -> list[dict[str, Any]]:
        """Return every setting with its value and its origin, without secrets."""
        described = []
        for name in _NODE:
            origin, value = self.origins.get(name, "default"), redact(_find_value(self, name))
            value = "***" if name in _SECRETS and value else value
            described.append({"setting": name, "value": value, "origin": origin})
        for name, origin in self.origins.items():
            if name.startswith("tenants."):
                _, tenant, one = name.split(".")
                value = redact(getattr(self.tenants[tenant], one))
                described.append({"setting": name, "value": value, "origin": origin})
        return described


def settings_in(*kinds: Any) -> dict[str, "Field[Any]"]:
    """Return the settings of some classes, by name."""
    return {one.name: one for kind in kinds for one in fields(kind) if "kind" in one.metadata}


_LAKE = settings_in(WalSettings, LakeSettings)
_QUOTA = settings_in(QuotaSettings)
_NODE = settings_in(
    NodeSettings, WalSettings, LakeSettings, QuotaSettings, CareSettings, AlertSettings
)
_SECRETS = frozenset({"alert_signing_key"})


def _find_value(node: NodeSettings, name: str) -> Any:
    parts: tuple[Any, ...] = (
        node,
        node.lake.wal,
        node.lake,
        node.quota,
        node.care,
        node.alert,
    )
    return next(getattr(part, name) for part in parts if name in settings_in(part))


def read_lake_settings(given: Mapping[str, Any]) -> LakeSettings:
    """Return settings from names and values; `Invalid` for an unknown name or a bad value."""
    values = read_settings(given, _LAKE, "argument")
    wal = {name: value for name, value in values.items() if name in settings_in(WalSettings)}
    own = {name: value for name, value in values.items() if name not in wal}
    return LakeSettings(WalSettings(**wal), **own)


def node_settings(
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    path: str | None = None,
) -> NodeSettings:
    """Return a node's settings from options, the environment and a TOML file.

    Options that are None count as not given. `Invalid` for unknown, wrong or contradictory
    settings; up to then only the file has been opened.
    """
    environment = environment or {}
    path = path or environment.get(CONFIG_VARIABLE)
    text = _read_file(path) if path else {}
    tenants, pipeline = text.pop("tenants", {}), text.pop("pipeline", {})
    file_origin = f"file {path}"
    values = read_settings(text, _NODE, file_origin)
    origins = dict.fromkeys(values, file_origin)
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or _FOREIGN_VARIABLES.fullmatch(variable):
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        values |= read_settings({name: value}, _NODE, f"environment {variable}", written=variable)
        origins[name] = f"environment {variable}"
    for name, value in (options or {}).items():
        if value is not None:
            flag = f"--{name.replace('_', '-')}" if name in FLAGS else f"--set {name}"
            origins[name] = f"option {flag}"
            values |= read_settings({name: value}, _NODE, origins[name])
    own, wal, lake, quota, care, alert = (
        {name: values[name] for name in settings_in(kind) if name in values}
        for kind in (
            NodeSettings,
            WalSettings,
            LakeSettings,
            QuotaSettings,
            CareSettings,
            AlertSettings,
        )
    )
    shared = QuotaSettings(**quota)
    quotas = _read_tenants(tenants, shared, file_origin, origins)
    kept = replace(NodeSettings().lake, wal=WalSettings(**wal), **lake)
    more: dict[str, Any] = {"tenants": quotas, "pipeline": pipeline, "origins": origins}
    more["care"], more["alert"] = CareSettings(**care), AlertSettings(**alert)
    return _check_consistent(NodeSettings(**own, lake=kept, quota=shared, **more))


def _read_file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = 'write TOML, such as: data = "/var/lib/thermocline"'
        raise Invalid(
            "the settings file is not TOML", hint=hint, path=path, why=str(error)
        ) from error
    except OSError as error:
        hint, why = "check the path and its permissions", error.strerror or str(error)
        raise NotFound("the settings file cannot be read", hint=hint, path=path, why=why) from error


def _read_tenants(
    given: Any, quota: QuotaSettings, origin: str, origins: dict[str, str]
) -> dict[str, QuotaSettings]:
    """Return the quotas of tenants that have their own; omitted ones are those of all tenants."""
    found = {}
    for tenant, values in given.items() if isinstance(given, dict) else [("", given)]:
        if not isinstance(values, dict) or not is_tenant_name(tenant):
            hint, facts = "write a table for each: [tenants.acme]", {"setting": "tenants"}
            raise Invalid(
                "the quotas of a tenant are not a table of settings", hint=hint, got=tenant, **facts
            )
        read = read_settings(values, _QUOTA, origin, prefix=f"tenants.{tenant}.")
        found[tenant] = replace(quota, **read)
        origins |= dict.fromkeys([f"tenants.{tenant}.{name}" for name in read], origin)
    return found


def _check_consistent(node: NodeSettings) -> NodeSettings:
    """Return the settings; `Invalid` if they contradict each other."""
    if bool(node.tls_certificate) != bool(node.tls_key):
        missing = "tls_key" if node.tls_certificate else "tls_certificate"
        hint = f"set {missing} as well, or neither"
        raise Invalid("a certificate and its key come together", hint=hint, missing=missing)
    if not node.listeners():
        names = ["http", "grpc", "api", "flight"]
        hint = "leave one of http, grpc, api and flight on"
        raise Invalid("every listener is turned off", hint=hint, settings=names)
    taken: dict[Address, str] = {}
    for name, address in node.listeners().items():
        if address.port and address in taken:
            facts = {"settings": [taken[address], name], "address": str(address)}
            hint = "give each listener its own address"
            raise Invalid("two listeners have the same address", hint=hint, **facts)
        taken[address] = name
    if node.inflight_bytes_max < node.body_bytes_max:
        raise Invalid(
            "the limit for one request exceeds the limit for all requests",
            hint="raise inflight_bytes_max, or lower body_bytes_max",
            body_bytes_max=node.body_bytes_max,
            inflight_bytes_max=node.inflight_bytes_max,
        )
    return node


def read_settings(
    given: Mapping[str, Any],
    known: Mapping[str, "Field[Any]"],
    origin: str,
    *,
    prefix: str = "",
    written: str | None = None,
) -> dict[str, Any]:
    """Return the values of settings; `Invalid` names the setting, the value and its origin."""
    found = {}
    for name, value in given.items():
        label = written or f"{prefix}{name}"
        if name not in known:
            near = find_nearest(name, known)
            near = f"{ENVIRONMENT_PREFIX}{near.upper()}" if written else near
            hint = f"did you mean {near}?"
            raise Invalid("no such setting", hint=hint, setting=label, origin=origin)
        one = known[name]
        kind, low = one.metadata["kind"], one.metadata["low"]
        read = _READERS[kind](value)
        if read is _WRONG or (isinstance(read, int | float) and not low <= read < math.inf):
            least = f", {low:,} or more" if low else ""
            raise Invalid(
                "the setting does not allow this value",
                hint=f"use {_ALLOWED[kind]}{least}",
                setting=label,
                got=redact(value),
                origin=origin,
            )
        found[name] = read
    return found


def find_nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar to this one."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]


def redact(value: Any) -> Any:
    """Return a value for display: plain, and without secrets."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Address):
        return str(value)
    if isinstance(value, str):
        return _PASSWORD.sub(lambda found: f"{found['named'] or ''}***", value)
    return OFF if value is None else value


_WRONG = object()


def _read_quantity(value: Any, units: Mapping[str, float]) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    found = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or found.group(2).lower() not in units:
        return _WRONG
    return float(found.group(1)) * units[found.group(2).lower()]


def _read_bytes(value: Any) -> Any:
    read = _read_quantity(value, _BYTE_UNITS)
    is_whole = read is not _WRONG and math.isfinite(read) and read == int(read)
    return int(read) if is_whole else _WRONG


def _read_count(value: Any) -> Any:
    has_unit = isinstance(value, str) and not value.strip().isdigit()
    return _WRONG if has_unit else _read_bytes(value)


def _read_text(value: Any) -> Any:
    return value if isinstance(value, str) and value else _WRONG


def _read_seconds(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    read = _read_quantity(value, _SECOND_UNITS)
    return read if read is _WRONG else float(read)


def _read_truth(value: Any) -> Any:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    return value if isinstance(value, bool) else words.get(str(value).lower(), _WRONG)


def _read_sync(value: Any) -> Any:
    known = {one.value: one for one in Sync}
    return value if isinstance(value, Sync) else known.get(value, _WRONG)


def _read_address(value: Any) -> Any:
    if value is None or value == OFF:
        return None
    if isinstance(value, Address):
        return value
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    is_port = port.isascii() and port.isdigit() and int(port) < 1 << 16
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_host = re.fullmatch(r"[A-Za-z0-9_.-]+|[0-9A-Fa-f:.]+", host)
    return Address(host, int(port)) if is_port and is_host else _WRONG


_READERS: dict[str, Callable[[Any], Any]] = {
    "bytes": _read_bytes,
    "count": _read_count,
    "seconds": _read_seconds,
    "truth": _read_truth,
    "sync": _read_sync,
    "address": _read_address,
    "text": _read_text,
}
_ALLOWED = {
    "bytes": "a number of bytes, such as 1000000, 64MB or 64MiB",
    "count": "a whole number",
    "seconds": "a time, such as 0.5, 250ms, 5s, 10m, 2h or 1d",
    "truth": "true or false",
    "sync": f"one of {', '.join(one.value for one in Sync)}",
    "address": "an address and a port, such as 127.0.0.1:4318 or [::1]:4318, or off",
    "text": "a text",
}
