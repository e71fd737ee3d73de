"""The keys of a node: made once, shown once, kept as a hash.

    <data>/keys.json       every key there ever was: its id, tenant, scopes, times, SHA-256
    <data>/key_uses.json   when each was last used, as far as the node has written it down

    tck_k3v9x2pa_Zm9v…     a key: what it is, its id (8), 32 random bytes in base64url (43)

- The text of a key is returned by the call that made it and is nowhere else. A hash of 256 random
  bits cannot be turned back, so a plain SHA-256 is enough.
- A key that was revoked stays in the file: a node that has had a key is never open again.
- No scope is no right: an empty list of scopes allows nothing.
- Changes are made under a lock, by one process at a time, and replace the file at once.
"""

import base64
import hashlib
import hmac
import os
import re
import secrets
import time as clock
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from thermocline.disk import OsDisk, translated
from thermocline.errors import Conflict, Corruption, Invalid, NotFound, Overloaded, Unsupported
from thermocline.lake.tenants import DEFAULT_TENANT
from thermocline.server.private import held_lock, write_private

KEYS_NAME = "keys.json"
USES_NAME = "key_uses.json"
LOCK_NAME = ".keys.lock"
SCOPES = ("ingest", "query", "admin")
KEYS_MAX = 10_000
NOTE_LENGTH_MAX = 200
FORMAT_VERSION = 1
NS_PER_S = 1_000_000_000

_ID_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
_ID_LENGTH = 8
_SECRET_BYTES = 32
_TEXT = re.compile(r"tck_([a-z0-9]{8})_[A-Za-z0-9_-]{43}")
_NOBODY = hashlib.sha256(b"").digest()


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of a key; its text is not."""

    key_id: str
    tenant: str
    scopes: frozenset[str]
    created_ns: int
    expires_ns: int | None = None
    revoked_ns: int | None = None
    note: str = ""
    digest: bytes = field(default=_NOBODY, repr=False)

    def state(self, now_ns: int) -> str:
        """Return `valid`, `expired` or `revoked`."""
        if self.revoked_ns is not None:
            return "revoked"
        is_over = self.expires_ns is not None and now_ns >= self.expires_ns
        return "expired" if is_over else "valid"


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made, with its text, which is shown once."""

    key: Key
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys as a file had them at one moment."""

    by_id: Mapping[str, Key] = field(default_factory=dict)

    def found(self, text: str) -> Key | None:
        """Return the key of a text, whatever its state; None when it is nobody's.

        The time this takes does not tell how much of a text is right.
        """
        written = _TEXT.fullmatch(text)
        key = self.by_id.get(written.group(1)) if written else None
        is_same = hmac.compare_digest(digest_of(text), _NOBODY if key is None else key.digest)
        return key if is_same and key is not None else None


def digest_of(text: str) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(text.encode(errors="replace")).digest()


def checked_scopes(scopes: Iterable[str]) -> frozenset[str]:
    """Return the scopes; `Invalid` when there is none, or one that does not exist."""
    wanted = frozenset(scopes)
    if not wanted or not wanted <= set(SCOPES):
        hint = f"use one or more of {', '.join(SCOPES)}"
        raise Invalid("not the scopes of a key", hint=hint, scopes=sorted(wanted))
    return wanted


class KeyStore:
    """The keys of one data folder. Safe to use from many threads and processes."""

    def __init__(self, folder: str, now_ns: Callable[[], int] = clock.time_ns) -> None:
        self.folder = os.path.abspath(folder)
        self.path = f"{self.folder}/{KEYS_NAME}"
        self._uses_path = f"{self.folder}/{USES_NAME}"
        self._now_ns = now_ns

    def stamp(self) -> tuple[int, ...] | None:
        """Return what changes whenever the file does; None when there is no file."""
        with translated(self.path):
            try:
                found = os.stat(self.path)
            except FileNotFoundError:
                return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def read(self) -> Keys:
        """Return the keys; none when there is no file. `Corruption` when it is not one of ours."""
        with translated(self.path):
            try:
                data = OsDisk().read(self.path)
            except FileNotFoundError:
                return Keys()
        return Keys({key.key_id: key for key in _decoded(data, self.path)})

    def create(
        self,
        tenant: str,
        scopes: Iterable[str],
        *,
        lifetime_s: float | None = None,
        note: str = "",
    ) -> NewKey:
        """Make a key. It works within a second; its text is in the answer and nowhere else."""
        wanted = checked_scopes(scopes)
        with self._changing() as keys:
            return self._added(keys, tenant, wanted, lifetime_s, note)

    def create_first(self, note: str = "") -> NewKey:
        """Make the first key, with every scope of the first tenant; `Conflict` when there is one.

        Of any number of processes that ask at once, one gets a key.
        """
        with self._changing() as keys:
            if keys.by_id:
                hint = "use it, or make another with `thermocline key create`"
                raise Conflict("there is a key already", hint=hint, keys=len(keys.by_id))
            return self._added(keys, DEFAULT_TENANT, frozenset(SCOPES), None, note)

    def revoke(self, key_id: str, *, tenant: str | None = None) -> Key:
        """Take a key's rights for ever; the node refuses it within a second.

        `NotFound` when there is none, or where only a tenant's keys are meant, none of its own.
        """
        with self._changing() as keys:
            key = keys.by_id.get(key_id)
            if key is None or tenant not in (None, key.tenant):
                hint = "`thermocline key list` shows the keys by their ids"
                raise NotFound("no such key", hint=hint, key_id=key_id[:80])
            if key.revoked_ns is None:
                key = replace(key, revoked_ns=self._now_ns())
                self._write({**keys.by_id, key_id: key})
            return key

    def uses(self) -> dict[str, int]:
        """Return when each key was last used, as far as the node has written it down."""
        with suppress(OSError, ValueError):
            found = orjson.loads(OsDisk().read(self._uses_path))
            return {str(key_id): int(used_ns) for key_id, used_ns in found.items()}
        return {}

    def note_uses(self, used_ns: Mapping[str, int]) -> None:
        """Write down when keys were last used."""
        kept = self.uses()
        for key_id, time_ns in used_ns.items():
            kept[key_id] = max(time_ns, kept.get(key_id, 0))
        write_private(self._uses_path, orjson.dumps(kept))

    def _changing(self) -> "_Changing":
        return _Changing(self)

    def _added(
        self, keys: Keys, tenant: str, scopes: frozenset[str], lifetime_s: float | None, note: str
    ) -> NewKey:
        if len(keys.by_id) >= KEYS_MAX:
            raise Overloaded("as many keys as the limit", hint="one can serve many", max=KEYS_MAX)
        if lifetime_s is not None and not 0 < lifetime_s < 1e10:
            hint = "use a time such as 90d"
            raise Invalid("not how long a key is valid", hint=hint, lifetime_s=lifetime_s)
        if len(note) > NOTE_LENGTH_MAX or not note.isprintable():
            hint = f"use at most {NOTE_LENGTH_MAX} characters on one line"
            raise Invalid("not a note", hint=hint, length=len(note))
        key_id = _new_id(keys.by_id)
        secret = base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).rstrip(b"=")
        text = f"tck_{key_id}_{secret.decode()}"
        now_ns = self._now_ns()
        expires_ns = None if lifetime_s is None else now_ns + int(lifetime_s * NS_PER_S)
        key = Key(key_id, tenant, scopes, now_ns, expires_ns, None, note, digest_of(text))
        self._write({**keys.by_id, key_id: key})
        return NewKey(key, text)

    def _write(self, keys: Mapping[str, Key]) -> None:
        body = {"format": FORMAT_VERSION, "keys": [_encoded(key) for key in keys.values()]}
        write_private(self.path, orjson.dumps(body, option=orjson.OPT_INDENT_2))


class _Changing:
    """The keys, read under the lock that whoever changes them holds."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._lock = held_lock(f"{store.folder}/{LOCK_NAME}", what="is changing the keys")

    def __enter__(self) -> Keys:
        self._lock.__enter__()
        try:
            return self._store.read()
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)


def _new_id(taken: Mapping[str, Key]) -> str:
    while True:
        key_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
        if key_id not in taken:
            return key_id


def _encoded(key: Key) -> dict[str, Any]:
    return {
        "id": key.key_id,
        "tenant": key.tenant,
        "scopes": sorted(key.scopes),
        "created_ns": key.created_ns,
        "expires_ns": key.expires_ns,
        "revoked_ns": key.revoked_ns,
        "note": key.note,
        "sha256": key.digest.hex(),
    }


def _decoded(data: bytes, path: str) -> list[Key]:
    hint = "restore it from a copy; without it no key is valid"
    try:
        found = orjson.loads(data)
        if int(found["format"]) > FORMAT_VERSION:
            hint = "run that version"
            raise Unsupported("the keys were written by a newer Thermocline", hint=hint, path=path)
        return [
            Key(
                str(one["id"]),
                str(one["tenant"]),
                # What is no scope of ours is no right; neither is nothing at all.
                frozenset(one.get("scopes") or ()) & frozenset(SCOPES),
                int(one["created_ns"]),
                None if one.get("expires_ns") is None else int(one["expires_ns"]),
                None if one.get("revoked_ns") is None else int(one["revoked_ns"]),
                str(one.get("note", "")),
                bytes.fromhex(one["sha256"]),
            )
            for one in found["keys"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corruption("the file of keys cannot be read", hint=hint, path=path) from error
