"""The care process: rounds of care until its parent ends or asks it to stop.

In:   a data folder and settings as JSON
Out:  one line of JSON on standard output for each task that has ended, and one after each round

- It runs at the lowest priority, with one thread of Arrow's, and with a hard memory limit.
- It ends when its standard input is closed, so it never outlives the node: the running task may
  finish for `STOP_S`, and then the process ends. A task that is cut off leaves nothing or one
  commit, as every job does.
"""

import json
import os
import sys
import threading
from dataclasses import asdict
from typing import Any

from thermocline.care.rounds import CareRounds, event_fields
from thermocline.config import CareSettings
from thermocline.errors import ThermoclineError
from thermocline.query.worker.memory_limit import set_memory_limit

NICENESS = 19
STOP_S = 5.0


def serve(given: str) -> None:
    """Run rounds until standard input ends. For the process that `CareKeeper` starts."""
    asked = json.loads(given)
    settings = CareSettings(**asked["settings"])
    os.nice(NICENESS)
    stopping = threading.Event()
    threading.Thread(target=_wait_for_end, args=(stopping,), daemon=True).start()
    rounds = CareRounds(asked["root"], settings, is_stopping=stopping.is_set)
    set_memory_limit(settings.care_memory_bytes)
    while not stopping.is_set():
        try:
            for event in rounds.run():
                _report({"event": event_fields(event)})
            _report({"sums": asdict(rounds.sums())})
        except ThermoclineError as error:
            _report({"error": error.message})
        stopping.wait(settings.care_every_s)
    rounds.close()


def _report(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _wait_for_end(stopping: threading.Event) -> None:
    sys.stdin.buffer.read()
    stopping.set()
    timer = threading.Timer(STOP_S, lambda: os._exit(0))
    timer.daemon = True
    timer.start()
