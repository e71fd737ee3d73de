"""Limits each tenant's use of a node: bytes in, concurrent queries, rows out, tables, entities.

In:   the amount that a tenant is about to use
Out:  nothing, or `Overloaded` with `retry_after_s`, from 1 to 5

- Bytes in are limited by a token bucket, which fills at the allowed rate up to a burst. A request
  larger than the burst passes if the bucket is not empty, and later requests wait until the debt is
  paid back: no request is refused permanently, and the average rate still holds.
- Each tenant has separate counters.
- 0 means no limit.
"""

import math
import threading
import time as clock
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from thermocline.config import NodeSettings, QuotaSettings
from thermocline.error_table import RETRY_AFTER_S_MAX
from thermocline.errors import Overloaded


class Quota:
    """One tenant's limits and present use. Safe to use from any thread."""

    def __init__(
        self, settings: QuotaSettings, now_s: Callable[[], float] = clock.monotonic
    ) -> None:
        self._settings = settings
        self._now_s = now_s
        self._lock = threading.Lock()
        self._bytes_left = float(settings.ingest_burst_bytes)
        self._filled_s = now_s()
        self._queries = 0
        self.refusals: Counter[str] = Counter()
        """The number of refusals by the name of their limit."""

    @property
    def settings(self) -> QuotaSettings:
        """The current limits."""
        return self._settings

    @property
    def rows_max(self) -> int:
        """The maximum number of rows of an answer; 0 means no limit."""
        return self._settings.rows_max

    @property
    def tables_max(self) -> int:
        """The maximum number of tables; 0 means no limit."""
        return self._settings.tables_max

    @property
    def entities_max(self) -> int:
        """The maximum number of entities of a table; 0 means no limit."""
        return self._settings.entities_max

    @property
    def queries(self) -> int:
        """The number of running queries."""
        return self._queries

    def change(self, settings: QuotaSettings) -> None:
        """Set new limits; running queries continue."""
        with self._lock:
            self._fill()
            self._settings = settings
            self._bytes_left = min(self._bytes_left, float(settings.ingest_burst_bytes))

    def take_ingest(self, size_bytes: int) -> None:
        """Count incoming bytes; `Overloaded` when the tenant exceeds its rate."""
        rate = self._settings.ingest_bytes_per_s
        if not rate:
            return
        with self._lock:
            self._fill()
            if self._bytes_left > 0:
                self._bytes_left -= size_bytes
                return
            wait_s = 1 - self._bytes_left / rate
        self.refusals["ingest_bytes_per_s"] += 1
        raise Overloaded(
            "the tenant sends more bytes than its quota allows",
            hint="send less, or later",
            ingest_bytes_per_s=rate,
            retry_after_s=max(1, min(math.ceil(wait_s), RETRY_AFTER_S_MAX)),
        )

    def _fill(self) -> None:
        now_s = self._now_s()
        gained = (now_s - self._filled_s) * self._settings.ingest_bytes_per_s
        self._filled_s = now_s
        burst = float(self._settings.ingest_burst_bytes)
        self._bytes_left = min(self._bytes_left + gained, burst)

    @contextmanager
    def count_query(self) -> Iterator[None]:
        """Count one query while the block runs; `Overloaded` at the limit."""
        with self._lock:
            most = self._settings.queries_max
            if most and self._queries >= most:
                self.refusals["queries_max"] += 1
                raise Overloaded(
                    "the tenant runs as many queries as its quota allows",
                    hint="wait until one ends",
                    queries_max=most,
                    retry_after_s=1,
                )
            self._queries += 1
        try:
            yield
        finally:
            with self._lock:
                self._queries -= 1

    def check_rows(self, rows: int) -> None:
        """Raise `Overloaded` if an answer has more rows than the limit."""
        _check(
            self.refusals,
            "the answer has more rows than the quota allows",
            rows,
            rows_max=self.rows_max,
        )

    def check_tables(self, tables: int) -> None:
        """Raise `Overloaded` for one table too many; `tables` counts the new one."""
        message = "the tenant has as many tables as its quota allows"
        _check(self.refusals, message, tables, tables_max=self.tables_max)

    def check_columns(self, columns: int) -> None:
        """Raise `Overloaded` if a table would have more columns than the limit."""
        most = self._settings.columns_max
        message = "the table would have more columns than the quota allows"
        _check(self.refusals, message, columns, columns_max=most)

    def check_entities(self, entities: int) -> None:
        """Raise `Overloaded` if a table's `entities_max` is above the tenant's limit."""
        message = "the table allows more entities than the quota"
        _check(self.refusals, message, entities, entities_max=self.entities_max)


def _check(refusals: Counter[str], message: str, count: int, **limit: int) -> None:
    name, most = next(iter(limit.items()))
    if most and count > most:
        refusals[name] += 1
        hint = "ask for less, or ask an administrator for a higher quota"
        raise Overloaded(message, hint=hint, retry_after_s=RETRY_AFTER_S_MAX, **limit)


class Quotas:
    """The quotas of all tenants, each created at its first use."""

    def __init__(
        self, settings: NodeSettings | None = None, now_s: Callable[[], float] = clock.monotonic
    ) -> None:
        self._settings = settings or NodeSettings()
        self._now_s = now_s
        self._lock = threading.Lock()
        self._quotas: dict[str, Quota] = {}

    def of(self, tenant: str) -> Quota:
        """Return a tenant's quota; the same object each time."""
        found = self._quotas.get(tenant)
        if found is not None:
            return found
        with self._lock:
            quota = Quota(self._settings.quota_of(tenant), self._now_s)
            return self._quotas.setdefault(tenant, quota)

    def take_ingest(self, tenant: str, size_bytes: int) -> None:
        """Count a tenant's incoming bytes; `Overloaded` when it exceeds its rate."""
        self.of(tenant).take_ingest(size_bytes)

    def refusals(self) -> Counter[str]:
        """Return the number of refusals of all tenants, by the name of their limit."""
        return sum((one.refusals for one in list(self._quotas.values())), Counter())

    def change(self, settings: NodeSettings) -> None:
        """Set new limits for all tenants."""
        with self._lock:
            self._settings = settings
            for tenant, quota in self._quotas.items():
                quota.change(settings.quota_of(tenant))
