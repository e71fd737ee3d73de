"""A tenant's place in PostgreSQL: a schema, and the role that owns it and nothing else.

In:   the name of a tenant
Out:  its schema's name; the words that make a transaction the tenant's

A transaction is a tenant's by its role, not by a condition in its queries: a query that forgets
whose rows it reads is refused by PostgreSQL.
"""

import re
from dataclasses import dataclass

from psycopg import sql

from thermocline.errors import Invalid

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
SCHEMA_PREFIX = "tc_"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant as PostgreSQL knows it."""

    name: str
    schema: str
    role: str

    def words(self) -> tuple[sql.Composed, ...]:
        """Return the statements that make the running transaction this tenant's, until it ends."""
        return (
            sql.SQL("set local role {}").format(sql.Identifier(self.role)),
            sql.SQL("set local search_path to {}, pg_catalog").format(sql.Identifier(self.schema)),
        )


def schema_of(name: str) -> str:
    """Return the schema of a tenant; `Invalid` for what cannot be a tenant's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        hint = "use lower-case letters, digits and underscores, 41 at most, no digit first"
        raise Invalid("not a tenant's name", hint=hint, tenant=name)
    return SCHEMA_PREFIX + name
