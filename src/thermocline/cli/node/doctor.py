"""The command that checks whether a node can run here, and says what to do if it cannot.

- Each check is one line: ok, warn or fail, what was found, and for warn and fail what to do.
- Nothing is changed: a probe writes a hidden file and removes it.
- It exits with 1 if a check failed; a warning is not a failure.
"""

import os
import resource
import shutil
import socket
import sys
import time as clock
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING

import typer

from thermocline.cli.argument import JsonOption
from thermocline.cli.node.node_options import (
    ApiOption,
    ConfigOption,
    DataOption,
    GrpcOption,
    HttpOption,
    SetOption,
    settings_from,
)
from thermocline.cli.terminal.terminal import answers
from thermocline.errors import Conflict, ThermoclineError
from thermocline.extras import install_command
from thermocline.machine import memory_bytes

if TYPE_CHECKING:
    from thermocline.config import NodeSettings

OK, WARN, FAIL = "ok", "warn", "fail"
EXIT_FAILED = 1
PYTHON_MIN = (3, 11)
LIBRARIES = ("pyarrow", "duckdb", "orjson", "google-crc32c", "pyroaring")
SERVER_LIBRARIES = (
    *("starlette", "uvicorn", "uvloop", "httptools", "grpcio", "prometheus-client"),
    *("numba", "protobuf", "opentelemetry-proto"),
)
OPEN_FILES_MIN = 4_096
SYNC_S_WARN = 0.1
FREE_BYTES_WARN, FREE_BYTES_FAIL = 2 << 30, 128 << 20
FREE_INODES_WARN, FREE_INODES_FAIL = 50_000, 1_000
CLOCK_APART_S_MAX = 5.0
TIME_2024_S = 1_704_067_200
SPARE_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Look:
    """One check: its status, what was found, what to do about it."""

    name: str
    status: str
    found: str
    do: str = ""


def doctor(
    data: DataOption = None,
    config: ConfigOption = None,
    http: HttpOption = None,
    grpc: GrpcOption = None,
    api: ApiOption = None,
    set: SetOption = None,  # noqa: A002  the option's name
    json: JsonOption = False,
) -> None:
    """Check whether a node can run here.

    If it cannot, say what to do.
    """
    looks = list(_process())
    try:
        settings = settings_from(config, set, data=data, http=http, grpc=grpc, api=api)
    except ThermoclineError as error:
        looks.append(_failed("settings", error))
    else:
        looks.append(Look("settings", OK, f"{len(settings.origins)} set"))
        looks += _node(settings)
    status = max((look.status for look in looks), key=(OK, WARN, FAIL).index)
    if json:
        from thermocline.cli.terminal.output import say_json

        say_json({"status": status, "looks": [asdict(look) for look in looks]})
    else:
        _draw(looks)
    if status == FAIL:
        raise typer.Exit(EXIT_FAILED)


def _draw(looks: list[Look]) -> None:
    from rich.text import Text

    from thermocline.show.text import visible

    styles = {OK: "green", WARN: "yellow", FAIL: "bold red"}
    console = answers()
    for look in looks:
        line = Text(f"{look.status:<5}", style=styles[look.status])
        line.append(f"{look.name:<12}{visible(look.found)}", style="default")
        console.print(line, soft_wrap=True)
        if look.do:
            console.print(Text(f"     {'':<12}do: {visible(look.do)}", style="dim"), soft_wrap=True)


def _failed(name: str, error: ThermoclineError) -> Look:
    facts = ", ".join(f"{key}: {value}" for key, value in error.facts.items())
    return Look(name, FAIL, f"{error.message} ({facts})" if facts else error.message, error.hint)


def _process() -> Iterator[Look]:
    """Check the process: Python, libraries, open files, the clock."""
    version = ".".join(map(str, sys.version_info[:3]))
    is_new = sys.version_info >= PYTHON_MIN
    yield Look("python", OK if is_new else FAIL, version, "" if is_new else "use 3.11 or newer")
    yield from _libraries()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    is_enough = most >= OPEN_FILES_MIN
    do = "" if is_enough else f"raise `ulimit -Hn` to {OPEN_FILES_MIN} or more"
    yield Look("open files", OK if is_enough else WARN, f"{soft} of at most {most}", do)
    now_s = clock.time()
    is_late = now_s > TIME_2024_S
    told = clock.strftime("%Y-%m-%dT%H:%M:%SZ", clock.gmtime(now_s))
    yield Look("clock", OK if is_late else FAIL, told, "" if is_late else "set the clock")


def _libraries() -> Iterator[Look]:
    for name, wanted, do in (
        ("libraries", LIBRARIES, "install thermocline again"),
        ("server", SERVER_LIBRARIES, install_command("server")),
    ):
        found, missing = [], []
        for library in wanted:
            try:
                found.append(f"{library} {metadata.version(library)}")
            except metadata.PackageNotFoundError:
                missing.append(library)
        if missing:
            yield Look(name, FAIL, f"missing: {', '.join(missing)}", do)
        else:
            yield Look(name, OK, ", ".join(found))


def _node(settings: "NodeSettings") -> Iterator[Look]:
    """Check what a node with these settings needs."""
    folder = os.path.abspath(settings.data)
    place = folder
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    yield _memory(settings)
    yield from _disk(place)
    is_running = False
    if place == folder:
        for look in _lake(settings):
            is_running = is_running or "a node is running" in look.found
            yield look
        yield _rights(folder)
    else:
        yield Look("lake", OK, f"none yet; a start creates one in {folder}")
    yield _exposure(settings)
    yield from _ports(settings, is_running=is_running)


def _memory(settings: "NodeSettings") -> Look:
    lake = settings.lake
    needed = lake.wal.hot_bytes_max * 2 + lake.wal.queue_bytes_max + settings.inflight_bytes_max
    needed += lake.query_workers * lake.query_memory_bytes + SPARE_BYTES
    total = memory_bytes()
    found = f"{_size(total)}; the settings may take {_size(needed)}"
    if needed <= total:
        return Look("memory", OK, found)
    do = "lower hot_bytes_max, inflight_bytes_max, query_memory_bytes or query_workers"
    return Look("memory", WARN, found, do)


def _disk(place: str) -> Iterator[Look]:
    from thermocline.server.start.filesystem_probe import (
        FLEETING,
        REMOTE,
        file_system,
        probe_link,
        probe_lock,
        probe_sync,
    )

    kind = file_system(place)
    is_odd = kind in REMOTE | FLEETING or kind.startswith("fuse")
    do = "use a local disk that outlives the machine's restart" if is_odd else ""
    yield Look("file system", WARN if is_odd else OK, f"{kind or 'unknown'} at {place}", do)
    probes: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("link", probe_link),
        ("lock", probe_lock),
    )
    for name, probe in probes:
        try:
            probe(place)
            yield Look(name, OK, "holds")
        except ThermoclineError as error:
            yield _failed(name, error)
    try:
        took_s = probe_sync(place)
    except ThermoclineError as error:
        yield _failed("sync", error)
    else:
        is_slow = took_s > SYNC_S_WARN
        do = "every write waits for this; use a faster disk" if is_slow else ""
        yield Look("sync", WARN if is_slow else OK, f"{took_s * 1000:.1f} ms", do)
    yield from _space(place)


def _space(place: str) -> Iterator[Look]:
    free = shutil.disk_usage(place).free
    yield _least("free space", free, FREE_BYTES_WARN, FREE_BYTES_FAIL, _size(free))
    system = os.statvfs(place)
    if system.f_files:
        inodes = system.f_favail
        yield _least("inodes", inodes, FREE_INODES_WARN, FREE_INODES_FAIL, f"{inodes:,} free")


def _least(name: str, value: int, warn: int, fail: int, found: str) -> Look:
    status = FAIL if value < fail else WARN if value < warn else OK
    return Look(name, status, found, "" if status == OK else "make room, or use a larger disk")


def _lake(settings: "NodeSettings") -> Iterator[Look]:
    from thermocline.cold.catalog import JOURNAL_FOLDER, Catalog
    from thermocline.disk import OsDisk
    from thermocline.hot.wal.repair.survey import inspect
    from thermocline.node import Node
    from thermocline.server.start.startup_checks import check_identity, check_unlocked

    try:
        check_identity(settings)
        identity = Catalog(settings.data).identity()
        if identity is None:
            yield Look("lake", OK, f"none yet; a start creates one in {settings.data}")
            return
        node = Node(settings.data, is_read_only=True)
        tenants = node.tenants()
        tables = sum(len(node.lake(tenant).tables()) for tenant in tenants)
        node.close()
        yield Look("lake", OK, f"{identity.lake_id}: {len(tenants)} tenants, {tables} tables")
        yield _clock_of(settings.data)
        journal = inspect(OsDisk(), os.path.join(settings.data, JOURNAL_FOLDER))
        if journal.is_sound:
            yield Look("journal", OK, f"sound, {len(journal.files)} files")
        else:
            do = "run `thermocline journal inspect`"
            yield Look("journal", FAIL, journal.damages[0].why, do)
        if journal.quarantined:
            do = "run `thermocline journal inspect`; move the files away after you have decided"
            told = f"rows set aside, in {len(journal.quarantined)} files"
            yield Look("quarantine", WARN, told, do)
        else:
            yield Look("quarantine", OK, "empty")
    except ThermoclineError as error:
        yield _failed("lake", error)
        return
    try:
        check_unlocked(settings)
        yield Look("owner", OK, "no node is running")
    except Conflict as error:
        yield Look("owner", OK, f"a node is running (process {error.facts.get('process')})")


def _clock_of(folder: str) -> Look:
    """Check whether the clock has gone back since the last write to the lake."""
    newest_s = max(one.stat().st_mtime for one in os.scandir(os.path.join(folder, "journal")))
    ahead_s = newest_s - clock.time()
    if ahead_s <= CLOCK_APART_S_MAX:
        return Look("lake time", OK, "not in the future")
    return Look("lake time", WARN, f"{ahead_s:.0f} s in the future", "set the clock")


def _rights(folder: str) -> Look:
    loose = []
    for name, allowed in (("", 0o710), ("journal", 0o700), ("keys.json", 0o600)):
        path = os.path.join(folder, name)
        if os.path.exists(path) and os.stat(path).st_mode & 0o777 & ~allowed:
            loose.append(name or folder)
    if loose:
        do = f"chmod go-rwx {' '.join(os.path.join(folder, name) for name in loose)}"
        return Look("rights", WARN, f"others may read {', '.join(loose)}", do)
    return Look("rights", OK, "only this user may read")


def _exposure(settings: "NodeSettings") -> Look:
    from thermocline.server.access.guard import check_exposure, exposed
    from thermocline.server.access.keys import KeyStore

    try:
        keys = KeyStore(settings.data).read().by_id.values()
        valid = [key for key in keys if key.state(clock.time_ns()) == "valid"]
        check_exposure(settings, has_keys=bool(valid))
    except ThermoclineError as error:
        return _failed("protection", error)
    if exposed(settings) and settings.allow_insecure:
        do = "create a key, and set tls_certificate and tls_key"
        return Look("protection", WARN, "other machines may connect without keys or TLS", do)
    reach = "other machines, with keys and TLS" if exposed(settings) else "this machine only"
    return Look("protection", OK, f"reached by {reach}; {len(valid)} valid keys")


def _ports(settings: "NodeSettings", *, is_running: bool) -> Iterator[Look]:
    from thermocline.server.start.api_listener import bound

    for name, address in settings.listeners().items():
        try:
            bound(address).close()
            yield Look(f"port {name}", OK, f"{address} is free")
        except Conflict as error:
            if is_running and _answers(address.host, address.port):
                yield Look(f"port {name}", OK, f"{address} is the running node's")
            else:
                yield _failed(f"port {name}", error)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
