"""What is done before a node is served: the process, the folder, the certificate.

In:   settings
Out:  an open node; errors that say what keeps it from starting

- Files that the process makes are this user's alone, and it may have as many as the system allows.
- A folder is a lake of ours, an empty one, or refused; where the settings name a lake, another one
  or none is refused: a disk that is not mounted looks like an empty folder.
- What the file system promises is tried before the first row is taken.
"""

import logging
import os
import resource
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import disable_created_metrics

from thermocline.config import NodeSettings
from thermocline.disk import OsDisk
from thermocline.errors import Invalid
from thermocline.hot.wal.folder import LOCK_NAME, held, numbers
from thermocline.lake.catalog import JOURNAL_FOLDER, Catalog
from thermocline.node import Node
from thermocline.server.log import Log
from thermocline.server.probe import probe

OPEN_FILES_MAX = 65_536
PRIVATE_UMASK = 0o077


def prepare_process() -> None:
    """Make files private, and allow as many open ones as the system does."""
    os.umask(PRIVATE_UMASK)
    # A second series for each counter, which nobody asked for.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Forward(logging.Handler):
    """Hands what libraries log to the node's own log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Say it as an event."""
        facts = {"logger": record.name, "level": record.levelname.lower()}
        if record.exc_info and record.exc_info[1] is not None:
            facts["error"] = repr(record.exc_info[1])
        self._log.event("library", message=record.getMessage(), **facts)


@contextmanager
def forwarded_logging(log: Log) -> Iterator[None]:
    """Let the libraries' warnings be lines of the node's log, as long as the block runs.

    A handler that stayed would keep this package's modules beyond the end of all others, and the
    engine's library fill the screen with what it takes for leaks.
    """
    root = logging.getLogger()
    before = root.handlers[:], root.level
    root.handlers[:] = [_Forward(log)]
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers[:], root.level = before


def check_identity(settings: NodeSettings) -> None:
    """Refuse a folder that is not the lake that the settings name, if they name one."""
    identity = Catalog(settings.data).identity()
    expected = settings.lake_id
    if expected and (identity is None or identity.lake_id != expected):
        raise Invalid(
            "the data folder is not the lake that is expected",
            hint="a disk that is not mounted looks like this; mount it, or mend lake_id",
            folder=settings.data,
            expected=expected,
            found="none" if identity is None else identity.lake_id,
        )


def check_unlocked(settings: NodeSettings) -> None:
    """Refuse a folder that another process writes, before an address is asked for."""
    folder = os.path.join(settings.data, JOURNAL_FOLDER)
    if os.path.exists(os.path.join(folder, LOCK_NAME)):
        held(OsDisk(), folder, hint="stop it first; one node at a time has a data folder").release()


def journal_bytes(data: str) -> int:
    """Return how many bytes of the journal a start may have to read."""
    folder = os.path.join(data, JOURNAL_FOLDER)
    if not os.path.isdir(folder):
        return 0
    names = {f"{number:020d}.wal" for number in numbers(OsDisk(), folder)}
    return sum(one.size_bytes for one in OsDisk().entries(folder) if one.name in names)


def opened_node(settings: NodeSettings) -> Node:
    """Open the node, and try that its file system keeps its promises."""
    node = Node(settings.data, settings.lake)
    try:
        probe(settings.data)
    except BaseException:
        node.close(is_flushed=False)
        raise
    return node


def tls_context(settings: NodeSettings, context: ssl.SSLContext | None = None) -> ssl.SSLContext:
    """Return a context with the certificate, or give a new certificate to the one there is."""
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A pair that does not belong together is noticed when half of it is loaded: it is tried in
        # a context that nobody uses.
        for one in (made,) if context is None else (made, context):
            one.load_cert_chain(settings.tls_certificate, settings.tls_key, password="")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise unreadable(settings, error) from error
    return context or made


def unreadable(settings: NodeSettings, error: Exception) -> Invalid:
    """Return what is told of a certificate and a key that are no pair, or not there."""
    return Invalid(
        "the certificate or its key cannot be read",
        hint="name two PEM files, the key without a password, that belong together",
        tls_certificate=settings.tls_certificate,
        tls_key=settings.tls_key,
        why=str(error),
    )
