"""The engine can do nothing but read its folders, and its clock is in UTC."""

import os
import subprocess
import sys
from contextlib import ExitStack

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thermocline.errors import Corruption, Invalid, Overloaded, Unavailable
from thermocline.query.engine import PARSERS, Engine, EngineLimits, convert_error


@pytest.fixture
def locked(tmp_path):
    """A cursor of an engine that may read one folder, and the folder beside it."""
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"a": [1]}), tmp_path / name / "x.parquet")
    os.symlink(tmp_path / "other" / "x.parquet", tmp_path / "mine" / "link.parquet")
    engine = Engine([str(tmp_path / "mine")], [], EngineLimits(threads=1))
    cursor = engine.cursor()
    yield cursor, tmp_path
    cursor.close()
    engine.close()


def test_the_folder_it_was_given_can_be_read(locked):
    cursor, folder = locked
    assert cursor.execute(f"from '{folder}/mine/x.parquet'").fetchall() == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_parquet('{0}/other/x.parquet')",
        "select * from read_parquet('{0}/mine/../other/x.parquet')",
        "select * from read_parquet('{0}/*/x.parquet')",
        "select * from read_text('/etc/passwd')",
        "select * from read_csv('/etc/passwd')",
        "select * from glob('/etc/*')",
        "from '/etc/passwd'",
        "copy (select 1) to '/etc/thermocline'",
        "copy (select 1) to '{0}/other/new.parquet'",
        "attach '{0}/other/new.db'",
        "install httpfs",
        "load httpfs",
        "set threads = 4",
        "set enable_external_access = true",
        "set allowed_directories = ['/']",
        "reset allowed_directories",
        "set lock_configuration = false",
        "set TimeZone = 'Europe/Berlin'",
        "create persistent secret s (type s3)",
        "select * from read_parquet('https://example.org/x.parquet')",
    ],
)
def test_nothing_else_can_be_done_even_past_the_gate(locked, sql):
    cursor, folder = locked
    with pytest.raises(duckdb.Error):
        cursor.execute(sql.format(folder)).fetchall()


def test_every_setting_holds_on_every_cursor(locked):
    cursor, _ = locked
    found = dict(cursor.execute("select name, value from duckdb_settings()").fetchall())
    expected = {
        "TimeZone": "UTC",
        "threads": "1",
        "memory_limit": "2.0 GiB",
        "max_temp_directory_size": "16.0 GiB",
        "preserve_insertion_order": "false",
        "python_enable_replacements": "false",
        "autoload_known_extensions": "false",
        "autoinstall_known_extensions": "false",
        "allow_community_extensions": "false",
        "allow_persistent_secrets": "false",
        "enable_external_access": "false",
        "lock_configuration": "true",
    }
    assert {name: found[name] for name in expected} == expected
    assert os.path.basename(found["temp_directory"]).startswith("thermocline-spill-")


def test_an_engine_that_may_not_spill_has_no_folder():
    engine = Engine((), (), EngineLimits(threads=1, spill_bytes=0))
    sql = "select value from duckdb_settings() where name = 'temp_directory'"
    assert engine.cursor().execute(sql).fetchall() == [("",)]
    engine.close()


def test_threads_are_as_many_as_cores_unless_told():
    engine = Engine((), (), EngineLimits())
    sql = "select value from duckdb_settings() where name = 'threads'"
    assert engine.cursor().execute(sql).fetchall() == [(str(os.cpu_count()),)]
    engine.close()


def test_a_variable_of_the_program_is_no_table(cursor):
    frame = pa.table({"a": [1]})
    assert frame.num_rows == 1
    with pytest.raises(duckdb.Error):
        cursor.execute("select * from frame")


def test_limits_that_make_no_sense_are_refused():
    with pytest.raises(Unavailable):
        Engine((), (), EngineLimits(threads=-3))


PROGRAM = """
import sys
from thermocline.query.session import Session
with Session(threads=1) as session:
    session.register_tstable("t", sys.argv[1])
    answer = session.sql(
        "select cast(ts as varchar) as a, cast(date_trunc('day', zoned) as varchar) as b,"
        " cast(cast(zoned as date) as varchar) as c, hour(zoned) as d,"
        " cast(cast(now() as timestamp) as date) = cast(current_date as date) as e"
        " from t where ts >= '2024-03-31 02:30:00' and zoned < '2024-03-31 02:31:00' and"
        " zoned = timestamp '2024-03-31 02:30:00'"
    )
    sys.stdout.write(repr((answer.to_pylist(), str(answer.schema))))
    gaps = session.sql("select cast(start as varchar) from gaps('t', '2024-03-31 01:00:00', null)")
    sys.stdout.write(repr(gaps.to_pylist()))
"""


def test_the_zone_of_the_machine_changes_no_answer(make_table):
    moment = 1_711_852_200_000_000  # 2024-03-31T02:30:00Z: in Europe this clock time is skipped
    table = make_table(
        pa.table(
            {
                "ts": pa.array([moment], pa.timestamp("us")),
                "zoned": pa.array([moment], pa.timestamp("us", tz="UTC")),
            }
        )
    )
    answers = set()
    for zone in ("UTC", "America/New_York", "Asia/Kathmandu", "Europe/Berlin"):
        environment = {**os.environ, "TZ": zone}
        command = [sys.executable, "-c", PROGRAM, table.root()]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        answers.add(done.stdout)
    assert len(answers) == 1
    assert "2024-03-31 02:30:00" in answers.pop()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (duckdb.OutOfMemoryException("Out of Memory"), Overloaded),
        (duckdb.InterruptException("Interrupted"), Unavailable),
        (duckdb.IOException("IO Error: x"), Unavailable),
        (duckdb.InternalException("Internal"), Unavailable),
        (duckdb.BinderException("Binder"), Invalid),
        (duckdb.ConversionException("Conversion"), Invalid),
        (duckdb.IOException('IO Error: Cannot open "/t/a": No such file'), Corruption),
        (duckdb.IOException('IO Error: Could not read "/t/a"'), Unavailable),
        (duckdb.InvalidInputException("No magic bytes in file '/t/a'"), Corruption),
        (OSError("cannot read /t/a"), Unavailable),
    ],
)
def test_an_error_of_the_engine_is_told_by_what_can_be_done(error, kind):
    found = convert_error(error, {"/t/a": "data/a"})
    assert type(found) is kind
    assert ("path" in found.facts) == ("/t/a" in str(error))


def test_a_parser_is_lent_to_one_at_a_time_and_does_without_an_optimizer():
    engine = Engine([], [], EngineLimits(threads=1))
    cursor = engine.cursor()

    def optimizes(connection):
        return connection.execute("select current_setting('enable_optimizer')").fetchall()[0][0]

    with ExitStack() as stack:
        lent = [stack.enter_context(engine.lend_parser(cursor)) for _ in range(PARSERS)]
        assert len({id(parser) for parser in lent}) == PARSERS
        assert not any(optimizes(parser) for parser in lent)
        assert stack.enter_context(engine.lend_parser(cursor)) is cursor
        assert optimizes(cursor)
    with pytest.raises(duckdb.ParserException), engine.lend_parser(cursor) as parser:
        parser.execute("no sql")
    with ExitStack() as stack:
        again = [stack.enter_context(engine.lend_parser(cursor)) for _ in range(PARSERS)]
        assert {id(parser) for parser in again} == {id(parser) for parser in lent}
    cursor.close()
    engine.close()


def test_nothing_can_be_done_with_a_parser_either():
    engine = Engine([], [], EngineLimits(threads=1))
    cursor = engine.cursor()
    with engine.lend_parser(cursor) as parser:
        for sql in ("set enable_optimizer = true", "from '/etc/passwd'", "set threads = 4"):
            with pytest.raises(duckdb.Error):
                parser.execute(sql).fetchall()
    cursor.close()
    engine.close()
