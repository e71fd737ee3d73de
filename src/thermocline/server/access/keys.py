"""The API keys of a node: created once, shown once, stored as a hash.

    <data>/keys.json       every key ever created: its id, tenant, scopes, times, SHA-256
    <data>/keys_exist.json proof that a key was created, and the number of changes of the keys
    <data>/key_uses.json   when each key was last used, as of the node's last write of this file

    tck_k3v9x2pa_Zm9v…     a key: prefix, id (8), 32 random bytes in base64url (43)

- Only the call that creates a key returns its text; no file has it. A hash of 256 random bits
  cannot be reversed, so a plain SHA-256 is enough.
- A revoked key stays in the file: a node that has had a key never serves without one again.
- `keys.json` is `Corruption` if it is damaged, if it has no key, or if it is missing while
  `keys_exist.json` or `key_uses.json` exists. Only a folder without all three never had a key.
- A key is never removed and a revocation never undone, so each change adds one to the number of
  keys and revocations. If `keys.json` has a smaller number than `keys_exist.json`, it is an older
  copy, in which revoked keys would be valid again: `Corruption`.
- `keys_exist.json` is written after `keys.json`. If it is missing, the next start writes it.
- Every file has a checksum and the id of its lake. `keys.json` of an older release has neither;
  the next start adds both.
- An empty list of scopes permits nothing.
- A key of an administrator that was made by an administrator of the same tenant ends with the key
  that made it: by its time, and by its revocation.
- Each change is made under a lock, by one process at a time, and replaces the file atomically.
"""

import base64
import hashlib
import hmac
import os
import re
import secrets
import time as clock
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from thermocline.cold.catalog import read_lake_id
from thermocline.cold.storage.open_storage import open_place
from thermocline.disk import OsDisk, translate_errors
from thermocline.errors import Conflict, Corruption, Invalid, NotFound, Overloaded, Unsupported
from thermocline.format.instant import NS_PER_S
from thermocline.format.sealed_json import check_owner, seal, seal_encoded, unseal
from thermocline.names import API_KEY, API_KEY_ID, DEFAULT_TENANT, SCOPES
from thermocline.server.access.private_files import hold_lock, write_private

KEYS_NAME = "keys.json"
USES_NAME = "key_uses.json"
EXIST_NAME = "keys_exist.json"
DAMAGED_NAME = "keys.json.damaged"
LOCK_NAME = ".keys.lock"
KEYS_MAX = 10_000
NOTE_LENGTH_MAX = 200
FORMAT_VERSION = 1

_ID_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
_ID_LENGTH = 8
_SECRET_BYTES = 32
_UNSEALED = frozenset({"format", "keys"})
_KEYS_HINT = (
    "restore keys.json from a backup of this lake; without a backup, `thermocline key reset` makes "
    "a new first key and ends every other one"
)
_OLDER_HINT = (
    "restore the newest copy of keys.json; to accept this one, remove keys_exist.json, and then "
    "revoke the keys that were revoked since this copy was made"
)
_USES_HINT = "remove this file; it only has the times when keys were last used"
_EMPTY_DIGEST = hashlib.sha256(b"").digest()


@dataclass(frozen=True, slots=True)
class Key:
    """A stored key, without its text."""

    key_id: str
    tenant: str
    scopes: frozenset[str]
    created_ns: int
    expires_ns: int | None = None
    revoked_ns: int | None = None
    note: str = ""
    digest: bytes = field(default=_EMPTY_DIGEST, repr=False)
    made_by: str | None = None

    def state(self, now_ns: int) -> str:
        """Return `valid`, `expired` or `revoked`."""
        if self.revoked_ns is not None:
            return "revoked"
        is_over = self.expires_ns is not None and now_ns >= self.expires_ns
        return "expired" if is_over else "valid"


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A key that was just created, with its text, which is shown once."""

    key: Key
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of the file at one moment."""

    by_id: Mapping[str, Key] = field(default_factory=dict)

    @property
    def changes(self) -> int:
        """The number of changes of the keys: each is created once, and revoked at most once."""
        return len(self.by_id) + sum(key.revoked_ns is not None for key in self.by_id.values())

    def find(self, text: str) -> Key | None:
        """Return the key with this text, in any state; None when no key has it.

        The comparison takes constant time: it does not reveal how much of a text is right.
        """
        written = re.fullmatch(API_KEY, text)
        key = self.by_id.get(written.group(1)) if written else None
        is_same = hmac.compare_digest(
            key_digest(text), _EMPTY_DIGEST if key is None else key.digest
        )
        return key if is_same and key is not None else None


def key_digest(text: str) -> bytes:
    """Return the hash that is stored of a key's text."""
    return hashlib.sha256(text.encode(errors="replace")).digest()


def check_scopes(scopes: Iterable[str]) -> frozenset[str]:
    """Return the scopes; `Invalid` when there are none, or one is unknown."""
    wanted = frozenset(scopes)
    if not wanted or not wanted <= set(SCOPES):
        hint = f"use one or more of {', '.join(SCOPES)}"
        raise Invalid("a key has no scope or an unknown one", hint=hint, scopes=sorted(wanted))
    return wanted


class KeyStore:
    """The keys of one data folder. Safe to use from many threads and processes."""

    def __init__(self, folder: str, now_ns: Callable[[], int] = clock.time_ns) -> None:
        self.folder = os.path.abspath(folder)
        self.path = f"{self.folder}/{KEYS_NAME}"
        self._uses_path = f"{self.folder}/{USES_NAME}"
        self._exist_path = f"{self.folder}/{EXIST_NAME}"
        self._now_ns = now_ns

    def stamp(self) -> tuple[int, ...] | None:
        """Return a value that changes whenever the file does; None when there is no file."""
        with translate_errors(self.path):
            try:
                found = os.stat(self.path)
            except FileNotFoundError:
                return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def read(self) -> KeySet:
        """Return the keys; an empty set for a folder that never had a key.

        `Corruption` when the file is damaged, an older copy, or missing in a folder that has had
        a key.
        """
        # Order matters: a writer changes `keys.json` before `keys_exist.json`.
        remembered = self._read_remembered_changes()
        data = _read_file(self.path)
        if data is None:
            self._check_never_had_keys()
            return KeySet()
        keys = KeySet({key.key_id: key for key in _decode_keys(data, self.path, self._lake_id())})
        if remembered is not None and keys.changes < remembered:
            raise Corruption(
                "the file of keys is an older copy",
                hint=_OLDER_HINT,
                path=self.path,
                changes=keys.changes,
                remembered=remembered,
                remembered_by=self._exist_path,
            )
        return keys

    def _check_never_had_keys(self) -> None:
        """Raise `Corruption` if `keys.json` is missing and another file shows that keys existed."""
        for path in (self._exist_path, self._uses_path):
            if _read_file(path) is not None:
                raise Corruption(
                    "the file of keys is missing, and this node has had keys",
                    hint=_KEYS_HINT,
                    path=self.path,
                    remembered_by=path,
                )

    def read_at_start(self) -> KeySet:
        """Return the keys, and write `keys_exist.json` if there is a key.

        The start of a node calls this. It also adds the checksum to a file of an older release.
        """
        if _read_file(self.path) is None:
            return self.read()
        with self._lock_keys() as keys:
            if b'"checksum"' not in (_read_file(self.path) or b""):
                self._write(keys.by_id)
            else:
                self._remember(keys)
            return keys

    def reset(self, note: str = "") -> CreatedKey:
        """Replace unreadable keys by one new first key; every other key becomes invalid.

        The damaged file is kept as `keys.json.damaged`. `Conflict` if the keys can be read: revoke
        each by its id instead.
        """
        with hold_lock(f"{self.folder}/{LOCK_NAME}", what="is changing the keys"):
            try:
                keys = self.read()
            except Corruption:
                damaged = _read_file(self.path)
                if damaged is not None:
                    write_private(f"{self.folder}/{DAMAGED_NAME}", damaged)
                return self._add_key(KeySet(), DEFAULT_TENANT, frozenset(SCOPES), None, note, None)
        hint = "use `thermocline key revoke` and `thermocline key create`"
        raise Conflict(
            "the file of keys is not damaged, so a reset is not needed",
            hint=hint,
            keys=len(keys.by_id),
        )

    def _lake_id(self) -> str | None:
        return read_lake_id(open_place(self.folder))

    def _read_remembered_changes(self) -> int | None:
        """Return the number of changes in `keys_exist.json`; None if it is unknown."""
        data = _read_file(self._exist_path)
        if data is None:
            return None
        try:
            changes = unseal(data, self._exist_path).get("changes", 0)
        except Corruption:
            return None
        return changes if isinstance(changes, int) else None

    def _remember(self, keys: KeySet) -> None:
        if self._read_remembered_changes() == keys.changes:
            return
        fields = {
            "format": FORMAT_VERSION,
            "keys_exist": True,
            "changes": keys.changes,
            "lake_id": self._lake_id(),
        }
        write_private(self._exist_path, seal(fields))

    def create(
        self,
        tenant: str,
        scopes: Iterable[str],
        *,
        lifetime_s: float | None = None,
        note: str = "",
        made_by: str | None = None,
    ) -> CreatedKey:
        """Create a key. It is valid within a second; only this answer has its text.

        A key that is `made_by` another key expires no later than that key, and is revoked with it.
        """
        wanted = check_scopes(scopes)
        with self._lock_keys() as keys:
            return self._add_key(keys, tenant, wanted, lifetime_s, note, made_by)

    def create_first(self, note: str = "") -> CreatedKey:
        """Create the first key, with every scope of the default tenant; `Conflict` if keys exist.

        If several processes call this at once, exactly one gets a key.
        """
        with self._lock_keys() as keys:
            if keys.by_id:
                hint = "use that key, or make another with `thermocline key create`"
                raise Conflict("there is a key already", hint=hint, keys=len(keys.by_id))
            return self._add_key(keys, DEFAULT_TENANT, frozenset(SCOPES), None, note, None)

    def revoke(self, key_id: str, *, tenant: str | None = None) -> Key:
        """Revoke a key and the keys made by it permanently; the node refuses them within a second.

        `NotFound` when no key has this id, or when `tenant` is given and the key is another's.
        """
        with self._lock_keys() as keys:
            key = keys.by_id.get(key_id)
            if key is None or tenant not in (None, key.tenant):
                hint = "`thermocline key list` shows the keys by their ids"
                raise NotFound("no such key", hint=hint, key_id=key_id[:80])
            if key.revoked_ns is None:
                now_ns = self._now_ns()
                key = replace(key, revoked_ns=now_ns)
                ended = {
                    one: replace(keys.by_id[one], revoked_ns=now_ns)
                    for one in _made_by(keys, key_id)
                    if keys.by_id[one].revoked_ns is None
                }
                self._write({**keys.by_id, **ended, key_id: key})
            return key

    def read_uses(self) -> dict[str, int]:
        """Return when each key was last used, as of the node's last write of the file."""
        data = _read_file(self._uses_path)
        if data is None:
            return {}
        path = self._uses_path
        if b'"checksum"' not in data:
            return _decode_uses(_decode_older_uses(data, path), path)
        found = unseal(data, path, hint=_USES_HINT)
        check_owner(found, path, self._lake_id(), hint=_USES_HINT)
        return _decode_uses(found.get("uses"), path)

    def write_uses(self, used_ns: Mapping[str, int]) -> None:
        """Write the times when keys were last used."""
        kept = self.read_uses()
        for key_id, time_ns in used_ns.items():
            kept[key_id] = max(time_ns, kept.get(key_id, 0))
        fields = {"format": FORMAT_VERSION, "lake_id": self._lake_id(), "uses": kept}
        write_private(self._uses_path, seal(fields))

    def _lock_keys(self) -> "_LockedKeys":
        return _LockedKeys(self)

    def _add_key(
        self,
        keys: KeySet,
        tenant: str,
        scopes: frozenset[str],
        lifetime_s: float | None,
        note: str,
        made_by: str | None,
    ) -> CreatedKey:
        if len(keys.by_id) >= KEYS_MAX:
            hint = "share a key between clients"
            raise Overloaded("the node has the maximum number of keys", hint=hint, max=KEYS_MAX)
        if lifetime_s is not None and not 0 < lifetime_s < 1e10:
            hint = "use a time such as 90d"
            raise Invalid("a key's lifetime is out of range", hint=hint, lifetime_s=lifetime_s)
        if len(note) > NOTE_LENGTH_MAX or not note.isprintable():
            hint = f"use at most {NOTE_LENGTH_MAX} printable characters on one line"
            raise Invalid("a key's note is too long or not printable", hint=hint, length=len(note))
        key_id = _new_id(keys.by_id)
        secret = base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).rstrip(b"=")
        text = f"tck_{key_id}_{secret.decode()}"
        now_ns = self._now_ns()
        expires_ns = None if lifetime_s is None else now_ns + int(lifetime_s * NS_PER_S)
        maker = keys.by_id.get(made_by or "")
        if maker is not None and maker.expires_ns is not None:
            expires_ns = min(expires_ns or maker.expires_ns, maker.expires_ns)
        digest = key_digest(text)
        key = Key(key_id, tenant, scopes, now_ns, expires_ns, None, note, digest, made_by)
        self._write({**keys.by_id, key_id: key})
        return CreatedKey(key, text)

    def _write(self, keys: Mapping[str, Key]) -> None:
        body = {
            "format": FORMAT_VERSION,
            "lake_id": self._lake_id(),
            "keys": [_encode_key(key) for key in keys.values()],
        }
        encoded = orjson.dumps(body, option=orjson.OPT_INDENT_2)
        write_private(self.path, seal_encoded(encoded))
        # Crash here: `keys.json` has the keys, and the next start writes `keys_exist.json`.
        self._remember(KeySet(keys))


class _LockedKeys:
    """The keys, read under the lock that every change of them takes."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._lock = hold_lock(f"{store.folder}/{LOCK_NAME}", what="is changing the keys")

    def __enter__(self) -> KeySet:
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


def _made_by(keys: KeySet, key_id: str) -> set[str]:
    """Return the keys that a key has made, and those that these have made."""
    found: set[str] = set()
    while new := {
        one.key_id
        for one in keys.by_id.values()
        if one.made_by in found | {key_id} and one.key_id not in found
    }:
        found |= new
    return found - {key_id}


def _encode_key(key: Key) -> dict[str, Any]:
    made_by = {} if key.made_by is None else {"made_by": key.made_by}
    return {
        "id": key.key_id,
        "tenant": key.tenant,
        "scopes": sorted(key.scopes),
        "created_ns": key.created_ns,
        "expires_ns": key.expires_ns,
        "revoked_ns": key.revoked_ns,
        "note": key.note,
        "sha256": key.digest.hex(),
        **made_by,
    }


def _read_file(path: str) -> bytes | None:
    with translate_errors(path):
        try:
            return OsDisk().read(path)
        except FileNotFoundError:
            return None


def _decode_older_uses(data: bytes, path: str) -> Any:
    """Return the content of a file without a checksum: only ids and times."""
    try:
        found = orjson.loads(data)
        if isinstance(found, dict) and all(re.fullmatch(API_KEY_ID, key_id) for key_id in found):
            return found
    except ValueError:
        pass
    raise Corruption("the file of keys' uses cannot be read", hint=_USES_HINT, path=path)


def _decode_uses(found: Any, path: str) -> dict[str, int]:
    try:
        return {str(key_id): int(used_ns) for key_id, used_ns in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        hint = _USES_HINT
        raise Corruption("the times of keys' uses are damaged", hint=hint, path=path) from error


def _decode_keys(data: bytes, path: str, lake_id: str | None) -> list[Key]:
    found = unseal(data, path, hint=_KEYS_HINT, unsealed_fields=_UNSEALED)
    check_owner(found, path, lake_id, hint=_KEYS_HINT)
    try:
        if int(found["format"]) > FORMAT_VERSION:
            hint = "run that newer version"
            raise Unsupported("the keys were written by a newer Thermocline", hint=hint, path=path)
        keys = [_decode_key(one) for one in found["keys"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corruption("the file of keys cannot be read", hint=_KEYS_HINT, path=path) from error
    if not keys:  # a file is written with its first key, and a key is never removed
        raise Corruption("the file of keys has no key in it", hint=_KEYS_HINT, path=path)
    return keys


def _decode_key(one: dict[str, Any]) -> Key:
    return Key(
        str(one["id"]),
        str(one["tenant"]),
        # An unknown scope grants nothing; neither does an empty list.
        frozenset(one.get("scopes") or ()) & frozenset(SCOPES),
        int(one["created_ns"]),
        None if one.get("expires_ns") is None else int(one["expires_ns"]),
        None if one.get("revoked_ns") is None else int(one["revoked_ns"]),
        str(one.get("note", "")),
        bytes.fromhex(one["sha256"]),
        None if one.get("made_by") is None else str(one["made_by"]),
    )
