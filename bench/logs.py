"""Search of log lines: a rare word with and without the token index, in one run.

    python bench/logs.py [--quick] [--lines 1000000] [--segments 50]

Both tables have the same rows; one has an index. Every answer is compared with the other table's.
Times are the processor's, of this process, and the least of some tries.
"""

import argparse
import random
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from thermocline.query.session import Session
from thermocline.table import TimeSeriesTable

LINES, SEGMENTS, TRIES = 1_000_000, 50, 5
START = datetime(2026, 1, 1, tzinfo=UTC)
RARE = "3f9c2a771be04d55"
METHODS, STATUSES = ["GET", "POST"], [200, 200, 404, 503]
PATHS = ["/cart", "/cart/items", "/checkout", "/login", "/search", "/static/app.js"]


def some_lines(chance: random.Random, count: int) -> list[str]:
    """Return lines as services write them: words that repeat, numbers and ids that do not."""
    return [
        f"{chance.choice(METHODS)} {chance.choice(PATHS)} status={chance.choice(STATUSES)} "
        f"took {chance.randrange(20_000) / 10} ms user {chance.randrange(200_000)} "
        f"request {chance.getrandbits(64):016x} pod web-{chance.randrange(40)}"
        for _ in range(count)
    ]


def build(folder: Path, lines: int, segments: int) -> dict[str, TimeSeriesTable]:
    """Make the two tables; the rare word is in one line of one segment."""
    tables = {
        name: TimeSeriesTable.create(
            folder / name, time_column="ts", bucket="1h", overlap="allow", token_columns=columns
        )
        for name, columns in (("indexed", ["body"]), ("plain", []))
    }
    chance, each = random.Random(1), lines // segments
    took = dict.fromkeys(tables, 0.0)
    for place in range(segments):
        body = some_lines(chance, each)
        if place == segments // 2:
            body[each // 2] += f" trace {RARE}"
        first = START + timedelta(hours=place)
        times = pa.array(
            [first + timedelta(milliseconds=n) for n in range(each)], pa.timestamp("us", "UTC")
        )
        rows = pa.table({"ts": times, "body": pa.array(body)})
        for name, table in tables.items():
            begun = time.process_time()
            table.append(rows)
            took[name] += time.process_time() - begun
    more_us = (took["indexed"] - took["plain"]) / lines * 1e6
    print(f"write: {more_us:.2f} us a line more with the index")
    return tables


def share_of(table: TimeSeriesTable) -> float:
    """Return the bytes of the sidecars as a share of those of the Parquet files."""
    live = list(table.cold.state().segments)
    return sum(one.tokens_size for one in live) / sum(one.file_size for one in live)


def ask(session: Session, table: str, condition: str) -> tuple[float, int, int]:
    """Return the least processor time of a count, its answer, and how many files it read."""
    best = float("inf")
    for turn in range(TRIES):
        text = f"select count(*) as n from {table} where {condition} and {turn} = {turn}"
        begun = time.process_time()
        rows, report = session.read(text)
        found = rows.read_all().to_pylist()[0]["n"]
        best = min(best, time.process_time() - begun)
    return best, found, report.tables[table].files


def main() -> None:
    """Build, ask and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100,000 lines in 10 segments")
    parser.add_argument("--lines", type=int, default=LINES)
    parser.add_argument("--segments", type=int, default=SEGMENTS)
    asked = parser.parse_args()
    lines, segments = (100_000, 10) if asked.quick else (asked.lines, asked.segments)
    with tempfile.TemporaryDirectory(prefix="thermocline-bench-") as folder:
        tables = build(Path(folder), lines, segments)
        print(f"index: {share_of(tables['indexed']):.1%} of the Parquet")
        with Session(threads=2) as session:
            for name, table in tables.items():
                session.register_tstable(name, table)
            for condition in (
                f"has_token(body, '{RARE}')",
                f"body like '% {RARE}%'",
                f"body like '% trace {RARE}'",
                "has_phrase(body, 'trace id missing')",
                "has_token(body, 'checkout')",
            ):
                fast, found, files = ask(session, "indexed", condition)
                slow, expected, every = ask(session, "plain", condition)
                assert found == expected, condition
                print(
                    f"{condition}: {found} found, {files} of {every} files, "
                    f"{fast * 1e3:.1f} ms against {slow * 1e3:.1f} ms, ratio {fast / slow:.3f}"
                )


if __name__ == "__main__":
    main()
