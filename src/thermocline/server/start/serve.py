"""Runs a node: opens it, starts its listeners, checks its health, and stops it without data loss.

In:   settings; signals
Out:  four listeners on one event loop; an exit code

- The listeners answer from the start. While the journal is replayed, which may take seconds, they
  answer 503 with `Retry-After`, and health reports the progress.
- SIGTERM or SIGINT: the node refuses new requests, answers those in progress or asks the client to
  retry, and flushes hot rows, all within `stop_deadline_s`. A second signal stops it at once. Both
  are safe: acknowledged rows are in the journal. SIGHUP reads keys, quotas and the certificate
  again.
- Work that does not end in time is left to the end of the process; the node does not wait for it.
"""

import asyncio
import os
import signal
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from thermocline.alert.keeper import AlertKeeper
from thermocline.care.keeper import CareKeeper
from thermocline.cold.storage.open_storage import is_store_address
from thermocline.config import NodeSettings
from thermocline.errors import ThermoclineError
from thermocline.extras import require_extra
from thermocline.node import Node
from thermocline.server.access.audit import Audit
from thermocline.server.access.guard import (
    Guard,
    NodeGateway,
    check_exposure,
    exposed_listeners,
)
from thermocline.server.access.keys import KeyStore
from thermocline.server.access.quota import Quotas
from thermocline.server.observe.health import Health
from thermocline.server.observe.log import EventLog
from thermocline.server.observe.metrics import Metrics
from thermocline.server.observe.systemd import Notifier
from thermocline.server.otlp.ingest_queue import IngestQueue
from thermocline.server.start.certificate import TlsCertificate
from thermocline.server.start.listeners import BoundListener, make_listeners
from thermocline.server.start.startup_checks import (
    check_identity,
    check_unlocked,
    forward_logging,
    journal_bytes,
    open_node,
    prepare_process,
)

HEALTH_CHECK_S = 1.0
USES_S = 30.0
OPENING_WAIT_S = 1.0
FAST_DEADLINE_S = 2.0
SCRAPE_KEEP_S = 0.25
CLOSE_S = 5.0
CARE_STOP_S = 10.0

ReadSettings = Callable[[], NodeSettings]


class NodeServer:
    """One node and its listeners. `run` returns after a signal to stop."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        reread: ReadSettings | None = None,
        log: EventLog | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        """`reread` returns the current settings, for a reload."""
        root = os.path.abspath(settings.data)
        place = settings.lake_url
        if place and not is_store_address(place):
            place = os.path.abspath(place)
        self.settings = replace(settings, data=root, lake_url=place)
        self._reread = reread
        self.log = log or EventLog()
        self._notifier = notifier or Notifier()
        self.health = Health()
        self.metrics = Metrics(keep_s=SCRAPE_KEEP_S)
        self.audit = Audit(root, self.log)
        self.store = KeyStore(root)
        may_be_open = settings.allow_insecure or not exposed_listeners(settings)
        self.guard = Guard(self.store, self.audit, self.log, may_be_open=may_be_open)
        self.quotas = Quotas(self.settings)
        self.care = CareKeeper(self.settings.lake_place, settings.care, self._on_care)
        self.alerts = AlertKeeper(settings.alert, self._on_alerts)
        self.gateway = NodeGateway(self.guard)
        self.certificate: TlsCertificate | None = None
        self.listeners: dict[str, BoundListener] = {}
        self._queue: IngestQueue | None = None
        self.is_clean = True
        self._stops = 0
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS context of the HTTP listeners; None without a certificate."""
        return None if self.certificate is None else self.certificate.context

    async def run(self) -> int:
        """Serve until a signal stops the node; return the exit code.

        If the node cannot start, this stops what had started and raises the error.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_error)
        self._check()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, signal.Signals(number).name)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        watching: asyncio.Task[None] | None = None
        opening: Future[Node] | None = None
        try:
            await self._listen()
            opening = self._start_opening()
            node = await self._await_node(opening)
            if node is not None:
                watching = loop.create_task(self._watch())
                await self._stop.wait()
        finally:
            self.health.report_stopping()
            self._notifier.send("STOPPING=1")
            if watching is not None:
                watching.cancel()
            await self._shut_down(opening)
        self.log.event("stopped", is_clean=self.is_clean)
        return 0

    def _check(self) -> None:
        """Make every check that needs no open node or listener."""
        valid = any(key.revoked_ns is None for key in self.store.read_at_start().by_id.values())
        check_exposure(self.settings, has_keys=valid)
        if self.settings.tls_certificate:
            self.certificate = TlsCertificate(self.settings)
        check_identity(self.settings)
        check_unlocked(self.settings)

    async def _listen(self) -> None:
        """Start the listeners; `run` stops those already started when one fails."""
        queue, listeners = make_listeners(self)
        if queue is not None:
            await queue.start()
            self._queue = queue
        for name, listener in listeners.items():
            await listener.start()
            self.listeners[name] = listener
        ports = {name: one.port for name, one in self.listeners.items()}
        where: dict[str, Any] = {"process": os.getpid(), "data": self.settings.data}
        if self.settings.lake_url:
            where["lake"] = self.settings.lake_url
        if self.settings.api is not None:
            scheme = "https" if self.settings.tls_certificate else "http"
            where["console"] = f"{scheme}://{self.settings.api.host}:{ports['api']}/"
        self.log.event("listening", **where, **ports)

    def _start_opening(self) -> "Future[Node]":
        """Open the node in a daemon thread, which the end of the process does not wait for."""
        future: Future[Node] = Future()
        future.set_running_or_notify_cancel()
        self.health.report_phase(
            "replaying the journal", journal_bytes=journal_bytes(self.settings.data)
        )

        def run() -> None:
            try:
                api = self.listeners.get("api")
                future.set_result(open_node(self.settings, None if api is None else api.port))
            except BaseException as error:  # noqa: BLE001  the waiting task gets it
                future.set_exception(error)

        threading.Thread(target=run, name="thermocline-open", daemon=True).start()
        return future

    async def _await_node(self, opening: "Future[Node]") -> Node | None:
        """Wait for the open node and publish it; None when a signal to stop comes first."""
        wrapped = asyncio.wrap_future(opening)
        stop = asyncio.ensure_future(self._stop.wait())
        both: set[asyncio.Future[Any]] = {wrapped, stop}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not wrapped.done():
            return None
        try:
            node = wrapped.result()
        except ThermoclineError as error:
            self.health.report_failure(error)
            self.log.error("start failed", error=error)
            raise
        self.gateway.open(node)
        self.care.start()
        self.alerts.start(node)
        self.metrics.watch(node, lambda: self.health.ready().is_ok, self.care.status)
        self.metrics.watch_alerts(self.alerts.statuses)
        self.health.watch_care(self.care.status)
        self.health.watch_alerts(self.alerts.troubles)
        self.health.report_started(node)
        recovered = node.recovered
        self.log.event("ready", next_lsn=node.tier.next_lsn, holes=len(recovered.holes))
        if node.tier.quarantined_count:
            aside = {"files": node.tier.quarantined_count, "frames": len(recovered.quarantined)}
            self.log.event("rows in quarantine", **aside, do="thermocline journal inspect")
        self._notifier.send("READY=1", "STATUS=ready")
        return node

    async def _watch(self) -> None:
        """Check the node's health and write the uses of keys periodically, until cancelled."""
        was_ready, passed_s = True, 0.0
        period_s = min(HEALTH_CHECK_S, self._notifier.watchdog_s or HEALTH_CHECK_S)
        while True:
            await asyncio.sleep(period_s)
            passed_s += period_s
            ready = await asyncio.to_thread(self.health.check)
            self._notifier.send("WATCHDOG=1")
            if ready.is_ok != was_ready:
                was_ready = ready.is_ok
                self.log.event("ready again" if was_ready else "not ready", why=ready.reasons)
            if passed_s >= USES_S:
                passed_s = 0.0
                await asyncio.to_thread(self._write_uses)

    def _write_uses(self) -> None:
        try:
            self.guard.write_uses()
        except ThermoclineError as error:
            self.log.error("uses of keys not written", error=error)

    async def _shut_down(self, opening: "Future[Node] | None") -> None:
        """Stop the listeners, then the node; abandon what passes the deadline."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + (FAST_DEADLINE_S if self._is_hurried else self._deadline_s)
        await self._stop_in_time(
            [one.stop(self._time_left(end_s)) for one in self.listeners.values()], end_s
        )
        if self._queue is not None:
            await self._stop_in_time([self._queue.stop(self._time_left(end_s))], end_s)
        await self._shut_down_node(opening, end_s)
        if any(one.parts is not None and one.parts.is_busy for one in self.listeners.values()):
            self.is_clean = False  # the interpreter would wait for the thread without a limit
            self.log.event("work not ended", why="a thread of the API is still busy")

    async def _shut_down_node(self, opening: "Future[Node] | None", end_s: float) -> None:
        if opening is None:
            return
        if not opening.done():
            await asyncio.wait({asyncio.wrap_future(opening)}, timeout=OPENING_WAIT_S)
        if not opening.done():
            self.is_clean = False  # an interrupted replay is safe: the next start repeats it
            return
        if opening.exception() is None:
            await self._close_node(opening.result(), end_s)

    def _on_care(self, event: dict[str, Any]) -> None:
        """Write a line for a task of care that failed or changed a table."""
        if event["state"] in ("done", "failed"):
            self.log.event("care", **{name: value for name, value in event.items() if value})

    def _on_alerts(self, event: str, facts: dict[str, Any]) -> None:
        self.log.event(event, **facts)

    async def _close_node(self, node: Node, end_s: float) -> None:
        await self._run_in_thread(self.care.stop, CARE_STOP_S, "care not ended")
        await self._run_in_thread(self.alerts.stop, CARE_STOP_S, "alerts not ended")
        if not self._is_hurried:
            await self._run_in_thread(node.flush, self._time_left(end_s), "rows not flushed")
        await self._run_in_thread(self._write_uses, FAST_DEADLINE_S, "uses of keys not written")
        self.gateway.close()
        await self._run_in_thread(lambda: node.close(flush=False), CLOSE_S, "node not closed")

    async def _run_in_thread(self, work: Callable[[], Any], wait_s: float, trouble: str) -> None:
        """Run blocking work in a thread, for a bounded time or until a second signal."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                work()
                future.set_result(None)
            except BaseException as error:  # noqa: BLE001  it is logged below
                future.set_exception(error)

        threading.Thread(target=run, name="thermocline-stop", daemon=True).start()
        await self._wait_for_all({asyncio.wrap_future(future)}, wait_s)
        if not future.done():
            self.is_clean = False
            self.log.event(trouble, why="the deadline has passed; the journal has every row")
        elif (error := future.exception()) is not None:
            self.log.error(trouble, error=error)

    async def _stop_in_time(self, stops: list[Any], end_s: float) -> None:
        tasks = {asyncio.ensure_future(one) for one in stops}
        if tasks:
            await self._wait_for_all(tasks, self._time_left(end_s) + FAST_DEADLINE_S)
        for task in tasks:
            if not task.done():
                self.is_clean = False
                task.cancel()
            elif not task.cancelled() and (error := task.exception()) is not None:
                self.log.error("listener not stopped", error=error)

    async def _wait_for_all(self, tasks: "set[asyncio.Future[Any]]", wait_s: float) -> None:
        """Wait until all are done, the time is over, or a second signal comes."""
        every = asyncio.ensure_future(asyncio.wait(tasks))
        hurry = asyncio.ensure_future(self._hurry.wait())
        wait_s = min(wait_s, FAST_DEADLINE_S) if self._is_hurried else wait_s
        waited = {every} if self._is_hurried else {every, hurry}
        await asyncio.wait(waited, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        if self._is_hurried and not every.done():
            await asyncio.wait({every}, timeout=FAST_DEADLINE_S)
        hurry.cancel()
        every.cancel()

    @property
    def _is_hurried(self) -> bool:
        return self._hurry.is_set()

    @property
    def _deadline_s(self) -> float:
        return self.settings.stop_deadline_s

    def _time_left(self, end_s: float) -> float:
        return max(0.05, end_s - asyncio.get_running_loop().time())

    def stop(self) -> None:
        """Stop as a signal would; a second call stops at once."""
        self._on_stop("stop")

    def _on_stop(self, name: str) -> None:
        self._stops += 1
        self.log.event("stopping", signal=name, is_hurried=self._stops > 1)
        self.health.report_stopping()
        self._stop.set()
        if self._stops > 1:
            self._hurry.set()

    def _on_reload(self) -> None:
        self._notifier.send("RELOADING=1")
        try:
            self.guard.reload()
            if self._reread is not None:
                self._apply_settings(self._reread())
            if self.certificate is not None:
                self.certificate.reload()
            self.log.event("reloaded")
        except Exception as error:  # noqa: BLE001  systemd waits for `READY` even then
            self.log.error("not reloaded", error=error)
        self._notifier.send("READY=1")

    def _apply_settings(self, new: NodeSettings) -> None:
        self.quotas.change(new)
        now = {one["setting"]: one["value"] for one in self.settings.describe()}
        later = [
            one["setting"]
            for one in new.describe()
            if now.get(one["setting"], one["value"]) != one["value"]
            and not hasattr(new.quota, one["setting"])
            and one["setting"] != "data"
        ]
        if later:
            self.log.event("settings wait for a restart", settings=later)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:  # noqa: ARG002
        error = context.get("exception")
        self.log.event("event loop", message=context.get("message"), error=repr(error))


def serve(settings: NodeSettings, *, reread: ReadSettings | None = None) -> int:
    """Serve a node in this process until a signal stops it; return the exit code.

    `Conflict` when another process uses the data folder or an address; `Invalid` for settings that
    cannot work. If something did not end in time, this does not return: the process exits.
    """
    with require_extra("server", feature="serving a node"):
        import uvloop
    prepare_process()
    log = EventLog()

    async def run() -> tuple[int, bool]:
        server = NodeServer(settings, reread=reread, log=log)
        return await server.run(), server.is_clean

    new_loop = uvloop.new_event_loop
    with forward_logging(log), asyncio.Runner(loop_factory=new_loop) as runner:
        code, is_clean = runner.run(run())
        log.flush()
        if not is_clean:
            os._exit(code)
    return code
