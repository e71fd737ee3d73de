"""What a transaction begins with.

In:   the tenant, and what the transaction is to see and do
Out:  the statements, in their order
"""

import enum
import functools

from psycopg import sql

from thermocline.hot.postgres.fate import TICKET
from thermocline.hot.postgres.tenant import Tenant


class Isolation(enum.Enum):
    """How much of others' work a transaction sees."""

    READ_COMMITTED = "read committed"
    REPEATABLE_READ = "repeatable read"
    SERIALIZABLE = "serializable"


@functools.lru_cache(maxsize=1_024)
def opening(
    tenant: Tenant | None, isolation: Isolation, *, is_read_only: bool
) -> tuple[bytes, ...]:
    """Return all that comes before the work; of one that writes, the last answer is its ticket."""
    access = "read only" if is_read_only else "read write"
    statements: list[sql.Composable] = [
        sql.SQL(f"begin isolation level {isolation.value} {access}")
    ]
    if tenant is not None:
        statements += tenant.words()
    if not is_read_only:
        statements.append(sql.SQL(TICKET))
    return tuple(one.as_bytes() for one in statements)
