"""The file `server.json` of an embedded server: its port and its passwords.

In:   the server's folder
Out:  its `ServerNote`; the file `server.json`, readable by this user only

- Its passwords are made here and are nowhere else.
- The note has a checksum. It says whether the server was ever started: then a folder without its
  data has lost it, and no empty server takes its place. Older releases wrote neither.
- A copy of a folder brings the note of the first along. It gets another port and password,
  or it would be taken for the first while that one is down, and be written to.
"""

import os
import secrets
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from thermocline.disk import OsDisk, translate_errors
from thermocline.errors import Corruption
from thermocline.format.sealed_json import seal, unseal

NOTE_NAME = "server.json"
OWNER = "postgres"
LOGIN = "thermocline"
DATABASE = "thermocline"
PASSWORD_BYTES = 24
# Below Linux's range of ephemeral ports: while a server is down, another program is unlikely to
# take its port, so clients that stored its address find it there again.
PORTS = range(16_384, 32_768)
PORT_TRIES_MAX = 100
_HINT = "restore server.json from a copy: it holds the server's passwords"
_UNSEALED = frozenset({"port", "password", "owner_password", "folder"})


@dataclass(frozen=True, slots=True)
class ServerNote:
    """Where a server of ours listens, who may log in, and whose folder says so.

    `was_started` tells that the folder has had a server with data.
    """

    port: int
    password: str
    owner_password: str
    folder: str | None = None
    was_started: bool = False

    @property
    def dsn(self) -> str:
        """The address for all connections of tenants."""
        return self._dsn(LOGIN, self.password, DATABASE)

    @property
    def owner_dsn(self) -> str:
        """The address of the superuser, for `cluster.py` only."""
        return self._dsn(OWNER, self.owner_password, "postgres")

    def _dsn(self, user: str, password: str, database: str) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"


def new_note(folder: str) -> ServerNote:
    """Return the note of a new server."""
    return ServerNote(_free_port(), _password(), _password(), OsDisk().resolve(folder))


def fit_note(note: ServerNote, folder: str, *, is_port_bad: bool) -> ServerNote:
    """Return the note to start a folder's server with, given its stored note.

    The port changes if `is_port_bad` or if it is taken; for a copied or moved folder, the port and
    the password change.
    """
    own = OsDisk().resolve(folder)
    if note.folder == own:
        is_kept = not is_port_bad and _is_free(note.port)
        return note if is_kept else replace(note, port=_free_port())
    # Until its first start, a copy accepts the original's password: so never use that port.
    while (port := _free_port()) == note.port:
        pass
    return replace(note, port=port, password=_password(), folder=own)


def read_note(folder: str) -> ServerNote | None:
    """Return the note in a folder, or None without one."""
    path, disk = os.path.join(folder, NOTE_NAME), OsDisk()
    if disk.size(path) is None:
        return None
    with translate_errors(path):
        data = disk.read(path)
    fields = unseal(data, path, hint=_HINT, unsealed_fields=_UNSEALED)
    try:
        return ServerNote(**fields)
    except TypeError as error:
        raise Corruption("the server's note cannot be read", hint=_HINT, path=path) from error


def write_note(folder: str, note: ServerNote) -> None:
    """Replace the note in a folder; it is durable when this returns."""
    path, disk = os.path.join(folder, NOTE_NAME), OsDisk()
    with translate_errors(path):
        with suppress(FileNotFoundError):
            disk.unlink(f"{path}.part")
        write_private(f"{path}.part", seal(asdict(note)))
        disk.rename(f"{path}.part", path)
        disk.sync_folder(folder)


def write_private(path: str, data: bytes) -> None:
    """Write a new file that only this user may read."""
    file = OsDisk().create(path)
    try:
        os.chmod(path, 0o600)
        file.write(data)
        file.sync()
    finally:
        file.close()


def _password() -> str:
    return secrets.token_urlsafe(PASSWORD_BYTES)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    for _ in range(PORT_TRIES_MAX):
        if _is_free(port := secrets.choice(PORTS)):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
