"""The watchdog checks every run at its deadline, whatever it was waiting for."""

import threading
import time

from thermocline.query.worker import watchdog as watch_room
from thermocline.query.worker.watchdog import QueryWatchdog


class Looked:
    """A run that has only a deadline, and is over when it is checked after that."""

    def __init__(self, query_id, time_s):
        self.query_id = query_id
        self.deadline_s = time.monotonic() + time_s
        self.is_over = threading.Event()

    def check_deadline(self, now_s):
        if now_s < self.deadline_s:
            return self.deadline_s
        self.is_over.set()
        return None


def test_Q05_a_run_that_comes_while_the_watch_lingers_is_looked_at_in_time(monkeypatch):
    monkeypatch.setattr(watch_room, "LINGER_S", 3_600.0)
    watch = QueryWatchdog()
    first, second = Looked("first", 0.0), Looked("second", 0.5)
    watch.add(first)
    assert first.is_over.wait(60)
    watch.remove(first)
    with watch._changed:
        watch._changed.notify_all()
    time.sleep(0.2)  # until it lingers
    watch.add(second)
    assert second.is_over.wait(60)
    watch.remove(second)
    monkeypatch.undo()
    with watch._changed:
        thread = watch._thread
        watch._changed.notify_all()
    thread.join(60)
    assert not thread.is_alive()
    assert watch._thread is None
