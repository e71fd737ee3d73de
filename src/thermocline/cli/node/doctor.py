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

from thermocline.cli.argument import CommandList, JsonOption
from thermocline.cli.node.node_options import (
    ApiOption,
    ConfigOption,
    DataOption,
    FlightOption,
    GrpcOption,
    HttpOption,
    SetOption,
    settings_from,
)
from thermocline.cli.terminal.terminal import answer_console
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
class DoctorCheck:
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
    flight: FlightOption = None,
    set: SetOption = None,  # noqa: A002  the option's name
    json: JsonOption = False,
) -> None:
    """Check whether a node can run here.

    If it cannot, say what to do.
    """
    looks = list(_check_process())
    try:
        settings = settings_from(
            config, set, data=data, http=http, grpc=grpc, api=api, flight=flight
        )
    except ThermoclineError as error:
        looks.append(_failed_check("settings", error))
    else:
        looks.append(DoctorCheck("settings", OK, f"{len(settings.origins)} set"))
        looks += _check_node(settings)
    status = max((look.status for look in looks), key=(OK, WARN, FAIL).index)
    if json:
        from thermocline.cli.terminal.output import print_json

        print_json({"status": status, "looks": [asdict(look) for look in looks]})
    else:
        _draw(looks)
    if status == FAIL:
        raise typer.Exit(EXIT_FAILED)


def _draw(looks: list[DoctorCheck]) -> None:
    from rich.text import Text

    from thermocline.show.text import visible

    styles = {OK: "green", WARN: "yellow", FAIL: "bold red"}
    console = answer_console()
    for look in looks:
        line = Text(f"{look.status:<5}", style=styles[look.status])
        line.append(f"{look.name:<12}{visible(look.found)}", style="default")
        console.print(line, soft_wrap=True)
        if look.do:
            console.print(Text(f"     {'':<12}do: {visible(look.do)}", style="dim"), soft_wrap=True)


def _failed_check(name: str, error: ThermoclineError) -> DoctorCheck:
    facts = ", ".join(f"{key}: {value}" for key, value in error.facts.items())
    return DoctorCheck(
        name, FAIL, f"{error.message} ({facts})" if facts else error.message, error.hint
    )


def _check_process() -> Iterator[DoctorCheck]:
    """Check the process: Python, libraries, open files, the clock."""
    version = ".".join(map(str, sys.version_info[:3]))
    is_new = sys.version_info >= PYTHON_MIN
    yield DoctorCheck(
        "python", OK if is_new else FAIL, version, "" if is_new else "use 3.11 or newer"
    )
    yield from _check_libraries()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    is_enough = most >= OPEN_FILES_MIN
    do = "" if is_enough else f"raise `ulimit -Hn` to {OPEN_FILES_MIN} or more"
    yield DoctorCheck("open files", OK if is_enough else WARN, f"{soft} of at most {most}", do)
    yield _check_sandbox()
    now_s = clock.time()
    is_late = now_s > TIME_2024_S
    text = clock.strftime("%Y-%m-%dT%H:%M:%SZ", clock.gmtime(now_s))
    yield DoctorCheck("clock", OK if is_late else FAIL, text, "" if is_late else "set the clock")


def _check_sandbox() -> DoctorCheck:
    """Check what the kernel has to confine query workers: their files, and their system calls."""
    from thermocline.query.worker.sandbox import has_call_filter, landlock_version

    version, has_filter = landlock_version(), has_call_filter()
    files = f"files by Landlock {version}" if version else "files by the query gate only"
    calls = "no network by seccomp" if has_filter else "no network by the query gate only"
    do = "" if version and has_filter else "use Linux 5.13 or newer with Landlock and seccomp"
    return DoctorCheck("workers", WARN if do else OK, f"{files}, {calls}", do)


def _check_libraries() -> Iterator[DoctorCheck]:
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
            yield DoctorCheck(name, FAIL, f"missing: {', '.join(missing)}", do)
        else:
            yield DoctorCheck(name, OK, ", ".join(found))


def _check_node(settings: "NodeSettings") -> Iterator[DoctorCheck]:
    """Check what a node with these settings needs."""
    folder = os.path.abspath(settings.data)
    place = folder
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    yield _check_memory(settings)
    yield from _check_disk(place)
    is_running = False
    if place == folder:
        for look in _check_lake(settings):
            is_running = is_running or "a node is running" in look.found
            yield look
        yield _check_rights(folder)
    else:
        yield DoctorCheck("lake", OK, f"none yet; a start creates one in {folder}")
    yield _check_exposure(settings)
    yield from _check_ports(settings, is_running=is_running)


def _check_memory(settings: "NodeSettings") -> DoctorCheck:
    lake = settings.lake
    needed = lake.wal.hot_bytes_max * 2 + lake.wal.queue_bytes_max + settings.inflight_bytes_max
    needed += lake.query_workers * lake.query_memory_bytes + SPARE_BYTES
    total = memory_bytes()
    found = f"{_size(total)}; the settings may take {_size(needed)}"
    if needed <= total:
        return DoctorCheck("memory", OK, found)
    do = "lower hot_bytes_max, inflight_bytes_max, query_memory_bytes or query_workers"
    return DoctorCheck("memory", WARN, found, do)


def _check_disk(place: str) -> Iterator[DoctorCheck]:
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
    yield DoctorCheck("file system", WARN if is_odd else OK, f"{kind or 'unknown'} at {place}", do)
    probes: tuple[tuple[str, Callable[[str], object]], ...] = (
        ("link", probe_link),
        ("lock", probe_lock),
    )
    for name, probe in probes:
        try:
            probe(place)
            yield DoctorCheck(name, OK, "holds")
        except ThermoclineError as error:
            yield _failed_check(name, error)
    try:
        took_s = probe_sync(place)
    except ThermoclineError as error:
        yield _failed_check("sync", error)
    else:
        is_slow = took_s > SYNC_S_WARN
        do = "every write waits for this; use a faster disk" if is_slow else ""
        yield DoctorCheck("sync", WARN if is_slow else OK, f"{took_s * 1000:.1f} ms", do)
    yield from _check_space(place)


def _check_space(place: str) -> Iterator[DoctorCheck]:
    free = shutil.disk_usage(place).free
    yield _check_least("free space", free, FREE_BYTES_WARN, FREE_BYTES_FAIL, _size(free))
    system = os.statvfs(place)
    if system.f_files:
        inodes = system.f_favail
        yield _check_least("inodes", inodes, FREE_INODES_WARN, FREE_INODES_FAIL, f"{inodes:,} free")


def _check_least(name: str, value: int, warn: int, fail: int, found: str) -> DoctorCheck:
    status = FAIL if value < fail else WARN if value < warn else OK
    return DoctorCheck(
        name, status, found, "" if status == OK else "make room, or use a larger disk"
    )


def _check_lake(settings: "NodeSettings") -> Iterator[DoctorCheck]:
    from thermocline.cold.catalog import JOURNAL_FOLDER, Catalog
    from thermocline.disk import OsDisk
    from thermocline.hot.wal.repair.survey import inspect
    from thermocline.node import Node
    from thermocline.server.start.startup_checks import check_identity, check_unlocked

    try:
        check_identity(settings)
        identity = Catalog(settings.lake_place).identity()
        if identity is None:
            yield DoctorCheck("lake", OK, f"none yet; a start creates one in {settings.lake_place}")
            return
        node = Node(settings.data, lake=settings.lake_url or None, is_read_only=True)
        tenants = node.tenants()
        tables = sum(len(node.lake(tenant).tables()) for tenant in tenants)
        node.close()
        yield DoctorCheck(
            "lake", OK, f"{identity.lake_id}: {len(tenants)} tenants, {tables} tables"
        )
        yield _check_clock(settings.data)
        journal = inspect(OsDisk(), os.path.join(settings.data, JOURNAL_FOLDER))
        if journal.is_sound:
            yield DoctorCheck("journal", OK, f"sound, {len(journal.files)} files")
        else:
            do = "run `thermocline journal inspect`"
            yield DoctorCheck("journal", FAIL, journal.damages[0].why, do)
        if journal.quarantined:
            do = "run `thermocline journal inspect`; move the files away after you have decided"
            finding = f"rows set aside, in {len(journal.quarantined)} files"
            yield DoctorCheck("quarantine", WARN, finding, do)
        else:
            yield DoctorCheck("quarantine", OK, "empty")
    except ThermoclineError as error:
        yield _failed_check("lake", error)
        return
    try:
        check_unlocked(settings)
        yield DoctorCheck("owner", OK, "no node is running")
    except Conflict as error:
        yield DoctorCheck("owner", OK, f"a node is running (process {error.facts.get('process')})")


def _check_clock(folder: str) -> DoctorCheck:
    """Check whether the clock has gone back since the last write to the lake."""
    newest_s = max(one.stat().st_mtime for one in os.scandir(os.path.join(folder, "journal")))
    ahead_s = newest_s - clock.time()
    if ahead_s <= CLOCK_APART_S_MAX:
        return DoctorCheck("lake time", OK, "not in the future")
    return DoctorCheck("lake time", WARN, f"{ahead_s:.0f} s in the future", "set the clock")


def _check_rights(folder: str) -> DoctorCheck:
    loose = []
    for name, allowed in (("", 0o710), ("journal", 0o700), ("keys.json", 0o600)):
        path = os.path.join(folder, name)
        if os.path.exists(path) and os.stat(path).st_mode & 0o777 & ~allowed:
            loose.append(name or folder)
    if loose:
        do = f"chmod go-rwx {' '.join(os.path.join(folder, name) for name in loose)}"
        return DoctorCheck("rights", WARN, f"others may read {', '.join(loose)}", do)
    return DoctorCheck("rights", OK, "only this user may read")


def _check_exposure(settings: "NodeSettings") -> DoctorCheck:
    from thermocline.server.access.guard import check_exposure, exposed_listeners
    from thermocline.server.access.keys import KeyStore

    try:
        keys = KeyStore(settings.data).read().by_id.values()
        valid = [key for key in keys if key.state(clock.time_ns()) == "valid"]
        check_exposure(settings, has_keys=bool(valid))
    except ThermoclineError as error:
        return _failed_check("protection", error)
    if exposed_listeners(settings) and settings.allow_insecure:
        do = "create a key, and set tls_certificate and tls_key"
        return DoctorCheck("protection", WARN, "other machines may connect without keys or TLS", do)
    reach = (
        "other machines, with keys and TLS" if exposed_listeners(settings) else "this machine only"
    )
    return DoctorCheck("protection", OK, f"reached by {reach}; {len(valid)} valid keys")


def _check_ports(settings: "NodeSettings", *, is_running: bool) -> Iterator[DoctorCheck]:
    from thermocline.server.start.api_listener import bind_socket

    for name, address in settings.listeners().items():
        try:
            bind_socket(address).close()
            yield DoctorCheck(f"port {name}", OK, f"{address} is free")
        except Conflict as error:
            if is_running and _is_answering(address.host, address.port):
                yield DoctorCheck(f"port {name}", OK, f"{address} is the running node's")
            else:
                yield _failed_check(f"port {name}", error)


def _is_answering(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"


COMMANDS: CommandList = (
    (
        "doctor",
        doctor,
        ("thermocline doctor --data /var/lib/thermocline", "thermocline doctor --json"),
    ),
)
