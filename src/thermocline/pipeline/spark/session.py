"""Starts a Spark session from installed packages only, tuned to be quiet and fast when local.

In:   where to run: `local[*]`, `spark://`, `k8s://`, `yarn`, or `sc://` for Spark Connect
Out:  a session that knows `format("thermocline")`

- One session a process, as in Spark: a second call returns the running session.
- Times are in UTC, regardless of the machine's zone.
- A local session listens on loopback only.
"""

import os
import socket
import subprocess
import sys
import time as clock
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from thermocline.errors import Invalid, Unavailable
from thermocline.format.argument import check_options, check_seconds, check_text, wrong_kind
from thermocline.pipeline.spark.java_gateway import (
    STOP_LIMIT_S,
    Gateway,
    describe_exit,
    spark_home,
    start_gateway,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_DEFAULT = "local[*]"
MEMORY_DEFAULT = "1g"
APP_DEFAULT = "thermocline"
CONNECT_SCHEME = "sc://"
CONNECT_PORT = 15002
REACH_LIMIT_S = 10.0
REACH_EVERY_S = 0.5
ENDED_LIMIT_S = 0.5
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_SCHEMES = ("local", "spark://", "k8s://", "yarn", CONNECT_SCHEME)

_COMMON_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # In Python, a batch of ten thousand rows costs as much as a batch of thirty.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
}
_DRIVER_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.catalogImplementation": "in-memory",
}
_LOCAL_SETTINGS = {
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

_gateways: dict[int, Gateway] = {}


def session(
    master: str = MASTER_DEFAULT,
    *,
    app: str = APP_DEFAULT,
    memory: str = MEMORY_DEFAULT,
    settings: Mapping[str, str] | None = None,
) -> "SparkSession":
    """Return the running session, or start one.

    `memory` is what Java may take in this process; `settings` are Spark's own, and win.
    """
    check_text(master, "master")
    check_text(app, "app")
    check_text(memory, "memory")
    return _start_session(master, app, memory, check_options(settings, "settings"), None)


def start_learning_session(path: Path) -> "SparkSession":
    """Start a session on this machine whose Java writes its AOT cache when it ends."""
    return _start_session(MASTER_DEFAULT, APP_DEFAULT, MEMORY_DEFAULT, {}, path)


def _start_session(
    master: str, app: str, memory: str, settings: Mapping[str, str], learned: Path | None
) -> "SparkSession":
    if not master.startswith(_SCHEMES):
        hint = "use local[*], spark://host:7077, k8s://..., yarn or sc://host:15002"
        raise Invalid("unknown Spark master", hint=hint, master=master)
    spark_home()
    with without_warnings():
        if master.startswith(CONNECT_SCHEME):
            found = _connect_remote(master, {**_COMMON_SETTINGS, **settings})
        else:
            is_local = master.startswith("local")
            wanted = {
                "spark.master": master,
                "spark.app.name": app,
                **_COMMON_SETTINGS,
                **_DRIVER_SETTINGS,
            }
            wanted |= _LOCAL_SETTINGS if is_local else {}
            found = _start_driver({**wanted, **settings}, memory, learned)
    _register_format(found)
    return found


def stop(spark: "SparkSession", limit_s: float = STOP_LIMIT_S) -> None:
    """End a session, and the Java process that was started for it."""
    check_session(spark)
    limit_s = check_seconds(limit_s, "limit_s")
    context = None if is_connected(spark) else spark.sparkContext
    gateway = None if context is None else _gateways.pop(id(context._gateway), None)  # noqa: SLF001
    try:
        spark.stop()
    finally:
        # Also if Java has ended: PySpark would go on to use its reference to it.
        if gateway is not None:
            _forget_gateway()
            gateway.stop(limit_s)


def check_session(spark: Any) -> None:
    """Raise `Invalid` unless this is a Spark session, classic or Connect."""
    if isinstance(spark, type) or not hasattr(spark, "createDataFrame"):
        raise wrong_kind("not a Spark session", "pass tc.spark.session()", "spark", spark)


def is_running() -> bool:
    """Tell whether this process has a running session.

    A session whose Java has ended is removed, because it cannot be used any more.
    """
    from pyspark import SparkContext

    active = SparkContext._active_spark_context  # noqa: SLF001
    if active is None:
        return False
    gateway = _gateways.get(id(active._gateway))  # noqa: SLF001
    has_ended = gateway is not None and gateway.process.poll() is not None
    if has_ended or active._jsc is None:  # noqa: SLF001
        _gateways.pop(id(active._gateway), None)  # noqa: SLF001
        _forget_gateway()
        if gateway is not None:
            gateway.stop()
        return False
    return True


def is_connected(spark: "SparkSession") -> bool:
    """Tell whether a session uses Spark Connect, which has no Java process here."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress PySpark's warning about the installed pandas, which is not used here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
        yield


def _connect_remote(master: str, settings: Mapping[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.remote(master)
    try:
        _reach(master)
        found = builder.getOrCreate()
        for name, value in settings.items():
            if name.startswith("spark.sql."):
                found.conf.set(name, value)
    except Exception as error:
        raise Unavailable(
            "Spark Connect cannot be reached",
            hint="start its server; check address and port",
            master=master,
            why=_error_line(error),
        ) from error
    return found


def _reach(master: str) -> None:
    """Raise `OSError` when nothing listens at an address: PySpark would try for ten minutes.

    Where a proxy is set, gRPC may use it, and PySpark alone can tell.
    """
    if any(os.environ.get(name) for name in _PROXIES):
        return
    address = urlsplit(master)
    where = (address.hostname or "", address.port or CONNECT_PORT)
    deadline_s = clock.monotonic() + REACH_LIMIT_S
    while True:
        try:
            socket.create_connection(where, REACH_LIMIT_S).close()
        except OSError:
            if clock.monotonic() >= deadline_s:
                raise
            clock.sleep(REACH_EVERY_S)
        else:
            return


def _start_driver(settings: Mapping[str, str], memory: str, learned: Path | None) -> "SparkSession":
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    if is_running():
        return builder.getOrCreate()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    gateway = start_gateway(settings, memory=memory, learned=learned)
    os.environ["PYSPARK_GATEWAY_PORT"] = str(gateway.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = gateway.secret
    try:
        found = builder.getOrCreate()
    except BaseException as error:
        # Order matters: the texts of Java's errors must be read before Java is stopped.
        why = _describe_start_failure(error, gateway)
        _forget_gateway()
        gateway.stop()
        if isinstance(error, Exception):
            raise Unavailable(
                "Spark did not start",
                hint="see `why`; check the master's address, and this machine's memory and disk",
                master=settings["spark.master"],
                why=why,
            ) from error
        raise
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    _gateways[id(found.sparkContext._gateway)] = gateway  # noqa: SLF001
    return found


def _forget_gateway() -> None:
    """Remove PySpark's references to a Java process that ends."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._gateway is not None:  # noqa: SLF001
        with suppress(Exception):  # Java may have ended already
            SparkContext._gateway.shutdown()  # noqa: SLF001
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    # A context that failed during its start stays PySpark's active context. The next start would
    # get this context and fail with an assertion of PySpark.
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001


def _describe_start_failure(error: BaseException, gateway: Gateway) -> str:
    """Return why Spark did not start: what Java logged, or said last where Java has ended."""
    try:
        code = gateway.process.wait(ENDED_LIMIT_S)
    except subprocess.TimeoutExpired:
        # A context that was stopped meanwhile says only that; why it was is in Java's log.
        logged = [line.partition(" ERROR ")[2] for line in gateway.last_lines()]
        return "; ".join([*filter(None, logged), _error_line(error)])
    return "; ".join([describe_exit(code), *gateway.last_lines()])


def _error_line(error: BaseException) -> str:
    """Return the line of an error that says what is wrong."""
    lines = [line.strip(" :") for line in str(error).splitlines() if line.strip(" :")]
    named = [line for line in lines if "Exception:" in line or "Error:" in line]
    return (named or lines or [type(error).__name__])[0]


def _register_format(spark: "SparkSession") -> None:
    """Register the format `thermocline` with a session."""
    from thermocline.pipeline.spark.source import ThermoclineSource

    spark.dataSource.register(ThermoclineSource)
