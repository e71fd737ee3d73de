"""The limits of a pool of connections to PostgreSQL: how many, how long, how often."""

from dataclasses import dataclass, field

from thermocline.hot.postgres.session.breaker import BreakerSettings


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
    outcome_timeout_s: float = 5.0
    keepalive_idle_s: int = 10
    keepalive_interval_s: int = 3
    keepalives_max: int = 3
    unacknowledged_timeout_s: float = 10.0
    lifetime_s: float = 1_800.0
    retries_max: int = 10
    reconnects_max: int = 2
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
