"""The statements that open a transaction.

In:   the tenant, the isolation, whether the transaction only reads
Out:  the statements, in order
"""

import enum
import functools

from psycopg import sql

from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session.commit_outcome import TRANSACTION_ID_QUERY


class Isolation(enum.Enum):
    """The isolation level of a transaction."""

    READ_COMMITTED = "read committed"
    REPEATABLE_READ = "repeatable read"
    SERIALIZABLE = "serializable"


@functools.lru_cache(maxsize=1_024)
def opening_statements(
    tenant: Tenant | None, isolation: Isolation, *, is_read_only: bool
) -> tuple[bytes, ...]:
    """Return the statements before the work; for a writer, the last one returns its id."""
    access = "read only" if is_read_only else "read write"
    statements: list[sql.Composable] = [
        sql.SQL(f"begin isolation level {isolation.value} {access}")
    ]
    if tenant is not None:
        statements += tenant.role_statements()
    if not is_read_only:
        statements.append(sql.SQL(TRANSACTION_ID_QUERY))
    return tuple(one.as_bytes() for one in statements)
