"""Names, ids and keys that people and clients choose: what they may be, and their limits.

Patterns are for `re.fullmatch`, or to be part of a longer pattern.

- A pattern or limit is here once, and every interface that reads such a name imports it.
- Limits of one thing differ where interfaces always differed: a smaller limit would refuse what an
  older client sends, a larger one what an older node keeps.
"""

import re
from typing import Any, Literal, get_args

from thermocline.errors import Invalid

Scope = Literal["ingest", "query", "admin"]
SCOPES: tuple[str, ...] = get_args(Scope)

DEFAULT_TENANT = "default"
TENANT_NAME = "[a-z_][a-z0-9_]{0,39}"
SCHEMA_TENANT_NAME = "[a-z_][a-z0-9_]{0,40}"  # of a tenant's schema in PostgreSQL, without prefix
TABLE_NAME = "[A-Za-z_][A-Za-z0-9_]{0,62}"
TABLE_FILE_NAME = "[a-z_][a-z0-9_]{0,62}"  # a table's name in lower case, as its file has it
TYPE_NAME = "[a-z_][a-z0-9_]{0,62}"

ENTITY_ID_LENGTH_MAX = 255
PAGE_LIMIT_MAX = 1_000
OPERATIONS_MAX = 10_000  # of one bulk request

IDEMPOTENCY_KEY_LENGTH_MAX = 256
OTLP_IDEMPOTENCY_KEY_LENGTH_MAX = 255
CLIENT_KEY_PREFIX = "client."
"""Begins the idempotency keys that a client makes for its own retries, which go to one node."""
HTTP_IDEMPOTENCY_KEY_LENGTH_MAX = 200
HTTP_IDEMPOTENCY_KEY = rf"[\x21-\x7e]{{1,{HTTP_IDEMPOTENCY_KEY_LENGTH_MAX}}}"

API_KEY_ID = "[a-z0-9]{8}"
API_KEY = f"tck_({API_KEY_ID})_[A-Za-z0-9_-]{{43}}"
API_KEY_IN_TEXT = "tck_[A-Za-z0-9]{1,16}_[A-Za-z0-9_-]{8,}"  # also a changed one; not `tck_price`
API_KEY_IN_SETTING = r"tck_\w+_[\w-]+"  # also a short one
# Passwords as libpq reads them: `password = 'it\\'s'`, sslpassword=…, PGPASSWORD=…, ?password=…&…
LIBPQ_NAMED = (
    r"(?P<named>(?i:pgpassword|(?:ssl)?password|oauth_client_secret|scram_(?:client|server)_key)"
    r"\s*=\s*)(?:'(?:[^'\\]|\\.)*'?|(?:\\.|[^\s&\\])+)"
)
API_KEY_IN_LOG = "tck_[A-Za-z0-9]+(?:_[A-Za-z0-9_-]*)?"  # also a part of one


def is_table_name(name: str) -> bool:
    """Tell whether a table can have this name."""
    return re.fullmatch(TABLE_NAME, name) is not None


def is_tenant_name(name: str) -> bool:
    """Tell whether a tenant can have this name."""
    return re.fullmatch(TENANT_NAME, name) is not None


def parse_id(value: Any) -> str:
    """Return an entity's id; `Invalid` for null, for other values, and for invalid text.

    A null in the set of dirty keys would hide every row. Ids that look the same are the same: no
    white space at the ends, no control characters.
    """
    if not isinstance(value, str):
        reason = "null" if value is None else type(value).__name__
        raise _id_error("an id is text", reason)
    if not value or len(value) > ENTITY_ID_LENGTH_MAX:
        raise _id_error("an id has 1 to 255 characters", f"{len(value)} characters")
    if value != value.strip() or not value.isprintable():
        raise _id_error("an id is printable, without blanks at its ends", ascii(value)[:80])
    return value


def parse_idempotency_key(value: Any) -> str:
    """Return a client's idempotency key of a write of entities; `Invalid` for another value."""
    if isinstance(value, str) and re.fullmatch(HTTP_IDEMPOTENCY_KEY, value):
        return value
    raise Invalid(
        "the idempotency key is not valid",
        hint="use 1 to 200 visible ASCII characters, such as a UUID, another for each request",
        characters_max=HTTP_IDEMPOTENCY_KEY_LENGTH_MAX,
    )


def _id_error(expected: str, got: str) -> Invalid:
    problem = {"pointer": "/id", "expected": expected, "got": got}
    hint = "give printable text of 1 to 255 characters, without blanks at its ends"
    return Invalid("invalid entity id", hint=hint, problems=[problem])
