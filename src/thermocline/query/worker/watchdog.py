"""Ends running queries at their deadline, when cancelled, and when their client stops reading.

In:   runs; ids of those to stop, and the reasons
Out:  stopped runs; runs that do not stop are killed

- The watchdog thread checks a run at its deadline, even if no thread waits for its answer.
- Stopping never waits for the query, so any code may call it, even a destructor.
- The watchdog thread runs while there are runs and for `LINGER_S` more, so that an idle pool has no
  thread and can be garbage collected.
"""

import threading
import time

from thermocline.errors import ThermoclineError, Unavailable
from thermocline.query.worker.running_query import QueryRun

LINGER_S = 2.0


class QueryWatchdog:
    """The runs of a pool by id."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # its lock is re-entrant
        self._runs: dict[str, QueryRun] = {}
        self._abandoned: list[QueryRun] = []
        self._thread: threading.Thread | None = None
        self._wakes_at_s = 0.0

    def add(self, run: QueryRun) -> bool:
        """Watch a run from now on; False when a run of its id is watched already."""
        with self._changed:
            if run.query_id in self._runs:
                return False
            self._runs[run.query_id] = run
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch_runs, name="watch", daemon=True)
                self._thread.start()
            elif run.deadline_s < self._wakes_at_s:
                self._changed.notify_all()
            return True

    def remove(self, run: QueryRun) -> None:
        """Stop watching a run that is over."""
        with self._changed:
            if self._runs.get(run.query_id) is run:
                del self._runs[run.query_id]

    def stop(self, query_id: str, reason: ThermoclineError) -> bool:
        """Stop the run of this id; False when no such run exists."""
        with self._changed:
            run = self._runs.get(query_id)
            if run is None:
                return False
            run.stop(reason)
            self._changed.notify_all()
            return True

    def stop_all(self, reason: ThermoclineError) -> None:
        """Stop every run."""
        with self._changed:
            for query_id in list(self._runs):
                self.stop(query_id, reason)
            self._changed.notify_all()

    def abandon(self, run: QueryRun) -> None:
        """Stop a run whose client stopped reading, so that its worker becomes free soon."""
        with self._changed:
            if self._runs.get(run.query_id) is run and not run.is_abandoned:
                run.is_abandoned = True
                hint = "run the query again and read its answer to the end"
                run.stop(Unavailable("the client stopped reading the answer", hint=hint))
                self._abandoned.append(run)
                self._changed.notify_all()

    def _watch_runs(self) -> None:
        with self._changed:
            while True:
                now_s = time.monotonic()
                unread, self._abandoned = self._abandoned, []
                for run in unread:
                    threading.Thread(target=run.drain, name="settle", daemon=True).start()
                had_runs = bool(self._runs)
                times = [run.check_deadline(now_s) for run in list(self._runs.values())]
                # It is set while lingering too, so that a run with an earlier deadline wakes it.
                self._wakes_at_s = min(
                    (at for at in times if at is not None), default=now_s + LINGER_S
                )
                is_told = self._changed.wait(max(0.0, self._wakes_at_s - now_s))
                if not (is_told or had_runs or self._runs):
                    self._thread = None
                    return
