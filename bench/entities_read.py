"""Times exact reads of entities: cold rows, dirty keys and hot rows, against a raw scan of files.

In:   how many rows are cold, how many keys are dirty
Out:  a table on stdout: medians in milliseconds, and what exactness costs

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

import argparse
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

from thermocline.entity.export import roll_forward
from thermocline.entity.table import EntityTable
from thermocline.entity.type import EntityTypes
from thermocline.format.instant import TimeNs
from thermocline.format.note import NoteFlush
from thermocline.hot.postgres.cluster import open_server, stop_server
from thermocline.hot.postgres.migrate import open_tenant
from thermocline.hot.postgres.operation import Deed, Operation
from thermocline.hot.postgres.pool import Pool
from thermocline.lake.catalog import Catalog
from thermocline.lake.keyed import HiddenPlaces
from thermocline.lake.supersede import Superseded
from thermocline.query.scan import Relation, relation

ROWS_PER_EXPORT = 1_000_000
BUSY_WRITES = 100
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


def main(arguments: list[str]) -> int:
    """Make the entities, time both reads, print the table; 1 when an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--dirty", type=int, default=50_000)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as temporary:
        folder = Path(temporary)
        folder.chmod(0o711)
        server = open_server(folder=str(folder / "postgres"))
        pool = Pool(server.dsn)
        try:
            types = EntityTypes(pool, open_tenant(pool, "bench"), Catalog(str(folder / "lake")))
            entities = types.register("thing", CONTRACT)
            fill_lake(entities, chosen.rows)
            return compared(entities, chosen.rows, chosen.dirty, chosen.turns)
        finally:
            pool.close()
            stop_server(str(folder / "postgres"), mode="immediate")


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
        table.supersede(Superseded(state.version, keys, made, note, state))
    roll_forward(entities.source, table)


def make_dirty(entities: EntityTable, rows: int, count: int) -> None:
    """Write every n-th key again, with the amount 3."""
    step = max(rows // max(count, 1), 1)
    numbers = list(range(0, rows, step))[:count]
    texts = dict.fromkeys(TEXTS, "newer")
    document = {"status": "paid", "amount": 3, **dict.fromkeys(NUMBERS, 0.5), **texts}
    for first in range(0, len(numbers), 5_000):
        some = numbers[first : first + 5_000]
        entities.bulk([Operation(Deed.REPLACE, key(number), document) for number in some])


class Engine:
    """The query engine on a connection of its own, with two threads."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(config={"threads": 2})

    def ask(self, text: str, made: Relation) -> tuple[object, ...]:
        """Return the only row of a query of one relation."""
        for name, bits in made.bits.items():
            self._connection.execute(f'SET VARIABLE "{name}" = $1::BLOB::BIT', [bits])
        for name, rows in made.rows.items():
            self._connection.register(name, rows)
        found = self._connection.execute(text.format(made.item)).fetchone()
        assert found is not None
        return found


def raw(entities: EntityTable, engine: Engine, text: str) -> tuple[object, ...]:
    """Read every file of the newest version as it is."""
    table = entities.table
    paths = [table.storage.locate(s.path, s.file_size) for s in table.state().segments]
    listed = ", ".join(f"'{path}'" for path in paths)
    item = f"read_parquet([{listed}])"
    return engine.ask(text, Relation(item, item))


def exact(
    entities: EntityTable, engine: Engine, places: HiddenPlaces, text: str
) -> tuple[object, ...]:
    """Read what is committed now."""
    view = entities.view()
    state = places.state(view)
    storage = entities.table.storage
    needed = frozenset(column.name for column in state.schema.columns if column.name in text)
    made = relation(
        state,
        list(state.segments),
        lambda segment: storage.locate(segment.path, segment.file_size),
        lambda segment: pa.table({}),
        "bench_",
        needed,
        view.rows if view.rows.num_rows else None,
    )
    return engine.ask(text, made)


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


HEADER = (
    "| read | dirty keys | raw ms | exact ms | ratio | more ms | raw cpu ms | exact cpu ms |\n"
    "|---|---|---|---|---|---|---|---|"
)


def compared(entities: EntityTable, rows: int, dirty: int, turns: int) -> int:
    """Time every task both ways and print the table; 1 when an answer is wrong."""
    engine, places = Engine(), HiddenPlaces(entities.table.storage)
    print(f"{rows:,} cold rows; medians of {turns}; DuckDB {duckdb.__version__}, 2 threads")
    print(f"to be met: wide at most {WIDE_MAX} times, narrow within {NARROW_MAX_MS} ms")
    print(HEADER)
    is_right = _compared(entities, engine, places, turns, rows, 0)
    make_dirty(entities, rows, dirty)
    started = time.perf_counter()
    places.state(entities.view())
    first_ms = (time.perf_counter() - started) * 1000
    is_right &= _compared(entities, engine, places, turns, rows, dirty)
    print(f"the first read after the keys became dirty: {first_ms:.0f} ms more, once")
    return 0 if is_right else 1


def _compared(
    entities: EntityTable, engine: Engine, places: HiddenPlaces, turns: int, rows: int, dirty: int
) -> bool:
    """Print a line for each task; return whether every answer was exact."""
    is_right = True
    ways: dict[str, Callable[[], object]] = {"quiet": lambda: None}
    if dirty:
        ways["busy"] = lambda: make_dirty(entities, rows, BUSY_WRITES)
    for name, text in TASKS.items():
        answer = exact(entities, engine, places, text)[:2]
        if answer != (rows + 2 * dirty, rows):
            print(f"wrong: {name} with {dirty:,} dirty keys is {answer}")
            is_right = False
        base = timed(lambda text=text: raw(entities, engine, text), turns, lambda: None)
        for way, before in ways.items():
            took = timed(lambda text=text: exact(entities, engine, places, text), turns, before)
            more = took.wall_ms - base.wall_ms
            print(
                f"| {name}, {way} | {dirty:,} | {base.wall_ms:.0f} | {took.wall_ms:.0f} "
                f"| {took.wall_ms / base.wall_ms:.2f} | {more:.0f} "
                f"| {base.cpu_ms:.0f} | {took.cpu_ms:.0f} |"
            )
    return is_right


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
