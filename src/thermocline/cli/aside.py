"""A stream read in a thread of its own, so that Ctrl-C is heard while the engine works.

In:   a function that opens a stream of Arrow batches
Out:  the same stream; errors of the thread are raised where it is read

- At most `BATCHES_AHEAD_MAX` batches wait: a slow reader slows the engine down.
- When the reader stops early, the stream is closed in its thread; an engine that is deep in its
  work is waited for no longer than `FAREWELL_S`.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Any

import pyarrow as pa

BATCHES_AHEAD_MAX = 2
FAREWELL_S = 1.0


@contextmanager
def read_aside(opened: Callable[[], pa.RecordBatchReader]) -> Iterator[pa.RecordBatchReader]:
    """Open a stream in a thread, give it to the block, and see to its end when the block ends."""
    pieces: Queue[Any] = Queue(maxsize=BATCHES_AHEAD_MAX)
    stopped = threading.Event()

    def pull() -> None:
        try:
            reader = opened()
            pieces.put(reader.schema)
            for batch in reader:
                pieces.put(batch)
                if stopped.is_set():
                    return
            pieces.put(None)
        except BaseException as error:  # noqa: BLE001  # raised again by whoever reads
            pieces.put(error)

    thread = threading.Thread(target=pull, name="thermocline-sql", daemon=True)
    thread.start()
    try:
        schema = _piece(pieces)
        yield pa.RecordBatchReader.from_batches(schema, iter(lambda: _piece(pieces), None))
    finally:
        stopped.set()
        _drain(pieces)
        thread.join(FAREWELL_S)


def _piece(pieces: "Queue[Any]") -> Any:
    piece = pieces.get()
    if isinstance(piece, BaseException):
        raise piece
    return piece


def _drain(pieces: "Queue[Any]") -> None:
    while True:
        try:
            pieces.get_nowait()
        except Empty:
            return
