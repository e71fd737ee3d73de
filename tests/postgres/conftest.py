"""Every test here has a real PostgreSQL."""

import pytest

from fixtures.postgres import (
    own_postgres,
    pool,
    postgres_dsn,
    postgres_run,
    postgres_server,
    postgres_template,
    tenant,
    way,
)
from postgres.entities import ORDER
from thermocline.hot.postgres.schema.registry import TypeRegistry
from thermocline.hot.postgres.store.store import EntityStore

__all__ = [
    "own_postgres",
    "pool",
    "postgres_dsn",
    "postgres_run",
    "postgres_server",
    "postgres_template",
    "tenant",
    "way",
]


@pytest.fixture
def store(pool, tenant):
    """An empty store of orders."""
    TypeRegistry(pool, tenant).register("order", ORDER)
    return EntityStore(pool, tenant, "order")
