"""Times exact reads of entities: cold rows, dirty keys and hot rows, against a raw scan of files.

In:   how many rows are cold, how many keys are dirty
Out:  the section "entities_read" of the results: what exactness costs

- The raw scan is the engine on the same Parquet files, without dirty keys and without deletes: it
  reads what is out of date, and is what a read without any care would cost.
- An exact read takes a snapshot of PostgreSQL, pairs it with the lake's version, hides the dirty
  keys by their places in the files, and adds the hot rows. All of that is timed.
- `quiet` repeats a read with nothing written in between; `busy` writes before each read, and the
  writes are not timed.
- What both read is compared: the exact answer must be that of a plain dict of numbers.
- Cold rows are put into the lake as a compaction would, not through PostgreSQL: five million
  inserts would be timed in vain.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

import measure
from thermocline.cold.change.export_plan import ExportBatch
from thermocline.config import LakeSettings
from thermocline.entity.export import roll_forward
from thermocline.entity.table import EntityTable
from thermocline.format.instant import TimeNs
from thermocline.format.log.commit_note import NoteFlush
from thermocline.hot.postgres.store.operation import Operation, OperationKind
from thermocline.lake import Lake
from thermocline.node import open_lake

TYPE = "thing"
ROWS_PER_EXPORT = 1_000_000
BUSY_WRITES = 100
REST_S = 15
"""Before each task: a virtual machine that has just worked hard may be slowed by its host."""
NARROW_MAX_MS = 80
WIDE_MAX = 1.3
NUMBERS = [f"n{place}" for place in range(8)]
TEXTS = [f"t{place}" for place in range(6)]
CONTRACT = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "x-hot": True},
        "amount": {"type": "integer", "x-hot": True},
        **{name: {"type": "number"} for name in NUMBERS},
        **{name: {"type": "string"} for name in TEXTS},
    },
}
NARROW = "select sum(amount), count(*) from {}"
WIDE = (
    "select sum(amount), count(*), max(status), "
    + ", ".join(f"sum({name})" for name in NUMBERS)
    + ", "
    + ", ".join(f"max({name})" for name in TEXTS)
    + " from {}"
)


TASKS = {"narrow": NARROW, "wide": WIDE}
HEADERS = ["read", "dirty keys", "raw ms", "exact ms", "ratio", "more ms", "raw CPU", "exact CPU"]


@dataclass(frozen=True, slots=True)
class Options:
    """How large the bench is."""

    rows: int
    dirty: int
    turns: int


def main() -> None:
    """Make the entities, time both reads and write the section."""
    parser = measure.options(__doc__ or "")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--dirty", type=int, default=50_000)
    given = parser.parse_args()
    options = Options(given.rows, given.dirty, turns=11)
    if given.quick:
        options = Options(50_000, 500, turns=3)
    with tempfile.TemporaryDirectory(prefix="thermocline-bench-") as folder:
        Path(folder).chmod(0o711)  # the user that runs PostgreSQL walks through it
        settings = LakeSettings(postgres="embedded", export_age_s=1e9, export_changes=10**9)
        noise = measure.Noise(Path(folder))
        with open_lake(f"{folder}/lake", settings) as lake, noise:
            lines, first_ms = measured(lake, options)
    body = "\n\n".join(
        [
            "## Exact reads of entities",
            measure.provenance("entities_read.py", {"duckdb": duckdb.__version__}),
            noise.line(),
            f"{options.rows:,} cold rows; `lake.sql` against the engine on the same files:",
            f"To be met: wide at most {WIDE_MAX} times, narrow within {NARROW_MAX_MS} ms.",
            measure.markdown_table([*HEADERS, ""], lines),
            f"The first read after the keys became dirty took {first_ms:.0f} ms, once.",
        ]
    )
    print(body)
    measure.write_section(given.results, "entities_read", body)


def measured(lake: Lake, options: Options) -> tuple[list[list[str]], float]:
    """Fill the lake and time it; return the table's rows, and how long the first read took."""
    entities = lake.register(TYPE, CONTRACT)
    fill_lake(entities, options.rows)
    lines = compared(lake, entities, 0, options)
    make_dirty(entities, options.rows, options.dirty)
    started = time.perf_counter()
    lake.sql(NARROW.format(TYPE))
    first_ms = (time.perf_counter() - started) * 1000
    lines += compared(lake, entities, options.dirty, options)
    return lines, first_ms


def key(number: int) -> str:
    """Return the key of one row."""
    return f"thing-{number:010d}"


def cold_rows(first: int, count: int, schema: pa.Schema) -> pa.Table:
    """Return rows as an export would carry them."""
    numbers = np.arange(first, first + count)
    made = {
        "_written_at": pa.array(numbers, pa.int64()).cast(schema.field("_written_at").type),
        "_id": pa.array([key(number) for number in numbers.tolist()], pa.string()),
        "_ver": pa.array(np.ones(count, dtype=np.int64)),
        "_schema_version": pa.array(np.ones(count, dtype=np.int32)),
        "status": pa.array(np.array(["open", "paid", "shut"])[numbers % 3]),
        "amount": pa.array(np.ones(count, dtype=np.int64)),
    }
    made |= {name: pa.array((numbers % 1_000) / 8) for name in NUMBERS}
    made |= {name: pa.array(np.char.add("text ", (numbers % 5_000).astype(str))) for name in TEXTS}
    return pa.table([made[field.name].cast(field.type) for field in schema], schema=schema)


def fill_lake(entities: EntityTable, rows: int) -> None:
    """Put rows of amount 1 into the lake, and let PostgreSQL go with them."""
    table = entities.table
    source = entities.source.head().store_id
    for first in range(0, rows, ROWS_PER_EXPORT):
        state = table.state()
        made = cold_rows(first, min(ROWS_PER_EXPORT, rows - first), state.schema.arrow)
        note = NoteFlush(source, 0, TimeNs(0), "")
        keys = made.column("_id").combine_chunks()
        table.commit_export(ExportBatch(state.version, keys, made, note, state))
    roll_forward(entities.source, table)


def make_dirty(entities: EntityTable, rows: int, count: int) -> None:
    """Write every n-th key again, with the amount 3."""
    step = max(rows // max(count, 1), 1)
    numbers = list(range(0, rows, step))[:count]
    texts = dict.fromkeys(TEXTS, "newer")
    document = {"status": "paid", "amount": 3, **dict.fromkeys(NUMBERS, 0.5), **texts}
    for first in range(0, len(numbers), 5_000):
        some = numbers[first : first + 5_000]
        entities.bulk([Operation(OperationKind.REPLACE, key(number), document) for number in some])


class Raw:
    """The query engine on the files of the newest version as they are, with two threads."""

    def __init__(self, entities: EntityTable) -> None:
        self._connection = duckdb.connect(config={"threads": 2})
        self._table = entities.table

    def ask(self, text: str) -> None:
        """Run a query over every file."""
        located = [
            self._table.storage.locate(one.path, one.file_size, one.checksum)
            for one in self._table.state().segments
        ]
        listed = ", ".join(f"'{path}'" for path in located)
        self._connection.execute(text.format(f"read_parquet([{listed}])")).fetchone()


@dataclass(frozen=True, slots=True)
class Took:
    """Medians of some turns: milliseconds on the clock, and of this process's processor time."""

    wall_ms: float
    cpu_ms: float


def timed(work: Callable[[], object], turns: int, before: Callable[[], object]) -> Took:
    """Return what some turns took, after one that is not counted."""
    walls, processor = [], []
    for turn in range(turns + 1):
        before()
        started, cpu = time.perf_counter(), time.process_time()
        work()
        if turn:
            walls.append((time.perf_counter() - started) * 1000)
            processor.append((time.process_time() - cpu) * 1000)
    return Took(statistics.median(walls), statistics.median(processor))


def compared(lake: Lake, entities: EntityTable, dirty: int, options: Options) -> list[list[str]]:
    """Return a row for each task, timed both ways; an answer that is not exact ends the bench."""
    ways: dict[str, Callable[[], object]] = {"quiet": lambda: None}
    if dirty:
        ways["busy"] = lambda: make_dirty(entities, options.rows, BUSY_WRITES)
    raw, lines = Raw(entities), []
    for name, text in TASKS.items():
        asked = text.format(TYPE)
        answer = tuple(lake.sql(asked).to_pylist()[0].values())[:2]
        if answer != (options.rows + 2 * dirty, options.rows):
            sys.exit(f"wrong: {name} with {dirty:,} dirty keys is {answer}")
        time.sleep(REST_S)
        base = timed(lambda text=text: raw.ask(text), options.turns, lambda: None)
        for way, before in ways.items():
            took = timed(lambda asked=asked: lake.sql(asked), options.turns, before)
            more_ms, ratio = took.wall_ms - base.wall_ms, took.wall_ms / base.wall_ms
            walls = [f"{one.wall_ms:.0f}" for one in (base, took)]
            cpu = [f"{one.cpu_ms:.0f}" for one in (base, took)]
            is_met = ratio <= WIDE_MAX if name == "wide" else more_ms <= NARROW_MAX_MS
            met = "met" if is_met else "missed"
            lines.append(
                [
                    f"{name}, {way}",
                    f"{dirty:,}",
                    *walls,
                    f"{ratio:.2f}",
                    f"{more_ms:.0f}",
                    *cpu,
                    met,
                ]
            )
    return lines


if __name__ == "__main__":
    main()
