"""Opens one connection with all its timeouts.

In:   an address and `PoolSettings`
Out:  a connection on which client and server both time out
"""

from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from thermocline.hot.postgres.session.breaker import BreakerSettings
from thermocline.hot.postgres.session.deadline import Deadlines

Row = tuple[Any, ...]
Connection = psycopg.Connection[Row]


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Every limit of a pool; a caller that waits longer than a timeout gets an error."""

    connections_max: int = 10
    waiting_max: int = 200
    wait_timeout_s: float = 5.0
    connect_timeout_s: float = 5.0
    statement_timeout_s: float = 15.0
    lock_timeout_s: float = 5.0
    idle_timeout_s: float = 30.0
    transaction_timeout_s: float = 20.0
    fate_timeout_s: float = 5.0
    keepalive_idle_s: int = 10
    keepalive_interval_s: int = 3
    keepalives_max: int = 3
    unacknowledged_timeout_s: float = 10.0
    lifetime_s: float = 1_800.0
    retries_max: int = 10
    reconnects_max: int = 2
    breaker: BreakerSettings = field(default_factory=BreakerSettings)


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
