"""Times writing entities against raw inserts of the same rows, and reading pages of them.

In:   documents of 20 attributes, four of them hot
Out:  the section "entities" of the results

- Raw is PostgreSQL alone: the same rows into a table of the same columns and indexes, in the same
  batches, a transaction each, by the driver's `executemany`, which pipelines. It checks nothing,
  notes nothing and knows no versions. `copy` is the quickest way there is, for scale.
- Contenders take turns batch by batch, on one server that syncs every commit.
- At the end every contender must count the same number of rows, or the bench fails.
- Pages are of 100 whole documents, decoded; the cursor is in the middle of the order. Raw is what
  somebody with PostgreSQL alone would ask: the same rows by the driver, in no transaction, by a
  role that may see all; `rest` is decoded, nothing is put together, and what is referred to is
  joined to each row. Both take turns at all kinds of pages, on the rows each of them wrote; a
  turn is ten pages, and their median counts. Before that PostgreSQL has cleaned up after the
  writes, and the machine has rested.
"""

import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson
import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import set_json_loads

import measure
from measure import Sample, milliseconds
from thermocline.contract.document.text import encode_text
from thermocline.hot.postgres.page.page import AllOf, Comparison, Page
from thermocline.hot.postgres.schema.migrate import open_tenant
from thermocline.hot.postgres.schema.registry import TypeRegistry
from thermocline.hot.postgres.server.cluster import PostgresServer, open_server, stop_server
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.store.operation import Operation, OperationKind
from thermocline.hot.postgres.store.store import EntityStore

OURS, RAW, COPY = "thermocline", "raw inserts", "raw copy"
BATCH_ROWS = 1_000
SHARE_MIN = 0.5
PAGE_MAX_S = 0.002
PAGE_ROWS = 100
PAGE_TURNS = 40
PAGES_A_TURN = 10
ALONE_TURNS = 200
REST_S = 30
COUNTED = "counted as well"
OTHERS = "with others referred to"
STATES = ("open", "closed", "late", "lost")
PAGE_HEADERS = ["page", "entities", "median", "3rd quartile", "raw", "times raw", "within 2 ms"]
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
        TypeRegistry(self.pool, tenant).register("thing", CONTRACT)
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
            self.store.bulk([Operation(OperationKind.CREATE, *one) for one in batch])
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


@dataclass(frozen=True, slots=True)
class Asked:
    """A kind of page: how we are asked for it, and PostgreSQL alone."""

    ours: Callable[[], Page]
    raw: str


def kinds(store: EntityStore) -> dict[str, Asked]:
    """Return the kinds of pages by name."""
    middle = store.page(sort=["-amount"], filter=Comparison("amount", "lt", 500_000), limit=1)
    first = middle.entities[0]
    later = store.page(limit=1_000)
    is_open = Comparison("status", "eq", "open")
    large = AllOf((is_open, Comparison("amount", "gt", 100_000)))
    end = f"limit {PAGE_ROWS + 1}"
    whole = "select id, ver, written_at, h_1, h_2, h_3, h_4, rest from raw"
    joined = (
        "select a.id, a.ver, a.written_at, a.h_1, a.h_2, a.h_3, a.h_4, a.rest, "
        "b.id, b.ver, b.written_at, b.h_1, b.h_2, b.h_3, b.h_4, b.rest "
        "from raw as a left join raw as b on b.id = a.rest ->> 'parent'"
    )
    sorted_open = f"{whole} where h_1 = 'open' order by h_2, id {end}"
    return {
        "by key": Asked(store.page, f"{whole} order by id {end}"),
        "by a hot field, from the middle": Asked(
            lambda: store.page(sort=["-amount"], after=middle.after),
            f"{whole} where (h_2, id) < ({first.document['amount']}, '{first.id}') "
            f"order by h_2 desc, id desc {end}",
        ),
        "hot filter and sort": Asked(
            lambda: store.page(large, ["amount"]),
            f"{whole} where h_1 = 'open' and h_2 > 100000 order by h_2, id {end}",
        ),
        "hot fields alone": Asked(
            lambda: store.page(sort=["amount"], fields=["status", "amount"]),
            f"select id, ver, written_at, h_1, h_2 from raw order by h_2, id {end}",
        ),
        "with those referred to, most of them on it": Asked(
            lambda: store.page(refs=["parent"]), f"{joined} order by a.id {end}"
        ),
        OTHERS: Asked(
            lambda: store.page(after=later.after, refs=["parent"]),
            f"{joined} where a.id > '{key(999)}' order by a.id {end}",
        ),
        COUNTED: Asked(
            lambda: store.page(is_open, ["amount"], with_total=True),
            f"with counted as (select count(*) from raw where h_1 = 'open') "
            f"select * from counted, ({sorted_open}) as page",
        ),
    }


def tidied(server: PostgresServer) -> None:
    """Let PostgreSQL do now what it would do in the background after so many writes."""
    database = conninfo_to_dict(server.dsn)["dbname"]
    with psycopg.connect(server.owner_dsn or "", dbname=database, autocommit=True) as connection:
        connection.execute("vacuum (analyze)")
        connection.execute("checkpoint")


def pages(writers: Writers, turns: int) -> list[list[str]]:
    """Return a row of the table for each kind of page."""
    store = writers.store
    connection = writers.raw[RAW]
    set_json_loads(orjson.loads, connection)
    cursor = connection.cursor(binary=True)
    samples: list[Sample] = []
    asked_by_name, entities = kinds(store), {}
    for turn, order in measure.orders((OURS, RAW), turns):
        for name, asked in asked_by_name.items():
            for contender in order:
                walls = []
                for _ in range(PAGES_A_TURN):
                    start_s = time.perf_counter()
                    if contender == OURS:
                        page = asked.ours()
                    else:
                        rows = cursor.execute(asked.raw, prepare=True).fetchall()
                    walls.append(time.perf_counter() - start_s)
                samples.append(Sample(contender, name, turn, statistics.median(walls), 0.0))
            assert len(page.entities) == PAGE_ROWS == len(rows) - 1
            entities[name] = len({one.id for one in page.entities}.union(*page.refs.values()))
    return [page_row(samples, name, count) for name, count in entities.items()]


def page_row(samples: list[Sample], name: str, entities: int) -> list[str]:
    """Return what one kind of page took."""
    ours_s, raw_s = (measure.median_s(samples, contender, name) for contender in (OURS, RAW))
    _, third_s = measure.quartiles_s(samples, OURS, name)
    times = measure.ratio(samples, OURS, RAW, name)
    shown = [milliseconds(one) for one in (ours_s, third_s, raw_s)]
    return [name, f"{entities}", *shown, f"{times:.2f}", verdict_of(name, ours_s)]


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
    batches, turns, alone = (12, 6, 60) if options.quick else (102, PAGE_TURNS, ALONE_TURNS)
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
            tidied(server)
            time.sleep(REST_S)
            read = pages(writers, turns)
            single = write_alone(writers, alone)
    finally:
        writers.close()
        stop_server(str(folder / "server"), mode="immediate")
        shutil.rmtree(folder)
    table, line = report(samples, BATCH_ROWS)
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
            measure.markdown_table(PAGE_HEADERS, read),
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
    """Return whether a page is within its limit.

    Counting is not part of the promise, nor is a second page's worth of other entities.
    """
    if name in (COUNTED, OTHERS):
        return "not asked"
    return measure.verdict(median_s, PAGE_MAX_S, at_most=True)


if __name__ == "__main__":
    main()
