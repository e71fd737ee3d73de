"""`connect`: opens the lake in a folder in this process, or the lake of a node by its URL.

In:   a path or a URL
Out:  a lake; both kinds have the same interface
"""

import os
from typing import TYPE_CHECKING, Any

from thermocline.config import read_lake_settings
from thermocline.errors import Invalid
from thermocline.extras import require_extra
from thermocline.format.argument import check_flag, check_path, check_text

if TYPE_CHECKING:
    from thermocline.client import Client
    from thermocline.lake import Lake


def connect(
    place: str | os.PathLike[str],
    *,
    read_only: bool = False,
    api_key: str | None = None,
    **settings: Any,
) -> "Lake | Client":
    """Open the lake in a folder, create one in an empty folder, or connect to a node by its URL.

    With `read_only`, another process may write the lake. Settings are those of `config.py`, such as
    `sync` ("always", "interval", "os"), `hot_bytes_max`, `flush_age_s`, `query_workers`. A node
    takes an `api_key`, and has its own settings.
    """
    where = check_path(place, "place")
    check_flag(read_only, "read_only")
    if api_key is not None:
        check_text(api_key, "api_key")
    if where.startswith(("http://", "https://")):
        with require_extra("client", feature="a node's address"):
            from thermocline.client import Client

        if read_only or settings:
            given = sorted([*settings, *(["read_only"] if read_only else [])])
            hint = "omit them: the node has its own settings, and the key its scopes"
            raise Invalid("a client cannot set a node's settings", hint=hint, settings=given)
        return Client(where, api_key)
    if api_key is not None:
        raise Invalid("a lake in a folder has no keys", hint="omit api_key", folder=where)
    from thermocline.node import open_lake

    return open_lake(where, read_lake_settings(settings), is_read_only=read_only)
