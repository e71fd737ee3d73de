# ruff: noqa: INP001, T201  # a script for people, run by its path
"""A first look at Thermocline: create a week of prices, append, query, correct and check them.

Then a lake: a process writes single rows and is killed with -9; no acknowledged row is lost.

Give it a folder to keep its files:

    .venv/bin/python examples/tour.py ./tour

Every line that begins with `$` is a command you could type yourself.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import thermocline as tc
from thermocline.cli.main import run

SYMBOLS = ("AMD", "INTC", "NVDA")
FIRST_DAY = datetime(2024, 6, 1, tzinfo=UTC)
DAYS = 7
LOST_DAY = 6
STEPS = 13
WRITER = Path(__file__).parent / "writer.py"
ROWS_BEFORE_THE_KILL = 500

_step = 0


def say(title: str, *words: str) -> None:
    """Begin the next step and explain it."""
    global _step  # noqa: PLW0603
    _step += 1
    print(f"\n[{_step}/{STEPS}] {title}")
    for word in words:
        print(f"      {word}")
    print(flush=True)


def command(line: str, expected: int = 0) -> None:
    """Show a command, run it, and stop the tour if its exit code is not the expected one."""
    print(f"$ thermocline {line}", flush=True)
    code = run(shlex.split(line.replace("\\\n", " ")))
    sys.stdout.flush()
    if code != expected:
        print(f"expected exit code {expected}, got {code}", file=sys.stderr)
        sys.exit(1)
    if code:
        print(f"(exit code {code})")


def day_of_prices(day: int, *, seed: int, hours: tuple[int, ...] = tuple(range(24))) -> pa.Table:
    """Return one row a minute for each symbol: a random walk, the same for the same seed."""
    generator = np.random.default_rng(seed)
    morning = FIRST_DAY + timedelta(days=day - 1)
    parts = []
    for place, symbol in enumerate(SYMBOLS):
        mine = hours if symbol == "AMD" else tuple(range(24))
        minutes = [hour * 60 + minute for hour in mine for minute in range(60)]
        walk = generator.normal(0, 0.05, len(minutes)).cumsum()
        parts.append(
            pa.table(
                {
                    "ts": pa.array(
                        [morning + timedelta(minutes=minute) for minute in minutes],
                        pa.timestamp("us", tz="UTC"),
                    ),
                    "symbol": [symbol] * len(minutes),
                    "close": np.round(100 + 40 * place + walk, 2),
                    "volume": generator.integers(1, 5_000, len(minutes)),
                }
            )
        )
    return pa.concat_tables(parts)


def make_files() -> None:
    """Write a file for each day: AMD has no rows for some hours of day 4."""
    for day in range(1, DAYS + 1):
        hours = (*range(9), *range(16, 24)) if day == 4 else tuple(range(24))
        rows = day_of_prices(day, seed=day, hours=hours)
        pq.write_table(rows, f"june-{day:02d}.parquet")
        print(f"      june-{day:02d}.parquet  {rows.num_rows:,} rows")
    names = ["Advanced Micro Devices", "Intel", "Nvidia"]
    pq.write_table(pa.table({"symbol": SYMBOLS, "name": names}), "companies.parquet")
    os.rename(f"june-{LOST_DAY:02d}.parquet", "lost.parquet")
    print(f"      june-{LOST_DAY:02d}.parquet is lost on the way")


def fill() -> None:
    """Make the table and append what has arrived."""
    say("Some files arrive: prices of three symbols, one row a minute.")
    make_files()
    say("A table is a folder with a time column and a width of its time buckets.")
    command("table create prices --time-column ts --bucket 1h \\\n    --entity-column symbol")
    say("One commit appends many files: all of them or none.")
    command("table append prices 'june-*.parquet'")
    command("table history prices --format box")


def ask() -> None:
    """Query, draw the gaps, and fill one of them."""
    say("SQL over the table, joined with a plain Parquet file.")
    command(
        'sql "select name, count(*) as prices, max(close) as highest\n'
        "    from prices join companies using (symbol)\n"
        '    group by all order by all" --table companies=companies.parquet --format box'
    )
    say(
        "What is missing? The table knows, from its metadata alone.",
        "One day is missing for all symbols, and some hours for AMD.",
    )
    command("gaps prices --format box")
    say("The lost day turns up. Only AMD's hours are missing now.")
    command("table append prices lost.parquet")
    command("gaps prices --format csv")


def correct() -> None:
    """Refuse an overlap, replace it, read the past, delete, and check the table."""
    say(
        "The same file again is refused, because the table holds these hours already.",
        "An error says what happened, why, and what to do. The exit code says its kind.",
    )
    command("table append prices lost.parquet", expected=4)
    say("A corrected file replaces its hours; the old rows can still be read.")
    pq.write_table(day_of_prices(LOST_DAY, seed=99), "corrected.parquet")
    command("table append prices corrected.parquet --overlap replace")
    command(
        'sql "select symbol, round(avg(past.close), 2) as before,\n'
        "        round(avg(prices.close), 2) as after\n"
        "    from prices join prices as of version 3 past using (symbol, ts)\n"
        "    where ts >= '2024-06-06' and ts < '2024-06-07'\n"
        '    group by all order by all" --format box'
    )
    say("Rows are deleted by a condition. No file is rewritten.")
    command('table delete prices --where "volume < 100" --yes')
    say("At last, a check of every commit, checksum, file and bitmap.")
    command("table fsck prices")


def survive() -> None:
    """Let a process write, read beside it, kill it, and count the rows."""
    say(
        "A lake takes single rows: durable when the write returns, visible to the next query.",
        "A second process now writes one row at a time; this process reads beside it.",
    )
    writer = subprocess.Popen(  # noqa: S603  # our own script
        [sys.executable, str(WRITER), "lake"], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    answered = [writer.stdout.readline() for _ in range(ROWS_BEFORE_THE_KILL)]
    command(
        'sql "select count(*) as rows, count(distinct sensor) as sensors\n'
        '    from readings" --tables lake --format box'
    )
    say(f"It is killed with -9, after {len(answered)} acknowledged rows or more.")
    writer.kill()
    answered += writer.stdout.readlines()
    writer.wait()
    last = int(answered[-1])
    print(f"      the last acknowledged number: {last}")
    say("No acknowledged row is missing, and no row is there twice.")
    command("journal inspect lake")
    command(
        'sql "select count(*) as rows, count(distinct number) as numbers,\n'
        '        max(number) as last from readings" --tables lake --format box'
    )
    with tc.connect("lake", read_only=True) as lake:
        found = lake.sql("select number from readings").column("number").to_pylist()
    if sorted(found)[: last + 1] != list(range(last + 1)) or len(found) > last + 2:
        print("rows are missing or doubled", file=sys.stderr)
        sys.exit(1)
    print(f"      all of 0 to {last}, each once")


def main() -> None:
    """Run the tour in a folder that is given, or in one that is removed afterwards."""
    if len(sys.argv) > 1:
        os.makedirs(sys.argv[1], exist_ok=True)
        os.chdir(sys.argv[1])
        walk_through()
        return
    home = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="thermocline-tour-") as folder:
        os.chdir(folder)
        try:
            walk_through()
        finally:
            os.chdir(home)


def walk_through() -> None:
    """Do all the steps, and say what to read next."""
    fill()
    ask()
    correct()
    survive()
    print("\nThat was it. What to read next:")
    print("      README.md        what Thermocline is, and the same in Python")
    print("      docs/cli.md      every command with its options")
    print("      thermocline -h   the same, shorter")
    print("To keep the table and play with it: .venv/bin/python examples/tour.py ./tour")


if __name__ == "__main__":
    main()
