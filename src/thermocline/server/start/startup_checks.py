"""Prepares a node's start: the process, the data folder, the certificate.

In:   settings
Out:  an open node; or an error that says why it cannot start

- Only this user can read the files that the process creates. The limit of open files is raised as
  far as the system allows.
- The data folder must be a lake or empty. If the settings name a lake id, the folder must be that
  lake: a disk that is not mounted looks like an empty folder.
- The file system's guarantees are tested before the node accepts rows.
"""

import logging
import os
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import disable_created_metrics

from thermocline.cold.catalog import JOURNAL_FOLDER, Catalog
from thermocline.config import Address, NodeSettings
from thermocline.disk import OsDisk
from thermocline.errors import Invalid
from thermocline.hot.wal.folder import LOCK_NAME, list_file_numbers, lock_journal
from thermocline.node import Node
from thermocline.server.observe.log import EventLog
from thermocline.server.start.filesystem_probe import probe

OPEN_FILES_MAX = 65_536
PRIVATE_UMASK = 0o077


def prepare_process() -> None:
    """Make new files private, and raise the limit of open files."""
    os.umask(PRIVATE_UMASK)
    # Without this, Prometheus' library adds a `_created` series to each counter.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _LogForwarder(logging.Handler):
    """Forwards log records of libraries to the node's log."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record as an event."""
        facts = {"logger": record.name, "level": record.levelname.lower()}
        if record.exc_info and record.exc_info[1] is not None:
            facts["error"] = repr(record.exc_info[1])
        self._log.event("library", message=record.getMessage(), **facts)


@contextmanager
def forward_logging(log: EventLog) -> Iterator[None]:
    """Forward the warnings of libraries to the node's log while the block runs.

    The handler is removed afterwards: it would keep this package's modules alive at the end of the
    process, and the query engine's library would print them as leaks.
    """
    root = logging.getLogger()
    before = root.handlers[:], root.level
    root.handlers[:] = [_LogForwarder(log)]
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers[:], root.level = before


def check_identity(settings: NodeSettings) -> None:
    """Raise `Invalid` if the settings name a lake id and the folder is not that lake."""
    identity = Catalog(settings.lake_place).identity()
    expected = settings.lake_id
    if expected and (identity is None or identity.lake_id != expected):
        raise Invalid(
            "the data folder is not the expected lake",
            hint="mount the disk if it is not mounted, or fix lake_id",
            folder=settings.lake_place,
            expected=expected,
            found="none" if identity is None else identity.lake_id,
        )


def check_unlocked(settings: NodeSettings) -> None:
    """Raise `Conflict` if another process writes to the folder, before any address is bound."""
    folder = os.path.join(settings.data, JOURNAL_FOLDER)
    if os.path.exists(os.path.join(folder, LOCK_NAME)):
        hint = "stop that process first; only one node at a time can use a data folder"
        lock_journal(OsDisk(), folder, hint=hint).release()


def journal_bytes(data: str) -> int:
    """Return the size of the journal that a start may have to replay."""
    folder = os.path.join(data, JOURNAL_FOLDER)
    if not os.path.isdir(folder):
        return 0
    names = {f"{number:020d}.wal" for number in list_file_numbers(OsDisk(), folder)}
    return sum(one.size_bytes for one in OsDisk().entries(folder) if one.name in names)


def open_node(settings: NodeSettings, api_port: int | None) -> Node:
    """Open the node, and test its file system's guarantees.

    Other nodes of its lake reach it at the setting `advertise`, or at the address of the API.
    """
    url = settings.advertise.rstrip("/")
    if not url and settings.api is not None and api_port is not None:
        scheme = "https" if settings.tls_certificate else "http"
        host = settings.api.host
        host = socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104
        url = f"{scheme}://{Address(host, api_port)}"
    node = Node(settings.data, settings.lake, lake=settings.lake_url or None, url=url)
    try:
        probe(settings.data)
    except BaseException:
        node.close(flush=False)
        raise
    return node


def tls_context(settings: NodeSettings, context: ssl.SSLContext | None = None) -> ssl.SSLContext:
    """Return a context with the certificate; a given context gets the new certificate."""
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # OpenSSL notices a mismatched pair only after it has loaded half of it, so the pair is
        # loaded into an unused context first.
        for one in (made,) if context is None else (made, context):
            one.load_cert_chain(settings.tls_certificate, settings.tls_key, password="")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise certificate_error(settings, error) from error
    return context or made


def certificate_error(settings: NodeSettings, error: Exception) -> Invalid:
    """Return the error of a certificate and key that are missing or do not match."""
    return Invalid(
        "the certificate or its key cannot be read",
        hint="set two PEM files that belong together; the key has no password",
        tls_certificate=settings.tls_certificate,
        tls_key=settings.tls_key,
        why=str(error),
    )
