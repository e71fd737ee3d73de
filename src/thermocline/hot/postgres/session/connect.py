"""Opens one connection with all its timeouts.

In:   an address and `PoolSettings`
Out:  a connection on which client and server both time out
"""

from typing import Any

import psycopg
from psycopg import sql

from thermocline.hot.postgres.session.deadline import Deadlines
from thermocline.hot.postgres.session.pool_settings import PoolSettings

Row = tuple[Any, ...]
Connection = psycopg.Connection[Row]


def open_connection(dsn: str, limits: PoolSettings, deadlines: Deadlines) -> Connection:
    """Open a connection that is ready for a transaction; raises the driver's errors."""
    connection = psycopg.connect(
        dsn,
        autocommit=True,
        connect_timeout=max(int(limits.connect_timeout_s), 1),
        keepalives=1,
        keepalives_idle=limits.keepalive_idle_s,
        keepalives_interval=limits.keepalive_interval_s,
        keepalives_count=limits.keepalives_max,
        tcp_user_timeout=int(limits.unacknowledged_timeout_s * 1000),
        application_name="thermocline",
    )
    try:
        with deadlines.within(connection, limits.connect_timeout_s):
            connection.execute(_limits(limits), prepare=False)
    except BaseException:
        connection.close()
        raise
    return connection


def _limits(settings: PoolSettings) -> sql.Composed:
    return sql.SQL(
        "set timezone to 'UTC'; set datestyle to 'ISO'; set statement_timeout = {}; "
        "set lock_timeout = {}; set idle_in_transaction_session_timeout = {}"
    ).format(
        int(settings.statement_timeout_s * 1000),
        int(settings.lock_timeout_s * 1000),
        int(settings.idle_timeout_s * 1000),
    )
