"""Credentials for the files of one table, handed out for a short time.

In:   the table, the key of the client that loads it
Out:  an access key and its secret; later, what an access key stands for

- Nothing is stored: the secret follows from the access key and a secret of this process. They end
  with the process, with their time, and with the key of the client.
- An access key names one table by a digest, so it opens no other table.
"""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

CREDENTIALS_S = 3_600
_PREFIX = "TC"


@dataclass(frozen=True, slots=True)
class TableCredentials:
    """What a client signs its requests for a table's files with."""

    access_key: str
    secret: str
    expires_s: int


@dataclass(frozen=True, slots=True)
class Grant:
    """What an access key stands for."""

    expires_s: int
    key_id: str
    table: str


class CredentialIssuer:
    """Hands out credentials and tells what they stand for. Safe to use from many threads."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._secret = secrets.token_bytes(32)
        self.now_s = now_s

    def issue(self, key_id: str, table: str) -> TableCredentials:
        """Return credentials for a table, named by `table_digest`."""
        expires_s = int(self.now_s()) + CREDENTIALS_S
        text = f"{expires_s}:{key_id}:{table}".encode()
        access_key = _PREFIX + base64.urlsafe_b64encode(text).decode().rstrip("=")
        return TableCredentials(access_key, self.secret_of(access_key), expires_s)

    def secret_of(self, access_key: str) -> str:
        """Return the secret of an access key, also of one that was never handed out."""
        digest = hmac.new(self._secret, access_key.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def grant_of(self, access_key: str) -> Grant | None:
        """Return what an access key stands for; its signature was checked before."""
        text = access_key.removeprefix(_PREFIX)
        try:
            decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
            expires_s, key_id, table = decoded.split(":")
            return Grant(int(expires_s), key_id, table)
        except ValueError:
            return None


def table_digest(tenant: str, name: str, table_id: str) -> str:
    """Return the text that stands for one table of one tenant in an access key."""
    text = "\0".join((tenant, name, table_id)).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()
