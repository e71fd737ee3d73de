"""What other nodes of the same lake ask of this one: its hot rows of a table, and a flush.

In:   a call with the token of this node's claim, which only readers of the lake's objects know
Out:  the hot snapshot as bytes (`peers/wire.py`); a flush that has ended

- Keys of tenants open nothing here, and the token opens nothing else. A call without the token gets
  the answer of an address that does not exist.
- These calls run on separate threads: two nodes that ask each other cannot wait for each other.
"""

import hmac
import re

from thermocline.errors import NotFound
from thermocline.node import Node
from thermocline.peers.remote import TOKEN_HEADER
from thermocline.peers.wire import encode_snapshot
from thermocline.server.api.types.route import ApiRequest, ApiResponse

MEDIA_TYPE = "application/octet-stream"
_ID = re.compile(r"[0-9a-f]{32}")


def hot(call: ApiRequest) -> ApiResponse:
    """Return the rows of a table that are only in this node's journal."""
    node, table_id = _check_call(call)
    known = {(int(mark), int(schema), int(rows)) for mark, schema, rows in call.body.known}
    data = encode_snapshot(node.hot_rows_of(table_id), known)
    return ApiResponse(data, media_type=MEDIA_TYPE)


def flush(call: ApiRequest) -> None:
    """Flush what is hot of a table on this node."""
    node, table_id = _check_call(call)
    node.flush_table(table_id)


def _check_call(call: ApiRequest) -> tuple[Node, bytes]:
    node = call.parts.node
    own = None if node.peers is None else node.peers.own
    given = call.headers.get(TOKEN_HEADER, "")
    is_known = own is not None and hmac.compare_digest(given.encode(), own.token.encode())
    if not is_known or not _ID.fullmatch(call.body.table):
        raise NotFound("there is nothing at this address", hint="/api/docs lists the routes")
    node.check_open()
    return node, bytes.fromhex(call.body.table)
