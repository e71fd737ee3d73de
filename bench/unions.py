"""The contender of the union bench: a lake with rows hot, cold, or both.

In:   days of trips as Parquet files, how many bytes shall be hot, what to do with the lake
Out:  answers, kept here to be compared; counts of what was written or brought back

- Hot rows come in small writes, queued one behind another, so that filling takes seconds and the
  journal has the same frames as after single calls.
- `hot_bytes` are bytes of Arrow memory, as the lake itself counts them against its ceiling. That
  is set out of the way: a lake with the default of 64 MB begins to flush at half of it.
- Group commit is timed on the whole way of a write, and on the journal alone with rows that are
  ready for it.
"""

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TABLE = "trips"
TIME_COLUMN = "pickup_datetime"
SETTINGS: dict[str, Any] = {"hot_bytes_max": 1 << 30, "flush_age_s": 86_400.0}
WAITING_MAX = 256


class Thermocline:
    """A lake in this process."""

    def __init__(self) -> None:
        import thermocline

        self._library = thermocline
        self._lake: Any = None
        self._answer: pa.Table | None = None
        self._rows: Iterator[pa.RecordBatch] = iter(())
        self._grown_bytes = 0
        atexit.register(self.leave)

    def make(self, root: str, cold: list[str]) -> None:
        """Make a lake with a table, and append whole days to it."""
        # The operating system may sync when it likes: what is filled here is not timed.
        self._lake = self._library.connect(root, sync="os", **SETTINGS)
        table = self._lake.create_table(TABLE, time_column=TIME_COLUMN, bucket="1h")
        for path in cold:
            table.append_parquet(path)

    def grow(self, path: str, rows_a_write: int, hot_bytes: int) -> dict[str, int]:
        """Write rows of a day until so many bytes are hot; later calls go on with the day."""
        from thermocline.ingest.rows import fit_rows

        table = self._lake.table(TABLE)
        writes = 0
        if not self._grown_bytes:
            day = pq.read_table(path)
            self._rows = iter(day.combine_chunks().to_batches(max_chunksize=rows_a_write))
            first = next(self._rows)
            table.write(pa.Table.from_batches([first]))
            self._grown_bytes, writes = first.nbytes, 1
        state, hot = table.cold.state(), table.hot()
        waiting: list[Any] = []
        # By the bytes handed over, not by what the lake counts while some are on their way: two
        # lakes that are compared must get the same rows.
        while self._grown_bytes < hot_bytes:
            rows = pa.Table.from_batches([next(self._rows)])
            batch = fit_rows(rows, state.schema, state.spec)
            waiting.append(hot.submit(state.schema_id, batch))
            self._grown_bytes += batch.nbytes
            writes += 1
            if len(waiting) >= WAITING_MAX:
                _finish(waiting)
        _finish(waiting)
        snapshot = table.snapshot()
        return {
            "writes": writes,
            "parts": len(snapshot.parts),
            "rows": sum(part.batch.num_rows for part in snapshot.parts),
            "hot_bytes": self._lake.tier.hot_bytes,
        }

    def flush(self) -> None:
        """Make everything cold."""
        self._lake.flush()

    def leave(self) -> None:
        """Close the lake and leave its hot rows in the journal."""
        lake, self._lake = self._lake, None
        if lake is not None:
            lake.close(flush=False)

    def open(self, root: str) -> int:
        """Open a lake and return how many rows its journal brought back."""
        self._lake = self._library.connect(root, **SETTINGS)
        return int(self._lake.tier.recovery_report.rows)

    def frames(self) -> int:
        """Return how many writes the journal brought back."""
        return int(self._lake.tier.recovery_report.frames)

    def run(self, text: str) -> int:
        """Answer one query and return its number of rows."""
        self._answer = self._lake.sql(text)
        return len(self._answer)

    def forget(self) -> None:
        """Let go of the last answer, so that freeing it is nobody's time."""
        self._answer = None

    def keep(self, path: str) -> None:
        """Write the last answer into an Arrow file."""
        assert self._answer is not None
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, self._answer.schema) as writer:
            writer.write_table(self._answer)

    def snapshots(self, count: int) -> int:
        """Take so many exact views, one after another; return the parts of the last."""
        from thermocline.snapshot import resolve_view

        table = self._lake.table(TABLE)
        for _ in range(count):
            view = resolve_view(table.snapshot(), table.cold)
        return len(view.parts)

    def prepare(self, count: int) -> None:
        """Take so many queries up to where the engine would begin to read rows."""
        session = self._lake._open_session()  # noqa: SLF001  to prepare and not run has no public face
        for _ in range(count):
            with session._open_query(f"select * from {TABLE}", None):  # noqa: SLF001
                pass

    def write(self, threads: int, seconds: float, rows: int, *, way: str, alone: bool) -> float:
        """Write from many threads with a sync before each answer; return the writes a second.

        `way` is "lake" for whole writes, "journal" for rows that are ready for it. With `alone`
        one caller at a time is let in, so that each write has its own sync.
        """
        table = self._lake.table(TABLE)
        state, hot = table.cold.state(), table.hot()
        batch = table.snapshot().parts[0].batch.slice(0, rows)
        given = pa.Table.from_batches([batch])
        door = threading.Lock() if alone else nullcontext()
        end_s = time.perf_counter() + seconds
        counts = [0] * threads

        def work(place: int) -> None:
            while time.perf_counter() < end_s:
                with door:
                    if way == "lake":
                        table.write(given)
                    else:
                        hot.submit(state.schema_id, batch).result()
                counts[place] += 1

        workers = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
        start_s = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(counts) / (time.perf_counter() - start_s)


def _finish(waiting: list[Any]) -> None:
    for future in waiting:
        future.result()
    waiting.clear()


CONTENDERS: dict[str, Callable[[], Thermocline]] = {"thermocline": Thermocline}
