"""A node's alerts: the rules of every lake, evaluated by a clock of the node, with limits.

In:   a node, settings
Out:  alerts of each tenant, until `stop`

- One thread looks for work; evaluations and deliveries run in small pools, at most one of each for
  a lake at a time. So a slow rule delays the other rules of that lake, a slow receiver the other
  deliveries of that lake, and neither delays the other.
- A change of a rule is seen within `LOOK_RULES_S`, or at once if it came through this process.
- A lake without rules and without a history costs one look at its names.
"""

import hashlib
import hmac
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from thermocline.alert.alerter import AlertStatus, LakeAlerts
from thermocline.alert.evaluate import ask_lake
from thermocline.alert.history import HISTORY
from thermocline.alert.rule import Rule, read_rules
from thermocline.alert.rule_book import RULES, read_rule_book
from thermocline.alert.webhook import AllowedHosts, send, target_headers
from thermocline.config import AlertSettings
from thermocline.errors import TableNotFound, ThermoclineError
from thermocline.node import Node

LOOK_S = 1.0
LOOK_RULES_S = 5.0
EVALUATORS = 2
SENDERS = 4
STOP_S_MAX = 5.0
FILE_ORIGIN, BOOK_ORIGIN = "file", "table"
DEFAULT_TENANT = "default"


def tenant_key(signing_key: str, tenant: str) -> bytes:
    """Return the key that signs a tenant's webhooks; empty if the node has none."""
    if not signing_key:
        return b""
    text = f"thermocline alerts {tenant}".encode()
    return hmac.new(signing_key.encode(), text, hashlib.sha256).hexdigest().encode()


class AlertKeeper:
    """The alerts of a node's tenants. Safe to use from any thread."""

    def __init__(
        self, settings: AlertSettings, report: Callable[[str, dict[str, Any]], None]
    ) -> None:
        """`report` receives what an operator should see: an event and its facts."""
        self._settings = settings
        self._report = report
        self._allowed = AllowedHosts.parse(settings.alert_hosts)
        self._lock = threading.Lock()
        self._lakes: dict[str, LakeAlerts] = {}
        self._seen: dict[str, Any] = {}
        self._looked_s: dict[str, float] = {}
        self._busy: dict[tuple[str, str], Future[Any]] = {}
        self._file_rules: list[Rule] = []
        self._troubles: dict[str, str] = {}
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._node: Node | None = None

    @property
    def is_on(self) -> bool:
        """Whether the node evaluates rules."""
        return self._settings.alerts

    def start(self, node: Node) -> None:
        """Evaluate the rules of a node's lakes from now on, unless alerts are turned off."""
        if not self._settings.alerts:
            return
        self._node = node
        if self._settings.alert_rules:
            try:
                self._file_rules = read_rules(self._settings.alert_rules)
            except ThermoclineError as error:
                self._troubles[FILE_ORIGIN] = str(error).splitlines()[0]
                self._report("rules not read", {"why": self._troubles[FILE_ORIGIN]})
        self._evaluating = ThreadPoolExecutor(EVALUATORS, "thermocline-rules")
        self._sending = ThreadPoolExecutor(SENDERS, "thermocline-webhooks")
        self._thread = threading.Thread(target=self._run, name="thermocline-alerts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop; what is outstanding is in the history, and the next start goes on with it."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(STOP_S_MAX)
            self._evaluating.shutdown(wait=False, cancel_futures=True)
            self._sending.shutdown(wait=False, cancel_futures=True)
            end_s = time.monotonic() + STOP_S_MAX
            for one in list(self._busy.values()):
                with suppress(Exception):  # its error was reported where it was raised
                    one.result(max(0.0, end_s - time.monotonic()))

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
                self._troubles.pop("look", None)
            except Exception as error:  # noqa: BLE001  the clock must not stop
                self._troubles["look"] = f"{type(error).__name__}: {error}"[:300]
            self._wake.wait(LOOK_S)
            self._wake.clear()

    def _look(self) -> None:
        assert self._node is not None
        for tenant in self._node.tenants():
            if self._stopping.is_set():
                return
            alerts = self._find_lake(tenant)
            if alerts is None:
                continue
            self._start(("evaluate", tenant), self._evaluating, alerts.evaluate_due)
            if alerts.status().outstanding:
                self._start(("deliver", tenant), self._sending, alerts.deliver_due)

    def _start(
        self, key: tuple[str, str], pool: ThreadPoolExecutor, work: Callable[[], int]
    ) -> None:
        running = self._busy.get(key)
        if running is None or running.done():
            self._busy[key] = pool.submit(self._run_guarded, key, work)

    def _run_guarded(self, key: tuple[str, str], work: Callable[[], int]) -> None:
        try:
            work()
            self._troubles.pop(" ".join(key), None)
        except Exception as error:  # noqa: BLE001  the next round tries again
            self._troubles[" ".join(key)] = f"{type(error).__name__}: {error}"[:300]

    def _find_lake(self, tenant: str) -> LakeAlerts | None:
        """Return the alerts of a tenant after reading changed rules; None for one without any."""
        assert self._node is not None
        lake = self._node.lake(tenant)
        alerts = self._lakes.get(tenant)
        now_s = time.monotonic()
        if now_s - self._looked_s.get(tenant, -LOOK_RULES_S) < LOOK_RULES_S:
            return alerts
        names = {name.lower() for name in lake.tables()}
        mine = self._file_rules if tenant == DEFAULT_TENANT else []
        if alerts is None and not mine and not {RULES, HISTORY} & names:
            self._looked_s[tenant] = now_s
            return None
        seen = self._fingerprint(lake)
        if alerts is None or seen != self._seen.get(tenant):
            book, wrong = read_rule_book(lake)
            limited = dict(list(book.items())[: self._settings.alert_rules_max])
            rules = {name: (rule, BOOK_ORIGIN) for name, rule in limited.items()}
            rules |= {rule.name: (rule, FILE_ORIGIN) for rule in mine}
            if alerts is None:
                alerts = self._open(tenant, lake)
            alerts.set_rules(rules, wrong)
            with self._lock:
                self._lakes[tenant] = alerts
            self._seen[tenant] = seen
        self._looked_s[tenant] = now_s
        return alerts

    def _fingerprint(self, lake: Any) -> tuple[Any, ...]:
        """Return what changes when a rule is written."""
        try:
            table = lake.table(RULES)
        except TableNotFound:
            return ()
        hot = table.snapshot()
        return table.cold.state().version, hot.mark, [part.mark for part in hot.parts]

    def _open(self, tenant: str, lake: Any) -> LakeAlerts:
        key = tenant_key(self._settings.alert_signing_key, tenant)

        def attempt(url: str, body: bytes, delivery_id: str) -> None:
            headers = target_headers(delivery_id, body, key, int(time.time()))
            send(url, body, headers, self._allowed)

        limit_s = self._settings.alert_deadline_s
        return LakeAlerts(lake, attempt, ask_lake(lake, limit_s), deadline_s=limit_s)

    def notice_change(self, tenant: str) -> None:
        """Read the rules of a tenant again at the next look: this process has changed them."""
        self._looked_s.pop(tenant, None)
        self._wake.set()

    def status_of(self, tenant: str) -> AlertStatus:
        """Return the state of a tenant's alerts."""
        with self._lock:
            alerts = self._lakes.get(tenant)
        return AlertStatus() if alerts is None else alerts.status()

    def statuses(self) -> dict[str, AlertStatus]:
        """Return the state of the alerts of every tenant that has some."""
        with self._lock:
            found = dict(self._lakes)
        return {tenant: alerts.status() for tenant, alerts in found.items()}

    def troubles(self) -> list[str]:
        """Return what fails: rules that cannot be evaluated, webhooks that are not delivered."""
        found = [f"{name}: {why}" for name, why in list(self._troubles.items())]
        for tenant, status in self.statuses().items():
            found += [
                f"rule {one.rule.name} of {tenant}: {one.error}"
                for one in status.rules
                if one.error
            ]
            found += [
                f"rule {name} of {tenant}: {why}"
                for name, why in (status.wrong_rules or {}).items()
            ]
        return found
