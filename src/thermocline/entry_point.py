"""`connect`: opens the lake in a folder in this process, or the lake of a node by its URL.

In:   a path, the address of an object store, or a node's URL
Out:  a lake; all kinds have the same interface
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thermocline.config import read_lake_settings
from thermocline.errors import Invalid
from thermocline.extras import require_extra
from thermocline.format.argument import check_flag, check_options, check_path, check_text

if TYPE_CHECKING:
    from thermocline.client import Client
    from thermocline.lake import Lake


def connect(
    place: str | os.PathLike[str],
    *,
    read_only: bool = False,
    api_key: str | None = None,
    data: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    **settings: Any,
) -> "Lake | Client":
    """Open the lake in a folder or an object store, or connect to a node by its URL.

    An empty folder or prefix becomes a lake. With `read_only`, another process may write the lake.
    Settings are those of `config.py`, such as `sync` ("always", "interval", "os"), `hot_bytes_max`,
    `flush_age_s`, `query_workers`. A node takes an `api_key`, and has its own settings.

    A lake in an object store (`s3://`, `gs://`, `az://`) has its journal in the folder `data` on
    this machine: keep that folder, it has the rows that are not flushed. The default is a folder of
    the user for each address. `storage_options` are those of `obstore`, such as `endpoint`; options
    that are not given come from the environment.
    """
    where = check_path(place, "place")
    check_flag(read_only, "read_only")
    options = check_options(storage_options, "storage_options")
    if api_key is not None:
        check_text(api_key, "api_key")
    if where.startswith(("http://", "https://")):
        with require_extra("client", feature="a node's address"):
            from thermocline.client import Client

        local = {
            "read_only": read_only,
            "data": data is not None,
            "storage_options": storage_options is not None,
        }
        if given := sorted([*settings, *(name for name, value in local.items() if value)]):
            hint = "omit them: the node has its own settings, and the key its scopes"
            raise Invalid("a client cannot set a node's settings", hint=hint, settings=given)
        return Client(where, api_key)
    if api_key is not None:
        raise Invalid("a lake in a folder has no keys", hint="omit api_key", folder=where)
    from thermocline.cold.storage.open_storage import is_store_address
    from thermocline.node import default_data_folder, open_lake

    how = read_lake_settings(settings)
    if data is None and not is_store_address(where):
        if options:
            raise Invalid("a lake in a folder takes no options", hint="omit storage_options")
        return open_lake(where, how, is_read_only=read_only)
    folder = check_path(data, "data") if data is not None else default_data_folder(where)
    return open_lake(folder, how, lake=where, storage_options=options, is_read_only=read_only)
