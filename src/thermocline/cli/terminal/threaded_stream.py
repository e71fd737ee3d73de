"""Reads a stream in a separate thread, so that Ctrl-C works while the engine computes.

In:   a function that opens a stream of Arrow batches
Out:  the same stream; errors of the thread are raised where the stream is read

- At most `BATCHES_AHEAD_MAX` batches wait: a slow reader slows down the engine.
- If the reader stops early, the thread closes the stream. The reader waits for a busy engine no
  longer than `JOIN_TIMEOUT_S`.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Any

import pyarrow as pa

BATCHES_AHEAD_MAX = 2
JOIN_TIMEOUT_S = 1.0


@contextmanager
def read_in_thread(opened: Callable[[], pa.RecordBatchReader]) -> Iterator[pa.RecordBatchReader]:
    """Open a stream in a thread, give it to the block, and close it when the block ends."""
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
        except BaseException as error:  # noqa: BLE001  # the reader raises it again
            pieces.put(error)

    thread = threading.Thread(target=pull, name="thermocline-sql", daemon=True)
    thread.start()
    try:
        schema = _take_piece(pieces)
        yield pa.RecordBatchReader.from_batches(schema, iter(lambda: _take_piece(pieces), None))
    finally:
        stopped.set()
        _drain(pieces)
        thread.join(JOIN_TIMEOUT_S)


def _take_piece(pieces: "Queue[Any]") -> Any:
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
