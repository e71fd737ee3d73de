"""The command that serves a node.

- Settings are refused before anything is opened; `--check` stops there.
- Logs are JSON lines on stderr; nothing is written to stdout.
"""

import ctypes
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

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
from thermocline.cli.terminal.terminal import print_line

if TYPE_CHECKING:
    from thermocline.config import NodeSettings

PURGE_DELAY_MS = 10_000
KEPT_BYTES_MAX = 128 << 20  # of each thread that allocates
KEPT_BLOCK_BYTES_MAX = 32 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h has them


def serve(
    data: DataOption = None,
    lake: Annotated[
        str | None,
        typer.Option(
            "--lake",
            metavar="PLACE",
            help="Where the tables are, if not in the data folder: s3://bucket/lake, gs://, az://, "
            "or a folder.",
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    http: HttpOption = None,
    grpc: GrpcOption = None,
    api: ApiOption = None,
    flight: FlightOption = None,
    tls_certificate: Annotated[
        str | None,
        typer.Option("--tls-certificate", metavar="FILE", help="The certificate, in PEM."),
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key, in PEM.")
    ] = None,
    allow_insecure: Annotated[
        bool,
        typer.Option(
            "--allow-insecure", help="Let other machines reach the node without keys or TLS."
        ),
    ] = False,
    set: SetOption = None,  # noqa: A002  the option's name
    check: Annotated[
        bool, typer.Option("--check", help="Show the settings with their origins, and stop.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Serve a node: OpenTelemetry in, SQL out, until SIGTERM."""

    def read() -> "NodeSettings":
        return settings_from(
            config,
            set,
            data=data,
            lake_url=lake,
            http=http,
            grpc=grpc,
            api=api,
            flight=flight,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            allow_insecure=allow_insecure or None,
        )

    settings = read()
    if check:
        _show_settings(settings, is_json=json)
        return
    _keep_memory()
    from thermocline.server.start.serve import serve as run

    code = run(settings, reread=read)
    # All is closed and durable. A normal exit would only wait for threads of libraries.
    sys.stdout.flush()
    os._exit(code)


def _keep_memory() -> None:
    """Let the allocators keep freed memory for the next request.

    If memory were returned every few milliseconds, the kernel would clear its pages each time.
    """
    # Order matters: Arrow's allocator reads this when it is loaded.
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", str(PURGE_DELAY_MS))
    with suppress(OSError, AttributeError):  # the C library is not glibc
        tune = ctypes.CDLL(None).mallopt
        tune(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
        tune(_M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES_MAX)


def _show_settings(settings: "NodeSettings", *, is_json: bool) -> None:
    """Check the settings as a start would, and show them."""
    from thermocline.server.access.guard import check_exposure
    from thermocline.server.access.keys import KeyStore
    from thermocline.server.start.startup_checks import check_identity, tls_context

    keys = KeyStore(settings.data).read().by_id.values()
    check_exposure(settings, has_keys=any(key.revoked_ns is None for key in keys))
    if settings.tls_certificate:
        tls_context(settings)
    check_identity(settings)
    described = settings.describe()
    if is_json:
        from thermocline.cli.terminal.output import print_json

        print_json({"settings": described})
        return
    width = max(len(one["setting"]) for one in described)
    for one in described:
        print_line(f"{one['setting']:<{width}}  {one['value']}  ({one['origin']})")


COMMANDS: CommandList = (
    (
        "serve",
        serve,
        (
            "thermocline serve --data /var/lib/thermocline",
            "thermocline serve --data ./node-a --lake s3://bucket/lake",
            "thermocline serve --config node.toml --set flush_age_s=30s",
            "thermocline serve --config node.toml --check",
        ),
    ),
)
