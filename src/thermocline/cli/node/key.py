"""Commands about keys: create, list, revoke and reset.

- The text of a key is written once, by the command that created it: to stdout or to a new file. No
  command takes a key as an argument, where other users of the machine could see it.
- They work beside a running node, which applies a change within a second.
"""

import os
import sys
import time as clock
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.cli.argument import CommandList, JsonOption
from thermocline.cli.node.node_options import (
    ConfigOption,
    DataOption,
    data_folder,
    lake_folder,
    lake_place,
    private_files,
    settings_from,
)
from thermocline.cli.terminal.terminal import print_line
from thermocline.errors import Conflict, Corruption, Invalid, TenantNotFound

if TYPE_CHECKING:
    from thermocline.server.access.keys import CreatedKey, Key

FOUND_WAIT_S = 5.0
ACTOR = "command line"


def create(
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Its purpose; `revoke` also takes it.")
    ] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="SCOPE", help="ingest, query or admin; may be repeated."),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", metavar="NAME", help="The key's tenant; `default` if omitted."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="AGE", help="How long it is valid, such as 90d."),
    ] = None,
    first: Annotated[
        bool,
        typer.Option(
            "--first", help="Create the node's first key, with every scope, unless it has a key."
        ),
    ] = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it to a new file, mode 0600."),
    ] = None,
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Create a key and show it once."""
    from thermocline.server.access.audit import Audit
    from thermocline.server.access.keys import KeyStore

    if first and (scope or tenant or expires):
        hint = "omit --scope, --tenant and --expires"
        raise Invalid("the first key has every scope and does not expire", hint=hint)
    folder = _ensure_folder(data, config) if first else lake_folder(data, config)
    store = KeyStore(folder)
    if output is not None and os.path.lexists(output):
        raise Conflict("the file exists already", hint="name a new one", path=output)
    if first:
        made = store.create_first(note=name)
    else:
        whose = tenant or "default"
        _check_tenant(lake_place(data, config), whose)
        lifetime_s = None if expires is None else _parse_lifetime_s(expires)
        made = store.create(whose, scope or (), lifetime_s=lifetime_s, note=name)
    facts = {"key_id": made.key.key_id, "tenant": made.key.tenant}
    Audit(folder).record_action("create key", ACTOR, **facts, scopes=sorted(made.key.scopes))
    if output is not None:
        from thermocline.server.access.private_files import write_private

        write_private(os.path.abspath(output), f"{made.text}\n".encode())
    _print_key(made, output, is_json=json)


def _print_key(made: "CreatedKey", output: str | None, *, is_json: bool) -> None:
    if is_json:
        from thermocline.cli.terminal.output import print_json

        listed = _key_json(made.key, None)
        print_json({"key": None if output else made.text, "output": output, **listed})
    elif output is not None:
        print_line(f"key {made.key.key_id} is in {output}")
    else:
        print(made.text)
        if sys.stderr.isatty():
            print("this key is shown only once: store it now", file=sys.stderr)


def _ensure_folder(data: str | None, config: str | None) -> str:
    """Return the data folder; create an empty lake there if there is none yet."""
    from thermocline.cold.catalog import Catalog
    from thermocline.node import Node
    from thermocline.server.access.private_files import hold_lock

    folder, place = data_folder(data, config), settings_from(config, data=data).lake_url
    with private_files():
        with suppress(FileExistsError):
            os.makedirs(folder)
        end_s = clock.monotonic() + FOUND_WAIT_S
        while Catalog(place or folder).identity() is None:
            with hold_lock(f"{folder}/.found.lock", what="makes a lake here"):
                if Catalog(place or folder).identity() is not None:
                    break
                try:
                    Node(folder, lake=place or None).close()
                except Conflict:  # a node is starting here now
                    if clock.monotonic() > end_s:
                        raise
                    clock.sleep(0.05)
    return folder


def _check_tenant(place: str, tenant: str) -> None:
    from thermocline.cold.tenants import TenantCatalog
    from thermocline.disk import OsDisk

    tenants = TenantCatalog(place, OsDisk())
    try:
        tenants.folder(tenant)
    except TenantNotFound as error:
        hint = f"create it first: thermocline tenant create {tenant}"
        facts = {"tenant": tenant, "tenants": list(tenants)}
        raise TenantNotFound("no such tenant", hint=hint, **facts) from error


def _parse_lifetime_s(text: str) -> int:
    from thermocline.format.bucket import parse_duration_s

    return parse_duration_s(text)


def list_keys(
    data: DataOption = None, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """List the keys: their tenants, scopes, and when they were used."""
    from thermocline.server.access.keys import KeyStore

    store = KeyStore(lake_folder(data, config))
    try:
        used = store.read_uses()
    except Corruption as error:
        used = {}
        print(f"warning: {error.message}: {error.hint}", file=sys.stderr)
    listed = [_key_json(key, used.get(key.key_id)) for key in store.read().by_id.values()]
    if json:
        from thermocline.cli.terminal.output import print_json

        print_json({"keys": listed})
        return
    for one in listed:
        words = [one["key_id"], one["state"], one["tenant"], ",".join(one["scopes"])]
        words += [f"used {one['used'] or 'never'}", f"expires {one['expires'] or 'never'}"]
        print_line("  ".join([*words, one["name"]]).rstrip())


def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key's id, or its name.")],
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Revoke a key permanently. A running node refuses it within a second."""
    from thermocline.server.access.audit import Audit
    from thermocline.server.access.keys import KeyStore

    folder = lake_folder(data, config)
    store = KeyStore(folder)
    revoked = store.revoke(_find_key_id(store.read().by_id, key))
    Audit(folder).record_action("revoke key", ACTOR, key_id=revoked.key_id, tenant=revoked.tenant)
    if json:
        from thermocline.cli.terminal.output import print_json

        print_json(_key_json(revoked, None))
    else:
        print_line(f"key {revoked.key_id} is revoked")


def reset(
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do it. Without this, only show what it would do.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it to a new file, mode 0600."),
    ] = None,
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Create a new first key if keys.json is lost or damaged. Every other key is revoked."""
    from thermocline.server.access.audit import Audit
    from thermocline.server.access.keys import KeyStore
    from thermocline.server.access.private_files import write_private

    folder = lake_folder(data, config)
    store = KeyStore(folder)
    if not yes:
        hint = "restore keys.json from a backup, or add --yes: every key but the new one is revoked"
        raise Invalid("this revokes every key of the node", hint=hint, path=store.path)
    if output is not None and os.path.lexists(output):
        raise Conflict("the file exists already", hint="name a new one", path=output)
    made = store.reset(note="reset")
    Audit(folder).record_action("reset keys", ACTOR, key_id=made.key.key_id)
    if output is not None:
        write_private(os.path.abspath(output), f"{made.text}\n".encode())
    _print_key(made, output, is_json=json)


def _find_key_id(keys: Any, word: str) -> str:
    if word in keys:
        return word
    if word.startswith("tck_"):
        hint = (
            "revoke it by its id, the eight letters after tck_; other users may have seen it, so "
            "create a new one"
        )
        raise Invalid("a key must not be on a command line", hint=hint)
    named = [one.key_id for one in keys.values() if one.note == word and one.revoked_ns is None]
    if len(named) > 1:
        hint = "give the id of one"
        raise Invalid("more than one key has this name", hint=hint, name=word, ids=named)
    return named[0] if named else word


def _key_json(key: "Key", used_ns: int | None) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "name": key.note,
        "tenant": key.tenant,
        "scopes": sorted(key.scopes),
        "state": key.state(clock.time_ns()),
        "created": _time_text(key.created_ns),
        "expires": _time_text(key.expires_ns),
        "revoked": _time_text(key.revoked_ns),
        "used": _time_text(used_ns),
    }


def _time_text(time_ns: int | None) -> str | None:
    from thermocline.format.instant import format_instant

    return None if time_ns is None else format_instant(time_ns // 1_000_000_000 * 1_000_000_000)


COMMANDS: CommandList = (
    (
        "create",
        create,
        (
            "thermocline key create --first --data /var/lib/thermocline",
            "thermocline key create --name dashboard --scope query --expires 90d",
            "thermocline key create --tenant acme --scope ingest --output acme.key",
        ),
    ),
    ("list", list_keys, ("thermocline key list", "thermocline key list --json")),
    ("revoke", revoke, ("thermocline key revoke dashboard",)),
    ("reset", reset, ("thermocline key reset --data /var/lib/thermocline --yes",)),
)
