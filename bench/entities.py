"""Times writing entities against raw inserts of the same rows, and reading pages of them.

In:   documents of 20 attributes, four of them hot
Out:  the section "entities" of the results

- Raw is PostgreSQL alone: the same rows into a table of the same columns and indexes, in the same
  batches, a transaction each, by the driver's `executemany`, which pipelines. It checks nothing,
  notes nothing and knows no versions. `copy` is the quickest way there is, for scale.
- Contenders take turns batch by batch, on one server that syncs every commit.
- At the end every contender must count the same number of rows, or the bench fails.
- Pages are of 100 whole documents, decoded; the cursor is in the middle of the order.
"""

import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

import measure
from measure import Sample, milliseconds
from thermocline.contract.text import encode_text
from thermocline.hot.postgres.cluster import open_server, stop_server
from thermocline.hot.postgres.filter import AllOf, Comparison
from thermocline.hot.postgres.migrate import open_tenant
from thermocline.hot.postgres.operation import Deed, Operation
from thermocline.hot.postgres.pool import Pool
from thermocline.hot.postgres.registry import Registry
from thermocline.hot.postgres.rows import EntityStore

OURS, RAW, COPY = "thermocline", "raw inserts", "raw copy"
BATCH_ROWS = 1_000
SHARE_MIN = 0.5
PAGE_MAX_S = 0.002
PAGE_ROWS = 100
PAGE_TURNS = 200
STATES = ("open", "closed", "late", "lost")
HOT = ("status", "amount", "placed_at", "price")
CONTRACT = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "x-hot": True},
        "amount": {"type": "integer", "x-hot": True},
        "placed_at": {"type": "string", "format": "date-time", "x-hot": True},
        "price": {"type": "string", "x-type": "decimal(18,2)", "x-hot": True},
        "parent": {"type": "string", "x-relation": "thing"},
        **{f"number_{n}": {"type": "number"} for n in range(5)},
        **{f"text_{n}": {"type": "string"} for n in range(5)},
        **{f"count_{n}": {"type": "integer"} for n in range(5)},
    },
    "required": ["status"],
}
INSERT = (
    "insert into raw (id, ver, schema_version, h_1, h_2, h_3, h_4, rest) "
    "values (%s, 1, 1, %s, %s, %s, %s, %s)"
)


def document(rng: random.Random, number: int) -> dict:
    """Return a document of 20 attributes."""
    made = {
        "status": rng.choice(STATES),
        "amount": rng.randrange(1_000_000),
        "placed_at": f"2026-{1 + number % 12:02}-{1 + number % 28:02}T12:00:00Z",
        "price": f"{rng.randrange(100_000) / 100:.2f}",
        "parent": key(rng.randrange(max(number, 1))),
    }
    for n in range(5):
        made[f"number_{n}"] = rng.random()
        made[f"text_{n}"] = f"value {rng.randrange(1_000_000)}"
        made[f"count_{n}"] = rng.randrange(1_000_000_000)
    return made


def key(number: int) -> str:
    """Return the key of the so-many-th entity."""
    return f"id-{number:09}"


def raw_rows(batch: list[tuple[str, dict]]) -> list[tuple]:
    """Return the same rows as they lie in the table."""
    rows = []
    for name, made in batch:
        rest = {field: value for field, value in made.items() if field not in HOT}
        rows.append((name, *(made[field] for field in HOT), encode_text(rest)))
    return rows


class Writers:
    """The contenders, each with a table of its own in one database."""

    def __init__(self, dsn: str) -> None:
        self.pool = Pool(dsn)
        tenant = open_tenant(self.pool, "bench")
        Registry(self.pool, tenant).register("thing", CONTRACT)
        self.store = EntityStore(self.pool, tenant, "thing")
        self.raw = {name: psycopg.connect(dsn, autocommit=True) for name in (RAW, COPY)}
        for name, connection in self.raw.items():
            connection.execute(f"create schema {name.split()[1]} authorization current_user")
            connection.execute(f"set search_path to {name.split()[1]}")
            connection.execute(
                'create table raw (id text collate "C" primary key, ver bigint not null, '
                "schema_version int not null, written_at timestamptz not null default "
                'clock_timestamp(), rest jsonb not null, h_1 text collate "C", h_2 bigint, '
                "h_3 timestamptz, h_4 numeric)"
            )
            for n in range(1, 5):
                connection.execute(f"create index on raw (h_{n}, id)")

    def write(self, name: str, batch: list[tuple[str, dict]]) -> None:
        """Write a batch in one transaction."""
        if name == OURS:
            self.store.bulk([Operation(Deed.CREATE, *one) for one in batch])
            return
        with self.raw[name].transaction(), self.raw[name].cursor() as cursor:
            if name == RAW:
                cursor.executemany(INSERT, raw_rows(batch))
                return
            columns = "(id, h_1, h_2, h_3, h_4, rest, ver, schema_version)"
            with cursor.copy(f"copy raw {columns} from stdin") as copy:
                for row in raw_rows(batch):
                    copy.write_row((*row, 1, 1))

    def count(self, name: str) -> int:
        """Return how many rows a contender has."""
        if name == OURS:
            return self.store.page(with_total=True, limit=1).total or 0
        return self.raw[name].execute("select count(*) from raw").fetchone()[0]

    def close(self) -> None:
        """Let go of every connection."""
        self.pool.close()
        for connection in self.raw.values():
            connection.close()


def write_all(writers: Writers, batches: int, size: int, patience_s: float) -> list[Sample]:
    """Return the samples: every contender writes every batch."""
    rng, samples = random.Random(1), []
    names = (OURS, RAW, COPY)
    for turn, order in measure.orders(names, batches):
        numbers = range(turn * size, (turn + 1) * size)
        batch = [(key(number), document(rng, number)) for number in numbers]
        measure.await_quiet(patience_s)
        for name in order:
            start_s, cpu_s = time.perf_counter(), time.process_time()
            writers.write(name, batch)
            wall_s = time.perf_counter() - start_s
            samples.append(Sample(name, f"{size}", turn, wall_s, time.process_time() - cpu_s))
    return samples


def pages(writers: Writers, turns: int) -> list[tuple[str, float, float]]:
    """Return what a page of 100 takes, by kind: the median and the third quartile."""
    store = writers.store
    store.pool.run(store.tenant, lambda c: c.execute("analyze"))
    middle = store.page(sort=["-amount"], filter=Comparison("amount", "lt", 500_000), limit=1)
    later = store.page(limit=1_000)
    is_open = Comparison("status", "eq", "open")
    large = AllOf((is_open, Comparison("amount", "gt", 100_000)))
    asked: dict[str, Callable[[], object]] = {
        "by key": store.page,
        "by a hot field, from the middle": lambda: store.page(sort=["-amount"], after=middle.after),
        "hot filter and sort": lambda: store.page(large, ["amount"]),
        "hot fields alone": lambda: store.page(sort=["amount"], fields=["status", "amount"]),
        "with those referred to, most of them on it": lambda: store.page(refs=["parent"]),
        "with others referred to": lambda: store.page(after=later.after, refs=["parent"]),
        "counted as well": lambda: store.page(is_open, ["amount"], with_total=True),
    }
    found = []
    for name, ask in asked.items():
        walls = []
        for _ in range(turns):
            start_s = time.perf_counter()
            page = ask()
            walls.append(time.perf_counter() - start_s)
        assert len(page.entities) == PAGE_ROWS
        quarter = statistics.quantiles(walls, n=4)[2]
        found.append((name, statistics.median(walls), quarter))
    return found


def report(samples: list[Sample], size: int) -> tuple[str, str]:
    """Return the table of writers and the line of the target."""
    rows = []
    for name in (OURS, RAW, COPY):
        rate = size / measure.median_s(samples, name)
        share = 1 / measure.ratio(samples, name, RAW)
        rows.append([name, f"{rate:,.0f}", f"{share:.2f}"])
    share = 1 / measure.ratio(samples, OURS, RAW)
    judged = measure.verdict(share, SHARE_MIN, at_most=False)
    line = f"At least {SHARE_MIN} of raw inserts: {share:.2f}, {judged}."
    return measure.markdown_table(["writer", "rows/s", "of raw inserts"], rows), line


def main() -> None:
    """Run the bench and write its section."""
    options = measure.options(__doc__ or "").parse_args()
    batches, turns = (12, 60) if options.quick else (102, PAGE_TURNS)
    folder = Path(tempfile.mkdtemp(prefix="thermocline-bench-"))
    folder.chmod(0o711)  # the user that runs PostgreSQL walks through it
    server = open_server(folder=str(folder / "server"))
    writers = Writers(server.dsn)
    try:
        with measure.Noise(folder) as noise:
            samples = write_all(writers, batches, BATCH_ROWS, options.patience)
            counts = {name: writers.count(name) for name in (OURS, RAW, COPY)}
            if set(counts.values()) != {batches * BATCH_ROWS}:
                sys.exit(f"not the same rows: {counts}")
            read = pages(writers, turns)
            single = write_alone(writers, turns)
    finally:
        writers.close()
        stop_server(str(folder / "server"), mode="immediate")
        shutil.rmtree(folder)
    table, line = report(samples, BATCH_ROWS)
    page_rows = [
        [name, milliseconds(median), milliseconds(third), verdict_of(name, median)]
        for name, median, third in read
    ]
    body = "\n\n".join(
        [
            "## Entities",
            measure.provenance("entities.py", {"psycopg": psycopg.__version__}),
            noise.line(),
            f"Batches of {BATCH_ROWS:,} new entities of 20 attributes, {batches} of them:",
            table,
            line,
            f"One entity a transaction: {single}.",
            f"Pages of {PAGE_ROWS} of {batches * BATCH_ROWS:,} entities, in milliseconds:",
            measure.markdown_table(["page", "median", "3rd quartile", "within 2 ms"], page_rows),
        ]
    )
    print(body)
    measure.write_section(options.results, "entities", body)


def write_alone(writers: Writers, turns: int) -> str:
    """Return what one write in a transaction of its own takes, ours and raw."""
    rng = random.Random(2)
    walls: dict[str, list[float]] = {OURS: [], RAW: []}
    for turn in range(turns):
        for name, taken in walls.items():
            batch = [(f"alone-{turn}", document(rng, turn))]
            start_s = time.perf_counter()
            writers.write(name, batch)
            taken.append(time.perf_counter() - start_s)
    medians = {name: milliseconds(statistics.median(taken)) for name, taken in walls.items()}
    return ", ".join(f"{name} {median} ms" for name, median in medians.items())


def verdict_of(name: str, median_s: float) -> str:
    """Return whether a page is within its limit; counting is not part of the promise."""
    if name == "counted as well":
        return "not asked"
    return measure.verdict(median_s, PAGE_MAX_S, at_most=True)


if __name__ == "__main__":
    main()
