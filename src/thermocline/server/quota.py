"""What one tenant may take of a node: bytes in, queries at once, rows out, tables, entities.

In:   what a tenant is about to take
Out:  nothing, or `Overloaded` with `retry_after_s`, from 1 to 5

- Bytes are counted by a bucket that fills with the allowed rate, up to a burst. A request larger
  than the burst passes when there is something in the bucket, and is paid back before the next:
  no request is refused for ever, and the rate holds all the same.
- One tenant's use is no other's: each has counters of its own.
- 0 is no limit.
"""

import math
import threading
import time as clock
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from thermocline.config import NodeSettings, QuotaSettings
from thermocline.errors import Overloaded

RETRY_AFTER_S_MAX = 5


class Quota:
    """What one tenant may take, and has taken. Safe to use from any thread."""

    def __init__(
        self, settings: QuotaSettings, now_s: Callable[[], float] = clock.monotonic
    ) -> None:
        self._settings = settings
        self._now_s = now_s
        self._lock = threading.Lock()
        self._bytes_left = float(settings.ingest_burst_bytes)
        self._filled_s = now_s()
        self._queries = 0

    @property
    def settings(self) -> QuotaSettings:
        """The limits as they are now."""
        return self._settings

    @property
    def rows_max(self) -> int:
        """How many rows an answer may have; 0 is no limit."""
        return self._settings.rows_max

    @property
    def tables_max(self) -> int:
        """How many tables there may be; 0 is no limit."""
        return self._settings.tables_max

    @property
    def entities_max(self) -> int:
        """How many entities there may be; 0 is no limit."""
        return self._settings.entities_max

    @property
    def queries(self) -> int:
        """How many queries run now."""
        return self._queries

    def change(self, settings: QuotaSettings) -> None:
        """Take other limits from now on; what runs goes on."""
        with self._lock:
            self._fill()
            self._settings = settings
            self._bytes_left = min(self._bytes_left, float(settings.ingest_burst_bytes))

    def take_ingest(self, size_bytes: int) -> None:
        """Count bytes that come in; `Overloaded` when the tenant sends more than it may."""
        rate = self._settings.ingest_bytes_per_s
        if not rate:
            return
        with self._lock:
            self._fill()
            if self._bytes_left > 0:
                self._bytes_left -= size_bytes
                return
            wait_s = 1 - self._bytes_left / rate
        raise Overloaded(
            "the tenant sends more than it may",
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
    def query(self) -> Iterator[None]:
        """Count one query while the block runs; `Overloaded` when as many run as may."""
        with self._lock:
            most = self._settings.queries_max
            if most and self._queries >= most:
                raise Overloaded(
                    "as many queries of the tenant run as may",
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
        """Refuse an answer that has grown past the limit."""
        _check("the answer has more rows than the tenant may ask for", rows, rows_max=self.rows_max)

    def check_tables(self, tables: int) -> None:
        """Refuse one more table than the limit; `tables` is how many there will be."""
        _check("the tenant has as many tables as it may", tables, tables_max=self.tables_max)

    def check_entities(self, entities: int) -> None:
        """Refuse a table with room for more entities than the limit."""
        _check("a table may not have so many entities", entities, entities_max=self.entities_max)


def _check(message: str, count: int, **limit: int) -> None:
    most = next(iter(limit.values()))
    if most and count > most:
        hint = "ask for less, or an administrator for more"
        raise Overloaded(message, hint=hint, retry_after_s=RETRY_AFTER_S_MAX, **limit)


class Quotas:
    """The quotas of all tenants, made when first asked for."""

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
        """Count bytes that come in for a tenant; `Overloaded` when it sends more than it may."""
        self.of(tenant).take_ingest(size_bytes)

    def query(self, tenant: str) -> AbstractContextManager[None]:
        """Count one query of a tenant while the block runs; `Overloaded` at the limit."""
        return self.of(tenant).query()

    def change(self, settings: NodeSettings) -> None:
        """Take other limits for everybody from now on."""
        with self._lock:
            self._settings = settings
            for tenant, quota in self._quotas.items():
                quota.change(settings.quota_of(tenant))
