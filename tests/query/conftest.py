"""Verbs for queries: an engine, small tables, sessions over them."""

import duckdb
import pyarrow as pa
import pytest

from fixtures.lake import rows
from thermocline.query.engine import Engine, EngineLimits
from thermocline.query.session import Session
from thermocline.table import TimeSeriesTable


@pytest.fixture
def count(session):
    """Return one number: the first value of the first row."""

    def ask(sql: str, params=None):
        return session.sql(sql, params).column(0).to_pylist()[0]

    return ask


@pytest.fixture(scope="module")
def parser():
    """A connection whose only use is its parser; it keeps no state between tests."""
    connection = duckdb.connect(":memory:")
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    yield connection
    connection.close()


@pytest.fixture
def cursor():
    """A cursor of a locked engine that may read nothing."""
    engine = Engine((), (), EngineLimits(threads=1))
    cursor = engine.cursor()
    yield cursor
    cursor.close()
    engine.close()


@pytest.fixture
def session():
    """A session with one thread and nothing registered."""
    with Session(threads=1) as opened:
        yield opened


@pytest.fixture
def make_table(tmp_path):
    """Make a table of any columns from Arrow tables, one commit each."""
    made = 0

    def make(*data: pa.Table, entities=(), name: str | None = None) -> TimeSeriesTable:
        nonlocal made
        made += 1
        table = TimeSeriesTable.create(
            tmp_path / (name or f"table-{made}"),
            time_column="ts",
            bucket="1h",
            entity_columns=entities,
            overlap="allow",
        )
        for part in data:
            table.append(part)
        return table

    return make


@pytest.fixture
def prices(session, make_table):
    """Three days of hourly prices in three commits, registered as `prices`."""
    days = [rows(range(24 * day, 24 * (day + 1))) for day in range(3)]
    table = make_table(*days, entities=("symbol",), name="prices")
    session.register_tstable("prices", table)
    return table
