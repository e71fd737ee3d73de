"""A tenant in PostgreSQL: a schema, and the role that owns only this schema.

In:   the name of a tenant
Out:  its schema's name; the statements that give a transaction the tenant's role

The role separates tenants, not a condition in queries: PostgreSQL refuses a query that was not
given a tenant's role.
"""

import re
from dataclasses import dataclass

from psycopg import sql

from thermocline.errors import Invalid
from thermocline.names import SCHEMA_TENANT_NAME

SCHEMA_PREFIX = "tc_"


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant: its name, schema and role in PostgreSQL."""

    name: str
    schema: str
    role: str

    def role_statements(self) -> tuple[sql.Composed, ...]:
        """Return the statements that give the running transaction this tenant's role."""
        return (
            sql.SQL("set local role {}").format(sql.Identifier(self.role)),
            sql.SQL("set local search_path to {}, pg_catalog").format(sql.Identifier(self.schema)),
        )


def schema_of(name: str) -> str:
    """Return the schema of a tenant; `Invalid` for a malformed tenant name."""
    if not isinstance(name, str) or not re.fullmatch(SCHEMA_TENANT_NAME, name):
        hint = "use lower-case letters, digits and underscores, 41 at most, no digit first"
        raise Invalid("not a tenant's name", hint=hint, tenant=name)
    return SCHEMA_PREFIX + name
